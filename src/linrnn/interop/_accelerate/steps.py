"""One step with its state in place: the functions of transformers for generation."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.interop._accelerate.functions import SILU
from linrnn.interop._accelerate.theirs import Function, Theirs, standing_for

_STATES = (torch.float32, torch.float64)


def _recorded(theirs: Theirs, x: Tensor, *others: Tensor) -> bool:
    """Whether a call is theirs: as ever, and where a graph must see what is written in place."""
    if theirs.computes(x) or torch.compiler.is_compiling():
        return True
    return torch.is_grad_enabled() and any(t.requires_grad for t in (x, *others))


def convolution(theirs: Theirs) -> Function:
    """``causal_conv1d_update``: x (batch, channels, 1), a state of as many inputs as taps."""

    def causal_conv1d_update(
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        x = hidden_states
        fits = x.shape[2] == 1 and conv_state.shape[2] == weight.shape[1]
        fits = fits and x.dtype == weight.dtype == conv_state.dtype
        if not fits or activation not in SILU or _recorded(theirs, x, conv_state, weight):
            answer: Tensor = theirs(x, conv_state, weight, bias, activation)
            return answer
        window = torch.cat([conv_state[..., 1:], x], -1)  # (B, C, W)
        conv_state.copy_(window)
        y = (window * weight).sum(-1, keepdim=True)  # (B, C, 1)
        y = y if bias is None else y + bias.unsqueeze(-1)
        return F.silu(y) if SILU[activation] else y

    return standing_for(theirs, causal_conv1d_update)


def mamba(theirs: Theirs) -> Function:
    """``mamba_selective_state_update``: x, dt, z (batch, channels), state (batch, channels, n)."""

    def mamba_selective_state_update(
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        z: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        x = hidden_states
        if state.dtype not in _STATES or _recorded(theirs, state, x, dt, A):
            options = (D, dt_bias, dt_softplus, z)
            answer: Tensor = theirs(state, x, dt, A, B, C, *options, **kwargs)
            return answer
        dt = _sizes(dt.to(state.dtype), dt_bias, dt_softplus)
        wide = x.to(state.dtype)
        state.mul_(torch.exp(dt.unsqueeze(-1) * A))
        state.addcmul_((dt * wide).unsqueeze(-1), B.to(state.dtype).unsqueeze(1))
        y = torch.matmul(state, C.to(state.dtype).unsqueeze(-1)).squeeze(-1)  # (B, C)
        y = y if D is None else torch.addcmul(y, wide, D.to(state.dtype))
        y = y if z is None else y * F.silu(z)
        return y.to(x.dtype)

    return standing_for(theirs, mamba_selective_state_update)


def mamba2(theirs: Theirs) -> Function:
    """``mamba2_selective_state_update``: x (batch, heads, width), state (..., width, n).

    dt, A, D and the bias are numbers of a head, expanded: one of each is read.
    """

    def mamba2_selective_state_update(
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        z: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        x = hidden_states
        per_head = _expanded(A, -1, -2) and _expanded(dt, -1)
        per_head = per_head and _expanded(D, -1) and _expanded(dt_bias, -1)
        fits = per_head and state.is_contiguous() and state.dtype in _STATES
        if not fits or _recorded(theirs, state, x, dt, A):
            options = (D, dt_bias, dt_softplus, z)
            answer: Tensor = theirs(state, x, dt, A, B, C, *options, **kwargs)
            return answer
        bias = None if dt_bias is None else dt_bias[:, 0]
        size = _sizes(dt[..., 0].to(state.dtype), bias, dt_softplus)  # (B, H)
        wide = x.to(state.dtype)
        y = _write_and_read(state, torch.exp(size * A[:, 0, 0]), wide * size.unsqueeze(-1), B, C)
        y = y if D is None else torch.addcmul(y, wide, D[:, :1].to(state.dtype))
        y = y if z is None else y * F.silu(z)
        return y.to(x.dtype)

    return standing_for(theirs, mamba2_selective_state_update)


def _write_and_read(state: Tensor, decay: Tensor, v: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Decay (batch, heads) and write into a state (batch, heads, width, n), then read it."""
    batch, heads, width, n = state.shape
    groups = B.shape[1]
    state.mul_(decay.view(batch, heads, 1, 1))
    grouped = state.view(batch, groups, heads // groups, width, n)
    keys = B.to(state.dtype).view(batch, groups, 1, 1, n)
    grouped.addcmul_(v.view(batch, groups, heads // groups, width, 1), keys)
    rows = state.view(batch, groups, heads // groups * width, n)
    return torch.matmul(rows, C.to(state.dtype).unsqueeze(-1)).view(batch, heads, width)


def _sizes(dt: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    dt = dt if bias is None else dt + bias
    return F.softplus(dt) if softplus else dt


def _expanded(x: Tensor | None, *axes: int) -> bool:
    """Whether a tensor is one number along axes."""
    return x is None or all(x.stride(axis) == 0 or x.shape[axis] == 1 for axis in axes)
