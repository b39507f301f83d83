"""Contract tests of mixers, cells and ops, which also run on your own.

A *law* is a property that every mixer or op must have, with the test of it. `check_mixer`,
`check_cell` and `check_op` run all of them, and raise `BrokenLawError` at the first that fails. So
the test of a mixer of yours is ``check_mixer(MyMixer)``.

`MIXER_LAWS` lists the properties of mixers. `OP_LAWS` lists those of `linear_scan`, beside the
properties of every op. Results are compared with one step of the op in a loop, which is written
once for each op (`linrnn.testing._examples`); a cell is such a step itself.
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
