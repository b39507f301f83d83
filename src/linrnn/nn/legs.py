"""HiPPO-LegS in steps: a memory of all the past, whose step number k moves it by 1/k.

Step k takes ``c_k`` to ``c_{k+1}``, so that k inputs were read before; the first, k = 0, sets the
memory to the constant that was read. All rules keep a constant as it is, ``b = e_0 - a e_0``.
"""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.nn.discretise import dense
from linrnn.nn.hippo import hippo_legs

LEGS_RULES = ("bilinear", "backward", "zoh")


def legs_step(c: Tensor, f: Tensor, k: Tensor) -> Tensor:
    """Step k of the bilinear rule: `legs_bilinear` of length 1/k, and for k = 0 the first.

    Args:
        c: memories (..., N).
        f: what is read (...).
        k: how much was read before, at least 0, broadcast against ``f``.

    Example:
        >>> legs_step(torch.tensor([1.0, 0.0]), torch.tensor(4.0), torch.tensor(2.0))
        tensor([2.2000, 1.3856])
    """
    updated = legs_bilinear(c, f, 1 / k.to(c.dtype).clamp(min=1))
    first = F.pad(f[..., None], (0, c.shape[-1] - 1)).expand(updated.shape)
    return torch.where(k[..., None] == 0, first, updated)


def legs_bilinear(c: Tensor, f: Tensor, dt: Tensor) -> Tensor:
    """A step of the bilinear rule without a matrix: O(N log N) a memory.

    Equation::

        c' = (I - dt A/2)^-1 ((I + dt A/2) c + dt B f)        of `hippo`'s "legs"

    The system (I - dt A/2) z = c + dt B f / 2 is solved from the top: its partial sums
    S_n = sum_{m <= n} sqrt(2m+1) z_m are a linear recurrence in n, with factors of at most 1 in
    size; then c' = 2 z - c.

    Args:
        c: memories (..., N).
        f: what is read (...).
        dt: positive, broadcast against ``f``.
    """
    size = c.shape[-1]
    n = torch.arange(size, dtype=c.dtype, device=c.device)
    root, half = (2 * n + 1).sqrt(), 0.5 * dt[..., None]
    below = 1 + half * (n + 1)
    pushed = c + half * root * f[..., None]
    factor, sums = (1 - half * n) / below, root * pushed / below
    shift = 1
    while shift < size:
        sums = sums + factor * F.pad(sums[..., :-shift], (shift, 0))
        factor = factor * F.pad(factor[..., :-shift], (shift, 0))
        shift *= 2
    return 2 * (pushed - half * root * F.pad(sums[..., :-1], (1, 0))) / below - c


def legs_matrices(size: int, k: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Transitions (..., N, N) and inputs (..., N) of the steps k (...), float64.

    Equation::

        "bilinear"  as `legs_step`
        "backward"  a = (I - A/k)^-1
        "zoh"       a_nm = int_0^r phi_n(x) phi_m(x / r) dx,  r = k / (k + 1)

    The second is exp(A log(1 + 1/k)), the exact solution for an input that is constant during the
    step: the memory is a polynomial, and what was all of the past is now its part up to r. With
    phi_n = sqrt(2n+1) P_n(2x - 1) the integral is a sum over the nodes of Gauss and Legendre.

    Args:
        size: N.
        k: step numbers, at least 0.
        rule: "bilinear", "backward" or "zoh".
    """
    k = k.double()
    if rule == "bilinear":
        eye = torch.eye(size, dtype=torch.float64, device=k.device)
        zero = torch.zeros((), dtype=torch.float64, device=k.device)
        columns = legs_step(eye.expand(*k.shape, size, size), zero, k[..., None])
        a = torch.where(k[..., None, None] == 0, 0, columns).mT
    elif rule == "backward":
        A, B = (x.to(k.device) for x in hippo_legs(size))
        a, _ = dense(A, B, 1 / k.clamp(min=1), rule)
        a = torch.where(k[..., None, None] == 0, 0, a)
    else:
        nodes, weights = _gauss(size, k.device)
        r = (k / (k + 1))[..., None]
        weighted = legendre(size, r * nodes) * (weights * r)[..., None]
        a = weighted.mT @ legendre(size, nodes)
    return a, F.pad(torch.ones_like(k)[..., None], (0, size - 1)) - a[..., 0]


def legendre(size: int, x: Tensor) -> Tensor:
    """``sqrt(2n+1) P_n(2x - 1)``, orthonormal on [0, 1], for n < size along a new last axis.

    Example:
        >>> legendre(3, torch.tensor([0.5, 1.0]))
        tensor([[ 1.0000,  0.0000, -1.1180],
                [ 1.0000,  1.7321,  2.2361]])
    """
    y = 2 * x - 1
    values = [torch.ones_like(y), y]
    for n in range(1, size - 1):
        values.append(((2 * n + 1) * y * values[-1] - n * values[-2]) / (n + 1))
    return torch.stack([sqrt(2 * n + 1) * p for n, p in enumerate(values[:size])], -1)


def _gauss(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1], by the eigenvectors of the recurrence of the polynomials."""
    n = torch.arange(1, size, dtype=torch.float64, device=device)
    off_diagonal = torch.diag(n / (4 * n * n - 1).sqrt(), 1)
    y, vectors = torch.linalg.eigh(off_diagonal + off_diagonal.T)
    return (y + 1) / 2, vectors[0].square()
