"""How a forecaster is fitted: which steps train and judge, and the sums over both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from linrnn._process.memory import check_fits
from linrnn.compute.moments import Moments
from linrnn.errors import ArgumentError
from linrnn.estimators._follower import Follower
from linrnn.estimators._forecast_modes import draw_modes
from linrnn.estimators._guard import Guard
from linrnn.estimators._spread import Spread
from linrnn.estimators._watch import Watch
from linrnn.estimators.drift import Drift
from linrnn.estimators.read_out import Choice, choose
from linrnn.estimators.rows import Limits, Rows
from linrnn.nn.change_bank import ChangeBank, Reading

_WORK = 1e11  # multiplications of all rows, above which not every step has one
_MAX_SUMS = 2**24  # numbers in sums that are kept for each channel apart
_WIDEST = 1200  # features of all channels, where they are looked at together
_MARGIN = 8  # steps that training has besides a horizon
_TRIAL = {"steps": 10_000, "channels": 4, "horizon": 96, "rows": 4000}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Steps of a series: in all, of the part that trains, ahead in a forecast."""

    n: int
    n_train: int
    horizon: int

    @property
    def longest(self) -> float:
        """Memory that no mode exceeds."""
        return max(8.0, self.n_train / 3)

    @property
    def boundaries(self) -> tuple[int, int, int]:
        """Rows before the first train, from the second on judge, before the third are complete."""
        return self.n_train - self.horizon, self.n_train - 1, self.n - self.horizon


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The settings of a fit that it does not choose by itself."""

    n_modes: int
    seasons: tuple[float, ...]
    seed: int
    kinds: tuple[str, ...] = ()
    every: int | None = None


def sizes_of(where: str, n: int, horizon: int | None, validation: float | int) -> Sizes:
    """Check that training and validation both hold windows, and say how long they are."""
    if horizon is None:
        horizon = max(1, min(96, n // 8))
    n_valid = validation if isinstance(validation, int) else max(round(validation * n), horizon)
    sizes = Sizes(n=n, n_train=n - n_valid, horizon=horizon)
    if n_valid < horizon or sizes.n_train < horizon + _MARGIN:
        longest = _longest_horizon(n, validation)
        if longest < 1:
            raise ArgumentError(
                f"{where}: y must have at least {_MARGIN + 2} steps, of which those for "
                f"validation must be as many as the horizon, got {n} with validation={validation}. "
                "Pass a longer series."
            )
        raise ArgumentError(
            f"{where}: horizon must be at most {longest} for a series of {n} steps with "
            f"validation={validation}, got {horizon}. Choose a smaller horizon"
            + (" or another validation." if isinstance(validation, int) else ".")
        )
    return sizes


def _longest_horizon(n: int, validation: float | int) -> int:
    """With as many steps for validation, and eight more before them."""
    in_steps = isinstance(validation, int)
    n_valid = validation if in_steps else round(validation * n)
    longest = min(n_valid, n - n_valid - _MARGIN)
    # a share of the series is made as long as the horizon
    return int(
        longest if in_steps else max(longest, min((n - _MARGIN) // 2, n - n_valid - _MARGIN))
    )


def rows_of(setup: Setup, sizes: Sizes, channels: int) -> Rows:
    """The bank, and which steps have a row."""
    unit = max(24.0, *(setup.seasons or (float(sizes.horizon),)))
    rng = np.random.default_rng(setup.seed)
    bank = ChangeBank(draw_modes(setup.n_modes, setup.seasons, unit, sizes.longest, rng))
    few = torch.arange(0, len(bank.modes), 4, device="cpu")
    few = torch.cat([few, len(bank.modes) + few[few < bank.n_complex]])
    rows = Rows(bank, sizes.horizon, few=few)
    width = rows.width(channels)
    per_row = channels * (bank.n_features + width) * (bank.n_features + sizes.horizon)
    together = "together" in setup.kinds and channels > 1 and width <= _WIDEST
    if not together or channels * width * (bank.n_features + sizes.horizon) > _MAX_SUMS:
        rows = replace(rows, few=None)
        per_row = channels * bank.n_features * (bank.n_features + sizes.horizon)
    every = setup.every or _coprime(math.ceil(sizes.n * per_row / _WORK), setup.seasons)
    return replace(rows, every=every)


def _coprime(every: int, seasons: Sequence[float]) -> int:
    """At least ``every``, and such that rows fall on all steps of each season."""
    while any(math.gcd(every, round(season)) > 1 for season in seasons):
        every += 1
    return every


@dataclass(frozen=True, kw_only=True)
class Fit:
    """All that one reading of a series gives."""

    sizes: Sizes
    rows: Rows
    train: Moments
    between: Moments
    """Rows whose horizon begins in the part for training and ends behind it."""
    valid: Moments
    start: int
    """The first row of training."""
    began: Reading
    """Before it."""
    judged_from: Reading
    """Before the first row of validation."""
    late: Reading
    """Before the last ``horizon`` values."""
    choice: Choice

    def follower(
        self, series: Tensor, spread: Spread, drift: Drift, season: int, refit: bool
    ) -> Follower:
        """Ready to forecast what comes after ``series``."""
        rows = self.train + self.between + self.valid
        start = self.sizes.n - self.sizes.horizon
        moments = rows if refit else self.train
        return Follower(
            rows=self.rows,
            reading=self.late,
            step=start,
            waiting=series[start:].clone(),
            recent=series[-max(season, self.sizes.horizon) :].clone(),
            season=season,
            guard=Guard.of(series),
            spread=spread,
            limits=Limits.of(rows, series.shape[1]),
            moments=moments,
            choice=self.choice,
            watch=Watch.of(drift, self.rows, self.choice, moments),
        )


def fit_bank(series: Tensor, setup: Setup, sizes: Sizes) -> Fit:
    """Read a series (time, channels) once and choose the read-out."""
    channels = series.shape[1]
    rows = rows_of(setup, sizes, channels)
    features, width = rows.bank.n_features, rows.width(channels)
    per_channel = setup.kinds and channels * features * (features + sizes.horizon) <= _MAX_SUMS
    groups = channels if per_channel else 1
    if groups == 1:
        rows, width = replace(rows, few=None), 0
    _check_memory(groups, features, width, sizes.horizon, channels)
    train, between, valid = sums = [
        Moments.empty(groups, features, width, sizes.horizon) for _ in range(3)
    ]
    reading = rows.bank.start(series[0])
    # while states fill they are unlike later ones
    start = min(7 * 24, sizes.boundaries[0] // 4)
    if setup.seasons:
        start = min(round(7 * max(setup.seasons)), sizes.boundaries[0] // 4)
    reading = rows.count(series, start, reading, None, 0)
    readings, first = [], start
    for end, moments in zip(sizes.boundaries, sums, strict=True):
        readings.append(reading)
        reading = rows.count(series[start:], end - start, reading, moments, start)
        start = end
    if min(float(train.rows), float(valid.rows)) < 1:
        raise ArgumentError(
            f"RecurrentForecaster.fit: every must leave rows for training and validation, got "
            f"{rows.every}. Choose a smaller one."
        )
    choice = choose(train, valid, setup.kinds if groups > 1 else ())
    return Fit(
        sizes=sizes,
        rows=rows,
        train=train,
        between=between,
        valid=valid,
        start=first,
        began=readings[0],
        judged_from=readings[2],
        late=reading,
        choice=choice,
    )


def _check_memory(groups: int, features: int, width: int, horizon: int, channels: int) -> None:
    """Five times the sums: of three parts, their total and one update; and the bands."""
    sums = (groups * features + width + groups * width) * (features + horizon) + width * width
    bands = 2 * 99 * channels * horizon
    check_fits(
        "RecurrentForecaster.fit",
        "the sums over rows and the bands",
        8 * (5 * sums + bands),
        "Lower n_modes or horizon, or pass fewer channels.",
    )


def judge_seasons(series: Tensor, setup: Setup, sizes: Sizes, seasons: tuple[float, ...]) -> float:
    """Validation error with some seasons, on as much of the series as tells them apart."""
    part = series[-_TRIAL["steps"] :, :: -(-series.shape[1] // _TRIAL["channels"])]
    n = len(part)
    share = (sizes.n - sizes.n_train) / sizes.n
    horizon = min(sizes.horizon, _TRIAL["horizon"])
    n_valid = max(horizon, min(n - horizon - 8, round(share * n)))
    every = _coprime(math.ceil(n / _TRIAL["rows"]), seasons)
    tried = replace(setup, seasons=seasons, kinds=(), every=every)
    fit = fit_bank(part, tried, Sizes(n=n, n_train=n - n_valid, horizon=horizon))
    return float(fit.choice.error.sum() / fit.valid.rows)
