"""Softmax attention by keys and by distances, with a hand-written gradient.

Scores are its largest tensors: they are overwritten where possible, and the
weights alone are kept.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.derivatives import through_definition
from linrnn.compute.modes import eager


def relative(near: Tensor, p: Tensor, k: Tensor, v: Tensor, far: Tensor, visible: Tensor) -> Tensor:
    """``softmax((near_t . k_s + p_t . far_{S-T+t-s}) / sqrt(K)) v``, (B, H, T, K).

    Args:
        near, p: queries of keys and of distances, (B, H, T, K).
        k, v: keys and values, (B, H, S, K).
        far: keys of the distances from 0 on, (H, D, K), D at most S; longer ones are not visible.
        visible: which s of each t the sum is over, (B or 1, T, S).
    """
    every = (near, p, k, v, _laid(far, k))
    flat: tuple[Any, ...] = (*(x.flatten(0, 1) for x in every), visible)  # (B H, ...) each
    if not eager(*flat):
        y = _definition(*flat)
    elif torch.is_grad_enabled() and any(x.requires_grad for x in flat):
        y = _Relative.apply(*flat)
    else:
        y = _computed(*flat)[0]
    result: Tensor = y.unflatten(0, near.shape[:2])  # (B, H, T, K)
    return result


def relative_weights(near: Tensor, p: Tensor, k: Tensor, far: Tensor, visible: Tensor) -> Tensor:
    """The weights of `relative`, (B, H, T, S)."""
    shape, every = near.shape[:2], (near, p, k, _laid(far, k))
    near, p, k, far = (x.flatten(0, 1) for x in every)  # (B H, ...) each
    # (B, H, T, S)
    weights: Tensor = _weights(near, p, k, far, visible).flatten(0, 1).unflatten(0, shape)
    return weights


def _laid(far: Tensor, k: Tensor) -> Tensor:
    """``far`` for every row of a batch, (B, H, S + 1, K), the longest distance first."""
    # column c of a row is distance c from the end; one more in front moves each row by one more
    far = F.pad(far.flip(1), (0, 0, k.shape[2] + 1 - far.shape[1], 0))  # (..., S + 1, K)
    return far.expand(k.shape[0], -1, -1, -1)  # (B, H, S + 1, K)


def _moved(x: Tensor) -> Tensor:
    """(N, T, S + 1) as it lies, less what is in front of the first row: (N, T, S)."""
    # (rows, T, S)
    return x.flatten(1)[:, x.shape[1] :].view(x.shape[0], x.shape[1], x.shape[2] - 1)


def _scores(near: Tensor, p: Tensor, k: Tensor, far: Tensor) -> Tensor:
    size = near.shape[2] ** -0.5
    return torch.baddbmm(_moved(p @ far.mT), near, k.mT, beta=size, alpha=size)  # (B H, T, S)


def _of_rows(scores: Tensor, visible: Tensor) -> Tensor:
    """(B H, T, S) as (B or 1, ..., T, S), beside ``visible[:, None]``."""
    rows = len(visible)  # may be none
    # (B or 1, ..., T, S)
    per_row: Tensor = scores.unflatten(0, (rows, len(scores) // max(rows, 1)))
    return per_row


def _definition(
    near: Tensor, p: Tensor, k: Tensor, v: Tensor, far: Tensor, visible: Tensor
) -> Tensor:
    y: Tensor = _weights(near, p, k, far, visible).flatten(0, 1) @ v  # (B H, T, V)
    return y


def _weights(near: Tensor, p: Tensor, k: Tensor, far: Tensor, visible: Tensor) -> Tensor:
    scores = _of_rows(_scores(near, p, k, far), visible)
    return torch.where(visible[:, None], scores, float("-inf")).softmax(-1)


def _computed(
    near: Tensor, p: Tensor, k: Tensor, v: Tensor, far: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """The result, and the weights."""
    if near.is_cpu:  # to add is a third of the work, and right unless a score is not finite
        hidden = torch.where(visible, 0.0, float("-inf")).to(near.dtype)[:, None]
        scores = _scores(near, p, k, far)
        _of_rows(scores, visible).add_(hidden)
        weight = scores.softmax(-1)
        y = weight @ v  # (B H, T, V)
        if bool(y.sum().isfinite()):
            return y, weight
    scores = _scores(near, p, k, far)
    _of_rows(scores, visible).masked_fill_(~visible[:, None], float("-inf"))
    weight = scores.softmax(-1)
    return weight @ v, weight  # (B H, T, V), (B H, T, S)


class _Relative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> Tensor:
        y, weight = _computed(*arguments)
        ctx.save_for_backward(*arguments, weight)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *arguments, weight = ctx.saved_tensors
        if torch.is_grad_enabled() or not eager(grad):
            needs_grad = ctx.needs_input_grad
            grads = (grad.to(arguments[0].dtype),)
            return tuple(through_definition(_definition, arguments, needs_grad, grads))
        # autocast, which is not around a gradient, has given the result another dtype
        near, p, k, v, far = (x.to(grad.dtype) for x in arguments[:-1])
        count, time, entries = weight.shape
        into = (grad @ v.mT).to(weight.dtype)  # (B H, T, S)
        scores = torch._softmax_backward_data(into, weight, -1, weight.dtype)  # (B H, T, S)
        scores, weight = scores.to(grad.dtype), weight.to(grad.dtype)
        # to where the distances were before they moved
        unshifted = scores.new_empty(count, time * (entries + 1))
        unshifted[:, :time] = 0
        unshifted[:, time:] = scores.view(count, time * entries)  # (rows, T S)
        unshifted = unshifted.view(count, time, entries + 1)  # (B H, T, S + 1)
        size = near.shape[2] ** -0.5
        # (rows, T, K), (rows, T, K), (rows, S, K), (rows, S + 1, K)
        unscaled = (scores @ k, unshifted @ far, scores.mT @ near, unshifted.mT @ p)
        grad_near, grad_p, grad_k, grad_far = (x.mul_(size) for x in unscaled)
        grad_v = weight.mT @ grad  # (B H, S, V)
        return grad_near, grad_p, grad_k, grad_v, grad_far, None
