"""The catalogue of learners: ways to find the gradients of a recurrent model, one file each.

The file's stem is the learner's name everywhere: ``learn/tbptt.py`` is ``load("tbptt")`` and
``linrnn train TASK --learner tbptt``.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from linrnn._options.catalogue import load_class, stems
from linrnn._options.schema import check_options

if TYPE_CHECKING:
    from linrnn.learn._exact.traced import layers as layers
    from linrnn.learn._parts.alignment import Alignment as Alignment
    from linrnn.learn._parts.alignment import alignment as alignment
    from linrnn.learn._parts.base import Learner as Learner
    from linrnn.learn._parts.base import Loop as Loop
    from linrnn.learn._parts.base import Step as Step
    from linrnn.learn._parts.batch import Batch as Batch
    from linrnn.learn._parts.batch import read as read
    from linrnn.learn._parts.batch import unpack as unpack
    from linrnn.learn._parts.session import LearningSession as LearningSession
    from linrnn.learn._parts.text import LearningText as LearningText

__all__ = [
    "Alignment",
    "Batch",
    "Learner",
    "LearningSession",
    "LearningText",
    "Loop",
    "Step",
    "alignment",
    "build",
    "load",
    "names",
    "read",
]

_PUBLIC = {
    "Alignment": "_parts.alignment",
    "alignment": "_parts.alignment",
    "Batch": "_parts.batch",
    "Learner": "_parts.base",
    "LearningSession": "_parts.session",
    "LearningText": "_parts.text",
    "Loop": "_parts.base",
    "Step": "_parts.base",
    "read": "_parts.batch",
}
_SHARED = {
    "layers": "_exact.traced",
    "unpack": "_parts.batch",
}
"""Names that other rooms of the package import from this one; not in the reference."""
_WHERE = _PUBLIC | _SHARED


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
    from linrnn.learn._parts.base import Learner

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
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
