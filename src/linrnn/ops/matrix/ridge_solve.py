"""Solutions of the ridge regression of keys on values that a matrix memory asks for at every step.

The sums of ``k k^T`` are never written down for a sequence: conjugate gradients need their products
with vectors alone, and `linrnn.ops.outer_scan` computes those of all steps at once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from linrnn.cells import fold, spread
from linrnn.compute.composed import composed
from linrnn.compute.derivatives import through_definition
from linrnn.compute.modes import may_look, transformed
from linrnn.ops.cell.cell_scan.row_function import RowFunction, row_functions
from linrnn.ops.linear.linear_scan import linear_scan
from linrnn.ops.matrix.outer_scan import outer_scan


def _without_ridge(kind: str, system: Sequence[Any]) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """``x`` to ``H x``, what is the same for all x computed once; and the ridge."""
    if kind == "matrix":
        H, ridge = system
        return lambda x: (H @ x[..., None]).squeeze(-1), ridge
    k, beta, g, ridge, state, reset = system
    values = beta[..., None] * k
    return lambda x: outer_scan(x, k, values, g, state, reset=reset)[0], ridge


def _product(kind: str, x: Tensor, *system: Any) -> Tensor:
    """``(H_t + diag(ridge)) x_t`` of all steps."""
    product, ridge = _without_ridge(kind, system)
    return product(x) + ridge * x


def _shapes(q: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1]), q.new_empty(q.shape[:-1])


@composed(
    "ridge_solve",
    "Tensor q, Tensor k, Tensor beta, Tensor g, Tensor ridge, Tensor state, Tensor? reset, "
    "int iterations",
    _shapes,
)
def ridge_solve(
    q: Tensor,
    k: Tensor,
    beta: Tensor,
    g: Tensor,
    ridge: Tensor,
    state: Tensor,
    reset: Tensor | None,
    iterations: int,
) -> tuple[Tensor, ...]:
    r"""Solve a symmetric system of every step, by conjugate gradients.

    Equation, in every head::

        H_t = exp(g_t) H_{t-1} + beta_t k_t k_t^T,   (H_t + diag(ridge)) x_t = q_t

    A system of d_key channels is solved after as many iterations, but for rounding; fewer leave a
    residual. One whose residual is below the roundings of q stays as it is. Derivatives are those
    of the exact solution: a gradient is the same solve once more. Inside of `torch.func` systems
    are written down and solved exactly, which takes d_key^2 numbers a step.

    Args:
        q, k: (batch, time, heads, d_key).
        beta: weights of keys (batch, time, heads), at least 0.
        g: logarithms of decays (batch, time, heads), at most 0.
        ridge: positive (heads, d_key).
        state: H before the first step (batch, heads, d_key, d_key), without negative
            eigenvalues; what is not symmetric in it does not count.
        reset: boolean (batch, time); True clears H before that step.
        iterations: at most.

    Returns:
        ``(x, residual, rounds)``: solutions like q; without gradients the length of what
        ``(H + diag(ridge)) x`` lacks of q, and the iterations that each system took.

    Example:
        >>> one, half = torch.ones(1, 3, 1, 1), torch.full((1, 3, 1), 0.5)
        >>> start = torch.zeros(1, 1, 1, 1)
        >>> ridge_solve(one, one, half, 0 * half, one[0, 0], start, None, 1)[0].flatten()
        tensor([0.6667, 0.5000, 0.4000])
    """
    state = _symmetric(state)
    if q.shape[1] == 1 or transformed():
        H = _written_down(k, beta, g, state, reset)
        if transformed():
            return _exactly(q, H, ridge)
        return _solved("matrix", iterations, q, H, ridge)
    return _solved("scan", iterations, q, k, beta, g, ridge, state, reset)


def _symmetric(H: Tensor) -> Tensor:
    """Conjugate gradients are for symmetric systems; so derivatives agree in every direction."""
    return (H + H.mT) / 2  # (B, H, K, K)


def _solved(kind: str, iterations: int, q: Tensor, *system: Any) -> tuple[Tensor, ...]:
    tensors = (q, *(z for z in system if isinstance(z, Tensor)))
    if torch.is_grad_enabled() and any(z.requires_grad for z in tensors):
        solution: tuple[Tensor, ...] = _Solved.apply(kind, iterations, q, *system)
        return solution
    return _conjugate_gradients(kind, iterations, q, system)


def _conjugate_gradients(
    kind: str, iterations: int, q: Tensor, system: Sequence[Any]
) -> tuple[Tensor, ...]:
    product, ridge = _without_ridge(kind, system)
    advance, ridge = _rounds_of(q), ridge.flatten()  # ridge: (H K,)
    x, r, p = torch.zeros_like(q), q, q
    size = q.square().sum(-1)  # (B, T, H)
    enough, rounds = torch.finfo(q.dtype).eps ** 2 * size, torch.zeros_like(size)
    for _ in range(iterations):
        # what is no number is not enough, and comes out as none
        if may_look(size) and bool((size <= enough).all()):
            break
        x, r, p, size, rounds = advance(x, r, p, product(p), size, enough, rounds, ridge)
    return x, size.sqrt(), rounds


def _rounds_of(q: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """The function that computes a round: on a GPU one kernel, chosen once for all rounds."""
    heads, width = q.shape[-2:]
    advance = _advance(width)
    return partial(advance, heads=heads, width=width) if advance.has_kernels(q) else _advanced


@row_functions
def _advance(width: int) -> RowFunction:
    """One round of conjugate gradients, of heads of ``width`` channels."""

    def advance(
        x: Any, r: Any, p: Any, along: Any, size: Any, enough: Any, rounds: Any, ridge: Any
    ) -> tuple[Any, ...]:
        along = along + ridge * p
        solved = size <= enough
        step = spread(torch.where(solved, 0.0, size / fold(p * along, width)), width)
        x, r = x + step * p, r - step * along
        after = fold(r * r, width)
        p = r + spread(torch.where(solved, 0.0, after / size), width) * p
        return x, r, p, after, torch.where(solved, rounds, rounds + 1.0)

    names = "x r p along size enough rounds"
    return RowFunction(
        advance, "ridge_solve", rows=names, channels="ridge", numbers="size enough rounds",
        definition=_advanced,
    )  # fmt: skip


def _advanced(
    x: Tensor,
    r: Tensor,
    p: Tensor,
    along: Tensor,
    size: Tensor,
    enough: Tensor,
    rounds: Tensor,
    ridge: Tensor,
) -> tuple[Tensor, ...]:
    """The same of tensors (..., H, d_key) and (..., H)."""
    along = torch.addcmul(along, ridge.view(p.shape[-2:]), p)  # (..., H, K)
    active = ~(size <= enough)
    step = torch.where(active, size / (p * along).sum(-1), 0)[..., None]
    x, r = torch.addcmul(x, step, p), torch.addcmul(r, step, along, value=-1)
    after = r.square().sum(-1)
    p = torch.addcmul(r, torch.where(active, after / size, 0)[..., None], p)
    return x, r, p, after, rounds + active


class _Solved(torch.autograd.Function):
    """The solution x of ``A x = q`` with A symmetric: a change dq - dA x of q moves it by a solve.

    So of a gradient y into x, ``A^-1 y`` goes to q, and what ``-(A^-1 y) . A x`` gives to A.
    """

    @staticmethod
    def forward(ctx: Any, kind: str, iterations: int, q: Tensor, *system: Any) -> Any:
        x, residual, rounds = _conjugate_gradients(kind, iterations, q, system)
        ctx.kind, ctx.iterations = kind, iterations
        ctx.save_for_backward(x, *system)
        ctx.mark_non_differentiable(residual, rounds)
        return x, residual, rounds

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, *system = ctx.saved_tensors
        if transformed():
            H = system[0] if ctx.kind == "matrix" else _written_down(*system[:3], *system[4:])
            ridge = system[1] if ctx.kind == "matrix" else system[3]
            y = _exactly(grad, H, ridge)[0]
        else:
            y = _solved(ctx.kind, ctx.iterations, grad, *system)[0]
        needs_grad = (False, *ctx.needs_input_grad[3:])
        product = partial(_product, ctx.kind)
        gradients = through_definition(product, (x, *system), needs_grad, (-y,))
        return None, None, y if ctx.needs_input_grad[2] else None, *gradients[1:]


def _written_down(
    k: Tensor, beta: Tensor, g: Tensor, state: Tensor, reset: Tensor | None
) -> Tensor:
    """H of every step, (B, T, H, K, K)."""
    outer = (beta[..., None] * k)[..., None] * k[..., None, :]
    decay = g.exp()[..., None, None].expand_as(outer)  # (B, T, H, K, K)
    return linear_scan(decay, outer, state, reset=reset)[0]


def _exactly(q: Tensor, H: Tensor, ridge: Tensor) -> tuple[Tensor, ...]:
    rows = torch.cat([H + torch.diag_embed(ridge), q[..., None]], -1)  # (..., K, K + 1)
    # PyTorch's solver has a wrong derivative where forward mode is nested in forward mode
    for i, one in enumerate(torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)):
        pivot = rows[..., i : i + 1, :] / rows[..., i : i + 1, i : i + 1]
        rows = rows - (rows[..., i : i + 1] - one[:, None]) * pivot
    x = rows[..., -1]
    with torch.no_grad():
        residual = (_product("matrix", x, H, ridge) - q).square().sum(-1).sqrt()
    return x, residual, torch.full_like(residual, q.shape[-1])
