"""The answer of ``linrnn train table`` and ``train forecast`` beside plain methods and `nn.GRU`.

    python benchmarks/front_door.py --statsmodels folder --r-library usr/lib/R/library

One row for each small set: those of the UCR and UEA archives in the folder, small tables of
scikit-learn, read as sequences of one channel, the series of ETT, and short real series of other
packages where their folders are passed. A row has the test score of the default, of the frozen bank
alone, of the nearest sequence and logistic regression, or of the last value and the season before,
and of an nn.GRU with the batches and epochs that the default gives a mixer. The law is that the
default is within its standard error of the best of them. Rows go to
``benchmarks/results/front-door-cpu.csv`` one by one, and sets that are there already are not
measured again; the table goes beside it.
"""

import argparse
import csv
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from _panel_series import Named, all_of
from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn import contest, recipes, train
from linrnn.tasks._reading.files import folder_of
from linrnn.tasks.forecast import Forecast, ForecastOptions
from linrnn.tasks.table import Table, TableOptions
from linrnn.train.context import open_run
from linrnn.train.data import size_of, unpack
from linrnn.train.evaluation import each
from small_series import SETS

HEAD = (
    "set",
    "test",
    "winner",
    "default",
    "error",
    "bank",
    "GRU",
    "simple",
    "best simple",
    "seconds",
)
_TABLES: dict[str, Callable[[], Any]] = {
    "digits": datasets.load_digits,
    "iris": datasets.load_iris,
    "wine": datasets.load_wine,
    "breast cancer": datasets.load_breast_cancer,
}
_ROWS = 256


class Row(NamedTuple):
    """The scores of one set."""

    set: str
    test: int
    winner: str
    default: float
    error: float
    """Standard error of the default's score."""
    bank: float
    gru: float
    """NaN where none was trained."""
    simple: float
    """The best of the simple methods."""
    best_simple: str
    seconds: float

    @classmethod
    def of_cells(cls, cells: list[str]) -> "Row":
        """A row of the file that is written."""
        default, error, bank, gru, simple = map(float, cells[3:8])
        return cls(
            set=cells[0],
            test=int(cells[1]),
            winner=cells[2],
            default=default,
            error=error,
            bank=bank,
            gru=gru,
            simple=simple,
            best_simple=cells[8],
            seconds=float(cells[9]),
        )

    @property
    def lower_is_better(self) -> bool:
        """Errors of forecasts; else accuracies."""
        return self.best_simple.startswith("value")

    @property
    def behind(self) -> float:
        """By how many standard errors the default is behind the best; 0 where it is the best."""
        rivals = [x for x in (self.bank, self.gru, self.simple) if not math.isnan(x)]
        gap = self.default - min(rivals) if self.lower_is_better else max(rivals) - self.default
        return max(0.0, gap / self.error)


def config_of(task: str, options: TableOptions | ForecastOptions) -> train.Config:
    """The configuration that the command line begins with."""
    return replace(recipes.untuned(task), task_options=options)


def trained_gru(config: train.Config, n_train: int, folder: Path) -> float:
    """The test score of an nn.GRU with the budget of the contest's mixer."""
    fitted = contest.fitted_budget(config, n_train)
    return train.run(replace(fitted, mixer="gru"), out=folder).test_metric


def of_table(name: str, data: str, folder: Path, *, gru: bool) -> Row:
    """Accuracies."""
    begin = time.process_time()
    config = config_of("table", TableOptions(data=data))
    task = Table(config.task_options)
    result = contest.run(config, out=folder / "run")
    seconds = time.process_time() - begin
    bank = contest.run(config, only="bank", out=folder / "bank").test_metric
    (rows, y), (more, z), (test, truth) = task.parts()
    x, y = task.padded(rows + more).flatten(1).numpy(), np.concatenate([y, z])
    new = task.padded(test).flatten(1).numpy()
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    simple = {
        "nearest sequence": KNeighborsClassifier(1).fit(x, y).score(new, truth),
        "logistic regression": linear.fit(x, y).score(new, truth),
    }
    best = max(simple, key=lambda who: simple[who])
    n, p = len(truth), result.test_metric
    n_train = size_of(task.datasets().train, "training data")
    return Row(
        set=name,
        test=n,
        winner=result.mixer,
        default=p,
        # of n right ones as well there may be an error in n + 1
        error=max(math.sqrt(p * (1 - p) / n), 1 / (n + 1)),
        bank=bank,
        gru=trained_gru(config, n_train, folder / "gru") if gru else math.nan,
        simple=float(simple[best]),
        best_simple=best,
        seconds=seconds,
    )


def of_series(
    name: str, data: str, folder: Path, season: int, horizon: int, length: int, *, gru: bool
) -> Row:
    """Mean squared errors, in units of the training part."""
    begin = time.process_time()
    config = config_of("forecast", ForecastOptions(data=data, horizon=horizon, length=length))
    result = contest.run(config, out=folder / "run")
    seconds = time.process_time() - begin
    bank = contest.run(config, only="bank", out=folder / "bank").test_metric
    task = Forecast(config.task_options)
    scaled, history = task.normalised()
    values, (_, first, end) = scaled.numpy(), history.ends
    starts = np.arange(first, end - horizon + 1)[:, None]
    ahead = np.arange(horizon)
    truth = values[starts + ahead]
    simple = {
        f"value {back} before": float(
            ((truth - values[starts + ahead - back * (ahead // back + 1)]) ** 2).mean()
        )
        for back in {1, season}
    }
    best = min(simple, key=lambda who: simple[who])
    n_train = size_of(task.datasets().train, "training data")
    return Row(
        set=name,
        test=len(starts),
        winner=result.mixer,
        default=result.test_metric,
        error=_error_of(result.folder, (end - first) / horizon),
        bank=bank,
        gru=trained_gru(config, n_train, folder / "gru") if gru else math.nan,
        simple=simple[best],
        best_simple=best,
        seconds=seconds,
    )


def _error_of(folder: Path, independent: float) -> float:
    """Standard error of a forecast's test error; windows that overlap count as fewer."""
    run = open_run(folder)
    windows: Any = run.task.datasets().test
    n = size_of(windows, "test data")
    batches = (unpack(windows.batch(rows)) for rows in torch.arange(n).split(_ROWS))
    scores = each(run.model, run.task, batches)
    if n < 2:
        return float(scores.mean())
    return float(scores.double().std()) / math.sqrt(max(1.0, min(independent, n)))


def measured(args: argparse.Namespace, left_out: set[str]) -> Iterator[Row]:
    """A row for each set that is there."""
    archive = folder_of("timeseries")
    for name in SETS:
        if name not in left_out:
            with tempfile.TemporaryDirectory() as folder:
                data = str(archive / f"{name}_TRAIN.ts.gz")
                yield of_table(name, data, Path(folder), gru=name not in args.without_gru)
    for name, load in _TABLES.items():
        if name not in left_out:
            with tempfile.TemporaryDirectory() as folder:
                bunch, path = load(), Path(folder) / "x.npz"
                np.savez(path, x=bunch.data.astype(float), y=bunch.target)
                yield of_table(name, str(path), Path(folder), gru=name not in args.without_gru)
    for one in _told_apart(all_of(None, args.statsmodels, args.r_library)):
        if one.name not in left_out and len(one.values) >= args.least:
            yield _of_named(one, gru=one.name not in args.without_gru)
    for name, season in {"ETTh1.csv": 24, "ETTm1.csv.gz": 96}.items():
        if name not in left_out:
            with tempfile.TemporaryDirectory() as folder:
                data, gru = str(folder_of("ett") / name), name not in args.without_gru
                yield of_series(name, data, Path(folder), season, 24, 96, gru=gru)


def _told_apart(series: list[Named]) -> list[Named]:
    """With the set behind a name that came before: rows are looked up by name."""
    seen: set[str] = set()
    result = []
    for one in series:
        result.append(one._replace(name=f"{one.name}, {one.set}") if one.name in seen else one)
        seen.add(one.name)
    return result


def _of_named(one: Named, *, gru: bool) -> Row:
    """A short series, forecast from three seasons or twice the horizon."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series.csv"
        path.write_text("y\n" + "\n".join(f"{v:.17g}" for v in one.values) + "\n")
        horizon = max(1, min(one.season if one.season > 1 else 4, len(one.values) // 12))
        length = max(2 * horizon, min(3 * one.season, len(one.values) // 5))
        return of_series(one.name, str(path), Path(folder), one.season, horizon, length, gru=gru)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--statsmodels", type=Path, help="folder of the package")
    parser.add_argument("--r-library", type=Path, action="append", default=[])
    parser.add_argument("--least", type=int, default=100, help="values of a short series")
    parser.add_argument("--without-gru", nargs="+", default=[], help="sets that train no GRU")
    parser.add_argument("--output", type=Path, default=RESULTS / "front-door-cpu.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    log = args.output.with_suffix(".csv")
    rows = []
    if log.exists():
        with log.open(newline="") as file:
            rows = [Row.of_cells(cells) for cells in list(csv.reader(file))[1:]]
    else:
        log.write_text(",".join(HEAD) + "\n")
    for row in measured(args, {row.set for row in rows}):
        rows.append(row)
        with log.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(
                [f"{x:.4f}" if isinstance(x, float) else x for x in row]
            )
        print(f"{row}  behind by {row.behind:.1f}", flush=True)
    write_lines(args.output, page(rows))


def page(rows: list[Row]) -> list[str]:
    """The lines of the result file."""
    cells = [
        [
            row.set,
            row.winner,
            f"{row.default:.3f} ± {row.error:.3f}",
            f"{row.bank:.3f}",
            "-" if math.isnan(row.gru) else f"{row.gru:.3f}",
            f"{row.simple:.3f} ({row.best_simple})",
            "yes" if row.behind <= 1 else f"{row.behind:.1f} errors behind",
            f"{row.seconds:.0f} s",
        ]
        for row in rows
    ]
    head = ("set", "winner", "default", "bank", "nn.GRU", "best simple method", "law", "time")
    return [
        "# The default beside its rivals",
        "",
        *conditions(command_line(), ["scikit-learn"]),
        "- test accuracy of sequences and mean squared error of forecasts, with the standard "
        "error of the default; law: within it of the best; processor time of the default",
        "",
        *section("front-door", table(head, cells)),
    ]


if __name__ == "__main__":
    main()
