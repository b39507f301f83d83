"""Linear recurrences whose constant transition is a matrix: ``h_t = A h_{t-1} + b_t``.

The tree of `linrnn.ops` with products of a matrix and a vector: neighbouring steps are composed
into one, the recurrence of half the length is solved by recursion, and the steps in between are
filled in: few operations on whole tensors, O(T) work in all, derivatives of any order.

The recursion ends after a few halvings with a loop over the steps that are left. With a spectral
radius above 1 the powers of ``A`` overflow, and infinity times zero is NaN; so none is used that
could be infinite where the states themselves are not, unless they grow beyond all bounds within
as few steps as the highest power.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.composed import composed
from linrnn.compute.layout import like, stacked

Apply = Callable[[Tensor], Tensor]
"""A power of the transition times (batch, any time, *channels)."""

_SEQUENCE = "Tensor b, Tensor initial, Tensor? reset"

DENSE_HALVINGS = 7  # up to A^128: finite in float32 for a radius below 2
BLOCK_HALVINGS = 10  # up to lam^1024: for |lam| below 1.09


def _block_shapes(
    re: Tensor, im: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    return b.new_empty(b.shape), b.new_empty(initial.shape)


@composed("block_scan", f"Tensor re, Tensor im, {_SEQUENCE}", _block_shapes)
def block_scan(
    re: Tensor, im: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A complex diagonal in real arithmetic: a block ``[[re, -im], [im, re]]`` for every mode.

    Args:
        re, im: real and imaginary part of the diagonal, (channels,) each.
        b: inputs (batch, time, channels, 2); the last axis holds real and imaginary part.
        initial: state before the first step, (batch, channels, 2).
        reset: boolean (batch, time); True clears the state before that step.

    Returns:
        ``(h, final)``: all states (batch, time, channels, 2), and the last.

    Example:
        >>> zero, one, start = torch.zeros(1), torch.ones(1), torch.tensor([[[1.0, 0.0]]])
        >>> quarter_turns, _ = block_scan(zero, one, torch.zeros(1, 3, 1, 2), start, None)
        >>> quarter_turns.flatten(0, 2)
        tensor([[ 0.,  1.],
                [-1.,  0.],
                [ 0., -1.]])
    """
    return _scan(_block_powers(re, im, b.dtype), BLOCK_HALVINGS, b, initial, reset)


def _dense_shapes(
    A: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    return b.new_empty(b.shape), b.new_empty(initial.shape)


@composed("dense_scan", f"Tensor A, {_SEQUENCE}", _dense_shapes)
def dense_scan(
    A: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The recurrence with any square matrix.

    Args:
        A: the transition (d_state, d_state).
        b: inputs (batch, time, d_state).
        initial: state before the first step, (batch, d_state).
        reset: boolean (batch, time); True clears the state before that step.

    Returns:
        ``(h, final)``: all states (batch, time, d_state), and the last.

    Example:
        >>> quarter_turn, start = torch.tensor([[0.0, -1.0], [1.0, 0.0]]), torch.eye(2)[:1]
        >>> dense_scan(quarter_turn, torch.zeros(1, 3, 2), start, None)[0][0]
        tensor([[ 0.,  1.],
                [-1.,  0.],
                [ 0., -1.]])
    """
    return _scan(_powers(A, A.dtype, F.linear), DENSE_HALVINGS, b, initial, reset)


@composed("dense_loop", f"Tensor A, {_SEQUENCE}", _dense_shapes)
def dense_loop(
    A: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`dense_scan` step by step: the definition."""
    h, At, states = initial, A.t(), []
    for t in range(b.shape[1]):
        if reset is not None:
            h = torch.where(reset[:, t, None], 0.0, h)
        h = torch.addmm(b[:, t], h, At)
        states.append(h)
    return stacked(states, h), h


@composed("many_dense_scan", f"Tensor A, {_SEQUENCE}", _dense_shapes)
def many_dense_scan(
    A: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`dense_scan` of many systems, each with a matrix of its own.

    Args:
        A: the transitions (channels, d_state, d_state).
        b: inputs (batch, time, channels, d_state).
        initial: state before the first step, (batch, channels, d_state).
        reset: boolean (batch, time); True clears the state before that step.

    Returns:
        ``(h, final)``: all states (batch, time, channels, d_state), and the last.

    Example:
        >>> A, start = torch.tensor([[[1.0]], [[2.0]]]), torch.ones(1, 2, 1)
        >>> many_dense_scan(A, torch.zeros(1, 3, 2, 1), start, None)[0].flatten(2)
        tensor([[[1., 2.],
                 [1., 4.],
                 [1., 8.]]])
    """
    return _scan(_powers(A, b.dtype, many_products), DENSE_HALVINGS, b, initial, reset)


def turn(re: Tensor, im: Tensor, h: Tensor) -> Tensor:
    """The blocks ``[[re, -im], [im, re]]`` times ``h`` (..., channels, 2)."""
    p, q = h.unbind(-1)
    return torch.stack([re * p - im * q, im * p + re * q], -1)


def _block_powers(re: Tensor, im: Tensor, dtype: torch.dtype) -> Iterator[Apply]:
    """The blocks, then their square, the square of that, ..."""
    re, im = _double(re), _double(im)
    while True:
        yield partial(turn, re.to(dtype), im.to(dtype))
        re, im = re * re - im * im, 2 * re * im


def _powers(A: Tensor, dtype: torch.dtype, product: Callable[..., Tensor]) -> Iterator[Apply]:
    """A matrix, or many, then its square, the square of that, ..."""
    A = _double(A)
    while True:
        yield partial(product, weight=A.to(dtype))
        A = A @ A


def many_products(h: Tensor, weight: Tensor) -> Tensor:
    """Matrices (channels, d, d), each times what is its own of ``h`` (batch, time, channels, d)."""
    batch = h.shape[:2]
    products = h.flatten(0, 1).transpose(0, 1) @ weight.mT  # (channels, batch * time, d)
    outputs: Tensor = products.transpose(0, 1).unflatten(0, batch)
    return outputs


def _double(x: Tensor) -> Tensor:
    """In double precision, for every squaring doubles the relative error; mps has none."""
    return x if x.device.type == "mps" else x.double()


def _scan(
    powers: Iterator[Apply], halvings: int, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    if b.shape[1] == 0:
        return b, initial
    live = None
    if reset is not None:
        live = ~like(reset, b)
    first = next(powers)
    entering = _carry(first, initial[:, None], None if live is None else live[:, :1])
    b = torch.cat([b[:, :1] + entering, b[:, 1:]], 1)
    h = _solve(first, powers, halvings, b, live)
    return h, h[:, -1]


def _solve(
    power: Apply, powers: Iterator[Apply], halvings: int, b: Tensor, live: Tensor | None
) -> Tensor:
    """All states from zero; ``live`` (batch, time, 1...) marks steps that take over a state."""
    time = b.shape[1]
    if time == 1:
        return b
    if halvings == 0:
        return _loop(power, b, live)
    half = time // 2
    even, odd = b[:, ::2], b[:, 1::2]
    even_live = odd_live = pairs_live = None
    if live is not None:
        even_live, odd_live = live[:, ::2], live[:, 1::2]
        pairs_live, even_live = odd_live & even_live[:, :half], even_live[:, 1:]
    pairs = odd + _carry(power, even[:, :half], odd_live)
    h_odd = _solve(next(powers), powers, halvings - 1, pairs, pairs_live)
    later = even[:, 1:] + _carry(power, h_odd[:, : (time - 1) // 2], even_live)
    h_even = torch.cat([even[:, :1], later], 1)
    if time % 2 == 0:
        return torch.stack([h_even, h_odd], 2).flatten(1, 2)
    pairs = torch.stack([h_even[:, :half], h_odd], 2).flatten(1, 2)
    return torch.cat([pairs, h_even[:, half:]], 1)


def _loop(power: Apply, b: Tensor, live: Tensor | None) -> Tensor:
    h = b[:, :1]
    states = [h]
    for t in range(1, b.shape[1]):
        h = b[:, t : t + 1] + _carry(power, h, None if live is None else live[:, t : t + 1])
        states.append(h)
    return torch.cat(states, 1)


def _carry(power: Apply, h: Tensor, live: Tensor | None) -> Tensor:
    """The power times ``h``, exactly zero where not live even if ``h`` is not finite."""
    # cleared before the product, for whose gradient NaN times zero is NaN
    return power(h if live is None else torch.where(live, h, 0))
