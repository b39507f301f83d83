"""The catalogue of reproductions: published results and ours side by side, one file each.

``reproductions/lru_proposition_3.py`` is ``load("lru_proposition_3")`` and ``linrnn reproduce
lru-proposition-3``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from linrnn._catalogue import load_class, stems

if TYPE_CHECKING:
    from linrnn.reproductions._base import Findings as Findings
    from linrnn.reproductions._base import Reproduction as Reproduction
    from linrnn.reproductions._base import Setting as Setting
    from linrnn.reproductions._base import Table as Table

_BASE = ("Findings", "Reproduction", "Setting", "Table")


def names() -> list[str]:
    """Every reproduction, sorted; finding them imports none.

    Example:
        >>> "lru_proposition_3" in names()
        True
    """
    return stems(__name__)


def load(name: str) -> "type[Reproduction]":
    """The `Reproduction` class in ``linrnn/reproductions/<name>.py``.

    Raises:
        UnknownNameError: no such reproduction.

    Example:
        >>> load("lru_proposition_3").scales["cpu"] != ""
        True
    """
    from linrnn.reproductions._base import Reproduction

    found = load_class(__name__, "reproduction", name, Reproduction)  # type: ignore[type-abstract]
    return found


def __getattr__(name: str) -> Any:
    if name in _BASE:
        return getattr(importlib.import_module(f"{__name__}._base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
