"""L-BFGS whose value never rises, for numbers of any scale."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_MEMORY = 10
_HALVINGS = 30
_ENOUGH = 1e-4  # of the decrease that the slope promises, as Armijo's rule has it

Objective = Callable[[Sequence[Tensor]], Tensor]


class _Pair(NamedTuple):
    s: Tensor
    y: Tensor


def descend(
    objective: Objective, start: Sequence[Tensor], iterations: int, scale: float
) -> list[Tensor]:
    """Smaller values of an objective, by a number of steps of a limited-memory quasi-Newton method.

    PyTorch's own leaves out curvature below a fixed number, which states that are held to their
    predictions by a large penalty are below.

    Args:
        objective: of tensors of the shapes of ``start``: a scalar.
        start: where to begin.
        iterations: at most; fewer where a value cannot be made smaller any more.
        scale: an estimate of the inverse of the curvature, for the first step.

    Returns:
        New tensors, at which the objective is at most what it is at ``start``.
    """
    x = torch.cat([h.detach().flatten() for h in start])
    pairs: list[_Pair] = []
    value, g = _value_and_gradient(objective, x, start)
    for _ in range(iterations):
        step = -_times_inverse(g, pairs, scale)
        slope = float(g @ step)
        if not slope < 0:
            break
        accepted = _shortened(objective, x, step, float(value), slope, start)
        if accepted is None:
            break
        x_new, value, g_new = accepted
        pair = _Pair(x_new - x, g_new - g)
        if float(pair.s @ pair.y) > 1e-12 * float(pair.s.norm() * pair.y.norm()):
            pairs = [*pairs, pair][-_MEMORY:]
        x, g = x_new, g_new
    return _split_like(x, start)


def _shortened(
    objective: Objective,
    x: Tensor,
    step: Tensor,
    value: float,
    slope: float,
    like: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Halve a step until it helps; returns the new point, or None where no part of it does."""
    size = 1.0
    for _ in range(_HALVINGS):
        at = x + size * step
        new_value, g = _value_and_gradient(objective, at, like)
        if float(new_value) < value + _ENOUGH * size * slope:
            return at, new_value, g
        size /= 2
    return None


def _times_inverse(g: Tensor, pairs: list[_Pair], scale: float) -> Tensor:
    """The two loops: the inverse of the curvature that the pairs tell of, times a gradient."""
    q, coefficients = g, []
    for s, y in reversed(pairs):
        a = (s @ q) / (s @ y)
        q = q - a * y
        coefficients.append(a)
    q = q * ((pairs[-1].s @ pairs[-1].y) / (pairs[-1].y @ pairs[-1].y) if pairs else scale)
    for (s, y), a in zip(pairs, reversed(coefficients), strict=True):
        q = q + s * (a - (y @ q) / (s @ y))
    return q


def _value_and_gradient(
    objective: Objective, x: Tensor, like: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    parts = [h.requires_grad_() for h in _split_like(x, like)]
    value = objective(parts)
    grads = torch.autograd.grad(value, parts, materialize_grads=True)
    return value.detach(), torch.cat([g.flatten() for g in grads])


def _split_like(x: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    pieces = x.split([h.numel() for h in like])
    return [p.view_as(h).clone() for p, h in zip(pieces, like, strict=True)]
