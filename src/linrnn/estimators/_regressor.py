"""`RecurrentRegressor`: a number of each series, or several."""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from linrnn.estimators._base import RecurrentEstimator
from linrnn.estimators._inputs import worded
from linrnn.estimators._series import Series


class RecurrentRegressor(RegressorMixin, RecurrentEstimator):  # type: ignore[misc]
    """A number of each series, or several, an estimator of scikit-learn.

    The features are those of `RecurrentClassifier`, and the ridge regression is of the numbers.

    Args:
        mixer, n_modes, mixer_options, d_model, n_layers, max_steps: see `RecurrentClassifier`.
        batch_size, learning_rate, early_stopping, validation_fraction, patience: see there.
        layout, n_jobs, random_state, verbose: see there.

    Attributes:
        n_features_in_: of a table its steps, else the channels.
        n_channels_in_: the channels.
        mixer_, scores_: what "auto" chose, and the negative mean squared errors by which.

    Example:
        >>> import numpy as np
        >>> period = np.random.default_rng(0).uniform(5, 20, 60)
        >>> X = np.sin(2 * np.pi * np.arange(80) / period[:, None])
        >>> model = RecurrentRegressor(n_modes=200, random_state=0).fit(X[:40], period[:40])
        >>> model.score(X[40:], period[40:]) > 0.9
        True

    Reference:
        See `RecurrentClassifier`.
    """

    _numeric_target = True

    def _fit_readout(
        self, one: Any, series: Series, y: np.ndarray, importance: np.ndarray | None
    ) -> Any:
        return one.regress(series, y, importance)

    def _score_readout(
        self, one: Any, series: Series, y: np.ndarray, importance: np.ndarray | None
    ) -> float:
        return -float(np.average(np.square(one.predict(series) - y), 0, importance).mean())

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The coefficient of determination of the answers, at most 1.

        Args:
            X: see `fit`.
            y: (series,), the true numbers, or (series, targets).
            sample_weight: (series,), how much each counts; None is the same for all.
        """
        with worded(f"{type(self).__name__}.score", "X", "y", "sample_weight"):
            return float(super().score(X, y, sample_weight))

    def predict(self, X: Any, dt: Any = None) -> np.ndarray:
        """The number of each series, (series,), or the numbers as `fit` had them.

        Args:
            X, dt: see `fit`. If that had a table, a table must have as many steps.
        """
        series = self._read_new(X, dt)
        with self._threads():
            numbers: np.ndarray = self.readout_.predict(series)
        return numbers

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
