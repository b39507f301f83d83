"""Estimators of scikit-learn over recurrent models, which it is needed for.

They are imported when their names are first used: ``linrnn.RecurrentClassifier``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linrnn.estimators._classifier import RecurrentClassifier as RecurrentClassifier
    from linrnn.estimators._regressor import RecurrentRegressor as RecurrentRegressor
    from linrnn.estimators.detector import RecurrentDetector as RecurrentDetector
    from linrnn.estimators.forecaster import RecurrentForecaster as RecurrentForecaster
    from linrnn.estimators.imputer import RecurrentImputer as RecurrentImputer
    from linrnn.estimators.panel import PanelForecaster as PanelForecaster

_MODULES = {
    "PanelForecaster": "panel",
    "RecurrentClassifier": "_classifier",
    "RecurrentDetector": "detector",
    "RecurrentForecaster": "forecaster",
    "RecurrentImputer": "imputer",
    "RecurrentRegressor": "_regressor",
}
__all__ = [
    "PanelForecaster",
    "RecurrentClassifier",
    "RecurrentDetector",
    "RecurrentForecaster",
    "RecurrentImputer",
    "RecurrentRegressor",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
