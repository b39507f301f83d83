"""Contract tests of mixers, cells and ops, which also run on your own.

A property is something that every mixer or op must have, such as that no output depends on later
inputs. `check_mixer`, `check_cell` and `check_op` test all of them, and raise `BrokenPropertyError`
at the first that fails. So the test of a mixer of yours is ``check_mixer(MyMixer)``.

`MIXER_PROPERTIES` lists the properties of mixers. `OP_PROPERTIES` lists those of `linear_scan`,
beside the properties of every op. Results are compared with one step of the op in a loop, which is
written once for each op (`linrnn.testing._examples`); a cell is such a step itself.
"""

import warnings
from typing import Any

from linrnn.testing._definition import loop_scan as loop_scan
from linrnn.testing._derivatives import check_derivatives as check_derivatives
from linrnn.testing._every_op import check_cell as check_cell
from linrnn.testing._every_op import check_op as check_op
from linrnn.testing._mixer_laws import MIXER_PROPERTIES as MIXER_PROPERTIES
from linrnn.testing._mixer_laws import check_mixer as check_mixer
from linrnn.testing._mixer_laws import check_property as check_property
from linrnn.testing._mixer_runs import MakeMixer as MakeMixer
from linrnn.testing._op_laws import OP_PROPERTIES as OP_PROPERTIES
from linrnn.testing._tolerance import BrokenPropertyError as BrokenPropertyError
from linrnn.testing._tolerance import check_close as check_close
from linrnn.testing._tolerance import recording as recording

__all__ = [
    "MIXER_PROPERTIES",
    "OP_PROPERTIES",
    "BrokenPropertyError",
    "MakeMixer",
    "check_cell",
    "check_close",
    "check_derivatives",
    "check_mixer",
    "check_op",
    "check_property",
    "loop_scan",
    "recording",
]


_FORMER = {
    "MIXER_LAWS": "MIXER_PROPERTIES",
    "OP_LAWS": "OP_PROPERTIES",
    "BrokenLawError": "BrokenPropertyError",
    "check_law": "check_property",
}


def __getattr__(name: str) -> Any:
    """A member by its former name, with a warning."""
    if name not in _FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    current = _FORMER[name]
    words = f"linrnn.testing.{name} is called {current}; the former name goes with linrnn 0.4."
    warnings.warn(words, FutureWarning, stacklevel=2)
    return globals()[current]


def __dir__() -> list[str]:
    return sorted(__all__)
