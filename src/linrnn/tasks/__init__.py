"""The catalogue of tasks: one file each, found by being in this folder.

The file's stem is the task's name everywhere: ``tasks/digits.py`` is ``load("digits")`` and
``linrnn train digits``. A package of your own adds tasks by entry points of the group
``linrnn.tasks``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from linrnn._options.catalogue import entries, load_class

if TYPE_CHECKING:
    from linrnn.tasks._kinds.base import IGNORE as IGNORE
    from linrnn.tasks._kinds.base import Given as Given
    from linrnn.tasks._kinds.base import Published as Published
    from linrnn.tasks._kinds.base import Splits as Splits
    from linrnn.tasks._kinds.base import Task as Task
    from linrnn.tasks._kinds.generated import BatchDataset as BatchDataset
    from linrnn.tasks._kinds.generated import uniforms as uniforms
    from linrnn.tasks._kinds.text import TextTask as TextTask
    from linrnn.tasks._kinds.white_signal import white_signal as white_signal
    from linrnn.tasks._kinds.windows import ForecastTask as ForecastTask
    from linrnn.tasks._reading.frame import Frame as Frame
    from linrnn.tasks._reading.frame import column_names as column_names
    from linrnn.tasks._reading.frame import open_frame as open_frame
    from linrnn.tasks._reading.missing import forward_filled as forward_filled

__all__ = [
    "BatchDataset",
    "Published",
    "Splits",
    "Task",
    "load",
    "names",
]

_ELSEWHERE = {
    "Published": "_kinds.base",
    "Splits": "_kinds.base",
    "Task": "_kinds.base",
    "BatchDataset": "_kinds.generated",
}
_SHARED = {
    "ForecastTask": "_kinds.windows",
    "Given": "_kinds.base",
    "Frame": "_reading.frame",
    "IGNORE": "_kinds.base",
    "TextTask": "_kinds.text",
    "column_names": "_reading.frame",
    "forward_filled": "_reading.missing",
    "open_frame": "_reading.frame",
    "uniforms": "_kinds.generated",
    "white_signal": "_kinds.white_signal",
}
"""Names that other parts of the package use; not in the reference."""
_WHERE = _ELSEWHERE | _SHARED


def names() -> list[str]:
    """Every task, sorted: those of this folder and those that packages register.

    Finding them imports none.

    Example:
        >>> "digits" in names()
        True
    """
    return entries(__name__)


def load(name: str) -> "type[Task]":
    """The `Task` class in ``linrnn/tasks/<name>.py``, or the one registered by that name.

    Only that file, or that package, is imported.

    Raises:
        UnknownNameError: no such task.
        LinrnnError: a package that registers it cannot be imported, or another has the same name.

    Example:
        >>> load("digits")().sequence_length
        64
    """
    from linrnn.tasks._kinds.base import Task

    return load_class(__name__, "task", name, Task)  # type: ignore[type-abstract]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
