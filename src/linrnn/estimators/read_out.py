"""The ridge from states to all steps ahead, with what validation says of it."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.moments import Moments, Ridge, solve_ridge

PENALTIES = tuple(10.0 ** (k / 2) for k in range(-12, 9))
_FEW_PENALTIES = tuple(10.0**k for k in range(-2, 5))
_GAIN = 0.99
"""A channel gets a separate read-out if that takes its error below this share of the common."""
_NOISE = 1e-16
"""A feature that sums to less than this share of the largest is one of rounding errors."""
_AHEAD = 64  # steps ahead at which such errors are compared, evenly spaced


class ReadOut(NamedTuple):
    """Coefficients of changes from the last value on."""

    shared: Tensor
    """(features, horizon), of every channel."""
    own: dict[int, Tensor]
    """(features, horizon), of a channel that has its own in place of the shared ones."""
    together: dict[int, Tensor]
    """(width, horizon), of a channel to whose changes the states of all channels add."""

    def changes(self, x: Tensor, z: Tensor | None) -> Tensor:
        """Forecasts (channels, rows, horizon) less the last value, from the features."""
        changes = torch.stack([f @ self.own.get(c, self.shared) for c, f in enumerate(x)])
        for channel, coefficients in self.together.items():
            assert z is not None
            changes[channel] += z @ coefficients
        return changes


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Penalties, in units of what each feature summed to in the rows of training."""

    penalty: float
    scale: Tensor
    """(features,)"""
    own: dict[int, float]
    """Penalty of a channel's own departure from the shared read-out."""
    own_scale: Tensor
    """(groups, features)"""
    together: dict[int, float]
    """Penalty of what the states of all channels add to a channel."""
    together_scale: Tensor
    """(width,)"""
    error: Tensor
    """(horizon,): mean squared error of the shared read-out in the rows of validation."""

    def of_share(self, share: float) -> "Choice":
        """The same penalties beside sums over a share of the rows of training."""
        scales = ("scale", "own_scale", "together_scale")
        return replace(self, **{name: getattr(self, name) * share for name in scales})

    def solve(self, moments: Moments, steps: int | None = None) -> ReadOut:
        """The read-out that some rows give with these penalties, perhaps of few steps ahead."""
        if steps is not None:
            moments = _thinned(moments, slice(steps))
        pooled = moments.pooled()
        shared = solve_ridge(pooled.xx[0], pooled.xy[0], self.scale, self.penalty)
        by_channel = {
            c: shared + solve_ridge(a, b - a @ shared, self.own_scale[c], penalty)
            for c, penalty in self.own.items()
            for a, b in ((moments.xx[c], moments.xy[c]),)
        }
        together = {
            c: solve_ridge(
                moments.zz, moments.zy[c] - moments.zx[c] @ shared, self.together_scale, penalty
            )
            for c, penalty in self.together.items()
        }
        return ReadOut(shared, by_channel, together)


def choose(
    train: Moments, valid: Moments, kinds: tuple[str, ...], penalty: float | None = None
) -> Choice:
    """The penalties with the smallest squared error in the rows of validation.

    First that of one read-out for all channels. Then each channel may leave it, where that takes
    at least a hundredth off its error: for a separate one, a ridge of departures from the shared
    one, or for the shared one and a ridge on the states of all channels.

    Args:
        train, valid: rows that are fitted and rows that judge.
        kinds: what is allowed besides the shared read-out, of "own" and "together".
        penalty: of the shared read-out; None chooses it here.
    """
    pooled, judge = train.pooled(), valid.pooled()
    scale = _scale_of(pooled.xx[0])
    ridge = Ridge(pooled.xx[0], pooled.xy[0], scale)
    candidates = PENALTIES if penalty is None else (penalty,)
    errors = {p: judge.error(0, ridge.solve(p)) for p in candidates}
    best = min(candidates, key=lambda p: float(errors[p].sum()))
    choice = Choice(
        penalty=best,
        scale=scale,
        own={},
        own_scale=_scale_of(train.xx),
        together={},
        together_scale=_scale_of(train.zz),
        error=errors[best],
    )
    if not kinds or train.groups == 1:
        return choice
    few = _few_steps(train.xy.shape[-1])
    return _leave(choice, _thinned(train, few), _thinned(valid, few), kinds)


def errors_by_penalty(fitted: Moments, judged: Moments, scale: Tensor) -> Tensor:
    """(penalties,): summed squared errors of the shared read-out of some rows in other rows."""
    pooled, judge = fitted.pooled(), judged.pooled()
    ridge = Ridge(pooled.xx[0], pooled.xy[0], scale)
    return torch.stack([judge.error(0, ridge.solve(p)).sum() for p in PENALTIES])


def _scale_of(products: Tensor) -> Tensor:
    """Sums of each feature, (..., features).

    That of a mode of two steps has an imaginary part of rounding errors. In units of themselves
    they would be read as any other, with coefficients of 1e12.
    """
    sums = products.diagonal(dim1=-2, dim2=-1)
    if not sums.numel():
        return sums.clone()
    return torch.maximum(sums, _NOISE * sums.amax(-1, keepdim=True))


def _few_steps(horizon: int) -> slice:
    return slice(None, None, math.ceil(horizon / _AHEAD))


def _thinned(moments: Moments, few: slice) -> Moments:
    """The sums of a few steps ahead only."""
    xy, yy, zy = moments.xy[..., few], moments.yy[..., few], moments.zy[..., few]
    return replace(moments, xy=xy, yy=yy, zy=zy)


def _leave(choice: Choice, train: Moments, valid: Moments, kinds: tuple[str, ...]) -> Choice:
    """Channels whose own read-out, or one with the states of all, is judged better."""
    shared = choice.solve(train.pooled()).shared
    penalties: dict[str, dict[int, float]] = {"own": {}, "together": {}}
    # one decomposition for all channels, whose targets stand side by side
    residual = train.zy - train.zx @ shared
    common = Ridge(train.zz, torch.cat([*residual], 1), choice.together_scale)
    more = {
        p: common.solve(p).split(shared.shape[1], 1)
        for p in (_FEW_PENALTIES if "together" in kinds else ())
    }
    for c in range(train.groups):
        candidates = [(_GAIN * float(valid.error(c, shared).sum()), "shared", 0.0)]
        if "own" in kinds:
            a = train.xx[c]
            ridge = Ridge(a, train.xy[c] - a @ shared, choice.own_scale[c])
            candidates += [
                (float(valid.error(c, shared + ridge.solve(p)).sum()), "own", p)
                for p in _FEW_PENALTIES
            ]
        candidates += [
            (float(valid.error(c, shared, added[c]).sum()), "together", p)
            for p, added in more.items()
        ]
        _, kind, penalty = min(candidates)
        if kind != "shared":
            penalties[kind][c] = penalty
    return replace(choice, own=penalties["own"], together=penalties["together"])
