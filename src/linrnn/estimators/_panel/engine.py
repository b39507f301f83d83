"""Choose for each series, and forecast with what was chosen."""

from typing import NamedTuple

import numpy as np

from linrnn.estimators._panel.bands import Bands, calibrate, share_of_level, spread_among
from linrnn.estimators._panel.batch import Batch
from linrnn.estimators._panel.cold import judge_cut
from linrnn.estimators._panel.contestants import forecasts
from linrnn.estimators._panel.effects import effects_of
from linrnn.estimators._panel.ridge import Inputs
from linrnn.estimators._panel.selection import (
    Trial,
    back_test,
    mixed,
    scores_of,
    stacked,
    weights_of,
)

_WITH = "inputs + "


class Chosen(NamedTuple):
    """The result of a fit."""

    names: tuple[str, ...]
    scores: np.ndarray
    """(contestants, series): errors over those of the last value; NaN where there is none."""
    weights: np.ndarray
    """(contestants, series)."""
    bands: Bands

    def of(self, series: np.ndarray) -> "Chosen":
        """Those of some of the series."""
        bands = self.bands._replace(size=self.bands.size[series])
        return Chosen(self.names, self.scores[:, series], self.weights[:, series], bands)


def choose(batch: Batch, season: int, horizon: int, inputs: Inputs | None) -> Chosen:
    """Judge all contestants in the past of each series, and give the best their shares."""
    trial = back_test(batch, season, horizon, inputs, say=say)
    said = say(batch, season, horizon, np.zeros(len(batch.n), dtype=int), inputs)
    if not len(trial.names):  # too short for any origin
        trial = Trial(
            tuple(said), trial.offsets, np.empty((len(said), *trial.errors.shape[1:])), trial.scale
        )
        scores = np.where(np.array([n == "naive" for n in said])[:, None], 1.0, np.nan)
        scores = np.repeat(scores, len(batch.n), 1)
        return Chosen(trial.names, scores, weights_of(scores), calibrate(batch, trial, horizon))
    absent = np.full((len(batch.n), horizon), np.nan)
    now = stacked({name: said.get(name, absent) for name in trial.names}, trial.names)
    scores, bands = scores_of(trial), calibrate(batch, trial, horizon)
    scores, bands = _of_cold_series(batch, season, horizon, inputs, trial, scores, bands)
    can = ~np.isnan(now).any(2)
    weights = weights_of(scores, can)
    # a series that was never judged has its last value
    silent = weights.sum(0) == 0
    weights[trial.names.index("naive"), silent] = 1.0
    return Chosen(trial.names, scores, weights, bands)


def _of_cold_series(
    batch: Batch,
    season: int,
    horizon: int,
    inputs: Inputs | None,
    trial: Trial,
    scores: np.ndarray,
    bands: Bands,
) -> tuple[np.ndarray, Bands]:
    """Scores and bands, those of series without an origin from the others cut to their length.

    What is best for a long series needs its seasons and trends, and errs less than what is left
    for a series of one or two values.
    """
    never = ~(~np.isnan(trial.errors)).any((0, 2, 3))
    scores, size = scores.copy(), bands.size.copy()
    for few in np.unique(batch.n[never]).tolist():
        cut = judge_cut(batch, season, horizon, inputs, few, trial, bands, say=say)
        if cut is not None:
            alike = never & (batch.n == few)
            scores[:, alike], size[alike] = cut.scores[:, None], cut.size
    return scores, bands._replace(size=size)


def forecast(
    batch: Batch, season: int, horizon: int, inputs: Inputs | None, chosen: Chosen
) -> np.ndarray:
    """(series, horizon): by those contestants that have a share in one series at least."""
    used = [name for name, w in zip(chosen.names, chosen.weights, strict=True) if w.any()]
    groups = np.zeros(len(batch.n), dtype=int)
    said = say(batch, season, horizon, groups, inputs, frozenset((*used, "naive")))
    absent = np.full((len(batch.n), horizon), np.nan)
    now = stacked({name: said.get(name, absent) for name in chosen.names}, chosen.names)
    weights = np.where(np.isnan(now).any(2), 0.0, chosen.weights)
    weights[chosen.names.index("naive"), weights.sum(0) == 0] = 1.0
    values = mixed(now, weights / weights.sum(0))
    low = np.where(batch.mask, batch.y, np.inf).min(1)
    # what never was negative, as a count, is not forecast to be
    return np.where((low >= 0)[:, None], np.maximum(values, 0.0), values)


def half_widths(batch: Batch, chosen: Chosen, coverage: float) -> np.ndarray:
    """(series, horizon)."""
    spread = spread_among(batch, share_of_level(batch))
    return np.asarray(chosen.bands.at(coverage) * spread[:, None])


def say(
    batch: Batch,
    season: int,
    horizon: int,
    groups: np.ndarray,
    inputs: Inputs | None = None,
    only: frozenset[str] | None = None,
) -> dict[str, np.ndarray]:
    """Forecasts of each contestant, and where inputs are known ahead, those without them too."""
    said = forecasts(batch, season, horizon, groups, inputs, only)
    if inputs is None or not inputs.known.shape[2]:
        return said
    with_inputs = None
    if only is not None:
        with_inputs = frozenset(name.removeprefix(_WITH) for name in only if name.startswith(_WITH))
        if not with_inputs:
            return said
    effect = effects_of(batch, inputs.known, season, groups)
    added = np.einsum("rtk,rk->rt", inputs.known, effect)  # (rows, time + horizon)
    adjusted = batch.mapped(batch.y - added[:, : batch.y.shape[1]])
    places = batch.n[:, None] + np.arange(horizon)
    later = np.take_along_axis(added, places, 1)
    without = inputs._replace(known=inputs.known[..., :0])
    for name, values in forecasts(adjusted, season, horizon, groups, without, with_inputs).items():
        said[_WITH + name] = values + later
    return said
