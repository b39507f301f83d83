"""The contracts as code: what every backend and every mixer must keep.

`check_op`, `check_cell` and `check_mixer` run all laws and raise `BrokenLawError` at the first that
fails. An op is defined once, as one step (`linrnn.testing._examples`), and a cell is
a step; `OP_LAWS` are those of `linear_scan` beside the laws of every op, `MIXER_LAWS` those of
mixers. Mixers, cells and backends outside this package may use them as they are: a test of your own
mixer is ``check_mixer(MyMixer)``.
"""

from linrnn.testing._definition import loop_scan as loop_scan
from linrnn.testing._derivatives import check_derivatives as check_derivatives
from linrnn.testing._every_op import check_cell as check_cell
from linrnn.testing._every_op import check_op as check_op
from linrnn.testing._mixer_laws import MIXER_LAWS as MIXER_LAWS
from linrnn.testing._mixer_laws import check_law as check_law
from linrnn.testing._mixer_laws import check_mixer as check_mixer
from linrnn.testing._mixer_runs import MakeMixer as MakeMixer
from linrnn.testing._op_laws import OP_LAWS as OP_LAWS
from linrnn.testing._tolerance import BrokenLawError as BrokenLawError
from linrnn.testing._tolerance import check_close as check_close
from linrnn.testing._tolerance import recording as recording

__all__ = [
    "MIXER_LAWS",
    "OP_LAWS",
    "BrokenLawError",
    "MakeMixer",
    "check_cell",
    "check_close",
    "check_derivatives",
    "check_law",
    "check_mixer",
    "check_op",
    "loop_scan",
    "recording",
]


def __dir__() -> list[str]:
    return sorted(__all__)
