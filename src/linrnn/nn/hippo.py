"""What the state-space mixers share: discretisation, HiPPO, initial eigenvalues and step sizes."""

from collections.abc import Callable
from math import log, pi

import torch
from torch import Tensor

from linrnn.errors import ArgumentError


def zoh(lam: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    r"""Zero-order hold, exact for an input that is constant during a step.

    Equation::

        a = exp(dt lam)        gain = (exp(dt lam) - 1) / lam,  dt where lam is 0

    Args:
        lam: eigenvalues of the continuous system, real or complex.
        dt: step sizes, real and positive, broadcast against ``lam``.

    Returns:
        ``(a, gain)`` of ``h_t = a h_{t-1} + gain B x_t``.

    Example:
        >>> zoh(torch.tensor([0.0, -1e-6]), torch.tensor(1e-3))[1]
        tensor([0.0010, 0.0010])
    """
    growth = (lam.real * dt).exp()
    less_one = torch.expm1(lam.real * dt)  # exp(z) - 1 would lose every digit of a small z
    a = growth
    if lam.is_complex():
        angle = lam.imag * dt
        cos, sin, half = angle.cos(), angle.sin(), (0.5 * angle).sin()
        a = torch.complex(growth * cos, growth * sin)
        less_one = torch.complex(less_one * cos - 2 * half * half, growth * sin)
    zero = lam == 0
    gain = less_one / torch.where(zero, 1, lam)
    return a, torch.where(zero, dt.to(gain.dtype), gain)


def bilinear(lam: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    r"""Bilinear (Tustin) rule, the trapezoidal one; it maps the left half plane onto the disc.

    Equation::

        a = (1 + dt lam / 2) / (1 - dt lam / 2)        gain = dt / (1 - dt lam / 2)

    Example:
        >>> bilinear(torch.tensor(-1.0), torch.tensor(0.5))
        (tensor(0.6000), tensor(0.4000))
    """
    half = 0.5 * dt * lam
    return (1 + half) / (1 - half), dt / (1 - half)


INITS = ("lin", "inv", "legs", "real")

DISCRETISATIONS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "zoh": zoh,
    "bilinear": bilinear,
}


def hippo_legs(size: int) -> tuple[Tensor, Tensor]:
    """HiPPO-LegS: the matrix A (size, size) and the vector B (size,), float64.

    Example:
        >>> hippo_legs(2)[0]
        tensor([[-1.0000,  0.0000],
                [-1.7321, -2.0000]], dtype=torch.float64)
    """
    n = torch.arange(size, dtype=torch.float64)
    B = (2 * n + 1).sqrt()
    return torch.diag(-n - 1) - torch.outer(B, B).tril(-1), B


def hippo_normal(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the normal part of HiPPO-LegS, complex128.

    LegS itself is so far from normal that its eigenvectors are useless (condition number 4e20 at
    size 64); ``A + P P^T`` with ``P = sqrt(n + 1/2)`` is -1/2 plus a skew matrix.

    Returns:
        ``(lam, V, B)``: eigenvalues by rising imaginary part, so conjugates mirror each other;
        unitary eigenvectors in columns; ``V^* B``, of which the phases of V make every entry real
        and positive, whatever the linear algebra library chose.

    Example:
        >>> hippo_normal(4)[0].imag
        tensor([-4.6033, -0.5565,  0.5565,  4.6033], dtype=torch.float64)
    """
    A, B = hippo_legs(size)
    P = B / 2**0.5
    skew = A + torch.outer(P, P) + 0.5 * torch.eye(size, dtype=torch.float64)
    angle, V = torch.linalg.eigh(-1j * skew)
    V = V * torch.sgn(V.mH @ B.to(V.dtype))
    return torch.complex(torch.full_like(angle, -0.5), angle), V, (V.mH @ B.to(V.dtype)).real


def initial_eigenvalues(init: str, d_state: int) -> Tensor:
    """The S4D initialisations: ``d_state / 2`` complex ones of each pair, ``d_state`` for "real".

    Example:
        >>> initial_eigenvalues("lin", 4)
        tensor([-0.5000+0.0000j, -0.5000+3.1416j], dtype=torch.complex128)
    """
    if init == "real":
        return -torch.arange(1, d_state + 1, dtype=torch.float64)
    if init == "legs":
        return hippo_normal(d_state)[0][d_state // 2 :]
    n = torch.arange(d_state // 2, dtype=torch.float64)
    angle = pi * n if init == "lin" else d_state / pi * (d_state / (2 * n + 1) - 1)
    return torch.complex(torch.full_like(n, -0.5), angle)


def draw_log_dt(count: int, dt_min: float, dt_max: float) -> Tensor:
    """Logarithms of step sizes, uniform between those of ``dt_min`` and ``dt_max``; float64."""
    return torch.rand(count, dtype=torch.float64) * log(dt_max / dt_min) + log(dt_min)


def check_dt(where: str, dt_min: float, dt_max: float) -> None:
    """Raise `ArgumentError` unless ``0 < dt_min <= dt_max``, both finite."""
    if not 0 < dt_min <= dt_max < float("inf"):
        raise ArgumentError(
            f"{where}: dt_min and dt_max must satisfy 0 < dt_min <= dt_max, "
            f"got dt_min={dt_min}, dt_max={dt_max}."
        )


def check_pairs(where: str, d_state: int, fix: str) -> None:
    """Raise `ArgumentError` unless a state of conjugate pairs has an even size."""
    if d_state % 2:
        raise ArgumentError(
            f"{where}: d_state must be even, since half of each conjugate pair is kept, "
            f"got {d_state}. {fix}"
        )
