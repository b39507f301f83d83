"""A recurrence made straight at each step and solved: what Newton's method asks for.

States that depend on one another in a circle have a small matrix for every channel and step, and
are solved as a tree of products of these. All others are linear scans, one after the other.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.engine.derivatives import coupled, multiplies, state_groups
from linrnn.engine.graph import Program
from linrnn.ops.linear.linear_scan import linear_scan
from linrnn.ops.linear.tree import Semiring, products, solve


def _product(a: Tensor, h: Tensor) -> Tensor:
    """Multiply many matrices that are far too small for a kernel of matrix products."""
    return (a[..., None] * h[..., None, :, :]).sum(-2)


_MATRICES = Semiring(_product, torch.add, 0.0)


class Scan(NamedTuple):
    """The order of steps: which follow one another."""

    live: Tensor
    """(batch, time, 1): the steps that take over a state, in the order of the scan."""
    reset: Tensor | None
    cu_seqlens: Tensor | None
    reverse: bool
    finite: bool
    """Whether no number can be right that is not finite."""

    def __call__(self, rows: Sequence[Sequence[Tensor]], b: Sequence[Tensor]) -> list[Tensor]:
        """``h_t = A_t h_{t-1} + b_t`` from zeros, of a matrix A for every channel.

        Args:
            rows: of A, each number (batch, time, width).
            b: of each state, (batch, time, width).
        """
        if len(rows) == 1:
            return [self._single(rows[0][0], b[0])]
        a = torch.stack([torch.stack(list(row), -1) for row in rows], -2)  # (B, T, width, m, m)
        # (B, T, width, m, 1), (B, T)
        c, live = torch.stack(list(b), -1)[..., None], self.live[..., 0]
        if self.reverse:
            a, c, live = (x.flip(1) for x in (a, c, live))
        h = solve(_MATRICES, products(_MATRICES, a), c, live)
        h = h.flip(1) if self.reverse else h
        return list(h.squeeze(-1).unbind(-1))  # m times (B, T, width)

    def pair(self, rows: Sequence[Sequence[Tensor]], b: Sequence[Tensor]) -> list[Tensor]:
        """The same of the two parts of a complex state that a complex number multiplies."""
        h = self._single(torch.complex(rows[0][0], rows[1][0]), torch.complex(b[0], b[1]))
        return [h.real, h.imag]

    def _single(self, a: Tensor, b: Tensor) -> Tensor:
        offsets = self.cu_seqlens
        return linear_scan(a, b, reset=self.reset, cu_seqlens=offsets, reverse=self.reverse)[0]


def _expanded(slope: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if slope is None else slope.expand(like.shape)  # (B, T, width)


def straight(
    program: Program,
    slope: Callable[[int, int], Tensor | None],
    fixed: Sequence[Tensor],
    old: Sequence[Tensor],
    previous: Callable[[int, Tensor], Tensor],
    scan: Scan,
    *,
    adjoint: bool = False,
) -> list[Tensor]:
    """All ``x_i = fixed_i + sum_j slope_ij (previous(x_j) - old_j)``, channel by channel.

    Args:
        program: says which states are solved together, and in which order.
        slope: of the i-th by the j-th; None where it is 0 throughout, as between states that
            differ in width.
        fixed, old: of each state, (batch, time, width).
        previous: of the i-th state what each step takes over, in the order of the scan.
        scan: which steps follow one another.
        adjoint: states depend on those that depend on them.
    """
    pairs = state_groups(program)
    groups = coupled(program, tuple(pairs))
    solved, moved = list(fixed), dict[int, Tensor]()
    for group in reversed(groups) if adjoint else groups:
        b = []
        for i in group:
            by = {j: slope(i, j) for j in (*moved, *group)}
            terms = [s * moved[j] for j, s in by.items() if j in moved and s is not None]
            terms += [-s * old[j] for j, s in by.items() if j in group and s is not None]
            # nothing enters a first step but what it starts from, which is known
            b.append(torch.where(scan.live, sum(terms, fixed[i]), fixed[i]))
        rows = [[_expanded(slope(i, j), b[0]) for j in group] for i in group]
        complex_pair = (
            len(group) == 2 and group in pairs and multiplies(program, (group[0], group[1]))
        )
        new = scan.pair(rows, b) if complex_pair else scan(rows, b)
        for i, x in zip(group, new, strict=True):
            solved[i] = torch.where(x.isfinite(), x, fixed[i]) if scan.finite else x
            moved[i] = previous(i, solved[i]) - old[i]
    return solved
