"""`RecurrentImputer`: values for the gaps of a series."""

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

import linrnn.estimators._library  # noqa: F401 - says what to install
from linrnn.errors import ShapeError, check_at_most, check_positive_int
from linrnn.estimators._constructor import named_arguments
from linrnn.estimators._gaps import Filling, Gap, Round, Rule, Sides, gaps_of, lines
from linrnn.estimators._inputs import as_numbers, check_has_channels, refuse_scalar, worded
from linrnn.estimators._plain import plain
from linrnn.estimators._surprise import random_modes_of
from linrnn.estimators._time_index import check_rising
from linrnn.estimators._unit import place_and_unit
from linrnn.estimators._whole import whole
from linrnn.estimators.seasons import candidates
from linrnn.nn.change_bank import ChangeBank

_MOST_MODES = 500
_MOST_SEASONS = 2
_ROUNDS = 2
"""Times that the gaps are filled: others are read as they were filled before, at first by lines."""
_HIDDEN = 0.5
"""Share of a gap that other channels lack too, from which those that lack it are not read."""
_LONG = 12
"""Steps of a gap from which other channels are read only if they are there all through. Each set of
channels needs a separate read-out, and short gaps have many sets."""


class RecurrentImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Values for the gaps of one or several series, a transformer of scikit-learn.

    Equation:
        line_k = y_l + k / (n + 1) (y_r - y_l)       k = 1 .. n, between the values l and r beside
        yhat_k = line_k + s_1 W_k (f_l, b_r, y_r - y_l, o_k - their lines)
                 + s_2 (mean - line_k) + s_3 (y_l - line_k) + s_4 (c o_k - line_k)

    ``f_l`` are the states of frozen modes that have read the series up to the gap, ``b_r`` those of
    modes that have read it backwards from its end; see `RecurrentForecaster`. ``o_k`` are the other
    channels, and the values a season before and behind. ``W`` is a ridge regression for each length
    of a gap and each place in it, fitted to stretches of the training series as long as the gap.
    ``c`` is a regression on the other channels at the same step, without time. The shares ``s``
    are not negative and add up to 1 at most; they and the penalty of ``W`` have the smallest
    squared error on the last quarter of these stretches. All gaps are filled twice. At first lines
    stand in the gaps of other channels, then the values of the first time. At the beginning and the
    end of a series there is a value on one side only; it takes the place of the line.

    Args:
        n_modes: of each direction.
        season: length in steps, or several; an empty sequence or 1 for none. None: found.
        random_state: of the random modes; None draws others each time.

    Attributes:
        n_features_in_: the channels.
        seasons_: those that are read.

    Example:
        >>> import numpy as np
        >>> t = np.arange(600)
        >>> y = np.sin(t / 5)[:, None]
        >>> gaps = y.copy()
        >>> gaps[100:110] = gaps[400:412] = np.nan
        >>> filled = RecurrentImputer().fit_transform(gaps)
        >>> bool(np.abs(filled - y).max() < 0.05)
        True

    Reference:
        The modes are those of Orvieto et al. 2023, arXiv:2303.06349; the shares are a regression
        of Breiman 1996, "Stacked regressions".
    """

    # nothing is checked before `fit`, as scikit-learn asks for
    @named_arguments
    def __init__(self, *, n_modes: Any = 30, season: Any = None, random_state: Any = 0) -> None:
        self.n_modes = n_modes
        self.season = season
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> "RecurrentImputer":
        """Learn from a series, in which values may be missing.

        Args:
            X: (time, channels), in the order of time; NaN is a value that is missing.
            y: not used.

        Returns:
            The imputer. It keeps the series: what a gap of another length takes is fitted when it
            comes.

        Raises:
            ValueError: of scikit-learn and of ours (`linrnn.errors`); a channel without a value;
                dates of rows that do not rise.
        """
        with whole(self) as fitted:
            fitted._fit(X)
        return self

    def _fit(self, X: Any) -> None:
        where = "RecurrentImputer"
        n_modes = plain(self.n_modes)
        check_positive_int(where, n_modes=n_modes)
        check_at_most(where, _MOST_MODES, n_modes=n_modes)
        with worded(where, "X"):
            X = self._read(X, reset=True)
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        missing = np.isnan(X)
        if missing.all(0).any():
            raise ShapeError(f"{where}: each channel of X must hold a value that is not NaN.")
        self._centre, self._unit = place_and_unit(X)
        filled = lines((X - self._centre) / self._unit)
        self.seasons_ = self._seasons(filled)
        random = np.random.default_rng(seed)
        modes = random_modes_of(self.seasons_, n_modes, random, len(X))
        self._bank = ChangeBank(torch.from_numpy(modes))
        self._rounds = [Round(Sides.of(filled, missing, self._bank), {})]
        while len(self._rounds) < _ROUNDS:
            filled = self._filled(filled, missing, self._rounds[-1])
            self._rounds.append(Round(Sides.of(filled, missing, self._bank), {}))

    def _seasons(self, filled: np.ndarray) -> tuple[int, ...]:
        if self.season is None:
            return tuple(list(candidates(filled, len(filled) // 3))[:_MOST_SEASONS])
        lengths = [plain(s) for s in np.atleast_1d(np.asarray(self.season, dtype=object))]
        for length in lengths:
            check_positive_int("RecurrentImputer", season=length)
        return tuple(length for length in lengths if length > 1)

    def transform(self, X: Any) -> Any:
        """The series with values in its gaps; what was observed stays as it is.

        Args:
            X: (time, channels), the series of the fit or another one.

        Returns:
            (time, channels). A channel without any value has the mean of the training series.
        """
        check_is_fitted(self)
        with worded("RecurrentImputer", "X"):
            X = self._read(X, reset=False)
        missing = np.isnan(X)
        if not missing.any():
            return X.copy()
        scaled = (X - self._centre) / self._unit
        none = missing.all(0)
        filled = lines(np.where(none, 0.0, scaled))
        for part in self._rounds:
            filled = self._filled(filled, missing, part)
        return np.where(missing, filled * self._unit + self._centre, X)

    def _filled(self, filled: np.ndarray, missing: np.ndarray, part: Round) -> np.ndarray:
        """Series (time, channels) with better values in the gaps than those that it has."""
        sides = Sides.of(filled, missing, self._bank)
        result = filled.copy()
        for c in np.flatnonzero(~missing.all(0)):
            for gap in gaps_of(missing[:, c]):
                rule = self._rule(missing, int(c), gap)
                if rule not in part.fillings:
                    part.fillings[rule] = Filling.fit(rule, part.sides)
                result[gap.first : gap.last + 1, c] = part.fillings[rule].fill(sides, gap)
        return result

    def _rule(self, missing: np.ndarray, c: int, gap: Gap) -> Rule:
        around = missing[max(0, gap.first - 1) : gap.last + 2]
        hidden = around.mean(0)
        others = [o for o in range(missing.shape[1]) if o != c]
        if others and (
            gap.steps >= _LONG or hidden[others].mean() >= _HIDDEN
        ):  # those that are there
            whole = [o for o in others if hidden[o] == 0]
            others = whole or [o for o in others if hidden[o] < _HIDDEN]
        sides = gap.first > 0, gap.last < len(missing) - 1
        return Rule(c, gap.steps, *sides, others=tuple(others), seasons=self.seasons_)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the channels, which are those of the fit.

        Args:
            input_features: names that must be those of the fit; None takes these.
        """
        where = "RecurrentImputer.get_feature_names_out"
        check_is_fitted(self)
        if input_features is not None:
            refuse_scalar(where, "input_features", input_features, "names of channels")
        with worded(where, "input_features"):
            names: np.ndarray = super().get_feature_names_out(input_features)
        return names

    def _read(self, X: Any, *, reset: bool) -> np.ndarray:
        checks = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        X = as_numbers("RecurrentImputer", "X", X)
        check_rising("RecurrentImputer", "X", X)
        check_has_channels("RecurrentImputer", X)
        table: np.ndarray = validate_data(self, X, reset=reset, **checks)
        return table

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
