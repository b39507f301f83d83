"""One regression of all series on frozen modes of the linear recurrent unit."""

from typing import NamedTuple

import numpy as np
import torch

from linrnn.estimators._forecast_modes import draw_modes
from linrnn.estimators._panel.batch import Batch, change_scale
from linrnn.nn.change_bank import ChangeBank

_MOST_MODES = 96
_ROWS_A_FEATURE = 6
_PENALTIES = tuple(10.0**k for k in range(-3, 3))
"""Times the rows."""
_LARGE = 8.0


class Inputs(NamedTuple):
    """Numbers that are read besides the values; each may have no columns."""

    known: np.ndarray
    """(rows, time + horizon, columns): left as the batch, and known ahead."""
    past: np.ndarray
    """(rows, time, columns)."""
    static: np.ndarray
    """(rows, columns)."""

    def take(self, rows: np.ndarray, steps: int, horizon: int) -> "Inputs":
        """Those of some rows, cut to their steps."""
        known = self.known[rows, : steps + horizon]
        return Inputs(known, self.past[rows, :steps], self.static[rows])


def bank(
    batch: Batch, season: int, horizon: int, groups: np.ndarray, inputs: Inputs | None = None
) -> np.ndarray:
    r"""Forecasts (rows, horizon) of `RecurrentForecaster`'s kind, with one read-out for all rows.

    Equation:
        f_t = lam f_{t-1} + lam / (1 - lam) (y_t - y_{t-1}) / scale
        yhat_{t+h} = y_t + scale W_h (f_t, past inputs, known inputs at t + h less at t, statics)

    Args:
        batch: the rows.
        season: in steps; 1 is none.
        horizon: steps ahead.
        groups: (rows,): rows of one group share a read-out. A back-test gives each offset of its
            origins a group, so that none reads what came later.
        inputs: of the rows.
    """
    forecast = np.full((len(batch.n), horizon), np.nan)
    for group in np.unique(groups):
        rows = np.flatnonzero((groups == group) & (batch.n >= 3))
        if not len(rows):
            continue
        part = batch.take(rows)
        inputs_of_part = None if inputs is None else inputs.take(rows, part.y.shape[1], horizon)
        forecast[rows] = _fit(part, season, horizon, inputs_of_part)
    return forecast


def _bank_of(batch: Batch, season: int, columns: int) -> ChangeBank:
    total = int(batch.n.sum())
    n_modes = int(np.clip(total // (_ROWS_A_FEATURE * 2) - columns, 6, _MOST_MODES))
    seasons = (float(season),) if season > 1 else ()
    unit = max(6.0, float(season))
    longest = max(8.0, float(batch.n.max()) / 3)
    modes = draw_modes(n_modes, seasons, unit, longest, np.random.default_rng(0))
    return ChangeBank(modes)


def _read(values: np.ndarray, reader: ChangeBank) -> np.ndarray:
    """(rows, time, features)."""
    series = torch.from_numpy(np.ascontiguousarray(values.T))
    return reader.read(series, reader.start(series[0]))[0].numpy()


def _fit(batch: Batch, season: int, horizon: int, inputs: Inputs | None) -> np.ndarray:
    scale = change_scale(batch)
    y = batch.backwards() / scale[:, None]
    columns = 0 if inputs is None else inputs.past.shape[2] + inputs.static.shape[1]
    reader = _bank_of(batch, season, columns)
    features = [_read(y, reader)]
    if inputs is not None:
        features += _fixed(batch, inputs)
    x = np.concatenate(features, 2)
    inside = np.arange(y.shape[1]) >= y.shape[1] - batch.n[:, None] + 1
    size = np.sqrt((x[inside] ** 2).mean(0))
    x = np.clip(x / np.where(size > 0, size, 1.0), -_LARGE, _LARGE)
    return np.asarray(_solve(batch, x, y, inside, horizon, inputs) * scale[:, None])


def _fixed(batch: Batch, inputs: Inputs) -> list[np.ndarray]:
    """Features of past inputs and statics, (rows, time, features) each."""
    steps = batch.y.shape[1]
    decays = ChangeBank(torch.tensor([0.3, 0.8], dtype=torch.complex128, device="cpu"))
    features = []
    for column in range(inputs.past.shape[2]):
        past = batch.mapped(inputs.past[..., column])
        size = change_scale(past)[:, None]
        features.append(_read(past.backwards() / size, decays))
    if inputs.static.shape[1]:
        features.append(np.repeat(inputs.static[:, None], steps, 1))
    return features


def _solve(
    batch: Batch,
    x: np.ndarray,
    y: np.ndarray,
    inside: np.ndarray,
    horizon: int,
    inputs: Inputs | None,
) -> np.ndarray:
    """(rows, horizon), in units of the scale."""
    forecast = np.zeros((len(y), horizon))
    steps = y.shape[1]
    for h in range(1, horizon + 1):
        if h >= steps:
            forecast[:, h - 1] = forecast[:, h - 2]
            continue
        rows = inside[:, : steps - h]
        more, ahead = _known(batch, inputs, h)
        features = np.concatenate([x[:, : steps - h], more], 2)[rows]
        target = np.clip((y[:, h:] - y[:, : steps - h])[rows], -_LARGE * h, _LARGE * h)
        if len(target) < 4:
            forecast[:, h - 1] = forecast[:, h - 2]
            continue
        forecast[:, h - 1] = np.concatenate([x[:, -1], ahead], 1) @ _ridge(features, target, h)
    return y[:, -1:] + forecast


def _known(batch: Batch, inputs: Inputs | None, h: int) -> tuple[np.ndarray, np.ndarray]:
    """Changes of known inputs over h steps: of each step (rows, time - h, columns), and of now."""
    rows, steps = batch.y.shape
    if inputs is None or not inputs.known.shape[2]:
        return np.zeros((rows, steps - h, 0)), np.zeros((rows, 0))
    places = np.arange(steps) - (steps - batch.n[:, None])  # (rows, time)
    index = places.clip(0)[..., None]
    now = np.take_along_axis(inputs.known, index, 1)
    later = np.take_along_axis(inputs.known, index + h, 1)
    change = later - now
    return change[:, : steps - h], change[:, -1]


def _ridge(x: np.ndarray, y: np.ndarray, overlap: int) -> np.ndarray:
    """(features,): the penalty by generalised cross-validation; windows that overlap count less."""
    products, along = x.T @ x, x.T @ y
    values, vectors = np.linalg.eigh(products)
    values = values.clip(0)
    projected = vectors.T @ along
    count = max(len(x) / overlap, 2.0)
    total = float(y @ y)
    best, best_score = np.zeros(x.shape[1]), np.inf
    for penalty in _PENALTIES:
        inverse = 1 / (values + penalty * len(x) + 1e-9)
        residual = total - float((projected**2 * inverse * (2 - values * inverse)).sum())
        used = float((values * inverse).sum())
        score = max(residual, 0.0) / max(1 - used / count, 0.05) ** 2
        if score < best_score:
            best, best_score = vectors @ (projected * inverse), score
    return np.asarray(best)
