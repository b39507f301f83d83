"""`block_scan` in PyTorch's operators: one step after the other, and as a balanced tree.

Neighbouring steps are composed into one, the recurrence of half the length is solved by recursion,
and the steps in between are filled in: few operations on whole tensors, O(T) products in all,
derivatives of any order.

The recursion ends after a few halvings with a loop over the steps that are left. With a spectral
radius above 1 the powers of ``A`` overflow, and infinity times zero is NaN; so none is used that
could be infinite where the states themselves are not, unless they grow beyond all bounds within
as few steps as the highest power.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from linrnn.compute.layout import (
    accumulator_dtype,
    ends,
    like,
    live_steps,
    n_sequences,
    previous_state,
    shift_time,
)
from linrnn.ops.linear.block_scan.transition import Transition

HALVINGS = 7  # up to A^128: finite in float32 for a radius below 2
PAIR_HALVINGS = 10  # of sides 1 and 2, up to A^1024: for radii below 1.09

Results = tuple[Tensor, Tensor]


def by_steps(
    A: Transition,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> Results:
    """``(h, final_state)``, one step at a time: the definition."""
    batch, time, *block = b.shape
    if b.numel() == 0:
        return _nothing(b, initial_state, cu_seqlens)
    dtype = accumulator_dtype(b.dtype)
    # unbind, not b[:, t]: the gradient of an index is as large as the whole tensor
    # T times (B, blocks, n), (B, blocks, n, n)
    inputs, moves = b.to(dtype).unbind(1), A.to(dtype).unbind(time)
    cuts = None if reset is None else reset.unbind(1)  # T times (B,)
    offsets = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    h: dict[int, Tensor] = {}
    finals = []
    for s, (start, end) in enumerate(itertools.pairwise(offsets)):
        if initial_state is None:
            state = b.new_zeros((batch, *block), dtype=dtype)
        else:
            state = initial_state if cu_seqlens is None else initial_state[s : s + 1]
        for t in range(end - 1, start - 1, -1) if reverse else range(start, end):
            live = None if cuts is None else ~cuts[t]
            state = h[t] = inputs[t] + _carry(moves[t], state, live)
        finals.append(state)
    states = torch.stack([h[t] for t in range(time)], 1)  # (B, T, *block)
    return states.to(b.dtype), torch.cat(finals)  # (B, T, *block), (S, *block)


def by_tree(
    A: Transition,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> Results:
    """``(h, final_state)``, by composing neighbouring steps."""
    if reverse:
        h, final = by_tree(
            A.flip(),
            b.flip(1),
            _flip_sequences(initial_state, cu_seqlens),
            None if reset is None else reset.flip(1),
            None if cu_seqlens is None else cu_seqlens[-1] - cu_seqlens.flip(0),
            False,
        )
        return h.flip(1), _flip_sequences(final, cu_seqlens)
    if b.numel() == 0:
        return _nothing(b, initial_state, cu_seqlens)
    dtype = accumulator_dtype(b.dtype)
    A, inputs = A.to(dtype), b.to(dtype)
    sequences = (n_sequences(b, cu_seqlens), *b.shape[2:])
    start = inputs.new_zeros(sequences) if initial_state is None else initial_state
    edge = ends(b, cu_seqlens)
    if initial_state is not None:
        live = None if reset is None else ~reset[edge.row, edge.first]
        entering = _carry(A.steps((edge.row, edge.first)), initial_state[edge.kept], live)
        inputs = inputs.index_put((edge.row, edge.first), entering, accumulate=True)
    live = live_steps(b, reset, cu_seqlens, edge)
    # Two steps, h -> A1 h + b1 and h -> A2 h + b2, compose into h -> A2 A1 h + (A2 b1 + b2). So
    # pairs of steps are one recurrence of half the length; its states are every second state of
    # ours, and the others follow from these by one step each. A reset cuts a pair: a mask decides
    # whether the first of it carries over.
    halvings = PAIR_HALVINGS if b.shape[-1] <= 2 else HALVINGS
    h = _solve(A, _composed_levels(A), halvings, inputs, live)
    final = start.index_put((edge.kept,), h[edge.row, edge.last])
    return h.to(b.dtype), final


def _nothing(b: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None) -> Results:
    """Return the results for no step, no sequence or no number."""
    shape = (n_sequences(b, cu_seqlens), *b.shape[2:])
    if initial_state is None:
        return b.clone(), b.new_zeros(shape, dtype=accumulator_dtype(b.dtype))
    return b.clone(), initial_state.clone()


def adjoint(
    run: Callable[..., Results],
    A: Transition,
    h: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    grad_h: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of A, b and the state before: ``delta_t = grad_h_t + A_{t+1}^H delta_{t+1}``.

    Args:
        run: computes a scan, of a `Transition` and the arguments of `by_tree`.
        A, initial_state, reset, cu_seqlens, reverse: of the scan.
        h: its states.
        grad_h, grad_final: of its results.
    """
    edge, earlier = ends(grad_h, cu_seqlens, reverse), 1 if reverse else -1
    into = grad_h.index_put(
        (edge.row, edge.last), grad_final[edge.kept].to(grad_h.dtype), accumulate=True
    )
    cut = None if reset is None else shift_time(reset, earlier)
    back = A.adjoint()
    delta, _ = run(back.shift(earlier), into, None, cut, cu_seqlens, not reverse)
    before = _previous(h, initial_state, reset, cu_seqlens, reverse)
    live = None if reset is None else ~reset[edge.row, edge.first]
    leaving = _carry(back.steps((edge.row, edge.first)), delta[edge.row, edge.first], live)
    grad_initial = grad_final.index_put((edge.kept,), leaving.to(grad_final.dtype))
    return _gradient(A, delta, before, reset), delta, grad_initial


def _gradient(A: Transition, delta: Tensor, before: Tensor, reset: Tensor | None) -> Tensor:
    gradient = A.gradient(delta, before)
    if reset is None or A.constant:
        return gradient
    # what is not finite times the zero before a reset is no gradient
    return torch.where(like(reset, gradient), 0, gradient)


def _previous(
    h: Tensor, initial_state: Tensor | None, reset: Any, cu_seqlens: Any, reverse: bool
) -> Tensor:
    initial = None if initial_state is None else initial_state.flatten(1)  # (S, C n)
    # (B, T, blocks, n)
    return previous_state(h.flatten(2), initial, reset, cu_seqlens, reverse).view(h.shape)


T = TypeVar("T", Tensor, Tensor | None)


def _flip_sequences(x: T, cu_seqlens: Tensor | None) -> T:
    """Packed sequences change their order when the row is read backward."""
    return x if x is None or cu_seqlens is None else x.flip(0)


def _composed_levels(A: Transition) -> Iterator[Transition]:
    """Yield the transitions of pairs of steps, of pairs of pairs, ..."""
    A = A.wide()
    while True:
        if A.constant:
            A = A.then(A)  # type: ignore[arg-type]
        else:
            first, second = A.steps(slice(0, None, 2)), A.steps(slice(1, None, 2))
            count = _steps(second)
            A = first.steps(slice(0, count)).then(second)  # type: ignore[arg-type]
        yield A


def _steps(A: Transition) -> int:
    return A[0].shape[1]


def _solve(
    A: Transition, levels: Iterator[Transition], halvings: int, b: Tensor, live: Tensor | None
) -> Tensor:
    """All states from zero; ``live`` (batch, time) marks steps that take over a state.

    Two steps are one with the product of their transitions, and with what the first adds, carried
    on, plus what the second adds. So the states after every second step are those of half as many
    steps, which this function solves itself. Each of the others is one step from the state before.
    """
    time = b.shape[1]
    if time == 1:
        return b
    if halvings == 0:
        return _loop(A, b, live)
    half = time // 2
    even, odd = b[:, ::2], b[:, 1::2]
    even_live = odd_live = pairs_live = None
    if live is not None:
        even_live, odd_live = live[:, ::2], live[:, 1::2]
        pairs_live, even_live = odd_live & even_live[:, :half], even_live[:, 1:]
    pairs = odd + _carry(A.steps(slice(1, None, 2)), even[:, :half], odd_live)
    h_odd = _solve(next(levels), levels, halvings - 1, pairs, pairs_live)
    carried = _carry(A.steps(slice(2, None, 2)), h_odd[:, : (time - 1) // 2], even_live)
    h_even = torch.cat([even[:, :1], even[:, 1:] + carried], 1)  # (B, (T + 1) // 2, C, n)
    if time % 2 == 0:
        return torch.stack([h_even, h_odd], 2).flatten(1, 2)  # (B, T, C, n)
    pairs = torch.stack([h_even[:, :half], h_odd], 2).flatten(1, 2)  # (B, T - 1, C, n)
    return torch.cat([pairs, h_even[:, half:]], 1)  # (B, T, C, n)


def _loop(A: Transition, b: Tensor, live: Tensor | None) -> Tensor:
    h = b[:, :1]
    states = [h]
    for t in range(1, b.shape[1]):
        step = slice(t, t + 1)
        h = b[:, step] + _carry(A.steps(step), h, None if live is None else live[:, step])
        states.append(h)
    return torch.cat(states, 1)  # (B, T, C, n)


def _carry(A: Transition, h: Tensor, live: Tensor | None) -> Tensor:
    """``A h``, exactly zero where not live even if ``A`` or ``h`` are not finite."""
    if live is None:
        return A.times(h)
    # cleared before the product as well, for whose gradient NaN times zero is NaN
    mask = like(live, h)
    return torch.where(mask, A.times(torch.where(mask, h, 0)), 0)
