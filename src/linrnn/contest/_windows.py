"""The contest for forecasts of a series."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linrnn.contest._race import Entry, Scale
from linrnn.contest._trial import Trial
from linrnn.estimators import RecurrentForecaster
from linrnn.estimators.frozen import series_model
from linrnn.estimators.mean_forecast import BackTested, back_tested, fit_means
from linrnn.estimators.seasons import candidates, naive_season
from linrnn.frozen import MeanModel, SeriesModel
from linrnn.tasks import ForecastTask, forward_filled
from linrnn.train import Config
from linrnn.train.data import size_of, unpack
from linrnn.train.evaluation import each

_JUDGED = 1000
"""Windows of the validation part that judge at most, spread evenly."""
_ROWS = 64


@dataclass(frozen=True)
class Series:
    """A series, and the windows that judge forecasts of it."""

    task: ForecastTask
    splits: Any
    ends: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", self.task.normalised()[1].ends)

    @cached_property
    def values(self) -> np.ndarray:
        """(time, channels) at the scale of the task; what is missing is the last value before."""
        raw = self.task.normalised()[0].double()[None]
        values: np.ndarray = forward_filled(raw)[0].nan_to_num().numpy()
        return values

    @cached_property
    def judges(self) -> Tensor:
        """Numbers of the windows of validation that judge."""
        count = size_of(self.splits.validation, "validation data")
        count_judged = min(count, _JUDGED)
        return torch.arange(count_judged) * count // count_judged

    @property
    def independent(self) -> float:
        """How many windows of the validation part do not overlap."""
        steps = self.ends[1] - self.ends[0]
        return float(steps / self.task.options.horizon)

    def scores(self, model: MeanModel | SeriesModel) -> Tensor:
        """The metric of each of the windows that judge."""
        task = self.task.reaching(model.reach)
        windows: Any = task.datasets().validation
        batches = (unpack(windows.batch(rows)) for rows in self.judges.split(_ROWS))
        return each(model, task, batches)


def fit_bank(series: Series, seed: int) -> tuple[BackTested, SeriesModel, Tensor]:
    """A forecaster that read both parts, and what one of the first says of the second.

    Raises:
        ValueError: of the estimator, where it cannot be fitted.
    """
    first, end, _ = series.ends
    task = series.task
    forecaster = RecurrentForecaster(
        horizon=task.options.horizon,
        validation=end - first,
        random_state=seed,
        layout="time_channels",
    )
    tested = back_tested(forecaster, series.values[:end])
    longest = first - task.options.horizon
    judged = series_model(forecaster, task.d_input, longest, judged=True)
    return tested, series_model(forecaster, task.d_input, longest), series.scores(judged)


def fit_mean(series: Series, tested: BackTested) -> tuple[MeanModel, Tensor] | None:
    """The mean of the forecaster and others, and its scores; None where there is none.

    None for series with marks of missing values, too.
    """
    first, end, _ = series.ends
    task = series.task
    if task.d_input != series.values.shape[1]:
        return None
    facts = task.known
    floor = -np.array(facts.mean) / np.array(facts.std)  # 0 in the units of the file
    length = task.options.length
    means = fit_means(tested, series.values[:end], n_train=first, length=length, floor=floor)
    return None if means is None else (means.every, series.scores(means.judged))


def plain_entries(series: Series, scale: Scale) -> Iterator[Entry]:
    """The last value, and the season before."""
    train = series.values[: series.ends[0]]
    begin = time.perf_counter()
    season = naive_season(train, candidates(train, len(train) // 3))
    backs = {"the last value": 1}
    if season > 1:
        backs[f"the value {season} steps before"] = season
    for name, back in backs.items():
        yield scale.entry(name, "plain", _repeated(series, back), begin)
        begin = time.perf_counter()


def _repeated(series: Series, season: int) -> Tensor:
    """The metric where the last season is repeated."""
    windows, horizon = series.splits.validation, series.task.options.horizon
    back = season * (torch.arange(horizon) // season + 1) - torch.arange(horizon)
    values = torch.from_numpy(series.values)
    parts = []
    for rows in series.judges.split(_ROWS):
        target = windows.batch(rows)[1]
        y = values[windows.starts[rows][:, None] - back].flatten(1)  # (windows, horizon * channels)
        parts.append(series.task.scores(y.to(target.dtype), target).double())
    return torch.cat(parts)


def race(config: Config, series: Series, holder: Tensor, scale: Scale) -> tuple[Entry, bool]:
    """Train the mixer for some steps, and judge it; and whether it won."""
    begin, train = time.perf_counter(), series.splits.train
    n_train = size_of(train, "training data")
    parts = {"train": train, "judge": series.splits.validation}

    def take(rows: Tensor) -> tuple[Tensor, ...]:
        part, numbers = ("train", rows) if int(rows[0]) < n_train else ("judge", rows - n_train)
        batch: tuple[Tensor, ...] = parts[part].batch(numbers)
        return batch

    trial = Trial(config, series.task, take)
    scores = trial.scores(torch.arange(n_train), series.judges + n_train).double()
    entry = scale.entry(config.mixer, "trained", scores, begin, f"{trial.steps} steps")
    return entry, scale.wins(scores, holder)
