"""The catalogue of reproductions: published results and ours side by side, one file each.

``reproductions/lru_proposition_3.py`` is ``load("lru_proposition_3")`` and ``linrnn reproduce
lru-proposition-3``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from linrnn._options.catalogue import load_class, stems

if TYPE_CHECKING:
    from linrnn.reproductions._page.base import Findings as Findings
    from linrnn.reproductions._page.base import Reproduction as Reproduction
    from linrnn.reproductions._page.base import Setting as Setting
    from linrnn.reproductions._page.base import Table as Table
    from linrnn.reproductions._page.report import publish as publish
    from linrnn.reproductions._page.report import verdict_table as verdict_table
    from linrnn.reproductions._page.report import write_report as write_report
    from linrnn.reproductions._page.runs import RUNS as RUNS

__all__ = [
    "Findings",
    "Reproduction",
    "Setting",
    "Table",
    "load",
    "names",
]

_PUBLIC = {
    "Findings": "_page.base",
    "Reproduction": "_page.base",
    "Setting": "_page.base",
    "Table": "_page.base",
}
_SHARED = {
    "RUNS": "_page.runs",
    "publish": "_page.report",
    "verdict_table": "_page.report",
    "write_report": "_page.report",
}
"""Names that other parts of the package use; not in the reference."""
_WHERE = _PUBLIC | _SHARED


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
    from linrnn.reproductions._page.base import Reproduction

    reproduction = load_class(__name__, "reproduction", name, Reproduction)  # type: ignore[type-abstract]
    return reproduction


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
