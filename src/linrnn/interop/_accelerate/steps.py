"""One step with its state in place: the functions of transformers for generation."""

from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from linrnn.interop._accelerate.functions import EPS, delta
from linrnn.interop._accelerate.theirs import PACKED, Function, Theirs, standing_for
from linrnn.interop._mamba_functions import SILU
from linrnn.ops import conv_update, delta_update, outer_update, selective_update

_STATES = (torch.float32, torch.float64)


def _recorded(*tensors: Tensor | None) -> bool:
    """Whether a graph must see a step, which what is written in place knows nothing of."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


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
        fits = x.shape[2] == 1 and conv_state.shape[2] == weight.shape[1] and activation in SILU
        if not fits or _recorded(x, conv_state, weight, bias) or theirs.computes(x):
            answer: Tensor = theirs(x, conv_state, weight, bias, activation)
            return answer
        return conv_update(x, conv_state, weight, bias, "silu" if SILU[activation] else None)

    return standing_for(theirs, causal_conv1d_update)


def mamba(theirs: Theirs) -> Function:
    """``mamba_selective_state_update``: x, dt, z (batch, channels), state (batch, channels, n)."""
    return _state_update(theirs, selective_update)


def mamba2(theirs: Theirs) -> Function:
    """``mamba2_selective_state_update``: x (batch, heads, width), state (..., width, n).

    dt, A, D and the bias are numbers of a head, expanded.
    """
    return _state_update(theirs, partial(outer_update, dt_limit=(-inf, inf)))


def _state_update(theirs: Theirs, update: Function) -> Function:
    """Either, whose arguments are the same."""

    def selective_state_update(
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
        tensors = (hidden_states, dt, A, B, C, D)
        if _recorded(state, *tensors, dt_bias, z) or theirs.computes(state):
            answer: Tensor = theirs(state, *tensors, dt_bias, dt_softplus, z, **kwargs)
        else:
            answer = update(state, *tensors, z, dt_bias, dt_softplus)
        return answer

    return standing_for(theirs, selective_state_update)


def delta_rule(theirs: Theirs) -> Function:
    """``torch_recurrent_gated_delta_rule`` and ``recurrent_kimi_delta_attention``."""

    def recurrent(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        tensors, state = (query, key, value, g, beta), initial_state
        options = (state, output_final_state, use_qk_l2norm_in_kernel)
        if theirs.computes(query):
            answer: tuple[Tensor, Tensor | None] = theirs(*tensors, *options, **kwargs)
            return answer
        packed = any(kwargs.get(name) is not None for name in PACKED)
        one = query.shape[1] == 1 and not packed and output_final_state
        # a caller that takes the state back has the one it gave written to
        if not one or state is None or state.dtype not in _STATES or _recorded(state, *tensors):
            return delta(*tensors, *options, kwargs)
        eps = EPS if use_qk_l2norm_in_kernel else None
        step = (x.squeeze(1) for x in tensors)
        y = delta_update(state, *step, qk_norm=eps, scale=query.shape[-1] ** -0.5)
        return y.unsqueeze(1).to(query.dtype), state

    return standing_for(theirs, recurrent)
