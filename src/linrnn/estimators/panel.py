"""Forecasts of many series in one table: contestants judged in the past of each."""

import os
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    MissingExtraError,
    check_at_most,
    check_in,
    check_kind,
    check_positive_int,
    show,
)
from linrnn.estimators._constructor import named_arguments
from linrnn.estimators._forecast_options import coverage_of, quantile_levels
from linrnn.estimators._panel import engine, stored
from linrnn.estimators._panel.following import Fit, follow
from linrnn.estimators._panel.known import Columns, read_static
from linrnn.estimators._panel.long_form import Names, Panel, ahead_of, read_panel, read_rows
from linrnn.estimators._panel.totals import agreed, parts_of, with_means, with_totals
from linrnn.estimators._plain import Number, Whole, plain
from linrnn.estimators._whole import whole
from linrnn.estimators.seasons import candidates, naive_season

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise MissingExtraError("PanelForecaster", "scikit-learn", "train") from error

_LONGEST_SEASON = 400
_MOST_STEPS = 10_000
_WEIGHED = 0.8
"""Coverage of the bands whose widths say how wrong forecasts are, one beside another."""


class PanelForecaster(BaseEstimator):  # type: ignore[misc]
    r"""Forecasts of many series, each by those methods that were best in its past.

    The contestants are plain forecasts (last value, value of a season before, drift, mean),
    exponential smoothing in eight forms and chosen among them by an information criterion, theta,
    autoregressions of values and of changes, Croston's method and two heirs of it for demands that
    are mostly 0, and a regression of all series at once on frozen modes of the LRU, as
    `RecurrentForecaster` has it. Several are asked of logarithms and of square roots too, and a
    line of the Box-Cox transform with the likeliest power. All come back to the units of the
    series without a correction: medians stay medians, and lie below the means.

    Equation:
        e_c = sum |y_{t+h} - yhat_{c,t+h}| / sum |y_{t+h} - y_t|,   over origins t and steps h
        s_c = e_c^(k / (k + 8)) m_c^(8 / (k + 8)),   m_c the geometric mean of e_c over all series
        w_c ~ s_c^-4, of the best eight that are at most half worse than the best
        yhat = sum_c w_c yhat_c

    with k origins. With totals, the forecasts are moved as little as makes them add up, each in
    units of the error that is expected of it. Bands are as wide as errors of the past: those that
    would have been made by then, each in units of the recent changes of its series and of a power
    of the steps ahead.

    Args:
        horizon: steps that are forecast at most. None: an eighth of the longest series, from 1 to
            30.
        season: length in steps, 1 for none. None: by the frequency of the times, a year for
            quarters, months and weeks, a week for days, a day for what is shorter; of series
            without one, found.
        id: column that says which series a row belongs to, or several.
        time: column of dates, periods or whole numbers.
        value: column that is forecast.
        known: columns that are known ahead, as prices and holidays; `predict` asks for them.
            Other columns are inputs of the past.
        totals: whether the total of all series is forecast too, and with several id columns those
            of the groups that have the same ids in the first of them. Forecasts then add up. A
            total is a further series, with "(all)" for an id that differs within it.
        freq: an alias of pandas for the steps of the times; None finds it.
        missing: "error" refuses gaps; "ffill" holds the last value over them.

    Attributes:
        horizon_, season_: as used.
        scores_: a frame with a row for each series and a column for each contestant: its errors in
            the past over those of the last value.
        weights_: a frame alike: shares in the forecast.
        n_series_: how many.

    Departures:
        The methods are the field's; that all compete on one footing, and that the scores of each
        series lean on those of all, is this library's.

    Example:
        >>> import numpy as np, pandas as pd
        >>> days = pd.date_range("2024-01-01", periods=70)
        >>> table = pd.concat(
        ...     pd.DataFrame({"unique_id": shop, "ds": days, "y": k + 5.0 * (days.day_of_week > 4)})
        ...     for k, shop in enumerate(["north", "south"])
        ... )
        >>> forecaster = PanelForecaster(horizon=7).fit(table)
        >>> forecaster.predict(2).columns.tolist(), forecaster.season_
        (['unique_id', 'ds', 'y'], 7)

    Reference:
        Makridakis et al. 2020, "The M4 competition"; Hyndman and Khandakar 2008; Assimakopoulos and
        Nikolopoulos 2000; Box and Cox 1964; Syntetos and Boylan 2005; Teunter et al. 2011; Orvieto
        et al. 2023, arXiv:2303.06349; Wickramasuriya et al. 2019 for totals.
    """

    @named_arguments
    def __init__(
        self,
        horizon: Whole | None = None,
        season: Whole | None = None,
        *,
        id: str | Sequence[str] = "unique_id",
        time: str = "ds",
        value: str = "y",
        known: Sequence[str] = (),
        totals: bool = False,
        freq: str | None = None,
        missing: str = "error",
    ) -> None:
        self.horizon = horizon
        self.season = season
        self.id = id
        self.time = time
        self.value = value
        self.known = known
        self.totals = totals
        self.freq = freq
        self.missing = missing

    def fit(self, y: Any, static: Any = None) -> "PanelForecaster":
        """Read the series, and let all contestants forecast their past.

        Args:
            y: a table in long form, with columns for id, time and value, and of inputs; or a
                DataFrame with an index of dates or periods and a column for each series; a Series
                with one; a frame with an index of ids and times; or an array (time,). Rows come in
                any order. Series may begin and end at different times.
            static: a table with a row for each series, columns of ids, and further ones that say
                what does not change: numbers, or words for categories. A missing word is no
                category; a missing number is an error.

        Raises:
            ArgumentError: an option outside its range, gaps, times that come twice.
            ArgumentTypeError: what is no table, times that are none, values that are no numbers.
        """
        where = "PanelForecaster.fit"
        self._check_options(where)
        rows = read_rows(where, "y", y, self._names())
        panel = read_panel(where, rows, self.freq, self.missing)
        columns = Columns.of(where, tuple(self.known), panel)
        columns = columns._replace(static=read_static(where, static, panel))
        n_parts = len(panel.keys)
        if self.totals:
            panel = with_totals(where, panel)
            columns = columns.for_all(len(panel.keys))
        longest = int(panel.batch.n.max())
        with whole(self) as fitted:
            fitted.horizon_ = int(plain(self.horizon) or np.clip(longest // 8, 1, 30))
            fitted.season_ = self._season(panel)
            # the back-test reads the future of an origin from the past of the series
            inputs = columns.inputs(panel, None, fitted.horizon_)
            chosen = engine.choose(panel.batch, fitted.season_, fitted.horizon_, inputs)
            fitted._fit = Fit(panel.keys, panel.names, panel.grid, columns, chosen, n_parts)
            fitted._read(panel, np.arange(len(panel.keys)))
        return self

    def _read(self, panel: Panel, places: np.ndarray) -> None:
        """Forecast the series of a panel from now on: those at some places of the fit."""
        self._panel, self._places = panel, places
        self._columns, self._chosen = self._fit.of(places)

    def follow(self, y: Any) -> "PanelForecaster":
        """A forecaster of the same series with other values, longer ones say; nothing is judged.

        Shares and sizes of errors stay as they were chosen. What each method says is computed from
        the new table alone; so is the regression of all series, which reads what is in it.

        Args:
            y: a table as of `fit`, with some or all of its series.

        Raises:
            ArgumentError: a series or a column that was not fitted, or times of another step.
        """
        where = "PanelForecaster.follow"
        check_is_fitted(self, "horizon_")
        followed = copy(self)
        followed._read(*follow(where, self._fit, y, self.freq, self.missing))
        return followed

    def predict(self, horizon: Whole | None = None, X: Any = None) -> Any:
        """The next values of each series, in the form of what was fitted.

        Args:
            horizon: steps, at most those of the fit; None takes as many.
            X: the known inputs of these steps, in long form.
        """
        steps, middle = self._forecast("predict", horizon, X)
        return self._panel.table({self._value: middle[:, :steps]}, steps)

    def predict_interval(
        self, horizon: Whole | None = None, coverage: Number = 0.8, X: Any = None
    ) -> Any:
        """Lower and upper ends of bands, beside the forecast.

        They are symmetric about it, and do not reach below 0 where a series never did.

        Args:
            horizon, X: as `predict`.
            coverage: the share of what comes that a band is to hold; above 0, at most 0.99.

        Returns:
            As `predict`, with columns of the value, and of it with "_lower" and "_upper".
        """
        level = coverage_of("PanelForecaster.predict_interval", coverage)
        steps, middle = self._forecast("predict_interval", horizon, X)
        low, high = self._band(middle, level)
        name = self._value
        columns = {name: middle, f"{name}_lower": low, f"{name}_upper": high}
        return self._panel.table({key: x[:, :steps] for key, x in columns.items()}, steps)

    def predict_quantiles(
        self,
        horizon: Whole | None = None,
        quantiles: Sequence[float] | np.ndarray = (0.1, 0.5, 0.9),
        X: Any = None,
    ) -> Any:
        """Quantiles of what comes: ends of bands, symmetric about the forecast.

        Args:
            horizon, X: as `predict`.
            quantiles: between 0.005 and 0.995.

        Returns:
            As `predict`, with a column for each quantile, named as the value and "_q0.1".
        """
        levels = quantile_levels("PanelForecaster.predict_quantiles", quantiles)
        steps, middle = self._forecast("predict_quantiles", horizon, X)
        columns = {}
        for q in levels.tolist():
            low, high = self._band(middle, abs(2 * q - 1)) if q != 0.5 else (middle, middle)
            columns[f"{self._value}_q{q:g}"] = (low if q < 0.5 else high)[:, :steps]
        return self._panel.table(columns, steps)

    @property
    def scores_(self) -> Any:
        """Errors in the past over those of the last value, by series and contestant."""
        check_is_fitted(self, "horizon_")
        return self._by_series(self._chosen.scores)

    @property
    def weights_(self) -> Any:
        """Shares in the forecast, by series and contestant."""
        check_is_fitted(self, "horizon_")
        return self._by_series(self._chosen.weights)

    @property
    def n_series_(self) -> int:
        """How many series there are."""
        check_is_fitted(self, "horizon_")
        return len(self._panel.keys)

    def save(self, path: Path | str) -> None:
        """Write all to a file of safetensors with a digest, which holds no code.

        Args:
            path: of the file; it is written as a whole or not at all.

        Raises:
            ArgumentTypeError: no path, or ids that are neither text nor numbers.
            StorageError: the file cannot be written.
        """
        check_kind("PanelForecaster.save", "path", path, str, os.PathLike)
        check_is_fitted(self, "horizon_")
        stored.save(Path(path), self)

    @classmethod
    def load(cls, path: Path | str) -> "PanelForecaster":
        """Read what `save` wrote.

        Args:
            path: of the file.

        Raises:
            ArgumentTypeError: no path.
            RunFolderError: the file is damaged, or another one.
        """
        check_kind("PanelForecaster.load", "path", path, str, os.PathLike)
        forecaster: PanelForecaster = stored.load(Path(path), cls)
        return forecaster

    def _check_options(self, where: str) -> None:
        for name in ("horizon", "season"):
            if getattr(self, name) is not None:
                check_positive_int(where, **{name: plain(getattr(self, name))})
                check_at_most(where, _MOST_STEPS, **{name: plain(getattr(self, name))})
        check_in(where, "missing", self.missing, ("error", "ffill"))
        if not isinstance(plain(self.totals), bool):
            raise ArgumentTypeError(
                f"{where}: totals must be True or False, got {show(self.totals)}."
            )
        one = isinstance(self.id, str)
        _check_columns(where, "id", [self.id] if one else self.id)
        _check_columns(where, "known", self.known)
        for name in ("time", "value"):
            _check_columns(where, name, [getattr(self, name)])
        if self.freq is not None and not isinstance(self.freq, str):
            raise ArgumentTypeError(
                f"{where}: freq must be an alias of pandas, as 'D' or 'MS', got {show(self.freq)}."
            )
        several = [self.id] if one else list(self.id)
        names = [*several, self.time, self.value, *self.known]
        if not several:
            raise ArgumentError(
                f"{where}: id must name at least one column, got (). For a single series, add a "
                "column with the same text in every row."
            )
        if len(set(names)) < len(names):
            raise ArgumentError(
                f"{where}: id, time, value and known must name different columns, got "
                f"{show(names)}."
            )

    def _names(self) -> Names:
        id = (self.id,) if isinstance(self.id, str) else tuple(self.id)
        return Names(id, self.time, self.value)

    def _season(self, panel: Panel) -> int:
        if self.season is not None:
            return int(plain(self.season))
        usual = panel.grid.season
        longest = int(panel.batch.n.max())
        if usual is not None:
            return usual if longest >= 2 * usual else 1
        k = int(panel.batch.n.argmax())
        values = panel.batch.y[k, :longest, None]
        likely = candidates(values, min(_LONGEST_SEASON, longest // 3))
        return naive_season(values, likely)

    @property
    def _value(self) -> str:
        panel: Panel = self._panel
        return panel.names.value

    def _by_series(self, values: np.ndarray) -> Any:
        import pandas as pd

        return pd.DataFrame(values.T, index=self._panel.keys, columns=list(self._chosen.names))

    def _forecast(self, what: str, horizon: Whole | None, X: Any) -> tuple[int, np.ndarray]:
        where = f"PanelForecaster.{what}"
        check_is_fitted(self, "horizon_")
        steps = self.horizon_ if horizon is None else plain(horizon)
        check_positive_int(where, horizon=steps)
        check_at_most(where, self.horizon_, horizon=steps)
        known = self._columns.known
        later = None
        if known:
            if X is None:
                raise ArgumentError(
                    f"{where}: X must hold the known inputs {show(list(known))} of the next "
                    f"{steps} steps, got None."
                )
            rows = read_rows(where, "X", X, self._fit.names, others=False)
            parts = parts_of(self._panel) if self._fit.has_totals else self._panel
            later = ahead_of(where, parts, rows, known, steps, self._fit.parts)
            if self._fit.has_totals:
                later = with_means(self._panel, later)
        elif X is not None:
            raise ArgumentError(
                f"{where}: X must be None for a forecaster without known inputs, got a "
                f"{type(X).__name__}. Name its columns: PanelForecaster(known=...)."
            )
        inputs = self._columns.inputs(self._panel, later, self.horizon_)
        batch = self._panel.batch
        values = engine.forecast(batch, self.season_, self.horizon_, inputs, self._chosen)
        if self._fit.has_totals:
            # errors grow with the steps alike in all series, so those of the first step weigh
            errors = engine.half_widths(batch, self._chosen, _WEIGHED)[:, 0]
            values = agreed(self._panel, values, errors)
        return steps, values

    def _band(self, middle: np.ndarray, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        batch = self._panel.batch
        half = engine.half_widths(batch, self._chosen, coverage)
        low = np.where(batch.mask, batch.y, np.inf).min(1)
        lower = middle - half
        return np.where((low >= 0)[:, None], np.maximum(lower, 0.0), lower), middle + half


def _check_columns(where: str, what: str, names: Any) -> None:
    """Columns are text.

    Raises:
        ArgumentTypeError: they are something else, or one is given where several may be.
    """
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(
            f"{where}: {what} must name columns, got {show(names)}. Pass text, or a tuple of texts "
            "where several may be."
        )
