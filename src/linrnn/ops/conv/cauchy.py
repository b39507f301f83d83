"""Sums of fractions on the unit circle: the kernel of S4, without an array of modes times nodes."""

from collections.abc import Iterator

import torch
from torch import Tensor

from linrnn.compute.derivatives import Gradients, through_definition
from linrnn.compute.pairs import conjugate
from linrnn.compute.product import Product

# Channels times modes times nodes that are held at once. A training step of S4 (64 channels, 1 row
# of 4,096 steps) takes 1.01 times as long with 2^17 and 0.97 with 2^21 (2026-11-29, EPYC with
# AVX-512, one core of a shared machine, in turn).
TILE = 2**19


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
    re, im = _PRODUCT(*arguments)
    turn = 0.5 * angle.double()
    return torch.complex(re, im) * torch.complex(turn.cos(), turn.sin()).to(v.dtype)


def _sums(
    beta: Tensor, alpha: Tensor, radius: Tensor, real: Tensor, angle: Tensor
) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of the sums times ``exp(-i angle / 2)``.

    For a pair ``(i s beta - c alpha) / (r + i m)`` is left, with s and c the sine and cosine of
    half the angle, ``r = c^2 |w|^2 - s^2`` and ``m = -2 s c Re w``.
    """
    dtype = beta.dtype
    s, c = (0.5 * angle).sin(), (0.5 * angle).cos()
    scaled = radius[..., None] * c  # (H, M, nodes)
    r = ((scaled - s) * (scaled + s)).to(dtype)
    m = (-2 * real).to(dtype)[..., None] * (s * c).to(dtype)
    inverse = (r * r + m * m).reciprocal()  # (H, M, nodes)
    s, c, rows = s.to(dtype), c.to(dtype), beta.shape[0]
    both = torch.cat([beta, alpha]).transpose(0, 1)  # (H, 2 rows, M)
    # (H, rows, nodes) each
    (br, ar), (bm, am) = ((both @ (x * inverse)).split(rows, 1) for x in (r, m))
    return (s * bm - c * ar).transpose(0, 1), (s * br + c * am).transpose(0, 1)  # (rows, H, nodes)


class _Tiled:
    """`_sums`, a tile of nodes at a time in both directions."""

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        beta, alpha, radius, real, _ = arguments
        tile_sums = [_sums(beta, alpha, radius, real, nodes) for nodes in _tiles(arguments)]
        # (H, nodes) each
        return tuple(torch.cat(parts, -1) for parts in zip(*tile_sums, strict=True))

    def backward(self, *inputs: Tensor) -> Gradients:
        arguments, grads, needs_grad = inputs[:5], inputs[5:], (True,) * 4
        total: list[Tensor] = [torch.zeros_like(x) for x in arguments[:4]]
        sizes = [len(nodes) for nodes in _tiles(arguments)]
        pieces = zip(*(g.split(sizes, -1) for g in grads), strict=True)
        for nodes, piece in zip(_tiles(arguments), pieces, strict=True):
            gradients = through_definition(_sums, (*arguments[:4], nodes), needs_grad, piece)
            for sum_, g in zip(total, gradients, strict=True):
                if g is not None:
                    sum_ += g
        return [*total]


def _tiles(arguments: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """The angles, as many at a time as a tile has."""
    width = max(1, TILE // max(1, arguments[2].numel()))
    return iter(arguments[4].split(width))


_PRODUCT = Product(
    "cauchy",
    _sums,
    gradients=4,
    kernels={"cpu": "linrnn.ops.conv._cauchy_cpu", "triton": "linrnn.ops.conv._cauchy_triton"},
    otherwise=_Tiled(),
)
