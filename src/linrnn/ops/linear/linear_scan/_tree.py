"""`linear_scan` as a balanced tree in plain PyTorch: log2(T) rounds of work on whole tensors.

Products of many decays are where a tree loses accuracy against a loop, because equal factors
round equally and the error of ``a ** 2**k`` doubles at every level. Time-varying decays are
therefore multiplied in double precision, constant ones by `squared_powers`.
"""

from typing import TypeVar

import torch
from torch import Tensor

from linrnn.compute.layout import (
    accumulator_dtype,
    at_steps,
    clear_first,
    ends,
    live_steps,
    n_sequences,
    previous_state,
)
from linrnn.ops.linear.linear_scan.powers import squared_powers
from linrnn.ops.linear.tree import LINEAR, products, solve


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Never: it runs wherever PyTorch does."""
    return None


def forward(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t * h_{t-1} + b_t``."""
    if reverse:
        h, final = forward(
            _flip_decay(a),
            b.flip(1),
            _flip_seqs(initial_state, cu_seqlens),
            None if reset is None else reset.flip(1),
            _flip_offsets(cu_seqlens),
            False,
        )
        return h.flip(1), _flip_seqs(final, cu_seqlens)
    dtype = accumulator_dtype(b.dtype)
    a, acc = a.to(dtype), b.to(dtype)
    edge = ends(b, cu_seqlens)
    if initial_state is not None:
        entering = at_steps(a, edge.row, edge.first) * initial_state[edge.kept]
        entering = clear_first(entering, reset, edge)
        acc = acc.index_put((edge.row, edge.first), entering, accumulate=True)
    h = _solve(a, acc, live_steps(b, reset, cu_seqlens, edge))
    shape = (n_sequences(b, cu_seqlens), b.shape[-1])
    final = h.new_zeros(shape) if initial_state is None else initial_state.clone()
    final[edge.kept] = h[edge.row, edge.last]
    return h.to(b.dtype), final


def backward(
    a: Tensor,
    b: None,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """``delta_t = grad_h_t + conj(a_{t+1}) * delta_{t+1}``: the same tree, backward in time."""
    if reverse:
        grad_a, grad_b, grad_h0 = backward(
            _flip_decay(a),
            None,
            _flip_seqs(initial_state, cu_seqlens),
            None if reset is None else reset.flip(1),
            _flip_offsets(cu_seqlens),
            False,
            h.flip(1),
            grad_h.flip(1),
            _flip_seqs(grad_final, cu_seqlens),
        )
        return _flip_decay(grad_a), grad_b.flip(1), _flip_seqs(grad_h0, cu_seqlens)
    dtype = accumulator_dtype(h.dtype)
    wide_a, wide_h, delta = a.to(dtype), h.to(dtype), grad_h.to(dtype)
    edge = ends(h, cu_seqlens)
    delta = delta.index_put((edge.row, edge.last), grad_final[edge.kept], accumulate=True)
    live = live_steps(h, reset, cu_seqlens, edge)
    # flipped time: step t takes over from t + 1, with the decay and the cut of step t + 1
    decay = wide_a.conj() if a.ndim == 1 else _delay(wide_a.conj().flip(1))
    delta = _solve(decay, delta.flip(1), None if live is None else _delay(live.flip(1))).flip(1)

    grad_a = delta * previous_state(wide_h, initial_state, reset, cu_seqlens, False).conj()
    if a.ndim == 1:
        grad_a = grad_a.sum((0, 1))
    leaving = at_steps(wide_a, edge.row, edge.first).conj() * delta[edge.row, edge.first]
    grad_h0 = grad_final.clone()
    grad_h0[edge.kept] = clear_first(leaving, reset, edge)
    return grad_a.to(a.dtype), delta.to(h.dtype), grad_h0


def _solve(a: Tensor, b: Tensor, live: Tensor | None) -> Tensor:
    levels = squared_powers(a) if a.ndim == 1 else products(LINEAR, a)
    return solve(LINEAR, levels, b, live)


def _delay(x: Tensor) -> Tensor:
    """Move everything one step later; the first step keeps a copy nobody reads."""
    return torch.cat([x[:, :1], x[:, :-1]], 1)  # (B, T, ...)


def _flip_decay(a: Tensor) -> Tensor:
    return a if a.ndim == 1 else a.flip(1)


def _flip_offsets(cu_seqlens: Tensor | None) -> Tensor | None:
    return None if cu_seqlens is None else cu_seqlens[-1] - cu_seqlens.flip(0)


T = TypeVar("T", Tensor, Tensor | None)


def _flip_seqs(x: T, cu_seqlens: Tensor | None) -> T:
    """Packed sequences change their order when the row is read backward."""
    return x if x is None or cu_seqlens is None else x.flip(0)
