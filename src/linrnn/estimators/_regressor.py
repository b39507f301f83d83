"""`RecurrentRegressor`: a number of each series."""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from linrnn.estimators._bank import BankReadout
from linrnn.estimators._base import RecurrentEstimator
from linrnn.estimators._series import Series


class RecurrentRegressor(RegressorMixin, RecurrentEstimator):  # type: ignore[misc]
    """A number of each series, an estimator of scikit-learn.

    The features are those of `RecurrentClassifier`, and the ridge regression is of the numbers.

    Args:
        n_modes, layout, n_jobs, random_state: see `RecurrentClassifier`.

    Attributes:
        n_features_in_: of a table its steps, else the channels.
        n_channels_in_: the channels.

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

    def __init__(
        self,
        *,
        n_modes: Any = 3000,
        layout: Any = "time_channels",
        n_jobs: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_modes = n_modes
        self.layout = layout
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _fit(self, series: Series, y: np.ndarray, seed: int) -> None:
        self.readout_ = BankReadout(self.n_modes, seed).regress(series, y)

    def predict(self, X: Any, dt: Any = None) -> np.ndarray:
        """The number of each series, (series,).

        Args:
            X, dt: see `fit`. If that had a table, a table must have as many steps.
        """
        series = self._read_new(X, dt)
        with self._threads():
            return self.readout_.predict(series)
