"""A cell by Newton's method: guess all states, correct all of them by one linear scan, repeat.

The correction reads the derivative of each step channel by channel. Where the true one has more,
between states or through a matrix, it is left out (quasi-Newton), and more rounds are needed; after
k of them the first k steps are exact whatever was left out. The number of rounds is bounded, and
states whose residual stays too large are never returned.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.cells._adjoint import adjoint
from linrnn.cells._affine import state_groups
from linrnn.cells._graph import Program, Values, evaluate
from linrnn.cells._jacobian import jacobian
from linrnn.errors import BackendError
from linrnn.ops._derivatives import through_definition
from linrnn.ops._layout import ends, shift_time
from linrnn.ops.cell_scan._loop import loop
from linrnn.ops.cell_scan._problem import Layout, Leaves, wide_inputs
from linrnn.ops.linear_scan import linear_scan

ROUNDS = 100
"""Corrections of the states at most."""
_ROUNDINGS = 64  # of the states' dtype, that a residual may have


class Convergence(NamedTuple):
    """How Newton's method found the states of a call."""

    residual: float
    """Largest difference of a state from the step of the state before it, over ``1 + |h|``."""
    rounds: int
    """Corrections of all states."""


#: Where `newton_scan` listens.
NOTED: ContextVar[list[Convergence] | None] = ContextVar("noted", default=None)


class Solution(NamedTuple):
    """States that solve the recurrence."""

    before: list[Tensor]
    """What each step starts from, (batch, time, width)."""
    after: list[Tensor]
    convergence: Convergence


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Never: it runs wherever PyTorch does."""
    return None


def forward(
    program: Program, leaves: Leaves, layout: Layout, keep: bool = False
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Outputs, final states, and the states before each step for the gradient.

    Raises:
        BackendError: no solution was found.
    """
    found = solve(program, leaves, layout)
    rest = (wide_inputs(leaves), leaves.parameters, leaves.matrices)
    outputs = layout.stored(
        evaluate(program, found.before, *rest).outputs, layout.batch(leaves.states)
    )
    edge = ends(found.after[0], layout.cu_seqlens, layout.reverse)
    finals = []
    for h, initial in zip(found.after, leaves.states, strict=True):
        finals.append(initial.index_put((edge.kept,), h[edge.row, edge.last]))
    return outputs, finals, found.before


def solve(program: Program, leaves: Leaves, layout: Layout) -> Solution:
    """All states.

    Raises:
        BackendError: the residual does not fall; names it.
    """
    rest = (wide_inputs(leaves), leaves.parameters, leaves.matrices)
    shape = (layout.batch(leaves.states), layout.time)
    derivative = jacobian(program)
    allowed = _ROUNDINGS * torch.finfo(leaves.computed_in()).eps
    h = [x.new_zeros(*shape, x.shape[-1]) for x in leaves.states]
    damping, best, residual = 0.0, float("inf"), float("inf")
    # what the arguments are not, no state need be; and NaN that fits its step is the right one
    finite = all(bool(x.isfinite().all()) for x in leaves.flat())
    for rounds in range(ROUNDS):
        before = layout.before(h, leaves.states)
        slopes, after, *_ = evaluate(derivative, before, *rest)
        after = [f.expand(x.shape) for f, x in zip(after, h, strict=True)]
        residual = _residual(h, after)
        if residual <= allowed:
            found = Convergence(residual, rounds)
            noted = NOTED.get()
            if noted is not None:
                noted.append(found)
            return Solution(before, after, found)
        # a Newton step that leads away is taken with a smaller derivative
        damping = damping / 2 if residual < best else (1 + damping) / 2
        best = min(best, residual)
        h = _corrected(program, slopes, after, before, layout, damping, finite)
    raise BackendError(
        f"cell_scan: newton must reach a residual of {allowed:.1g} within {ROUNDS} rounds, "
        f"got {residual:.1g}. Use form='loop', or leave form= away."
    )


def _residual(h: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    largest = 0.0
    for x, f in zip(h, after, strict=True):
        same = (x == f) | (x.isnan() & f.isnan())  # infinity has no distance from itself
        gap = torch.where(same, 0, (x - f).abs() / (1 + f.abs()))
        gap = gap.nan_to_num(nan=float("inf"))
        largest = max(largest, float(gap.amax()) if gap.numel() else 0.0)
    return largest


def _corrected(
    program: Program,
    slopes: Sequence[Tensor],
    after: Sequence[Tensor],
    before: Sequence[Tensor],
    layout: Layout,
    damping: float,
    finite: bool,
) -> list[Tensor]:
    """States of the recurrence that is made straight at each step."""
    found = list(after)
    for group in state_groups(program):
        a = _diagonal(slopes, group, len(after), after[group[0]].shape) * (1 - damping)
        f, h = (_joined([some[i] for i in group]) for some in (after, before))
        b = f - a * h
        if layout.reset is not None:
            cut = layout.reset[..., None]
            b, a = torch.where(cut, f, b), torch.where(cut, 0, a)
        edge = ends(f, layout.cu_seqlens, layout.reverse)
        # nothing enters the first step but what it starts from, which is known
        b = b.index_put((edge.row, edge.first), f[edge.row, edge.first])
        new, _ = linear_scan(
            a, b, reset=layout.reset, cu_seqlens=layout.cu_seqlens, reverse=layout.reverse
        )
        new = torch.where(new.isfinite(), new, f) if finite else new
        for i, part in zip(group, [new] if len(group) == 1 else [new.real, new.imag], strict=True):
            found[i] = part
    return found


def _diagonal(
    slopes: Sequence[Tensor], group: Sequence[int], count: int, shape: torch.Size
) -> Tensor:
    """The derivative of a state by itself; of a complex one the nearest complex number."""
    rows = [[slopes[i * count + j] for j in group] for i in group]
    if len(group) == 1:
        return rows[0][0].expand(shape)
    (a, b), (c, d) = rows
    return torch.complex(((a + d) / 2).expand(shape), ((c - b) / 2).expand(shape))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.complex(parts[0], parts[1])


def backward(
    program: Program,
    leaves: Leaves,
    layout: Layout,
    saved: Sequence[Tensor],
    grad_outputs: Sequence[Tensor],
    grad_finals: Sequence[Tensor],
) -> Leaves:
    """Gradients of all leaves: the adjoint is a linear recurrence, solved in the same way.

    Where that does not settle, they are those of the loop.
    """
    dtype = leaves.computed_in()
    inputs = [*wide_inputs(leaves), *saved, *(g.to(dtype) for g in grad_outputs)]
    back = adjoint(program)
    slopes = evaluate(
        jacobian(program), saved, wide_inputs(leaves), leaves.parameters, leaves.matrices
    ).outputs
    edge = ends(saved[0], layout.cu_seqlens, layout.reverse)
    carry = [torch.zeros_like(x) for x in saved]
    allowed = _ROUNDINGS * torch.finfo(dtype).eps
    for _ in range(ROUNDS):
        found = evaluate(back, carry, inputs, leaves.parameters, leaves.matrices)
        into = [x.expand(h.shape) for x, h in zip(found.next_states, saved, strict=True)]
        if layout.reset is not None:
            into = [torch.where(layout.reset[..., None], 0, x) for x in into]
        later = []
        for x, final in zip(into, grad_finals, strict=True):
            moved = shift_time(x, 1 if layout.reverse else -1)
            later.append(moved.index_put((edge.row, edge.last), final[edge.kept]))
        if _residual(carry, later) <= allowed:
            return _collected(program, leaves, layout, found, into, grad_finals)
        carry = _carried(program, slopes, later, carry, layout)
    return leaves.like(_by_the_loop(program, leaves, layout, [*grad_outputs, *grad_finals]))


def _by_the_loop(
    program: Program, leaves: Leaves, layout: Layout, grads: Sequence[Tensor]
) -> list[Tensor | None]:
    def definition(*given: Tensor) -> tuple[Tensor, ...]:
        outputs, finals = loop(program, leaves.like(given), layout)
        return (*outputs, *finals)

    flat = leaves.flat()
    return through_definition(definition, flat, [True] * len(flat), grads)


def _carried(
    program: Program,
    slopes: Sequence[Tensor],
    later: Sequence[Tensor],
    carry: Sequence[Tensor],
    layout: Layout,
) -> list[Tensor]:
    """Cotangents of the recurrence whose derivative is the diagonal one, corrected."""
    found = list(later)
    by = 1 if layout.reverse else -1
    edge = ends(later[0], layout.cu_seqlens, layout.reverse)
    for group in state_groups(program):
        a = _diagonal(slopes, group, len(later), later[group[0]].shape)
        a = a.conj() if a.is_complex() else a
        if layout.reset is not None:
            a = torch.where(layout.reset[..., None], 0, a)
        a = shift_time(a, by)
        a = a.index_put((edge.row, edge.last), a.new_zeros(()))
        y, old = (_joined([some[i] for i in group]) for some in (later, carry))
        b = y - a * shift_time(old, by)
        new, _ = linear_scan(a, b, cu_seqlens=layout.cu_seqlens, reverse=not layout.reverse)
        new = torch.where(new.isfinite(), new, y)
        for i, part in zip(group, [new] if len(group) == 1 else [new.real, new.imag], strict=True):
            found[i] = part
    return found


def _collected(
    program: Program,
    leaves: Leaves,
    layout: Layout,
    found: Values,
    into: Sequence[Tensor],
    grad_finals: Sequence[Tensor],
) -> Leaves:
    """Gradients of all leaves from what the adjoint gives at every step."""
    edge = ends(into[0], layout.cu_seqlens, layout.reverse)
    states = []
    for x, final in zip(into, grad_finals, strict=True):
        states.append(final.index_put((edge.kept,), x[edge.row, edge.first]))
    inputs = [
        y.expand(x.shape).to(x.dtype) for y, x in zip(found.outputs, leaves.inputs, strict=True)
    ]
    parameters = [torch.zeros_like(x) for x in leaves.parameters]
    for i, x in found.sums:
        shape = (*into[0].shape[:2], parameters[i].shape[-1])
        parameters[i] = parameters[i] + x.expand(shape).sum((0, 1))
    matrices = [torch.zeros_like(x) for x in leaves.matrices]
    for i, left, right in found.products:
        heads = matrices[i].shape[0] if matrices[i].ndim == 3 else 1
        sides = [
            x.expand(*into[0].shape[:2], x.shape[-1]).unflatten(-1, (heads, -1))
            for x in (left, right)
        ]
        product = torch.einsum("bthm,bthn->hmn", *sides)
        matrices[i] = matrices[i] + product.reshape(matrices[i].shape)
    return Leaves(states, inputs, parameters, matrices)
