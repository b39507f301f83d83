"""Sums of fractions on the unit circle: the kernel of S4, without an array of modes times nodes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from linrnn.ops._derivatives import Gradients, through_definition
from linrnn.ops._modes import eager, transformed
from linrnn.ops._pairs import conjugate

TILE = 2**19  # channels times modes times nodes that are held at once


def cauchy(v: Tensor, w: Tensor, angle: Tensor) -> Tensor:
    r"""The Cauchy product of conjugate pairs, without a singularity at z = -1.

    Equation::

        sum_n v_n / D_n + conj(v_n) / D'_n       z = exp(-i angle)
        D_n = (1 - z) - (1 + z) w_n              D' is that of conj(w)

    Divided by ``1 + z`` the nodes are those of the bilinear rule, ``(1 - z) / (1 + z)``, on the
    imaginary axis. A pair of fractions has one real denominator, so all is real arithmetic; what
    is close to a pole is subtracted in double precision. Only a tile of nodes is held at a time,
    and the gradient computes it again.

    Args:
        v: numerators (rows, channels, modes), complex.
        w: (channels, modes), complex128, real parts below 0.
        angle: of the nodes, (nodes,), from 0 to pi, float64.

    Returns:
        (rows, channels, nodes), complex like ``v``.

    Example:
        >>> import torch
        >>> one, half = torch.ones(1, 1, 1) + 0j, torch.full((1, 1), -0.5, dtype=torch.complex128)
        >>> cauchy(one, half, torch.zeros(1, dtype=torch.float64))
        tensor([[[2.+0.j]]])
    """
    w = w.to(torch.complex128)
    arguments = (v.real, (v * conjugate(w).to(v.dtype)).real, w.abs(), w.real, angle.double())
    if transformed() or not eager(*arguments):
        re, im = _sums(*arguments)
    else:
        re, im = _Tiled.apply(*arguments)
    turn = 0.5 * angle.double()
    return torch.complex(re, im) * torch.complex(turn.cos(), turn.sin()).to(v.dtype)


def _sums(
    beta: Tensor, alpha: Tensor, radius: Tensor, real: Tensor, angle: Tensor
) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of the sums times ``exp(-i angle / 2)``.

    Of a pair ``(i s beta - c alpha) / (r + i m)`` is left, with s and c the sine and cosine of
    half the angle, ``r = c^2 |w|^2 - s^2`` and ``m = -2 s c Re w``.
    """
    dtype = beta.dtype
    s, c = (0.5 * angle).sin(), (0.5 * angle).cos()
    scaled = radius[..., None] * c  # (H, M, nodes)
    r = ((scaled - s) * (scaled + s)).to(dtype)
    m = (-2 * real).to(dtype)[..., None] * (s * c).to(dtype)
    inverse = (r * r + m * m).reciprocal()
    s, c, rows = s.to(dtype), c.to(dtype), beta.shape[0]
    both = torch.cat([beta, alpha]).transpose(0, 1)  # (H, 2 rows, M)
    (br, ar), (bm, am) = ((both @ (x * inverse)).split(rows, 1) for x in (r, m))
    return (s * bm - c * ar).transpose(0, 1), (s * br + c * am).transpose(0, 1)


class _Tiled(torch.autograd.Function):
    """`_sums`, a tile of nodes at a time in both directions."""

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*arguments)
        beta, alpha, radius, real, _ = arguments
        found = [_sums(beta, alpha, radius, real, nodes) for nodes in _tiles(arguments)]
        return tuple(torch.cat(parts, -1) for parts in zip(*found, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        arguments, wanted = ctx.saved_tensors, ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():
            return *through_definition(_sums, arguments, wanted, grads), None
        given = zip(arguments, wanted, strict=False)  # the angles have no gradient
        total: Gradients = [torch.zeros_like(x) if want else None for x, want in given]
        sizes = [len(nodes) for nodes in _tiles(arguments)]
        pieces = zip(*(g.split(sizes, -1) for g in grads), strict=True)
        for nodes, piece in zip(_tiles(arguments), pieces, strict=True):
            found = through_definition(_sums, (*arguments[:4], nodes), wanted, piece)
            for sum_, g in zip(total, found, strict=True):
                if sum_ is not None and g is not None:
                    sum_ += g
        return *total, None


def _tiles(arguments: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """The angles, as many at a time as a tile has."""
    width = max(1, TILE // max(1, arguments[2].numel()))
    return iter(arguments[4].split(width))
