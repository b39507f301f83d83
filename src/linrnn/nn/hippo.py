"""Initial values of the state-space mixers: HiPPO memories, eigenvalues and step sizes."""

from math import inf, lgamma, log, pi
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, check_in, check_not_negative

INITS = ("lin", "inv", "legs", "real")

POLYNOMIALS = ("legs", "legt", "lagt")
MEASURES = (*POLYNOMIALS, "fout")


class NPLR(NamedTuple):
    """``A = V (diag(Lambda) - sum_r P_r P_r^*) V^*``: a normal matrix less one of low rank.

    Eigenvalues stand by rising imaginary part, so conjugates mirror each other: entry n of Lambda,
    P and B, and column n of V, is the conjugate of entry ``size - 1 - n``. The half with positive
    imaginary parts is ``[size // 2 :]`` for an even size; "fout" has a pair of zeros in the middle.
    """

    Lambda: Tensor  # (size,) complex128, eigenvalues of the normal part
    P: Tensor  # (rank, size) complex128, in the coordinates of V
    B: Tensor  # (size,) complex128, V^* B; the phases of V make every entry real, not negative
    V: Tensor  # (size, size) complex128, unitary, eigenvectors in columns


def hippo(
    measure: str, size: int, *, theta: float = 1.0, alpha: float = 0.0, beta: float = 1.0
) -> tuple[Tensor, Tensor]:
    r"""The matrices of a memory that holds the best polynomials of degree below ``size``.

    Equation::

        c' = A c + B f                    for "legs": c' = (A c + B f) / t
        "legs"  the past in [0, t]        c_n = 1/t int_0^t f(s) sqrt(2n+1) P_n(2s/t - 1) ds
        "legt"  the window [t-theta, t]   as "legs", with (s - t + theta)/theta instead of s/t;
                                          it closes by what c itself says of f(t - theta)
        "lagt"  all of the past           c_n = int f(t-s) exp(-(1+beta) s/2) L_n^alpha(s) ds
        "fout"  the window of "legt"      as its Fourier series: c_0 is the mean, c_2k and c_2k+1
                                          have sqrt(2) cos and sin of 2 pi k (t - s)/theta for the
                                          polynomials, c_1 is 0; it closes as "legt" does

    Args:
        measure: one of `MEASURES`.
        size: number of coefficients, an even one for "fout".
        theta: length of the window of "legt" and "fout", in units of time.
        alpha, beta: of "lagt": the order of the Laguerre polynomials and the tilt; A and B are
            those before a rescaling of the coefficients. No tilt, beta = 0, is the "lagt" of the
            public code.

    Returns:
        ``(A, B)``, (size, size) and (size,), float64.

    Raises:
        UnknownNameError, ArgumentError: no such measure; theta or 1 + alpha not positive, beta
            negative, an odd size of "fout".

    Example:
        >>> hippo("legt", 2, theta=2.0)[0]
        tensor([[-0.5000,  0.8660],
                [-0.8660, -1.5000]], dtype=torch.float64)
    """
    _check_measure(measure, theta, alpha, beta)
    n = torch.arange(size, dtype=torch.float64)
    if measure == "lagt":
        ones = torch.ones(size, size, dtype=torch.float64)
        binomial = torch.lgamma(n + alpha + 1) - torch.lgamma(n + 1) - lgamma(alpha + 1)
        return -ones.tril(-1) - (1 + beta) / 2 * torch.eye(size).double(), binomial.exp()
    if measure == "fout":
        if size % 2:
            raise ArgumentError(f"hippo: size must be even for measure 'fout', got {size}.")
        ends = 2**0.5 * (1 - n % 2)  # the values of the functions at both ends of the window
        ends[0] = 1
        turn = torch.diag(2 * pi * (n[:-1] // 2) * (1 - n[:-1] % 2), -1)
        return (turn - turn.T - 2 * torch.outer(ends, ends)) / theta, 2 / theta * ends
    B = (2 * n + 1).sqrt()
    lower = torch.outer(B, B).tril(-1)
    if measure == "legs":
        return torch.diag(-n - 1) - lower, B
    sign = (-1.0) ** (n[:, None] - n)
    return -(torch.diag(2 * n + 1) + lower + sign * lower.T) / theta, B / theta


def nplr(
    measure: str, size: int, *, theta: float = 1.0, alpha: float = 0.0, beta: float = 1.0
) -> NPLR:
    """`hippo` as a normal matrix less one of low rank, which is 2 for "legt", else 1.

    HiPPO matrices are so far from normal that their eigenvectors are useless (condition number
    4e20 for "legs" at size 64). Their normal parts are a multiple of the identity plus a skew
    matrix, of which `torch.linalg.eigh` finds orthogonal ones.

    Example:
        >>> nplr("legs", 4).Lambda.imag
        tensor([-4.6033, -0.5565,  0.5565,  4.6033], dtype=torch.float64)
    """
    A, B = hippo(measure, size, theta=theta, alpha=alpha, beta=beta)
    n = torch.arange(size)
    if measure == "legs":
        P, shift = (n + 0.5).double().sqrt()[None], -0.5
    elif measure == "legt":
        root = ((2 * n + 1).double() / theta).sqrt()
        P, shift = torch.stack([root * (n % 2), root * (1 - n % 2)]), 0.0
    elif measure == "fout":
        P, shift = ((theta / 2) ** 0.5 * B)[None], 0.0
    else:
        P, shift = torch.full((1, size), 0.5**0.5, dtype=torch.float64), -beta / 2
    skew = A + P.T @ P
    angle, V = torch.linalg.eigh(-0.5j * (skew - skew.T))
    if measure == "fout":  # of two equal eigenvalues, which say no more than a plane
        V[:, size // 2 - 1 : size // 2 + 1] = 0
        V[0, size // 2 - 1 : size // 2 + 1] = 0.5**0.5
        V[1, size // 2 - 1], V[1, size // 2] = 0.5**0.5 * 1j, -(0.5**0.5) * 1j
        angle[size // 2 - 1 : size // 2 + 1] = 0
    phase = torch.sgn(V.mH @ B.to(V.dtype))
    V = V * torch.where(phase == 0, 1, phase)  # whatever the linear algebra library chose
    Lambda = torch.complex(torch.full_like(angle, shift), angle)
    return NPLR(Lambda, P.to(V.dtype) @ V.conj(), V.mH @ B.to(V.dtype), V)


def hippo_legs(size: int) -> tuple[Tensor, Tensor]:
    """HiPPO-LegS: the matrix A (size, size) and the vector B (size,), float64.

    Example:
        >>> hippo_legs(2)[0]
        tensor([[-1.0000,  0.0000],
                [-1.7321, -2.0000]], dtype=torch.float64)
    """
    return hippo("legs", size)


def hippo_normal(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the normal part of HiPPO-LegS, complex128: see `nplr`.

    Returns:
        ``(lam, V, B)``: eigenvalues by rising imaginary part, so conjugates mirror each other;
        unitary eigenvectors in columns; ``V^* B``, every entry real and positive.

    Example:
        >>> hippo_normal(4)[0].imag
        tensor([-4.6033, -0.5565,  0.5565,  4.6033], dtype=torch.float64)
    """
    form = nplr("legs", size)
    return form.Lambda, form.V, form.B.real


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


def _check_measure(measure: str, theta: float, alpha: float, beta: float) -> None:
    check_in("hippo", "measure", measure, MEASURES)
    for name, value in (("theta", theta), ("1 + alpha", 1 + alpha)):
        if not 0 < value < inf:
            raise ArgumentError(
                f"hippo: {name} must be positive and finite, got {value}. "
                "theta=1, alpha=0 and beta=1 are the published ones."
            )
    check_not_negative("hippo", beta=beta)
