"""The estimators as those of aeon, whose series are (series, channels, time).

``AeonClassifier`` and ``AeonRegressor`` take what `linrnn.RecurrentClassifier` takes, but
``layout``, and keep the conventions of aeon's ``BaseClassifier`` and ``BaseRegressor``: several
channels, series of different lengths, missing values. They are made when they are first used, for
aeon is needed then.
"""

import functools
import importlib
from typing import Any

from linrnn.estimators._classifier import RecurrentClassifier
from linrnn.estimators._constructor import named_arguments
from linrnn.estimators._regressor import RecurrentRegressor

_TAGS = {
    "X_inner_type": ["np-list", "numpy3D"],
    "capability:multivariate": True,
    "capability:unequal_length": True,
    "capability:missing_values": True,
    "capability:multithreading": True,
    "algorithm_type": "convolution",
}


def __getattr__(name: str) -> Any:
    if name == "AeonClassifier":
        return _classifier()
    if name == "AeonRegressor":
        return _regressor()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Adapter:
    """Base of both: the settings, passed on to an estimator of scikit-learn."""

    _of: type

    @named_arguments
    def __init__(
        self,
        mixer: Any = "bank",
        n_modes: Any = 3000,
        mixer_options: Any = None,
        d_model: Any = 64,
        n_layers: Any = 2,
        max_steps: Any = 1000,
        batch_size: Any = 32,
        learning_rate: Any = 3e-3,
        early_stopping: Any = True,
        validation_fraction: Any = 0.2,
        patience: Any = 10,
        n_jobs: Any = 1,
        random_state: Any = None,
        verbose: Any = False,
    ) -> None:
        settings = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        for name, value in settings.items():
            setattr(self, name, value)
        self._settings = tuple(settings)
        super().__init__()

    def _fit(self, X: Any, y: Any) -> Any:
        settings = {name: getattr(self, name) for name in self._settings}
        self.estimator_ = self._of(**settings, layout="channels_time").fit(X, y)
        return self

    def _predict(self, X: Any) -> Any:
        return self.estimator_.predict(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        """Small settings, for aeon's checks."""
        return {"n_modes": 50}


def _library(kind: str) -> Any:
    try:
        return importlib.import_module(f"aeon.{kind}")
    except ImportError as error:
        raise ImportError(
            "an estimator of aeon needs the package 'aeon', which is not installed. "
            "Install it with: pip install aeon"
        ) from error


@functools.cache
def _classifier() -> type:
    class AeonClassifier(_Adapter, _library("classification").BaseClassifier):  # type: ignore[misc]
        """`linrnn.RecurrentClassifier` for aeon."""

        _of, _tags = RecurrentClassifier, _TAGS

        def _predict_proba(self, X: Any) -> Any:
            return self.estimator_.predict_proba(X)

    return _named(AeonClassifier)


@functools.cache
def _regressor() -> type:
    class AeonRegressor(_Adapter, _library("regression").BaseRegressor):  # type: ignore[misc]
        """`linrnn.RecurrentRegressor` for aeon."""

        _of, _tags = RecurrentRegressor, _TAGS

    return _named(AeonRegressor)


def _named(adapter: type) -> type:
    """As if it stood in the module, where pickles look for it."""
    adapter.__qualname__ = adapter.__name__
    return adapter
