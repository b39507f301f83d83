"""Training with PyTorch Lightning: models, datasets, loaders, callbacks and devices of your own.

`fit` is the short way, `RecurrentModule` a ``LightningModule`` for a trainer of your own, and
`TaskDataModule` a ``LightningDataModule`` of a task's data. Lightning itself is imported when one
of them is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linrnn.lightning._data import TaskDataModule as TaskDataModule
    from linrnn.lightning._fit import FitResult as FitResult
    from linrnn.lightning._fit import fit as fit
    from linrnn.lightning._module import RecurrentModule as RecurrentModule

_ELSEWHERE = {
    "FitResult": "_fit",
    "RecurrentModule": "_module",
    "TaskDataModule": "_data",
    "fit": "_fit",
}
__all__ = ["FitResult", "RecurrentModule", "TaskDataModule", "fit"]


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
