"""Gradients at a point that a step leaves where it is: solvers of ``z = J^T z + b``."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Solver = Literal["neumann", "rbp", "cg", "direct"]
Product = Callable[[Tensor], Tensor]


def solve(
    solver: Solver, next_state: Tensor, previous_state: Tensor, b: Tensor, terms: int
) -> tuple[Tensor, float]:
    """Solve ``z = J^T z + b``, with J the derivative of a step.

    Args:
        solver: ``neumann`` sums ``(J^T)^k b``, ``rbp`` goes on from numbers drawn from [0, 1),
            ``cg`` takes conjugate gradients of the normal equations, ``direct`` makes the matrix.
        next_state: after the step (batch, size), with a history that begins at
            ``previous_state``.
        previous_state: before it, of the same shape.
        b: of the same shape.
        terms: of the sum besides none; steps of the iteration.

    Returns:
        z, and what is left, ``|J^T z + b - z|`` as a part of ``|b|``: below 1 where z is better
        than nothing. For ``neumann`` it is the first term that was left out.
    """

    def pull(v: Tensor) -> Tensor:
        (product,) = torch.autograd.grad(
            next_state, previous_state, v, retain_graph=True, materialize_grads=True
        )
        return product

    if solver == "neumann":
        z = _neumann(pull, b, terms)
    elif solver == "rbp":
        z = torch.rand_like(b)
        for _ in range(terms):
            z = pull(z) + b
    elif solver == "cg":
        z = _conjugate_gradients(pull, pushing(next_state, previous_state), b, terms)
    else:
        z = _direct(pull, b)
    return z, float((pull(z) + b - z).norm() / b.norm().clamp(min=torch.finfo(b.dtype).tiny))


def _neumann(pull: Product, b: Tensor, terms: int) -> Tensor:
    z, v = torch.zeros_like(b), b
    for k in range(terms):
        z = z + v
        v = pull(v) if k + 1 < terms else v
    return z


def pushing(next_state: Tensor, previous_state: Tensor) -> Product:
    """``J v``, as the derivative of ``J^T w`` by w."""
    w = torch.zeros_like(next_state, requires_grad=True)
    (pulled,) = torch.autograd.grad(
        next_state, previous_state, w, create_graph=True, retain_graph=True, materialize_grads=True
    )

    def push(v: Tensor) -> Tensor:
        if not pulled.requires_grad:
            return torch.zeros_like(v)
        product: Tensor = torch.autograd.grad(pulled, w, v, retain_graph=True)[0]
        return product

    return push


def _conjugate_gradients(pull: Product, push: Product, b: Tensor, terms: int) -> Tensor:
    """Solve ``((I - J)(I - J^T) + ridge I) z = (I - J) b``, for all rows at once."""
    ridge = eps = torch.finfo(b.dtype).eps

    def normal(v: Tensor) -> Tensor:
        inner = v - pull(v)
        return inner - push(inner) + ridge * v

    z = torch.zeros_like(b)
    r = b - push(b)
    p, rr = r, float(r.square().sum())
    floor = eps**2 * rr  # what is left below this is rounding, and its products underflow
    for _ in range(terms):
        if rr <= floor:
            break
        q = normal(p)
        a = rr / float((p * q).sum())
        z, r = z + a * p, r - a * q
        previous_rr, rr = rr, float(r.square().sum())
        p = r + rr / previous_rr * p
    return z


def _direct(pull: Product, b: Tensor) -> Tensor:
    one_by_one = torch.eye(b.numel(), dtype=b.dtype, device=b.device).view(-1, *b.shape)
    rows = torch.stack([pull(v).flatten() for v in one_by_one])  # J, as v^T J of each v
    matrix = torch.eye(b.numel(), dtype=b.dtype, device=b.device) - rows.mT
    z: Tensor = torch.linalg.solve(matrix, b.flatten())
    return z.view_as(b)


def lipschitz_penalty(
    next_state: Tensor, previous_state: Tensor, bound: float, columns: Literal["signed", "absolute"]
) -> Tensor:
    """Penalise sums of columns of J beyond a bound, squared: the mean over rows, with a history.

    Args:
        next_state, previous_state: as of `solve`, rows apart.
        bound: of each sum.
        columns: sum the numbers of a column as they are, by one product, or their magnitudes, by
            one product for each.

    Numbers of a state that the next step does not look at, as those of a pool, are in no sum.
    """
    (sensitivity,) = torch.autograd.grad(
        next_state,
        previous_state,
        torch.rand_like(next_state),
        retain_graph=True,
        materialize_grads=True,
    )
    counts = (sensitivity != 0).any(0)
    if columns == "signed":
        sums = _pulled(
            next_state, previous_state, counts.expand_as(next_state).to(next_state.dtype)
        )
    else:
        sums = torch.zeros_like(previous_state)
        for i in counts.nonzero()[:, 0].tolist():
            one = torch.zeros_like(next_state)
            one[:, i] = 1
            sums = sums + _pulled(next_state, previous_state, one).abs()
    return (sums - bound).clamp(min=0).square().sum(1).mean()


def _pulled(next_state: Tensor, previous_state: Tensor, v: Tensor) -> Tensor:
    (product,) = torch.autograd.grad(
        next_state, previous_state, v, create_graph=True, retain_graph=True, materialize_grads=True
    )
    return product
