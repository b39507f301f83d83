"""How well gaps are filled: `linrnn.RecurrentImputer` beside plain ways.

Values of whole series are hidden by a seed: single ones (a tenth of all), gaps of 6 and of 24 steps
in one channel (a tenth of each channel), the same in all channels at once, and the last 24 steps of
one channel. Prints the root mean squared error of each way on what was hidden, in standard
deviations of the channel, the mean over seeds. Beside it stand a straight line, the last value, the
value a day or a cycle before (twice, if that is hidden too), scikit-learn's `KNNImputer` and
`IterativeImputer`, which do not know what time is. The series: ETTh1 and ETTm1 (their last 6,000
steps; 24 and 96 steps a day),
and two that are made: waves with noise of three sensors, and steps as counters of a room make them.
Writes ``benchmarks/results/imputing-cpu.md``.
"""

import argparse
import gzip
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer

from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn import RecurrentImputer
from linrnn.tasks._reading.files import folder_of

_STEPS = 6000
_SHARE = 0.1
Fill = Callable[[np.ndarray, int], np.ndarray]


def series(folder: Path | None) -> Iterator[tuple[str, np.ndarray, int]]:
    """By name: values (time, channels), and the steps of a cycle."""
    for name, day in (("ETTh1.csv", 24), ("ETTm1.csv.gz", 96)):
        path = folder / name if folder else None
        if path is not None and path.exists():
            with gzip.open(path, "rt") if name.endswith(".gz") else path.open() as file:
                x = np.genfromtxt(file, delimiter=",", skip_header=1)[:, 1:]
            yield name.split(".")[0], x[-_STEPS:], day
    random = np.random.default_rng(0)
    t = np.arange(2000)
    common = np.sin(2 * np.pi * t / 48) + np.cumsum(random.normal(size=2000)) * 0.03
    sensors = common[:, None] * [1, -0.6, 1.5] + 0.1 * random.normal(size=(2000, 3))
    yield "sensors", sensors, 48
    level = np.repeat(random.poisson(4, 400), random.geometric(0.2, 400))[:1500]
    yield "steps", level[:, None].astype(float), 24
    yield "random walk", np.cumsum(random.normal(size=(1500, 1)), 0), 24


def hidden(kind: str, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Which values (time, channels) are hidden."""
    steps, channels = shape
    mask = np.zeros(shape, bool)
    if kind == "single":
        return random.random(shape) < _SHARE
    if kind == "end":
        mask[-24:, random.integers(channels)] = True
        return mask
    length = int(kind.split()[0])
    count = max(1, int(_SHARE * steps / length))
    for _ in range(count if "all" in kind else count * channels):
        first = random.integers(1, steps - length - 1)
        where = slice(None) if "all" in kind else random.integers(channels)
        mask[first : first + length, where] = True
    return mask


def line(x: np.ndarray, _: int) -> np.ndarray:
    """Straight lines."""
    filled, steps = x.copy(), np.arange(len(x))
    for column in filled.T:
        seen = ~np.isnan(column)
        column[~seen] = np.interp(steps[~seen], steps[seen], column[seen])
    return filled


def last(x: np.ndarray, _: int) -> np.ndarray:
    """The last value; at the beginning the first."""
    filled = x.copy()
    for column in filled.T:
        seen = np.flatnonzero(~np.isnan(column))
        place = np.searchsorted(seen, np.arange(len(column)), side="right") - 1
        column[:] = column[seen[place.clip(0)]]
    return filled


def cycle(x: np.ndarray, steps: int) -> np.ndarray:
    """The value a cycle before, or two; else a line."""
    filled, lines = x.copy(), line(x, steps)
    for row in range(len(x)):
        for back in (steps, 2 * steps):
            if row >= back:
                empty = np.isnan(filled[row])
                filled[row, empty] = x[row - back, empty]
    return np.where(np.isnan(filled), lines, filled)


def ours(x: np.ndarray, _: int) -> np.ndarray:
    """Both directions, by frozen modes."""
    filled: np.ndarray = RecurrentImputer().fit_transform(x)
    return filled


def nearest(x: np.ndarray, _: int) -> np.ndarray:
    """Rows whose other channels are alike."""
    filled: np.ndarray = KNNImputer().fit_transform(x)
    return filled


def chained(x: np.ndarray, _: int) -> np.ndarray:
    """Regressions of each channel on the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        filled: np.ndarray = IterativeImputer(random_state=0).fit_transform(x)
    return filled


WAYS: dict[str, Fill] = {
    "RecurrentImputer": ours,
    "line": line,
    "last value": last,
    "cycle before": cycle,
    "KNNImputer": nearest,
    "IterativeImputer": chained,
}
KINDS = ("single", "6 steps", "24 steps", "6 steps, all", "24 steps, all", "end")


def measure(x: np.ndarray, kind: str, day: int, seeds: int) -> tuple[list[float], list[float]]:
    """Errors of all ways and their processor seconds, the means over seeds."""
    errors, seconds = np.zeros((seeds, len(WAYS))), np.zeros((seeds, len(WAYS)))
    unit = x.std(0)
    for seed in range(seeds):
        mask = hidden(kind, x.shape, np.random.default_rng(seed))
        given = np.where(mask, np.nan, x)
        for place, fill in enumerate(WAYS.values()):
            start = time.process_time()
            away = (fill(given, day) - x) / unit
            seconds[seed, place] = time.process_time() - start
            errors[seed, place] = np.sqrt(np.square(away[mask]).mean())
    return errors.mean(0).tolist(), seconds.mean(0).tolist()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="the folder; default: ett in LINRNN_DATA")
    parser.add_argument("--sets", nargs="+", help="names of series; default: all")
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, x, day in series(args.data or folder_of("ett")):
        for kind in args.kinds if not args.sets or name in args.sets else ():
            errors, seconds = measure(x, kind, day, args.seeds)
            best = min(errors)
            cells = [f"**{e:.3f}**" if e == best else f"{e:.3f}" for e in errors]
            rows.append([f"{name}: {kind}", *cells, f"{seconds[0]:.1f} s"])
            print(*rows[-1], flush=True)
    lines = [
        "# Gaps of series",
        "",
        *conditions(command_line(), ["scikit-learn"]),
        "- root mean squared error of what was hidden, in standard deviations of its channel, the "
        f"mean of {args.seeds} seeds; the smallest is bold; processor seconds of the imputer",
        "",
        *section("imputing", table(["series: gaps", *WAYS, "time"], rows)),
    ]
    write_lines(RESULTS / "imputing-cpu.md", lines)


if __name__ == "__main__":
    main()
