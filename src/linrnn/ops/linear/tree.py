"""A first-order recurrence solved as a balanced tree, in any pair of operations that allows it.

Neighbouring steps are composed into one, ``(a1, b1) then (a2, b2) = (a2 a1, a2 b1 + b2)``, the
half-length recurrence is solved by recursion, and the steps in between are filled in: log2(T)
rounds of work on whole tensors, O(T) work in all.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.layout import like


class Semiring(NamedTuple):
    """The operations "times" and "plus"; times distributes over plus."""

    times: Callable[[Tensor, Tensor], Tensor]
    plus: Callable[[Tensor, Tensor], Tensor]
    zero: float  # neutral for plus


LINEAR = Semiring(torch.mul, torch.add, 0.0)
LOG = Semiring(torch.add, torch.logaddexp, float("-inf"))


def solve(ring: Semiring, levels: Iterator[Tensor], b: Tensor, live: Tensor | None) -> Tensor:
    """All states of ``h_t = a_t h_{t-1} + b_t`` from zero.

    Args:
        ring: the meaning of product and sum.
        levels: the decays, then the products of neighbouring pairs, of pairs of pairs, ...: each
            (C,) when constant in time, else (B, T / 2**level, C).
        b: (B, T, C).
        live: (B, T) mask of the steps that take over the state of the step before, None for all.

    ``C`` may be several axes, whatever the ring's ``times`` makes of those of a and of b.
    """
    if b.shape[1] == 1:
        return b
    a = next(levels)
    n = b.shape[1] // 2
    odd_live = None if live is None else live[:, 1::2]
    pairs = ring.plus(_carry(ring, _from(a, 1), b[:, : 2 * n : 2], odd_live), b[:, 1::2])
    pair_live = None if live is None else live[:, 1::2] & live[:, : 2 * n : 2]
    h_odd = solve(ring, levels, pairs, pair_live)
    h = torch.empty_like(b)
    h[:, 1::2] = h_odd
    h[:, 0] = b[:, 0]
    even = slice(2, None, 2)
    even_live = None if live is None else live[:, even]
    previous = h_odd[:, : (b.shape[1] - 1) // 2]
    h[:, even] = ring.plus(_carry(ring, _from(a, 2), previous, even_live), b[:, even])
    return h


def products(ring: Semiring, a: Tensor) -> Iterator[Tensor]:
    """Yield ``a``, then the products of neighbouring pairs, of pairs of pairs, ...; in double."""
    if a.device.type != "mps":  # which has no float64
        a = a.to(torch.complex128 if a.is_complex() else torch.float64)
    while True:
        yield a
        n = a.shape[1] // 2
        a = ring.times(a[:, 1::2], a[:, : 2 * n : 2])


def _from(a: Tensor, start: int) -> Tensor:
    return a if a.ndim == 1 else a[:, start::2]


def _carry(ring: Semiring, a: Tensor, h: Tensor, live: Tensor | None) -> Tensor:
    """``a`` times ``h`` where live, else exactly zero even when ``h`` is infinite or NaN."""
    carried = ring.times(a.to(h.dtype), h)
    if live is None:
        return carried
    return torch.where(like(live, carried), carried, ring.zero)
