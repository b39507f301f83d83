"""Errors of `PanelForecaster` on real series, and coverage of its bands, from several origins.

    python benchmarks/panel.py --aeon aeon.whl --r-library usr/lib/R/library --statsmodels folder

Each set is one table (or, with --alone, each series is one). From several origins in the end of
each series the next steps are forecast from what came before. Printed are, by set: the mean
absolute scaled error (MASE), the quantile loss of nine deciles over that of the last value, what
bands of 80 per cent held, over all and in the tenth of the series where they held least and most,
and how many series are missed by more than a tenth: MASE above 1.1 times the best of four plain
methods, in hindsight.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from _panel_series import Named, all_of
from linrnn import PanelForecaster
from linrnn.estimators._panel.batch import Batch
from linrnn.estimators._panel.contestants import forecasts

RIVALS = ("naive", "seasonal naive", "theta", "ets")
DECILES = tuple(k / 10 for k in range(1, 10))
LEAST = 8
"""Values before an origin."""


class Outcome(NamedTuple):
    """The outcome for one series from one origin."""

    series: str
    mase: dict[str, float]
    covered: np.ndarray
    """(horizon,): whether the band of 80 per cent held each value."""
    loss: float
    """Sum of the quantile losses of nine deciles."""
    naive_loss: float
    """The same, all deciles at the last value."""
    width: float
    """Mean width of the band, in units of the scale of MASE."""


def origins_of(one: Named, count: int) -> list[int]:
    """How many values come before each origin, the latest first."""
    last, step = len(one.values) - one.horizon, max(1, one.horizon // 2)
    return [last - k * step for k in range(count) if last - k * step >= LEAST]


def judged(series: list[Named], origin: int, count: int) -> list[Outcome]:
    """All series of a table from their origins of one number."""
    cut = {one.name: origins_of(one, count) for one in series}
    series = [one for one in series if len(cut[one.name]) > origin]
    if not series:
        return []
    parts = {one.name: one.values[: cut[one.name][origin]] for one in series}
    table = pd.concat(
        pd.DataFrame({"unique_id": name, "ds": np.arange(len(y)), "y": y})
        for name, y in parts.items()
    )
    season = series[0].season
    horizon = max(one.horizon for one in series)
    forecaster = PanelForecaster(horizon, season).fit(table)
    bands = forecaster.predict_interval(coverage=0.8).set_index("unique_id")
    deciles = forecaster.predict_quantiles(quantiles=DECILES).set_index("unique_id")
    return [
        outcome(one, parts[one.name], bands.loc[one.name], deciles.loc[one.name]) for one in series
    ]


def outcome(one: Named, past: np.ndarray, bands: pd.DataFrame, deciles: pd.DataFrame) -> Outcome:
    """The errors of one forecast."""
    h = one.horizon
    came = one.values[len(past) : len(past) + h]
    scale = scale_of(past, one.season)
    batch = Batch(past[None], np.array([len(past)]))
    said = forecasts(batch, one.season, h, np.zeros(1, int), only=frozenset(RIVALS))
    mase = {
        name: float(np.abs(came - values[0]).mean() / scale)
        for name, values in said.items()
        if np.isfinite(values).all()
    }
    bands = bands.iloc[:h]
    mase["panel"] = float(np.abs(came - bands["y"].to_numpy()).mean() / scale)
    lower, upper = bands["y_lower"].to_numpy(), bands["y_upper"].to_numpy()
    levels = np.array(DECILES)
    quantiles = deciles.iloc[:h][[f"y_q{q:g}" for q in DECILES]].to_numpy()
    return Outcome(
        one.name,
        mase,
        (lower <= came) & (came <= upper),
        pinball(came[:, None] - quantiles, levels) / scale,
        pinball(came[:, None] - past[-1], levels) / scale,
        float((upper - lower).mean() / scale),
    )


def scale_of(past: np.ndarray, season: int) -> float:
    """The mean absolute change from a season before, by which MASE divides."""
    lag = season if len(past) > season else 1
    return float(np.abs(past[lag:] - past[:-lag]).mean()) or 1.0


def pinball(error: np.ndarray, levels: np.ndarray) -> float:
    """The quantile loss, summed."""
    return float(np.maximum(levels * error, (levels - 1) * error).sum())


def report(name: str, outcomes: list[Outcome], seconds: float, *, each: bool) -> None:
    """Print a row of the table, and with ``each`` one for every series."""
    series = sorted({one.series for one in outcomes})
    by = {key: [one for one in outcomes if one.series == key] for key in series}
    mase = {
        key: {
            method: float(np.mean([one.mase.get(method, np.nan) for one in those]))
            for method in ("panel", *RIVALS)
        }
        for key, those in by.items()
    }
    best = {key: np.nanmin([row[m] for m in RIVALS]) for key, row in mase.items()}
    missed = [key for key in series if mase[key]["panel"] > 1.1 * best[key]]
    covered = np.array([np.concatenate([one.covered for one in by[key]]).mean() for key in series])
    cells = np.concatenate([one.covered for one in outcomes]).mean()
    loss = sum(one.loss for one in outcomes) / sum(one.naive_loss for one in outcomes)
    width = np.mean([one.width for one in outcomes])
    low, high = np.quantile(covered, (0.1, 0.9))
    means = [np.nanmean([mase[key][m] for key in series]) for m in ("panel", *RIVALS)]
    print(
        f"{name:24} {len(series):4} {len(outcomes):5} "
        + " ".join(f"{x:6.3f}" for x in means)
        + f"  {loss:5.3f}  {100 * cells:4.0f} % {100 * low:4.0f} {100 * high:4.0f}  {width:5.2f}"
        f"  {len(missed):3} {seconds:5.0f} s",
        flush=True,
    )
    if each:
        for key in series:
            row = " ".join(f"{mase[key][m]:6.3f}" for m in ("panel", *RIVALS))
            k = series.index(key)
            mark = "  missed" if key in missed else ""
            print(f"    {key:24} {row} {100 * covered[k]:4.0f} %{mark}")


def main() -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aeon", type=Path, help="wheel of aeon")
    parser.add_argument("--statsmodels", type=Path, help="folder of the package")
    parser.add_argument("--r-library", type=Path, action="append", default=[])
    parser.add_argument("--origins", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="a table for each series")
    parser.add_argument("--each", action="store_true", help="a row for each series, too")
    parser.add_argument("--set", action="append", help="sets whose names begin so")
    options = parser.parse_args()
    sets: dict[str, list[Named]] = {}
    for one in all_of(options.aeon, options.statsmodels, options.r_library):
        word = {1: "yearly", 4: "quarterly", 12: "monthly"}[one.season]
        name = one.set if one.set.endswith(word) else f"{one.set} {word}"
        sets.setdefault(name, []).append(one)
    print(
        f"{'set':24} {'n':>4} {'cuts':>5} "
        + " ".join(f"{m[:6]:>6}" for m in ("panel", *RIVALS))
        + "    WQL  held  10%  90%  width miss"
    )
    for name, series in sets.items():
        if options.set and not name.startswith(tuple(options.set)):
            continue
        start = time.perf_counter()
        outcomes = []
        for origin in range(options.origins):
            for table in [[one] for one in series] if options.alone else [series]:
                outcomes += judged(table, origin, options.origins)
        report(name, outcomes, time.perf_counter() - start, each=options.each)


if __name__ == "__main__":
    sys.exit(main())
