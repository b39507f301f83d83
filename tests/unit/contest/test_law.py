"""The default answer is as good as the best of the plain alternatives, on every small set at hand.

The sets are those of `benchmarks/small_series.py` and ETTh1, in the folder that ``LINRNN_DATA``
names.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from linrnn import contest, train
from linrnn.cli._verbs.contested import told
from linrnn.tasks.forecast import Forecast, ForecastOptions
from linrnn.tasks.table import Table, TableOptions

SETS = ("ACSF1", "BasicMotions", "ECG5000", "GunPoint", "ItalyPowerDemand", "JapaneseVowels")
SETS += ("OSULeaf",)


def shared(*parts):
    """A file of the shared data; the test is skipped without it."""
    path = Path(os.environ.get("LINRNN_DATA", "")).joinpath(*parts)
    if not os.environ.get("LINRNN_DATA") or not path.is_file():
        pytest.skip(f"LINRNN_DATA must name a folder with {'/'.join(parts)}")
    return str(path)


def table(data, **model):
    return train.Config(
        task="table", task_options=TableOptions(data=data), model=train.ModelConfig(**model)
    )


def plain_accuracies(task):
    """Test accuracy of the nearest sequence and of logistic regression."""
    (rows, y), (more, z), (test, truth) = task.parts()
    x, y = task.padded(rows + more).flatten(1).numpy(), np.concatenate([y, z])
    new = task.padded(test).flatten(1).numpy()
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    return {
        "nearest": KNeighborsClassifier(1).fit(x, y).score(new, truth),
        "logistic": linear.fit(x, y).score(new, truth),
    }


def holds(result, rivals, n):
    """Whether the result is within its standard error of the best rival."""
    p = result.test_metric
    # of n right ones as well there may be an error in n + 1
    error = max(np.sqrt(p * (1 - p) / n), 1 / (n + 1))
    assert p >= max(rivals.values()) - error, (p, rivals)


def test_the_law_on_a_small_set_of_ones_own(tmp_path):
    rng, y = np.random.default_rng(0), np.arange(90) % 2
    x = np.sin(np.arange(40) / (2 + y[:, None])) + rng.standard_normal((90, 40)) / 2
    np.savez(tmp_path / "x.npz", x=x, y=y)
    config = table(str(tmp_path / "x.npz"), d_model=4, n_layers=1)
    result = contest.run(config, only="bank", out=tmp_path / "run")
    holds(result, plain_accuracies(Table(config.task_options)), 18)


def test_where_a_plain_method_does_better_it_is_named(tmp_path):
    rng, y = np.random.default_rng(0), np.arange(90) % 3
    x = np.sin(np.arange(40) / (2 + y[:, None] / 2) + rng.uniform(0, 6, (90, 1)))
    np.savez(tmp_path / "x.npz", x=x + 0.4 * rng.standard_normal((90, 40)), y=y)
    config = table(str(tmp_path / "x.npz"), d_model=4, n_layers=1)
    config = replace(config, train=train.TrainConfig(batch_size=4096))
    task = Table(config.task_options)
    held = contest.hold(config, task, task.datasets()).contest
    assert held.lost_to.name == "the nearest sequence"
    assert told(held).startswith("the nearest sequence does better than what can be left here")


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_the_law_on_sets_of_the_archive(name, tmp_path):
    config = table(shared("timeseries", f"{name}_TRAIN.ts.gz"))
    task = Table(config.task_options)
    result = contest.run(config, out=tmp_path / "run")
    rivals = plain_accuracies(task)
    n = len(task.datasets().test)
    if name in ("GunPoint", "ItalyPowerDemand", "BasicMotions"):  # minutes on the others
        fitted = contest.fitted_budget(config, len(task.datasets().train))
        gru = train.Config(
            task="table",
            mixer="gru",
            task_options=config.task_options,
            train=fitted.train,
        )
        rivals["nn.GRU"] = train.run(gru, out=tmp_path / "gru").test_metric
    holds(result, rivals, n)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ETTh1.csv", "ETTm1.csv.gz"])
def test_the_law_on_a_series(name, tmp_path):
    options = ForecastOptions(data=shared("ett", name))
    config = train.Config(
        task="forecast", task_options=options, model=train.ModelConfig(pool="last")
    )
    told = []
    result = contest.run(config, out=tmp_path / "run", say=told.append)
    values, history = Forecast(options).normalised()
    first, end = history.ends[1:]
    starts = np.arange(first, end - options.horizon + 1)
    rivals = {}
    for season in (1, 24 if name.startswith("ETTh") else 96):
        ahead = np.arange(options.horizon)
        back = starts[:, None] + ahead - season * (ahead // season + 1)
        truth = values.numpy()[starts[:, None] + ahead]
        rivals[season] = float(((truth - values.numpy()[back]) ** 2).mean())
    assert result.test_metric < min(rivals.values())
    assert told[0].lost_to is None
