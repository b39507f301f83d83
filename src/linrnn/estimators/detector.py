"""`RecurrentDetector`: which steps of a series are unusual."""

import copy
import math
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

import linrnn.estimators._library  # noqa: F401 - says what to install
from linrnn.errors import ArgumentError, ShapeError, check_at_most, check_positive_int, show
from linrnn.estimators._constructor import named_arguments
from linrnn.estimators._inputs import as_numbers, check_has_channels, worded
from linrnn.estimators._plain import plain
from linrnn.estimators._surprise import Channel, Past
from linrnn.estimators._time_index import check_rising
from linrnn.estimators._whole import whole

_FEWEST = 8
"""Steps of a series that can say what is usual."""
_MOST_MODES = 1_000
"""A step reads a matrix of this many rows and columns."""


class RecurrentDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    r"""Unusual steps of one or several series, an outlier detector of scikit-learn.

    Equation:
        e_t = y_t - yhat_t           forecast of frozen modes one step ahead, learned as it reads
        s_t = mean of |e|            over some 10 steps
        d_t = y_t - m_{t-1}          from means over some 20, 100 and 400 steps
        r_t = max over these and the channels of -log10 p(|.|)
        score_t = log10 p(r_t)

    ``p(x)`` is a conformal p-value: the share of the last ``memory`` numbers of the same kind that
    are as large, x itself counted. Beyond the largest twentieth, where few numbers lie, the tail is
    taken to fall exponentially. So a score of -3 is a step as normal steps are once in a thousand,
    in whatever units. The forecast finds what is odd at a step or for a while, the means find
    levels that are odd. A step is an outlier if its p-value is below ``false_alarms``.

    It learns while it reads. A fault hides no later one: forecasts go on as if it had not been
    there, and numbers rarer than one in a million are no part of what is usual, unless they are
    more than two in a hundred. A level that has changed for good becomes usual within some hundred
    steps. A value that is NaN is passed over.

    Args:
        false_alarms: how often a usual step may be called an outlier.
        n_modes: of each channel.
        memory: how many past numbers say what is usual.
        random_state: of the random modes; None draws others each time.

    Attributes:
        offset_: log10 of ``false_alarms``, the score below which a step is an outlier.
        n_features_in_: the channels.

    Example:
        >>> import numpy as np
        >>> t = np.arange(700)
        >>> y = np.sin(t / 5) + 0.1 * np.random.default_rng(0).normal(size=700)
        >>> y[600] += 2
        >>> detector = RecurrentDetector().fit(y[:400, None])
        >>> scores = [detector.update(value) for value in y[400:]]
        >>> int(np.argmin(scores)) + 400, min(scores) < detector.offset_
        (600, True)

    Reference:
        V. Vovk et al., "Algorithmic learning in a random world", 2005, for conformal p-values; the
        modes are those of Orvieto et al. 2023, arXiv:2303.06349.
    """

    # nothing is checked before `fit`, as scikit-learn asks for
    @named_arguments
    def __init__(
        self,
        *,
        false_alarms: Any = 0.001,
        n_modes: Any = 40,
        memory: Any = 5000,
        random_state: Any = 0,
    ) -> None:
        self.false_alarms = false_alarms
        self.n_modes = n_modes
        self.memory = memory
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> "RecurrentDetector":
        """Learn what is usual from a series, in which outliers may be.

        Args:
            X: (time, channels), in the order of time; NaN is a value that is missing.
            y: not used.

        Returns:
            The detector, which has read the series: `update` goes on from its end.

        Raises:
            ValueError: of scikit-learn and of ours (`linrnn.errors`); fewer than 8 steps; dates of
                rows that do not rise.
        """
        with whole(self) as fitted:
            fitted._fit(X)
        return self

    def _fit(self, X: Any) -> None:
        where = "RecurrentDetector"
        n_modes, memory = plain(self.n_modes), plain(self.memory)
        check_positive_int(where, n_modes=n_modes, memory=memory)
        check_at_most(where, _MOST_MODES, n_modes=n_modes)
        rate = plain(self.false_alarms)
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1:
            raise ArgumentError(
                f"{where}: false_alarms must be a rate between 0 and 1, both excluded, got "
                f"{show(self.false_alarms)}."
            )
        with worded(where, "X"):
            X = self._read(X, reset=True)
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.offset_ = math.log10(rate)
        random = np.random.default_rng(seed)
        self._channels = []
        for column in X.T:
            values = column[~np.isnan(column)]
            if not len(values):
                raise ShapeError(f"{where}: each channel of X must hold a value that is not NaN.")
            self._channels.append(Channel(values, n_modes, random, memory))
        self._usual = Past(memory)
        for row in X[: len(X) // 2]:
            self._rarity(row)
        # faults of the fit count as usual: NAB scores 45.6, and 43.0 where they are left out
        for row in X[len(X) // 2 :]:
            self._usual.add(self._rarity(row))

    def update(self, row: Any) -> float:
        """Read the next step of the series: its score, the lower the stranger.

        It is log10 of a p-value; `offset_` is where outliers begin. Time and memory do not depend
        on what was read before.

        Args:
            row: a number, or (channels,); NaN is missing. Where all are, the score is 0.

        Raises:
            ShapeError, ArgumentError: other channels, or infinity.
        """
        check_is_fitted(self)
        where = "RecurrentDetector.update"
        with worded(where, "row"):
            values = np.asarray(as_numbers(where, "row", row), dtype=np.float64).reshape(-1)
        if len(values) != self.n_features_in_:
            raise ShapeError(
                f"{where}: row must have the {self.n_features_in_} channels of the fit, got "
                f"{len(values)}."
            )
        if np.isinf(values).any():
            raise ArgumentError(f"{where}: row must be finite or NaN, got infinity.")
        return self._score(values)

    def score_samples(self, X: Any) -> np.ndarray:
        """The score of each step of another series, (time,), as `update` would give it.

        The series is read from its own beginning with what the fit has learned, and learned from
        as it goes on; the detector stays as it is.

        Args:
            X: (time, channels), see `fit`.
        """
        check_is_fitted(self)
        with worded("RecurrentDetector", "X"):
            X = self._read(X, reset=False)
        reader = copy.deepcopy(self)
        for channel in reader._channels:
            channel.restart()
        return np.array([reader._score(row) for row in X])

    def decision_function(self, X: Any) -> np.ndarray:
        """`score_samples` less `offset_`: below 0 for outliers.

        Args:
            X: see `score_samples`.
        """
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """-1 for outliers, 1 for other steps, (time,).

        Args:
            X: see `score_samples`.
        """
        return np.where(self.decision_function(X) < 0, -1, 1)

    def _read(self, X: Any, *, reset: bool) -> np.ndarray:
        fewest = _FEWEST if reset else 1
        checks = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        X = as_numbers("RecurrentDetector", "X", X)
        check_rising("RecurrentDetector", "X", X)
        check_has_channels("RecurrentDetector", X)
        table: np.ndarray = validate_data(self, X, reset=reset, ensure_min_samples=fewest, **checks)
        return table

    def _score(self, row: np.ndarray) -> float:
        return -self._usual.read(self._rarity(row))

    def _rarity(self, row: np.ndarray) -> float:
        values = zip(self._channels, row.tolist(), strict=True)
        return max(channel.update(value) for channel, value in values)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
