"""The catalogue of tasks: one file each, found by being in this folder.

The file's stem is the task's name everywhere: ``tasks/digits.py`` is ``load("digits")`` and
``linrnn train digits``. A package of your own adds tasks by entry points of the group
``linrnn.tasks``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from linrnn._catalogue import entries, load_class

if TYPE_CHECKING:
    from linrnn.tasks._base import Published as Published
    from linrnn.tasks._base import Splits as Splits
    from linrnn.tasks._base import Task as Task
    from linrnn.tasks._generated import BatchDataset as BatchDataset

_ELSEWHERE = {
    "Published": "_base",
    "Splits": "_base",
    "Task": "_base",
    "BatchDataset": "_generated",
}


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
    from linrnn.tasks._base import Task

    return load_class(__name__, "task", name, Task)  # type: ignore[type-abstract]


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
