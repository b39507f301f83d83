"""Test errors of the simplest forecasts, for comparison with a trained model."""

import numpy as np
import torch

from linrnn import tasks
from linrnn.cli._verbs.without_training import verdict
from linrnn.estimators.seasons import candidates, naive_season
from linrnn.tasks import ForecastTask, forward_filled
from linrnn.train import Result
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_task


def naive_forecasts(result: Result) -> str:
    """A line on the last value and the season before in the test part; of other tasks none.

    The season is the lag, of those that the training part suggests, whose values are nearest to
    those that follow.
    """
    if not issubclass(tasks.load(result.task), ForecastTask):
        return ""
    folder = RunFolder(result.folder)
    # what it names was imported to train it
    task = build_task(folder.load_config(trust=True), folder)
    assert isinstance(task, ForecastTask)
    series, history = task.normalised(download=False)
    values = series.double().numpy()
    train = _filled(values)[: history.ends[0]]
    season = naive_season(train, candidates(train, len(train) // 3))
    errors = {"the last value": naive_error(values, history.ends[1:], task.options.horizon, 1)}
    if season > 1:
        name = f"the value {season} steps before"
        errors[name] = naive_error(values, history.ends[1:], task.options.horizon, season)
    said = ", ".join(f"{name} {error:.4g}" for name, error in errors.items())
    lines = f"without a model, test mse: {said}\n"
    return lines + verdict(result.test_metric, errors, higher_is_better=False)


def naive_error(values: np.ndarray, part: tuple[int, int], horizon: int, season: int) -> float:
    """Mean squared error of repeating the last season in all windows of a part.

    Args:
        values: (time, channels); NaN is not asked about, and the value before it is repeated.
        part: steps at which the first forecast begins, and before which the last one ends.
        horizon: steps ahead.
        season: steps repeated; 1 repeats the last value.
    """
    first, end = part
    n_windows = end - horizon - first + 1
    read, total, n_known = _filled(values), 0.0, 0
    for ahead in range(horizon):
        came = values[first + ahead : first + ahead + n_windows]
        back = first + ahead - season * (ahead // season + 1)
        errors = (came - read[back : back + n_windows]) ** 2
        total += float(np.nansum(errors))
        n_known += int((~np.isnan(errors)).sum())
    return total / n_known


def _filled(values: np.ndarray) -> np.ndarray:
    """Missing values filled with the one before; 0, the mean of training, where there is none."""
    filled: np.ndarray = forward_filled(torch.from_numpy(values)[None])[0].nan_to_num().numpy()
    return filled
