"""The catalogue of tasks: one file each, found by being in this folder.

The file's stem is the task's name everywhere: ``tasks/digits.py`` is ``load("digits")`` and
``linrnn train digits``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from linrnn._catalogue import load_class, stems

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
    """Every task, sorted; finding them imports none.

    Example:
        >>> "digits" in names()
        True
    """
    return stems(__name__)


def load(name: str) -> "type[Task]":
    """The `Task` class in ``linrnn/tasks/<name>.py``; only that file is imported.

    Raises:
        UnknownNameError: no such task.

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
