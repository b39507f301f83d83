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
    begins = k == 0
    return legs_move(c, f, 1 / torch.where(begins, 1, k.to(c.dtype)), begins)


def legs_move(c: Tensor, f: Tensor, length: Tensor, begins: Tensor) -> Tensor:
    """A step of the bilinear rule that moves the memory by ``length``, or sets it.

    Args:
        c, f: as of `legs_step`.
        length: the time of the step, in parts of all the time before it; at least 0.
        begins: boolean, whether there was none before it.
    """
    updated = legs_bilinear(c, f, length.to(c.dtype))
    first = F.pad(f[..., None], (0, c.shape[-1] - 1)).expand(updated.shape)
    return torch.where(begins[..., None], first, updated)


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
    begins = k == 0
    return legs_transitions(size, 1 / torch.where(begins, 1, k.double()), begins, rule)


def legs_transitions(size: int, length: Tensor, begins: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """`legs_matrices` of steps of any length, k = 1 / length.

    Args:
        size: N.
        length, begins: as of `legs_move`, (...), float64.
        rule: "bilinear", "backward" or "zoh".
    """
    if rule == "bilinear":
        eye = torch.eye(size, dtype=torch.float64, device=length.device)
        zero = torch.zeros((), dtype=torch.float64, device=length.device)
        columns = legs_bilinear(eye.expand(*length.shape, size, size), zero, length[..., None])
        a = columns.mT
    elif rule == "backward":
        A, B = (x.to(length.device) for x in hippo_legs(size))
        a, _ = dense(A, B, length, rule)
    else:
        nodes, weights = _gauss(size, length.device)
        r = (1 / (1 + length))[..., None]
        weighted = legendre(size, r * nodes) * (weights * r)[..., None]
        a = weighted.mT @ legendre(size, nodes)
    a = torch.where(begins[..., None, None], 0, a)
    return a, F.pad(torch.ones_like(length)[..., None], (0, size - 1)) - a[..., 0]


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
