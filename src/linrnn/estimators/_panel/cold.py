"""Series of few values: judged on the other series, each cut to as many."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from linrnn.estimators._panel.bands import USUAL, Bands, share_of_level, spread_among
from linrnn.estimators._panel.batch import Batch, change_scale
from linrnn.estimators._panel.ridge import Inputs
from linrnn.estimators._panel.selection import Trial, came_after, scores_of, weights_of

_ROWS = 2000
_FEWEST = 8
"""Cut series from which something may be said."""
_FAR = 1e6


class Cut(NamedTuple):
    """Outcome of forecasts from a few values of each of the other series."""

    scores: np.ndarray
    """(contestants,): errors over those of the last value; NaN where there is none."""
    size: float
    """As of `Bands`: so that bands hold the usual share of what came after the cut series."""


def judge_cut(
    batch: Batch,
    season: int,
    horizon: int,
    inputs: Inputs | None,
    few: int,
    trial: Trial,
    bands: Bands,
    *,
    say: Callable[..., dict[str, np.ndarray]],
) -> Cut | None:
    """Let all contestants forecast from ``few`` values, which is all that they are shown.

    Args:
        batch, season, horizon, inputs: as of a forecast; of the inputs, those known ahead are read.
        few: values before each origin.
        trial: its origins and contestants are these.
        bands: of long series.
        say: as of `selection.back_test`.

    Returns:
        None where the other series have too few values for that.
    """
    offsets = trial.offsets[:: -(-len(trial.offsets) * len(batch.n) // _ROWS)]
    series, which = (x.ravel() for x in np.indices((len(batch.n), len(offsets))))
    ends = batch.n[series] - offsets[which]
    use = ends > few
    series, which, ends = series[use], which[use], ends[use]
    if len(series) < _FEWEST:
        return None
    places = ends[:, None] - few + np.arange(few)
    parts = Batch(batch.y[series[:, None], places], np.full(len(series), few))
    known = _known(inputs, series, places[:, 0], few + horizon)
    said = say(parts, season, horizon, which, known)
    scale = change_scale(parts, season)
    came = came_after(batch, series, ends, horizon)
    absent = np.full(came.shape, np.nan)
    forecasts = np.stack([said.get(name, absent) for name in trial.names])
    # one with gaps takes no part in a forecast either
    forecasts[np.isnan(forecasts).any(2)] = np.nan
    errors = (came - forecasts) / scale[:, None]
    every = Trial(trial.names, offsets, errors[:, None], scale[None])
    scores = scores_of(every)
    weights = weights_of(scores)[..., None] * ~np.isnan(errors)
    total = weights.sum(0)
    with np.errstate(all="ignore"):
        mean = (weights * np.nan_to_num(errors)).sum(0) / total
    spread = spread_among(parts, share_of_level(batch))
    unit = np.abs(mean) * (scale / spread)[:, None] / bands.growth
    unit = np.minimum(unit[(total > 0) & ~np.isnan(came)], _FAR)
    if len(unit) < _FEWEST:
        return None
    return Cut(scores[:, 0], float(np.quantile(unit, USUAL)) / bands.width(USUAL))


def _known(
    inputs: Inputs | None, series: np.ndarray, starts: np.ndarray, steps: int
) -> Inputs | None:
    """Inputs that are known ahead, of some steps from a start on in each cut series."""
    if inputs is None or not inputs.known.shape[2]:
        return None
    places = starts[:, None] + np.arange(steps)
    known = inputs.known[series[:, None], places]
    rows = len(series)
    return Inputs(known, np.zeros((rows, steps, 0)), np.zeros((rows, 0)))
