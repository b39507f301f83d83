"""Whole sequences: the functions of transformers by our ops, under the same arguments."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype, previous_state
from linrnn.interop._accelerate.theirs import Function, Theirs, begins, standing_for
from linrnn.interop._mamba_functions import NO_LIMIT, SILU, mamba2_scan, mamba_scan
from linrnn.ops import causal_conv, delta_scan
from linrnn.ops.linear.weighted_mean import EMPTY, mean_of_past, shares

#: Added to the squared length of a query or key.
EPS = 1e-6


def convolution(theirs: Theirs) -> Function:
    """``causal_conv1d_fn``: (batch, channels, time)."""
    # Mamba's scan takes no marks, so with them its convolution alone would keep sequences apart
    marked = "mamba_selective_scan" not in theirs.plain.__globals__

    def causal_conv1d_fn(
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> Tensor:
        x = hidden_states
        reset = begins(kwargs, x, x.shape[2]) if marked else None
        unmarked = not marked and kwargs.get("seq_idx") is not None
        if unmarked or activation not in SILU or theirs.computes(x):
            answer: Tensor = theirs(x, weight, bias, activation, **kwargs)
            return answer
        y, _ = causal_conv(x.transpose(1, 2), weight, bias, silu=SILU[activation], reset=reset)
        return y.to(x.dtype).transpose(1, 2)  # (B, C, T)

    return standing_for(theirs, causal_conv1d_fn)


def mamba(theirs: Theirs) -> Function:
    """``mamba_selective_scan``: x, dt, z (batch, channels, time), B, C (batch, states, time)."""

    def mamba_selective_scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        use_mambapy: bool = False,
        use_associative_scan: bool = False,
        **kwargs: Any,
    ) -> Any:
        x = hidden_states
        if theirs.computes(x):
            options = (return_last_state, use_mambapy, use_associative_scan)
            return theirs(x, dt, A, B, C, D, z, delta_bias, delta_softplus, *options, **kwargs)
        y, last = mamba_scan(x, dt, A, B, C, D, z, delta_bias, delta_softplus)
        return (y, last) if return_last_state else y

    return standing_for(theirs, mamba_selective_scan)


def mamba2(theirs: Theirs) -> Function:
    """``mamba2_chunk_scan``: x (batch, time, heads, width), B, C (batch, time, groups, states)."""

    def mamba2_chunk_scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: Sequence[float] = NO_LIMIT,
        return_final_states: bool = False,
        **kwargs: Any,
    ) -> Any:
        if theirs.computes(hidden_states) or kwargs.get("z") is not None:
            options = (D, dt_bias, initial_states, dt_softplus, dt_limit, return_final_states)
            return theirs(hidden_states, dt, A, B, C, chunk_size, *options, **kwargs)
        x, steps = hidden_states, (dt_bias, dt_softplus, dt_limit)
        reset = begins(kwargs, x, x.shape[1])
        y, last = mamba2_scan(x, dt, A, B, C, D, *steps, initial_states, reset)
        # the cache takes the strides of what it gets first, and is written to in place
        return (y, last.contiguous()) if return_final_states else y

    return standing_for(theirs, mamba2_chunk_scan)


def delta_rule(theirs: Theirs) -> Function:
    """``torch_chunk_gated_delta_rule`` and ``chunk_kimi_delta_attention``."""

    def chunk(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        chunk_size: int = 64,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        options = (initial_state, output_final_state, use_qk_l2norm_in_kernel)
        if theirs.computes(query):
            answer: tuple[Tensor, Tensor | None] = theirs(
                query, key, value, g, beta, chunk_size, *options, **kwargs
            )
            return answer
        return delta(query, key, value, g, beta, *options, kwargs)

    return standing_for(theirs, chunk)


def delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    start: Tensor | None,
    final: bool,
    normalise: bool,
    packed: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule: queries and keys (B, T, H, K), values (B, T, H, V)."""
    dtype = accumulator_dtype(query.dtype)
    q, k = query.to(dtype), key.to(dtype)
    if normalise:
        q, k = unit(q), unit(k)
    reset = begins(packed, query, query.shape[1])
    scale = query.shape[-1] ** -0.5
    o, last = delta_scan(q, k, value.to(dtype), beta, g, start, scale=scale, reset=reset)
    return o.to(query.dtype), last if final else None


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1, and 0 for 0."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def rwkv(theirs: Theirs) -> Function:
    """``rwkv_linear_attention``: (batch, time, channels), state (numerator, denominator, max)."""

    def rwkv_linear_attention(
        time_decay: Tensor,
        time_first: Tensor,
        key: Tensor,
        value: Tensor,
        state: Sequence[Tensor] | None = None,
        return_state: bool = False,
    ) -> Any:
        # one step of theirs is as fast: 1.09 of the time of ours, in a model of 256 channels
        if key.shape[1] == 1 or theirs.computes(key):
            function = theirs.function if key.device.type != "cpu" else theirs.plain
            return function(time_decay, time_first, key, value, state, return_state)
        dtype = accumulator_dtype(key.dtype)
        k, v = key.to(dtype), value.to(dtype)
        start = _mean_and_norm(state, k)
        means, norms, last = mean_of_past(-time_decay.to(dtype).exp(), k, v, start)
        past = previous_state(norms, start["log_norm"], empty=EMPTY) - time_first - k
        before, now = shares(past)
        y = before * previous_state(means, start["mean"]) + now * v
        final = [last["mean"], torch.ones_like(last["mean"]), last["log_norm"]]
        returned = return_state or state is not None
        return y.to(key.dtype), final if returned else state

    return standing_for(theirs, rwkv_linear_attention)


def _mean_and_norm(state: Sequence[Tensor] | None, like: Tensor) -> dict[str, Tensor]:
    """Their state as a mean and the logarithm of what it was divided by; empty where nothing is."""
    if state is None:
        zeros = like.new_zeros(like.shape[0], like.shape[2])
        return {"mean": zeros, "log_norm": torch.full_like(zeros, EMPTY)}
    numerator, denominator, maximum = (x.to(like.dtype) for x in state)
    empty = denominator <= 0
    divisor = denominator.masked_fill(empty, 1)
    log_norm = (divisor.log() + maximum).masked_fill(empty, EMPTY)
    return {"mean": (numerator / divisor).masked_fill(empty, 0), "log_norm": log_norm}
