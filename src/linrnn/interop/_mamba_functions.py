"""Functions of ``mamba_ssm`` and ``causal_conv1d`` by their names and arguments, by our ops.

Where an option has no counterpart a function returns `NotImplemented`, and theirs is called.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype
from linrnn.ops import causal_conv, outer_scan, selective_scan, seq_idx_to_reset

#: Activations that are SiLU, or none.
SILU = {None: False, "silu": True, "swish": True}
NO_LIMIT = (0.0, float("inf"))
_ANY = (-float("inf"), float("inf"))


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """A short convolution: x (batch, channels, time), states (batch, channels, width - 1)."""
    if activation not in SILU:
        return NotImplemented
    start = None if initial_states is None else initial_states.mT
    options: Any = {"silu": SILU[activation], "reset": _begins(seq_idx)}
    y, last = causal_conv(x.mT, weight, bias, start, **options)
    y, last = y.to(x.dtype).mT, last.to(x.dtype).mT
    if final_states_out is not None:
        last = final_states_out.copy_(last)
    return (y, last) if return_final_states else y


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    **others: Any,
) -> Any:
    """Some steps of it from the inputs in ``conv_state``, which is rolled in place."""
    circular = cache_seqlens is not None or any(y is not None for y in others.values())
    if activation not in SILU or circular:
        return NotImplemented
    steps = x.unsqueeze(-1) if x.ndim == 2 else x  # (B, C, T)
    inputs = torch.cat([conv_state.to(x.dtype), steps], -1)
    conv_state.copy_(inputs[..., -conv_state.shape[-1] :])
    wide = accumulator_dtype(torch.promote_types(x.dtype, weight.dtype))
    taps = inputs[..., -(steps.shape[-1] + weight.shape[1] - 1) :].to(wide)
    y = F.conv1d(
        taps,
        weight.unsqueeze(1).to(wide),
        None if bias is None else bias.to(wide),
        groups=x.shape[1],
    )
    y = (F.silu(y) if SILU[activation] else y).to(x.dtype)
    return y.squeeze(-1) if x.ndim == 2 else y


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """Mamba's scan: u, delta, z (batch, channels, time), B, C (batch, [groups], d_state, time)."""
    if A.is_complex() or B.ndim < 3 or C.ndim < 3:
        return NotImplemented
    groups_of = [x.unsqueeze(1) if x.ndim == 3 else x for x in (B, C)]  # (B, groups, N, T)
    groups = max(x.shape[1] for x in groups_of)
    each = [x.expand(-1, groups, -1, -1).unbind(1) for x in groups_of]
    along = [None if x is None else x.chunk(groups, 1) for x in (u, delta, z)]
    first = [None if x is None else x.chunk(groups) for x in (A, D, delta_bias)]
    outputs, states = [], []
    for i in range(groups):
        x, dt, gate = (None if part is None else part[i] for part in along)
        decay, skip, bias = (None if part is None else part[i] for part in first)
        assert x is not None
        assert dt is not None
        assert decay is not None
        options = (skip, gate, bias, delta_softplus)
        y, last = mamba_scan(x, dt, decay, each[0][i], each[1][i], *options)
        outputs.append(y)
        states.append(last)
    y = torch.cat(outputs, 1).to(u.dtype)
    return (y, torch.cat(states, 1)) if return_last_state else y


def mamba_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
) -> tuple[Tensor, Tensor]:
    """Mamba's scan of one group: x, dt, z (batch, channels, time), B, C (batch, d_state, time)."""
    gate = None if z is None else z.mT
    options: Any = {"z": gate, "dt_bias": dt_bias, "dt_softplus": dt_softplus}
    y, last = selective_scan(x.mT, dt.mT, A, B.mT, C.mT, D, **options)
    return y.mT, last  # (B, C, T), (B, C, N)


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: Sequence[float] = NO_LIMIT,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Any:
    """Mamba-2's scan: x, z (batch, time, heads, width), B, C (batch, time, groups, d_state)."""
    if return_varlen_states:
        return NotImplemented
    steps = (dt_bias, dt_softplus, dt_limit)
    y, last = mamba2_scan(x, dt, A, B, C, D, *steps, initial_states, _begins(seq_idx))
    if z is not None:
        y = y * F.silu(z.to(y.dtype))
    y = y.to(x.dtype)
    return (y, last.contiguous()) if return_final_states else y


def mamba2_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    dt_limit: Sequence[float],
    start: Tensor | None,
    reset: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Mamba-2's scan: x (B, T, heads, width), B, C (B, T, groups, N), start (B, heads, width, N).

    Returns the outputs, at least float32, and the last state, as a transposed view.
    """
    dtype = accumulator_dtype(x.dtype)
    dt, x = step_sizes(dt.to(dtype), dt_bias, dt_softplus, dt_limit), x.to(dtype)
    before = None if start is None else start.to(dtype).mT  # (B, H, N, P)
    y, last = outer_scan(C, B, x * dt.unsqueeze(-1), dt * A.to(dtype), before, reset=reset)
    if D is not None:
        # in a prompt whose scan took 20 ms a product and a sum took 1.27, and this 0.17
        y = torch.addcmul(y, x, (D if D.ndim == 2 else D.unsqueeze(-1)).to(dtype))
    return y, last.mT


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    **others: Any,
) -> Any:
    """One step of either: state (batch, heads or none, width, d_state) is written in place."""
    if any(y is not None for y in others.values()):
        return NotImplemented
    wide = accumulator_dtype(state.dtype)
    values, dt = x.to(wide), step_sizes(dt.to(wide), dt_bias, dt_softplus, _ANY)
    B, C = (w.to(wide) for w in (B, C))
    if state.ndim == 4:  # (batch, groups, d_state) to those of heads
        B, C = (w.repeat_interleave(state.shape[1] // w.shape[1], 1) for w in (B, C))
    kept = (dt.unsqueeze(-1) * A.to(wide)).exp() * state.to(wide)
    new = kept + (dt * values).unsqueeze(-1) * B.unsqueeze(-2)
    state.copy_(new)
    y = (new * C.unsqueeze(-2)).sum(-1)
    y = y if D is None else y + values * D.to(wide)
    y = y if z is None else y * F.silu(z.to(wide))
    return y.to(x.dtype)


def step_sizes(
    dt: Tensor, bias: Tensor | None, softplus: bool, limit: Sequence[float] = NO_LIMIT
) -> Tensor:
    """Step sizes with their bias, made positive by softplus, and cut off at both ends."""
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    dt = F.softplus(dt) if softplus else dt
    inside = softplus and limit[0] <= 0 and limit[1] == float("inf")
    return dt if inside else dt.clamp(limit[0], limit[1])


def _begins(seq_idx: Tensor | None) -> Tensor | None:
    """Where the numbers of sequences (batch, time) change."""
    return None if seq_idx is None else seq_idx_to_reset(seq_idx)
