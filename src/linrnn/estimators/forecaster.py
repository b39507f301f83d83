"""Forecasts in closed form: a ridge on frozen modes of the LRU."""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    MissingExtraError,
    ShapeError,
    check_at_most,
    check_positive_int,
)
from linrnn.estimators._bands import calibrate
from linrnn.estimators._constructor import named_arguments
from linrnn.estimators._follower import Follower
from linrnn.estimators._forecast_fit import Setup, Sizes, fit_bank, judge_seasons, sizes_of
from linrnn.estimators._forecast_options import (
    CHANNELS,
    check_options,
    coverage_of,
    quantile_levels,
    seasons_of,
)
from linrnn.estimators._forecast_series import filled, in_scale, read_series
from linrnn.estimators._inputs import worded
from linrnn.estimators._plain import Number, Whole, plain
from linrnn.estimators._rolling import Residuals, rolling_residuals, with_rolling_penalty
from linrnn.estimators._series import check_layout
from linrnn.estimators._spread import Spread
from linrnn.estimators._time_index import TimeIndex
from linrnn.estimators._whole import whole
from linrnn.estimators.backtest import Backtest, Errors
from linrnn.estimators.drift import Drift
from linrnn.estimators.seasons import candidates, find_seasons, naive_season
from linrnn.nn.gaps import unit

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise MissingExtraError("RecurrentForecaster", "scikit-learn", "train") from error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_STEPS = 1_000_000


class RecurrentForecaster(BaseEstimator):  # type: ignore[misc]
    r"""Forecasts of one or several series, in closed form: a ridge on frozen modes of the LRU.

    Equation:
        f_t = lam f_{t-1} + lam / (1 - lam) (y_t - y_{t-1})        160 modes a channel, not trained
        x_t = sqrt(1 - |lam|^2) (Re f_t, Im f_t)
        yhat_{t+h} = y_t + W_h x_t                                 h = 1 .. horizon
        W = argmin sum_{t, channels, h} (y_{t+h} - y_t - W_h x_t)^2 + penalty |W|^2_scale

    ``f_t`` is the state of the linear recurrent unit ``h_t = lam h_{t-1} + y_t`` after the last
    value has been taken out of all of the past, written as a recurrence in the changes
    (`linear_scan` computes it), so a constant added to a series is added to its forecasts. One
    ``W`` serves all channels, each in units of its standard deviation; a channel gets a separate
    one, or one that also reads the states of all channels, where that takes at least a hundredth
    off its error in the validation part. The penalty is the one with the smallest validation error;
    for a series of a few thousand steps or fewer, with the smallest geometric mean of the errors of
    eight folds, each forecast by a read-out of what came before it. ``scale`` is what the square of
    each feature sums to in training. Of the rows only sums of products are kept, in float64, so
    neither fitting nor updating needs memory that grows with the length of the series.

    The modes: a quarter at harmonics of the seasons, with memories of 1 to 21 seasons; nine
    sixteenths random; the rest real decays. Seasons are found in the data: peaks of the
    autocorrelation and of the periodogram are candidates, and those are taken, at most two, that
    bring the validation error down by two per cent; the first, if the correlation is strong, unless
    it brings it up by as much.

    Args:
        horizon: steps that are forecast at once. None: an eighth of the series, at most 96.
        season: length in steps, or several; an empty sequence or 1 for none. None: found.
        n_modes: of each channel.
        channels: what a channel may have besides the shared read-out: "own", "together" with the
            other channels, both ("auto"), or neither ("shared"). Where the sums of all channels
            would be large (as for hundreds of channels) all share one.
        validation: last share of the series that chooses penalty, seasons and channels, and whose
            residuals give the intervals; an integer is a number of steps.
        every: only each so-manieth step has a row in the regression. None: all, or fewer so that
            a fit stays within some 1e11 multiplications.
        missing: "error" refuses NaN; "ffill" holds the last value, so that over a gap the modes
            forget and read nothing.
        refit: whether the read-out is solved again with the validation part included.
        random_state: of the random modes; None draws others each time.
        layout: of an array with two axes, "time_channels" or "channels_time"; forecasts have the
            same. None is "time_channels", and `fit` refuses more channels than steps, where the
            axes look exchanged. The index of a frame is always time.

    Attributes:
        horizon_, season_: as used; the seasons are a tuple.
        modes_: (n_modes,) complex.
        coef_: (features, horizon), the shared read-out, in units of the scale.
        penalty_: of the shared read-out.
        channels_: for each channel "shared", "own" or "together".
        scale_: (channels,), the standard deviation in the training part.
        validation_mse_: (horizon,), of the shared read-out fitted to the training part alone, in
            units of the scale.
        n_features_in_: channels; feature_names_in_: their names, where y had some.

    Departures:
        The method is a combination of known parts: a reservoir that is not trained with a linear
        read-out (Jaeger 2001), modes of the LRU (Orvieto et al. 2023), the last value taken out
        (NLinear, Zeng et al. 2023), one model for all channels (Nie et al. 2023).

    Example:
        >>> import numpy as np
        >>> y = np.sin(np.arange(400) * 2 * np.pi / 12)
        >>> forecaster = RecurrentForecaster(horizon=6, season=12).fit(y)
        >>> wanted = np.sin(np.arange(400, 406) * 2 * np.pi / 12)
        >>> bool(np.abs(forecaster.predict() - wanted).max() < 0.01)
        True

    Reference:
        Orvieto et al. 2023, arXiv:2303.06349; Zeng et al. 2023, arXiv:2205.13504; Nie et al. 2023,
        arXiv:2211.14730; H. Jaeger, "The echo state approach to analysing and training recurrent
        neural networks", GMD report 148, 2001.
    """

    @named_arguments
    def __init__(
        self,
        horizon: Whole | None = None,
        season: Number | Sequence[Number] | np.ndarray | None = None,
        *,
        n_modes: Whole = 160,
        channels: str = "auto",
        validation: Number = 0.25,
        every: Whole | None = None,
        missing: str = "error",
        refit: bool | np.bool_ = True,
        random_state: Any = 0,
        layout: str | None = None,
    ) -> None:
        self.horizon = horizon
        self.season = season
        self.n_modes = n_modes
        self.channels = channels
        self.validation = validation
        self.every = every
        self.missing = missing
        self.refit = refit
        self.random_state = random_state
        self.layout = layout

    def fit(self, y: Any) -> "RecurrentForecaster":
        """Find the seasons and solve the read-out.

        Args:
            y: (time,) or (time, channels): an array, or a Series or DataFrame of pandas with a
                regular index, which forecasts continue.

        Raises:
            ArgumentError: an option outside its range, a series too short for the horizon, NaN or
                infinity, an index that is not regular.
            ArgumentTypeError: y or an option of another type.
            ShapeError: y has other axes. After an error the forecaster is as it was before.
        """
        with whole(self) as fitted:
            fitted._fit(y)
        return self

    def _fit(self, y: Any) -> Residuals:
        """Fit, and return the errors of the back-test."""
        where = "RecurrentForecaster.fit"
        options = {name: plain(value) for name, value in self.get_params(deep=False).items()}
        check_options(where, options)
        read = read_series(where, "y", y, self.layout)
        if self.layout is None and read.index is None:
            check_layout(where, "y", "(channels, time)", *read.values.shape)
        sizes = sizes_of(where, len(read.values), options["horizon"], options["validation"])
        values = filled(where, "y", read.values, self.missing, None)
        self._index = None if read.index is None else TimeIndex(where, "y", read.index)
        self._form = read._replace(values=values[:0], index=None)
        self.n_features_in_ = values.shape[1]
        self.__dict__.pop("feature_names_in_", None)
        if read.names is not None:
            self.feature_names_in_ = np.asarray(read.names, dtype=object)
        # squares of large numbers are infinite
        size = unit(torch.from_numpy(np.abs(values).max(0, keepdims=True))).numpy()
        spread = (values[: sizes.n_train] / size).std(0) * size
        self.scale_ = np.where(spread > 0, spread, 1.0)
        with worded(where):
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        setup = Setup(
            n_modes=options["n_modes"],
            seasons=(),
            seed=seed,
            kinds=CHANNELS[self.channels] if values.shape[1] > 1 else (),
            every=options["every"],
        )
        return self._solve(in_scale(where, "y", values, self.scale_), setup, sizes)

    def _solve(self, series: Tensor, setup: Setup, sizes: Sizes) -> Residuals:
        """Fit to a series in units of its scale."""
        self.season_, naive = self._seasons(series, setup, sizes)
        fit = fit_bank(series, replace(setup, seasons=self.season_), sizes)
        fit = with_rolling_penalty(fit, series, setup.kinds)
        spread, spreads = Spread.of(series, self.season_)
        residuals = rolling_residuals(fit, series)
        drift = Drift.of(residuals.errors[..., 0].T)
        self._follower = fit.follower(series, spread, drift, naive, bool(self.refit))
        self._judged = fit.choice.solve(fit.train)
        self._before: tuple[Follower, TimeIndex | None] | None = None
        self._bands = calibrate(residuals, spreads)
        self.horizon_ = sizes.horizon
        self.modes_ = fit.rows.bank.modes.numpy().copy()
        self.penalty_ = fit.choice.penalty
        self.validation_mse_ = fit.choice.error.numpy() / (float(fit.valid.rows) * series.shape[1])
        left = {c: "own" for c in fit.choice.own} | {c: "together" for c in fit.choice.together}
        self.channels_ = [left.get(c, "shared") for c in range(series.shape[1])]
        return residuals

    def _seasons(self, series: Tensor, setup: Setup, sizes: Sizes) -> tuple[tuple[float, ...], int]:
        """Those of the modes, and the one that a seasonal naive forecast repeats."""
        chosen = seasons_of("RecurrentForecaster.fit", self.season)
        if chosen is not None:
            return chosen, min(round(max(chosen, default=1)), sizes.n)
        train = series[: sizes.n_train].numpy()
        likely = candidates(train, sizes.n_train // 3)
        helpful = find_seasons(likely, lambda tried: judge_seasons(series, setup, sizes, tried))
        # the bank may do without a season that a naive forecast needs
        return helpful, naive_season(train, (*likely, *helpful))

    @property
    def coef_(self) -> np.ndarray:
        """The shared read-out (features, horizon)."""
        check_is_fitted(self, "horizon_")
        return self._follower.read_out.shared.numpy()

    def predict(self, horizon: Whole | None = None) -> Any:
        """The next values, in the form of the series that was fitted.

        Args:
            horizon: how many; None: as many as are forecast at once. More than that are found by
                reading forecasts as if they had come, which loses accuracy.

        Returns:
            (horizon,) or (horizon, channels); of pandas' kind with the index continued, if y was.
        """
        steps = self._steps("predict", horizon, _MOST_STEPS)
        return self._form.like(self._follower.forecast(steps).numpy() * self.scale_, self._index)

    def predict_quantiles(
        self, horizon: Whole | None = None, quantiles: Sequence[float] = (0.1, 0.5, 0.9)
    ) -> Any:
        """Quantiles of the next values, symmetric about the forecast: the ends of its bands.

        A back-test with rolling origins says how wide a band is, for each channel and step ahead:
        forecasts from the validation part, and for a short series from as many as its last two
        thirds, of read-outs fitted to what came before them. Errors count in units of the root mean
        square of the last changes (of 24 steps or two seasons, with an exponential memory), so
        bands widen where the level or the variance has grown, after `update` too. Bands of the
        earlier half of the back-test are then widened until they cover their share of the later
        half. It is a split conformal prediction (Lei et al. 2018, arXiv:1604.04173) of errors that
        are exchangeable only roughly; `interval_coverage` says what the bands covered.

        Args:
            horizon: at most that of the fit.
            quantiles: between 0.005 and 0.995, and no closer to 0 or 1 than the back-test has
                windows for.

        Returns:
            (horizon, quantiles) or (horizon, channels, quantiles); of pandas, a DataFrame with a
            column for each quantile, or for each channel and quantile.
        """
        where = "RecurrentForecaster.predict_quantiles"
        steps = self._steps("predict_quantiles", horizon, self.horizon_ if self._fitted() else 1)
        levels = quantile_levels(where, quantiles)
        self._bands.check_quantiles(where, levels, steps)
        return self._form.table(self._quantiles(steps, levels), levels, self._index)

    def _quantiles(self, steps: int, levels: np.ndarray) -> np.ndarray:
        """(steps, channels, quantiles)."""
        middle = self._follower.forecast(steps)  # (steps, channels)
        spread = self._follower.spread.now[:, None]
        sides = [
            math.copysign(1, 2 * q - 1) * self._bands.at(abs(2 * q - 1))[:, :steps] * spread
            for q in levels.tolist()
        ]
        values = middle[..., None] + torch.stack(sides, 2).transpose(0, 1)
        return np.asarray(values.numpy() * self.scale_[:, None])

    def predict_interval(self, horizon: Whole | None = None, coverage: Number = 0.9) -> Any:
        """`predict_quantiles` at ``(1 - coverage) / 2`` and ``(1 + coverage) / 2``.

        Args:
            horizon: at most that of the fit.
            coverage: above 0 and at most 0.99, or what the back-test has windows for.
        """
        where = "RecurrentForecaster.predict_interval"
        steps = self._steps("predict_interval", horizon, self.horizon_ if self._fitted() else 1)
        levels = self._interval_levels(where, coverage, steps)
        return self._form.table(self._quantiles(steps, levels), levels, self._index)

    def interval_coverage(self, horizon: Whole | None = None, coverage: Number = 0.9) -> np.ndarray:
        """The share of its back-test that a band covered, for each step ahead.

        Bands of the earlier half of the back-test, widened as those of `predict_interval` are, on
        the later half. The mean over up to 16 evenly spaced steps ahead is ``coverage`` at least;
        what comes may differ, and so may single steps.

        Args:
            horizon: at most that of the fit.
            coverage: that of the band.

        Returns:
            (horizon,) or (horizon, channels).
        """
        where = "RecurrentForecaster.interval_coverage"
        steps = self._steps("interval_coverage", horizon, self.horizon_ if self._fitted() else 1)
        low, high = self._interval_levels(where, coverage, steps)
        shown = self._bands.shown_at(float(high - low)).T[:steps].numpy()
        return self._form.shaped(shown)

    def _interval_levels(self, where: str, coverage: Number, steps: int) -> np.ndarray:
        share = coverage_of(where, coverage)
        self._bands.check_coverage(where, share, steps)
        return np.array([(1 - share) / 2, (1 + share) / 2])

    def update(self, values: Any) -> "RecurrentForecaster":
        """Read the next values and learn from them: recursive least squares.

        The sums of products take in the rows that are now complete, and the next forecast solves
        the ridge anew from them: the read-out is the one that all rows at once would give, with
        modes, seasons, penalties and scale as fitted. Time and memory do not depend on what was
        read before; with 160 modes it is a matrix of 290 numbers squared that is solved.

        No reading can spoil what comes later. A change of more than twice the largest one in
        the series of `fit` is read as that much (`bounded_` counts them), and the bound rises by a
        quarter with each, so a level that moved for good is followed; a row more than thirty times
        as large as those of `fit` counts as one that is. An update that raises an error changes
        nothing, and `undo` takes the last one back.

        Errors one step ahead are compared with those of the back-test. A `DriftWarning` says, once
        for each channel, that they have become larger (`drift_`): a conformal Shiryaev-Roberts
        statistic (Vovk et al. 2021, arXiv:2102.10439) has reached 5,000 times the channels. If the
        errors are exchangeable, a false one comes in 5,000 values or more in the mean.

        Args:
            values: (time,) or (time, channels) as y; one of pandas must continue its index.

        Raises:
            ArgumentError, ArgumentTypeError, ShapeError: as `fit`, and other columns or steps.
        """
        where = "RecurrentForecaster.update"
        numbers, index, missing = self._more(where, "values", values)
        scaled = in_scale(where, "values", numbers, self.scale_)
        follower = self._follower.absorb(scaled, missing)
        follower.watch.drift.warn(self._follower.watch.drift, self._form.said)
        self._before = (self._follower, self._index)
        self._follower, self._index = follower, index
        return self

    def undo(self) -> "RecurrentForecaster":
        """Take back the last `update`: everything is as it was before it.

        Raises:
            ArgumentError: there was none since `fit`, or it was taken back already.
        """
        self._fitted()
        if self._before is None:
            raise ArgumentError(
                "RecurrentForecaster.undo: there must be an update to take back, got none since "
                "fit or the last undo. A copy.deepcopy keeps any earlier state."
            )
        (self._follower, self._index), self._before = self._before, None
        return self

    @property
    def drift_(self) -> np.ndarray:
        """(channels,): after how many values since `fit` a `DriftWarning` came; 0: none did."""
        check_is_fitted(self, "horizon_")
        return np.array(self._follower.watch.drift.first)

    @property
    def bounded_(self) -> np.ndarray:
        """(channels,): how many changes `update` has read as smaller ones than they were."""
        check_is_fitted(self, "horizon_")
        return np.asarray(self._follower.guard.count.numpy().copy())

    def backtest(self, y: Any, horizon: Whole | None = None) -> dict[str, Errors]:
        """Errors of forecasts in ``y``, which follows what was read, from each of its steps.

        The read-out stays as it is while the states read on.

        Args:
            y: as `update`.
            horizon: steps ahead, at most that of the fit; None: all, or as many as y has.

        Returns:
            Mean squared and mean absolute error of "forecast", "seasonal naive" (the value of a
            season before: the longest that was given, or of the candidates found the one that
            suits the training part best) and "last value".
        """
        test = self._backtest("backtest", y, horizon)
        scale = torch.from_numpy(self.scale_)
        names = ("forecast", "seasonal naive", "last value")
        return {name: test.sums[name].errors(scale) for name in names}

    def score(self, y: Any) -> float:
        """Coefficient of determination of all forecasts in ``y``, which follows what was read.

        As `sklearn.metrics.r2_score` over all windows and steps ahead, the mean over channels.
        """
        return self._backtest("score", y, None).r2()

    def _backtest(self, what: str, y: Any, horizon: Whole | None) -> Backtest:
        where = f"RecurrentForecaster.{what}"
        numbers, _, _ = self._more(where, "y", y)
        if len(numbers) == 0:
            raise ShapeError(f"{where}: y must have at least one step, got {numbers.shape}.")
        limit = min(self.horizon_, len(numbers))
        steps = self._steps(what, limit if horizon is None else horizon, limit)
        later = in_scale(where, "y", numbers, self.scale_)
        return Backtest(self._follower, later, steps).run()

    def plot(
        self, truth: Any = None, horizon: Whole | None = None, coverage: Number = 0.9
    ) -> "Figure":
        """The last values, the forecast with its interval and, if given, what came.

        Args:
            truth: values that followed, (time,) or (time, channels).
            horizon: at most that of the fit.
            coverage: of the interval.

        Returns:
            A matplotlib figure with a panel for each channel.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        from linrnn.estimators._forecast_plot import draw

        steps = self._steps("plot", horizon, self.horizon_ if self._fitted() else 1)
        came = None
        if truth is not None:
            came = self._more("RecurrentForecaster.plot", "truth", truth)[0][:steps]
        levels = self._interval_levels("RecurrentForecaster.plot", coverage, steps)
        low, high = np.moveaxis(self._quantiles(steps, levels), 2, 0)
        middle = self._follower.forecast(steps).numpy()
        return draw(
            self._follower.recent[-self.horizon_ :].numpy() * self.scale_,
            middle * self.scale_,
            np.stack([low, high]),
            came,
            names=self._form.names,
            label=f"{100 * coverage:g} % interval",
        )

    def _more(
        self, where: str, what: str, y: Any
    ) -> tuple[np.ndarray, TimeIndex | None, Tensor | None]:
        """Later values (time, channels), where the index stands after them, and where gaps are."""
        self._fitted()
        read = read_series(where, what, y, self.layout)
        read.check_like(where, what, self._form)
        index = copy(self._index)
        if read.index is not None:
            if index is None:
                raise ArgumentTypeError(
                    f"{where}: {what} must be an array, as y of fit was, got one with an index. "
                    f"Pass {what}.to_numpy()."
                )
            index.advance(where, what, read.index)
        elif index is not None:
            index.skip(len(read.values))
        last = self._follower.last.numpy() * self.scale_
        values = filled(where, what, read.values, self.missing, last)
        gaps = None if values is read.values else torch.from_numpy(np.isnan(read.values))
        return values, index, gaps

    def _fitted(self) -> bool:
        check_is_fitted(self, "horizon_")
        return True

    def _steps(self, what: str, horizon: Whole | None, limit: int) -> int:
        self._fitted()
        steps = self.horizon_ if horizon is None else plain(horizon)
        where = f"RecurrentForecaster.{what}"
        check_positive_int(where, horizon=steps)
        check_at_most(where, limit, horizon=steps)
        return steps
