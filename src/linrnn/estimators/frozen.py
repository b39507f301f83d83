"""Fitted estimators as models that run folders hold: see `linrnn.frozen`."""

import torch
from torch import Tensor

from linrnn.estimators.forecaster import RecurrentForecaster
from linrnn.estimators.read_out import ReadOut
from linrnn.frozen import BankModel, SeriesModel

_REACH = 3.0
"""Longest memories of a forecaster's modes after which a window has nothing left to say."""


def bank_model(readout: object, d_input: int) -> BankModel:
    """The model of ``readout_`` of a fitted `linrnn.RecurrentClassifier` or `RecurrentRegressor`.

    Args:
        readout: of a bank.
        d_input: see `linrnn.frozen.BankModel`.
    """
    from linrnn.estimators._bank import BankReadout

    assert isinstance(readout, BankReadout)
    weight, bias = map(torch.from_numpy, readout.linear())
    return BankModel(readout.bank, d_input, weight, bias)


def series_model(
    forecaster: RecurrentForecaster, d_input: int, longest: int, *, judged: bool = False
) -> SeriesModel:
    """The model of a fitted forecaster.

    Args:
        forecaster: after `fit`, and perhaps `update`.
        d_input: see `linrnn.frozen.SeriesModel`.
        longest: steps that a window has at most.
        judged: with the read-out of the training part alone, which the validation part judges.
    """
    follower = forecaster._follower
    read_out = forecaster._judged if judged else follower.read_out
    rows, channels = follower.rows, forecaster.n_features_in_
    few = torch.empty(0, dtype=torch.long, device="cpu") if rows.few is None else rows.few
    if not read_out.together:
        few = few[:0]
    reach = min(longest, _reach(rows.bank.modes))
    return SeriesModel(
        rows.bank.modes,
        few,
        torch.from_numpy(forecaster.scale_),
        torch.stack([read_out.own.get(c, read_out.shared) for c in range(channels)]),
        _together(read_out, channels, channels * len(few)),
        d_input=d_input,
        reach=reach,
        tails=torch.from_numpy(follower.watch.drift.tails).long(),
    )


def _together(read_out: ReadOut, channels: int, width: int) -> Tensor:
    """(channels, width, horizon), 0 for a channel that the states of the others add nothing to."""
    none = read_out.shared.new_zeros(width, read_out.shared.shape[1])
    return torch.stack([read_out.together.get(c, none) for c in range(channels)])


def _reach(modes: Tensor) -> int:
    return int(_REACH * float((-1 / modes.abs().log()).max()))
