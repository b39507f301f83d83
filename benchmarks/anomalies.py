"""How well unusual steps are found: `linrnn.RecurrentDetector` beside two plain detectors.

``--nab`` names a folder with ``data`` and ``labels`` of the Numenta Anomaly Benchmark (58 series).
It is scored as that does, with its standard profile: one threshold for all series, the best; the
first 15 per cent of a series, 750 steps at most, are for learning. Others are tables with a label
in the last column, of which as much is for learning. Beside it stand a z-score against the last 50,
200 or 1,000 steps, and an isolation forest on windows of 16 steps. Prints and writes
``benchmarks/results/anomalies-cpu.md``.
"""

import argparse
import csv
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score

from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn import RecurrentDetector

_SHARE, _MOST = 0.15, 750  # steps for learning
_FALSE = 0.11  # what a false alarm costs in NAB's standard profile


class Stream(NamedTuple):
    """A series, what is odd in it, and how many steps are for learning."""

    x: np.ndarray
    """(time, channels)."""
    windows: list[tuple[int, int]]
    """First and last steps."""
    first: int


def of_nab(folder: Path) -> dict[str, Stream]:
    """All series of NAB."""
    streams = {}
    for name, windows in json.loads((folder / "labels/combined_windows.json").read_text()).items():
        with (folder / "data" / name).open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        times = np.array([np.datetime64(row["timestamp"]) for row in rows])
        places = [np.flatnonzero((times >= np.datetime64(a)) & (times <= np.datetime64(b)))
                  for a, b in windows]  # fmt: skip
        x = np.array([[float(row["value"])] for row in rows])
        first = min(math.floor(_SHARE * len(x)), _MOST)
        streams[name] = Stream(x, [(int(p[0]), int(p[-1])) for p in places], first)
    return streams


def of_table(path: Path) -> Stream:
    """Numbers of all columns but one of times, and a label in the last."""
    with path.open(encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    skipped = int(head[0] == "timestamp")
    x = np.array([[float(cell) for cell in row[skipped:-1]] for row in rows])
    odd = np.r_[0, [float(row[-1]) > 0 for row in rows], 0].astype(int)
    starts, ends = np.flatnonzero(np.diff(odd) == 1), np.flatnonzero(np.diff(odd) == -1) - 1
    first = min(math.floor(_SHARE * len(x)), _MOST)
    return Stream(x, list(zip(starts.tolist(), ends.tolist(), strict=True)), first)


def ours(stream: Stream) -> np.ndarray:
    """Rarity by linrnn."""
    detector = RecurrentDetector().fit(stream.x[: stream.first])
    scores = [-detector.update(row) for row in stream.x[stream.first :]]
    return np.r_[np.zeros(stream.first), scores]


def z_score(stream: Stream, window: int) -> np.ndarray:
    """Standard deviations from the mean of the last steps; the largest of all channels."""
    scores = np.zeros(len(stream.x))
    for v in stream.x.T:
        centred = v - v.mean()
        sums = np.cumsum(np.stack([centred, centred**2]), 1)
        sums = np.concatenate([np.zeros((2, 1)), sums], 1)
        for k in range(1, len(v)):
            low = max(0, k - window)
            mean, square = (sums[:, k] - sums[:, low]) / (k - low)
            variance = max(square - mean**2, 1e-12 * max(1.0, float(np.abs(v).max()) ** 2))
            scores[k] = max(scores[k], abs(centred[k] - mean) / math.sqrt(variance))
    return scores


def forest(stream: Stream, width: int = 16) -> np.ndarray:
    """An isolation forest on the last steps, fitted to the part for learning."""
    padded = np.concatenate([np.repeat(stream.x[:1], width - 1, 0), stream.x])
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=0)
    windows = windows.reshape(len(stream.x), -1)
    scores: np.ndarray = (
        -IsolationForest(random_state=0).fit(windows[: max(stream.first, 2)]).score_samples(windows)
    )
    return scores


def _sigmoid(x: float) -> float:
    return 2 / (1 + math.exp(5 * x)) - 1 if x <= 3 else -1.0


def _worth(stream: Stream, step: int) -> tuple[int, float]:
    """The window of an alarm or -1, and what the alarm is worth."""
    before: tuple[int, int] | None = None
    for place, (a, b) in enumerate(stream.windows):
        if a <= step <= b:
            return place, _sigmoid(-(b - step + 1) / (b - a + 1)) / _sigmoid(-1.0)
        if b < step:
            before = (a, b)
    if before is None or before[0] == before[1]:
        return -1, -_FALSE
    return -1, _FALSE * _sigmoid((step - before[1]) / (before[1] - before[0]))


def nab_score(streams: dict[str, Stream], scores: dict[str, np.ndarray]) -> float:
    """0 for no alarm at all, 100 for all in time and none else; at the best threshold."""
    alarms, n_windows = [], 0
    for name, stream in streams.items():
        n_windows += sum(b >= stream.first for _, b in stream.windows)
        for step in range(stream.first, len(stream.x)):
            alarms.append((float(scores[name][step]), name, *_worth(stream, step)))
    alarms.sort(key=lambda alarm: -alarm[0])
    best, total, hits = 0.0, 0.0, {}
    for k, (score, name, window, worth) in enumerate(alarms):
        if window < 0:
            total += worth
        elif worth > hits.get((name, window), -1.0):
            total += worth - hits.get((name, window), -1.0)
            hits[name, window] = worth
        if k + 1 == len(alarms) or alarms[k + 1][0] < score:
            best = max(best, total)
    return 100 * best / (2 * n_windows)


def _quality(stream: Stream, scores: np.ndarray) -> str:
    odd = np.zeros(len(stream.x), bool)
    for a, b in stream.windows:
        odd[a : b + 1] = True
    odd, scores = odd[stream.first :], scores[stream.first :]
    area, precision = roc_auc_score(odd, scores), average_precision_score(odd, scores)
    return f"{area:.3f} / {precision:.3f}"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nab", type=Path, help="a folder with data and labels of NAB")
    parser.add_argument("tables", nargs="*", type=Path, help="with a label in the last column")
    args = parser.parse_args()
    detectors: dict[str, Callable[[Stream], np.ndarray]] = {
        "RecurrentDetector": ours,
        **{f"z-score, {w} steps": lambda s, w=w: z_score(s, w) for w in (50, 200, 1000)},
        "IsolationForest": forest,
    }
    nab = of_nab(args.nab) if args.nab else {}
    tables = {path.stem: of_table(path) for path in args.tables}
    rows = []
    for who, detect in detectors.items():
        start = time.process_time()
        scores = {name: detect(stream) for name, stream in (nab | tables).items()}
        steps = sum(len(stream.x) for stream in (nab | tables).values())
        micro = 1e6 * (time.process_time() - start) / steps
        row = [who, f"{nab_score(nab, scores):.1f}" if nab else "-"]
        row += [_quality(stream, scores[name]) for name, stream in tables.items()]
        rows.append([*row, f"{micro:.0f} µs"])
        print(*rows[-1], flush=True)
    lines = [
        "# Unusual steps of series",
        "",
        *conditions(command_line(), ["scikit-learn"]),
        "- NAB: its score, 100 for all windows in time and no false alarm, 0 for no alarm; others: "
        "area under the curve / average precision; processor time of a step",
        "",
        *section("anomalies", table(["detector", "NAB", *tables, "a step"], rows)),
    ]
    write_lines(RESULTS / "anomalies-cpu.md", lines)


if __name__ == "__main__":
    main()
