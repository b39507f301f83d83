"""Forecasts of a short series by a mean: of the forecaster, of windows, and of square roots."""

from typing import NamedTuple

import numpy as np
import torch

from linrnn.estimators._rolling import Residuals
from linrnn.estimators._whole import whole
from linrnn.estimators._window_ridge import WindowRidge, fit_windows
from linrnn.estimators.drift import Drift
from linrnn.estimators.forecaster import RecurrentForecaster
from linrnn.estimators.frozen import series_model
from linrnn.frozen import MeanModel, SeriesModel, WindowModel

_FOLDS = 8
_UNJUDGED = 1 / 3
"""First share of the origins that says little of a fit to all: too little came before them."""
_POWER = 4
"""Weights go with this power of the inverse mean squared error. On 26 real series of 100 to 400
values (2026-11-29) powers 0 to 8 gave the same errors within 1 %."""
_MOST_CHANNELS = 16
_ROUNDING = 1e-5
"""How far below the floor a value of float32 may lie."""
_LONGEST_SHARE = 1 / 3
"""Steps of a window, as a share of the values before the first origin that judges it."""


class BackTested(NamedTuple):
    """A fitted forecaster, and what it got wrong on the way."""

    forecaster: RecurrentForecaster
    residuals: Residuals
    """In units of the scale of each channel."""


class Means(NamedTuple):
    """One mean of all that is there, and one of the training part alone."""

    every: MeanModel
    judged: MeanModel


def back_tested(forecaster: RecurrentForecaster, values: np.ndarray) -> BackTested:
    """Fit a forecaster to values (time, channels), and keep the errors of its back-test."""
    with whole(forecaster) as fitted:
        residuals = fitted._fit(values)
    return BackTested(forecaster, residuals)


def fit_means(
    tested: BackTested, values: np.ndarray, *, n_train: int, length: int, floor: np.ndarray
) -> Means | None:
    r"""The mean of a forecaster and of a ridge on windows, each also on square roots.

    Equation:
        w_k = e_k^-4 / (2 sum e_j^-4)        over the forecasters, and over the ridges

    with ``e_k`` the mean squared error of a part in the back-test, less the first third of its
    origins. Both kinds count for a half. Without a kind the other counts for all. The square roots
    are of values less ``floor``, and are left out where a value lies below it.

    Args:
        tested: fitted to ``values``.
        values: (time, channels).
        n_train: steps of the training part.
        length: steps of a window.
        floor: (channels,).

    Returns:
        None for a long series, whose back-test is in the validation part alone; for many channels;
        where the forecaster is alone; and where it is better in the back-test by more than a
        standard error of the difference.
    """
    origins = tested.residuals.origins.numpy()
    if len(origins) < 3 or origins[0] >= n_train - 1 or values.shape[1] > _MOST_CHANNELS:
        return None
    horizon, parts = tested.forecaster.horizon_, [_bank(tested, values, n_train)]
    readings = {False: values}
    if (values >= floor - _ROUNDING).all():
        readings[True] = np.sqrt(np.maximum(values - floor, 0))
        again = RecurrentForecaster(**tested.forecaster.get_params(deep=False))
        parts.append(_bank(back_tested(again, readings[True]), readings[True], n_train, root=True))
    common = np.intersect1d(parts[0].origins, parts[-1].origins)
    common = common[int(_UNJUDGED * len(common)) :]
    for root, series in readings.items():
        parts += _windows(series, common, n_train, length, horizon, root=root)
    if len(parts) == 1 or not len(common):
        return None
    return _mixed(parts, values, common, n_train, floor)


class _Part(NamedTuple):
    """One of those that the mean is of."""

    root: bool
    """Whether it reads and forecasts square roots."""
    every: SeriesModel | WindowModel
    judged: SeriesModel | WindowModel
    origins: np.ndarray
    forecasts: np.ndarray
    """(origins, channels, horizon), in its units."""


def _bank(tested: BackTested, series: np.ndarray, n_train: int, *, root: bool = False) -> _Part:
    forecaster, (origins, errors) = tested.forecaster, tested.residuals
    channels, longest = series.shape[1], n_train - forecaster.horizon_
    every, judged = (
        series_model(forecaster, channels, longest, judged=judged) for judged in (False, True)
    )
    errors_in_units = errors.numpy() * forecaster.scale_[:, None]
    forecasts = _later(series, origins.numpy(), forecaster.horizon_) - errors_in_units
    return _Part(root, every, judged, origins.numpy(), forecasts)


def _windows(
    series: np.ndarray, origins: np.ndarray, n_train: int, steps: int, horizon: int, *, root: bool
) -> list[_Part]:
    """A ridge on windows, judged as the forecaster is; none where a fold is too short for it."""
    if not len(origins) or steps > _LONGEST_SHARE * origins[0]:
        return []
    forecasts = []
    for fold in np.array_split(origins, min(_FOLDS, len(origins))):
        ridge = fit_windows(series[: fold[0] + 1], steps, horizon)
        if ridge is None:
            return []
        forecasts.append(ridge.forecasts(series, fold))
    every, judged = (fit_windows(part, steps, horizon) for part in (series, series[:n_train]))
    if every is None or judged is None:
        return []
    return [_Part(root, _model(every), _model(judged), origins, np.concatenate(forecasts))]


def _model(ridge: WindowRidge) -> WindowModel:
    return WindowModel(torch.from_numpy(ridge.weight), torch.from_numpy(ridge.bias))


def _mixed(
    parts: list[_Part], values: np.ndarray, origins: np.ndarray, n_train: int, floor: np.ndarray
) -> Means | None:
    """Both means; of the judged one the weights are from before the validation part, too.

    None where the forecaster alone is better by more than a standard error of the difference.
    """
    horizon = parts[0].forecasts.shape[2]
    came = _later(values, origins, horizon)
    forecasts = np.stack([_in_values(part, origins, floor) for part in parts])
    roots = torch.tensor([part.root for part in parts], device="cpu")
    kinds = np.array([isinstance(part.every, WindowModel) for part in parts])
    errors = came - forecasts  # (parts, origins, channels, horizon)
    early = origins + horizon < n_train
    weights = _weights(errors, kinds)
    if _behind(np.einsum("p,poch->och", weights, errors), errors[0], int(np.ptp(origins)) + 1):
        return None
    before = _weights(errors[:, early], kinds) if early.any() else weights
    first = parts[0].every
    assert isinstance(first, SeriesModel)
    ahead = np.einsum("p,poc->co", weights, errors[..., 0]) / first.scale.numpy()[:, None]
    tails = torch.from_numpy(Drift.of(torch.from_numpy(ahead)).tails).long()
    limit = torch.from_numpy(floor)
    return Means(
        MeanModel([p.every for p in parts], torch.from_numpy(weights), roots, limit, tails),
        MeanModel([p.judged for p in parts], torch.from_numpy(before), roots, limit),
    )


def _in_values(part: _Part, origins: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """(origins, channels, horizon)."""
    forecasts = part.forecasts[np.isin(part.origins, origins)]
    if not part.root:
        return forecasts
    return np.asarray(np.maximum(forecasts, 0) ** 2 + floor[:, None])


def _weights(errors: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """(parts,): by mean squared error, those of each kind for the same share in all."""
    squares = np.square(errors).mean((1, 2, 3))
    powers = (np.maximum(squares, 1e-12 * squares.max() + 1e-300) / squares.max()) ** -_POWER
    weights = np.zeros(len(kinds))
    present = [kind for kind in (False, True) if (kinds == kind).any()]
    for kind in present:
        weights[kinds == kind] = powers[kinds == kind] / powers[kinds == kind].sum() / len(present)
    return weights


def _behind(mean: np.ndarray, alone: np.ndarray, steps: int) -> bool:
    """Whether errors (origins, channels, horizon) of a mean are larger, for sure.

    Windows that overlap say less: as many count as do not, in the steps that origins are from.
    """
    lead = np.square(mean).mean((1, 2)) - np.square(alone).mean((1, 2))
    independent = max(1.0, min(len(lead), steps / mean.shape[2]))
    return bool(lead.mean() > lead.std() / np.sqrt(independent))


def _later(values: np.ndarray, origins: np.ndarray, horizon: int) -> np.ndarray:
    """(origins, channels, horizon): what follows."""
    ahead = np.lib.stride_tricks.sliding_window_view(values, horizon, axis=0)
    return np.asarray(ahead[origins + 1])
