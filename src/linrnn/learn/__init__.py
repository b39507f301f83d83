"""The catalogue of learners: ways to find the gradients of a recurrent model, one file each.

The file's stem is the learner's name everywhere: ``learn/tbptt.py`` is ``load("tbptt")`` and
``linrnn train TASK --learner tbptt``.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from linrnn._catalogue import load_class, stems
from linrnn._schema import check_options

if TYPE_CHECKING:
    from linrnn.learn._alignment import Alignment as Alignment
    from linrnn.learn._alignment import alignment as alignment
    from linrnn.learn._base import Learner as Learner
    from linrnn.learn._base import Loop as Loop
    from linrnn.learn._base import Step as Step
    from linrnn.learn._batch import Batch as Batch
    from linrnn.learn._batch import read as read
    from linrnn.learn._session import LearningSession as LearningSession
    from linrnn.learn._text import LearningText as LearningText

_PUBLIC = {
    "Alignment": "_alignment",
    "alignment": "_alignment",
    "Batch": "_batch",
    "Learner": "_base",
    "LearningSession": "_session",
    "LearningText": "_text",
    "Loop": "_base",
    "Step": "_base",
    "read": "_batch",
}


def names() -> list[str]:
    """Every learner, sorted; finding them imports none.

    Example:
        >>> "bptt" in names()
        True
    """
    return stems(__name__)


def load(name: str) -> "type[Learner]":
    """The `Learner` class in ``linrnn/learn/<name>.py``; only that file is imported.

    Raises:
        UnknownNameError: no such learner.

    Example:
        >>> load("bptt").__name__
        'BPTT'
    """
    from linrnn.learn._base import Learner

    return load_class(__name__, "learner", name, Learner)  # type: ignore[type-abstract]


def build(name: str, options: Mapping[str, Any] | None = None) -> "Learner":
    """Construct a learner by name.

    Args:
        name: one of `names`.
        options: keyword arguments of its constructor.

    Raises:
        UnknownNameError: no such learner, or it has no such option.
        ArgumentError: an option of another type than annotated, or out of its range.

    Example:
        >>> build("tbptt", {"window": 16}).window
        16
    """
    cls, options = load(name), dict(options or {})
    check_options(f"learner {name!r}", cls, options)
    return cls(**options)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
