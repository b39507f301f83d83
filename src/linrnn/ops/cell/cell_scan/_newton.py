"""A cell by Newton's method: guess all states, correct all of them by linear scans, repeat.

The correction reads the derivative of each step channel by channel. Where the true one has more,
through a matrix, it is left out (quasi-Newton), and more rounds are needed; after k of them the
first k steps are exact whatever was left out. The number of rounds is bounded, and states whose
residual stays too large are never returned.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn._process.ambient import Ambient
from linrnn.compute.derivatives import through_definition
from linrnn.compute.layout import ends, shift_time
from linrnn.engine.derivatives import adjoint, jacobian, mixing
from linrnn.engine.graph import Program, Values, evaluate
from linrnn.errors import BackendError
from linrnn.ops.cell.cell_scan._arguments import Layout, Leaves, wide_inputs
from linrnn.ops.cell.cell_scan._gradients import outer_sum
from linrnn.ops.cell.cell_scan._loop import results as by_steps
from linrnn.ops.cell.cell_scan._straight import Scan, straight

ROUNDS = 100
"""Corrections of the states at most."""
_ROUNDINGS = 64  # of the states' dtype, that a residual may have


class Convergence(NamedTuple):
    """How Newton's method found the states of a call."""

    residual: float
    """Largest difference of a state from the step of the state before it, over ``1 + |h|``, or
    ``m + |h|`` where m, the largest ``|h|`` of that state, is below 1."""
    rounds: int
    """Corrections of all states."""


#: Where `newton_scan` listens.
NOTED: Ambient[list[Convergence]] = Ambient("convergence", lambda noted: True)


class Solution(NamedTuple):
    """States that solve the recurrence."""

    previous_states: list[Tensor]
    """The state before each step, (batch, time, width)."""
    next_states: list[Tensor]
    convergence: Convergence


def forward(
    program: Program, leaves: Leaves, layout: Layout, keep: bool = False
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Outputs, final states, and the states before each step for the gradient.

    Raises:
        BackendError: no solution was found.
    """
    solution = solve(program, leaves, layout)
    operands = (wide_inputs(leaves), leaves.parameters, leaves.matrices)
    outputs = layout.stored(
        evaluate(program, solution.previous_states, *operands).outputs, layout.batch(leaves.states)
    )
    edge = ends(solution.next_states[0], layout.cu_seqlens, layout.reverse)
    finals = []
    for h, initial in zip(solution.next_states, leaves.states, strict=True):
        finals.append(initial.index_put((edge.kept,), h[edge.row, edge.last]))
    return outputs, finals, solution.previous_states


def solve(program: Program, leaves: Leaves, layout: Layout) -> Solution:
    """All states.

    Raises:
        BackendError: the residual does not fall; names it.
    """
    operands = (wide_inputs(leaves), leaves.parameters, leaves.matrices)
    shape = (layout.batch(leaves.states), layout.time)
    derivative = jacobian(program)
    h = [x.new_zeros(*shape, x.shape[-1]) for x in leaves.states]
    residuals: list[float] = []
    # All steps together are one system of equations, h_t - f(h_{t-1}) = 0. Its Newton step is
    # again a recurrence, d_t = f'(h_{t-1}) d_{t-1} - residual_t, linear in d: a scan solves it for
    # all t at once. Each round costs one evaluation of every step and one scan, both parallel in
    # time. After k rounds the first k steps are exact, so there are at worst as many as steps.
    # what the arguments are not, no state need be; and NaN that fits its step is the right one
    finite = all(bool(x.isfinite().all()) for x in leaves.flat())
    for rounds in range(ROUNDS):
        previous_states = layout.before(h, leaves.states)
        slopes, next_states, *_ = evaluate(derivative, previous_states, *operands)
        # (B, T, width)
        next_states = [f.expand(x.shape) for f, x in zip(next_states, h, strict=True)]
        residuals.append(_residual(h, next_states))
        if _settled(residuals, leaves.states[0].dtype):
            convergence = Convergence(residuals[-1], rounds)
            noted = NOTED.get()
            if noted is not None:
                noted.append(convergence)
            return Solution(previous_states, next_states, convergence)
        h = _corrected(program, slopes, next_states, previous_states, leaves, layout, finite)
    allowed = _ROUNDINGS * torch.finfo(leaves.states[0].dtype).eps
    raise BackendError(
        f"cell_scan: newton must reach a residual of {allowed:.1g} within {ROUNDS} rounds, "
        f"got {residuals[-1]:.1g}{_left_out(program)}. Use form='loop', or leave form= away."
    )


def _left_out(program: Program) -> str:
    """Describe the part of the derivative that the corrections ignore."""
    matrix = mixing(program, ["state"], program.next_states)
    return "" if matrix is None else f"; its corrections leave out what {matrix} mixes"


def _residual(h: Sequence[Tensor], next_states: Sequence[Tensor]) -> float:
    """The largest difference, over ``|f|`` and the largest of it, or 1 where that is larger."""
    largest = 0.0
    for x, f in zip(h, next_states, strict=True):
        if not f.numel():
            continue
        same = (x == f) | (x.isnan() & f.isnan())  # infinity has no distance from itself
        size = torch.where(f.isfinite(), f, 0).abs().amax().clamp(max=1)
        gap = torch.where(same, 0, (x - f).abs() / (size + f.abs()))
        largest = max(largest, float(gap.nan_to_num(nan=float("inf")).amax()))
    return largest


def _settled(residuals: Sequence[float], dtype: torch.dtype) -> bool:
    """Whether the iteration has converged.

    Residuals add up over a long memory, so as long as rounds help there is another.
    """
    eps, now = torch.finfo(dtype).eps, residuals[-1]
    one, two = ([float("inf")] * 2 + [*residuals])[-2:-4:-1]
    helped = now > eps and (now < 0.9 * one or now < 0.5 * two)
    return now <= _ROUNDINGS * eps and (len(residuals) == ROUNDS or not helped)


def _corrected(
    program: Program,
    slopes: Sequence[Tensor],
    next_states: Sequence[Tensor],
    previous_states: Sequence[Tensor],
    leaves: Leaves,
    layout: Layout,
    finite: bool,
) -> list[Tensor]:
    """States of the recurrence that is made straight at each step."""
    nonzero, m = _nonzero(program), len(next_states)
    live = _live(next_states[0], layout)  # (batch, time, 1)
    scan = Scan(live, layout.reset, layout.cu_seqlens, layout.reverse, finite)
    return straight(
        program,
        lambda i, j: slopes[i * m + j] if nonzero[i * m + j] else None,
        next_states,
        previous_states,
        lambda i, x: layout.one_before(i, x, leaves.states[i]),
        scan,
    )


def _nonzero(program: Program) -> list[bool]:
    """Mark the derivatives of the next states by the states that are not 0 throughout."""
    derivative = jacobian(program)
    nodes = (derivative.nodes[x] for x in derivative.outputs)
    return [x.op != "constant" or x.attribute != 0 for x in nodes]


def _live(x: Tensor, layout: Layout) -> Tensor:
    """The steps, (batch, time, 1), that take over the state of the one before."""
    edge = ends(x, layout.cu_seqlens, layout.reverse)
    live = torch.ones_like(x[..., 0], dtype=torch.bool) if layout.reset is None else ~layout.reset
    return live.index_put((edge.row, edge.first), live.new_zeros(()))[..., None]


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
    dtype = leaves.states[0].dtype
    inputs = [*wide_inputs(leaves), *saved, *(g.to(dtype) for g in grad_outputs)]
    back = adjoint(program)
    slopes = evaluate(
        jacobian(program), saved, wide_inputs(leaves), leaves.parameters, leaves.matrices
    ).outputs
    edge = ends(saved[0], layout.cu_seqlens, layout.reverse)
    carry = [torch.zeros_like(x) for x in saved]
    residuals: list[float] = []
    for _ in range(ROUNDS):
        values = evaluate(back, carry, inputs, leaves.parameters, leaves.matrices)
        # (B, T, width)
        into = [x.expand(h.shape) for x, h in zip(values.next_states, saved, strict=True)]
        if layout.reset is not None:
            into = [torch.where(layout.reset[..., None], 0, x) for x in into]
        later = []
        for x, final in zip(into, grad_finals, strict=True):
            moved = shift_time(x, 1 if layout.reverse else -1)
            later.append(moved.index_put((edge.row, edge.last), final[edge.kept]))
        residuals.append(_residual(carry, later))
        if _settled(residuals, dtype):
            return _collected(program, leaves, layout, values, into, grad_finals)
        carry = _carried(program, slopes, later, carry, layout)
    return leaves.like(_by_the_loop(program, leaves, layout, [*grad_outputs, *grad_finals]))


def _by_the_loop(
    program: Program, leaves: Leaves, layout: Layout, grads: Sequence[Tensor]
) -> list[Tensor | None]:
    def definition(*flat: Tensor) -> tuple[Tensor, ...]:
        outputs, finals = by_steps(program, leaves.like(flat), layout)
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
    """Cotangents of the recurrence that is made straight, corrected."""
    by, m = 1 if layout.reverse else -1, len(later)
    live, nonzero = _live(later[0], layout), _nonzero(program)

    def slope(i: int, j: int) -> Tensor | None:
        if not nonzero[j * m + i]:
            return None
        x = torch.where(live, slopes[j * m + i], 0.0)
        return shift_time(x, by)

    follows = shift_time(live, by)
    scan = Scan(follows, None, layout.cu_seqlens, not layout.reverse, True)
    old = [shift_time(x, by) for x in carry]
    previous = lambda i, x: shift_time(x, by)  # noqa: E731
    return straight(program, slope, later, old, previous, scan, adjoint=True)


def _collected(
    program: Program,
    leaves: Leaves,
    layout: Layout,
    values: Values,
    into: Sequence[Tensor],
    grad_finals: Sequence[Tensor],
) -> Leaves:
    """Gradients of all leaves from what the adjoint gives at every step."""
    edge = ends(into[0], layout.cu_seqlens, layout.reverse)
    states = []
    for x, final in zip(into, grad_finals, strict=True):
        states.append(final.index_put((edge.kept,), x[edge.row, edge.first]))
    inputs = [
        y.expand(x.shape).to(x.dtype) for y, x in zip(values.outputs, leaves.inputs, strict=True)
    ]  # (batch, time, width) each
    parameters = [torch.zeros_like(x) for x in leaves.parameters]
    for i, x in values.sums:
        shape = (*into[0].shape[:2], parameters[i].shape[-1])
        parameters[i] = parameters[i] + x.expand(shape).sum((0, 1))  # (width,)
    matrices = [torch.zeros_like(x) for x in leaves.matrices]
    for i, left, right in values.products:
        heads = matrices[i].shape[0] if matrices[i].ndim == 3 else 1
        sides = [  # (batch * time, heads, width / heads) each
            x.expand(*into[0].shape[:2], x.shape[-1]).flatten(0, 1).unflatten(-1, (heads, -1))
            for x in (left, right)
        ]
        # ([heads,] rows, columns)
        matrices[i] = matrices[i] + outer_sum(*sides).reshape(matrices[i].shape)
    return Leaves(states, inputs, parameters, matrices)
