"""From continuous time to steps: rules for diagonal and for dense linear systems.

A rule turns ``h' = A h + B x`` into ``h_t = a h_{t-1} + b x_t``, where x_t is the input during the
step that ends in h_t. All are differentiable and compute in the dtype they are given; matrices of
HiPPO want float64.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, check_in
from linrnn.nn.parameters import LARGEST_LOG

SMALL = 1e-2  # where z is smaller, six terms of the series are exact to 2e-16
_TERMS = 6
_DOUBLINGS, _DEGREE = 30, 18  # of a matrix of norm 1 the series ends at the rounding of float64


def zoh(lam: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    r"""Zero-order hold, exact for an input that is constant during a step.

    Equation::

        a = exp(dt lam)        gain = (exp(dt lam) - 1) / lam,  dt where lam is 0

    Growth is that of ``dt Re lam = 40`` at most.

    Args:
        lam: eigenvalues of the continuous system, real or complex.
        dt: step sizes, real and positive, broadcast against ``lam``.

    Returns:
        ``(a, gain)`` of ``h_t = a h_{t-1} + gain B x_t``.

    Example:
        >>> zoh(torch.tensor([0.0, -1e-6]), torch.tensor(1e-3))[1]
        tensor([0.0010, 0.0010])
    """
    a, less_one, z = exp_less_one(lam, dt)
    small = z.abs() < SMALL
    gain = less_one / torch.where(small, 1, lam)
    # 1 + z/2 + z^2/6 + ...: near 0 the quotient has no gradient, whose two parts cancel
    series = torch.ones_like(z)
    for n in range(_TERMS, 1, -1):
        series = 1 + torch.where(small, z, 0) / n * series
    return a, torch.where(small, dt * series, gain)


def exp_less_one(lam: Tensor, dt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``exp(dt lam)``, ``exp(dt lam) - 1`` to the last digit however small, and ``dt lam``.

    Example:
        >>> exp_less_one(torch.tensor(-1e-6), torch.tensor(1e-3))[1]
        tensor(-1.0000e-09)
    """
    real = (lam.real * dt).clamp(max=LARGEST_LOG)  # growth that overflows in a few steps anyway
    growth, less_one = real.exp(), torch.expm1(real)
    if not lam.is_complex():
        return growth, less_one, real
    angle = lam.imag * dt
    cos, sin, half = angle.cos(), angle.sin(), (0.5 * angle).sin()
    a = torch.complex(growth * cos, growth * sin)
    less_one = torch.complex(less_one * cos - 2 * half * half, growth * sin)
    return a, less_one, torch.complex(real, angle)


def generalised(lam: Tensor, dt: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    r"""Generalised bilinear rule: the derivative is taken at both ends, with weights.

    Equation::

        a = (1 + (1 - alpha) dt lam) / (1 - alpha dt lam)      gain = dt / (1 - alpha dt lam)

    ``alpha`` is 0 for the forward Euler rule, 1/2 for the bilinear one, 1 for the backward Euler
    rule; from 1/2 on it maps the left half plane into the disc, whatever the step size.

    Example:
        >>> generalised(torch.tensor(-1.0), torch.tensor(0.5), 0.0)
        (tensor(0.5000), tensor(0.5000))
    """
    z = dt * lam
    below = 1 - alpha * z
    return (1 + (1 - alpha) * z) / below, dt / below


def euler(lam: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Forward Euler rule, ``a = 1 + dt lam`` and ``gain = dt``: stable for short steps alone.

    Example:
        >>> euler(torch.tensor(-1.0), torch.tensor(0.5))
        (tensor(0.5000), tensor(0.5000))
    """
    return generalised(lam, dt, 0.0)


def backward_euler(lam: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Backward Euler rule, ``a = 1 / (1 - dt lam)`` and ``gain = dt a``: it damps the most.

    Example:
        >>> backward_euler(torch.tensor(-1.0), torch.tensor(1.0))
        (tensor(0.5000), tensor(0.5000))
    """
    return generalised(lam, dt, 1.0)


def bilinear(lam: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    r"""Bilinear (Tustin) rule, the trapezoidal one; it maps the left half plane onto the disc.

    Equation::

        a = (1 + dt lam / 2) / (1 - dt lam / 2)        gain = dt / (1 - dt lam / 2)

    Example:
        >>> bilinear(torch.tensor(-1.0), torch.tensor(0.5))
        (tensor(0.6000), tensor(0.4000))
    """
    return generalised(lam, dt, 0.5)


Rule = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

DISCRETISATIONS: dict[str, Rule] = {"zoh": zoh, "bilinear": bilinear}
"""The published rules for diagonal systems that are stable for every step size."""

RULES: dict[str, Rule] = {**DISCRETISATIONS, "euler": euler, "backward": backward_euler}
"""All rules of diagonal systems by name; `dense` knows the same."""

_ALPHA = {"euler": 0.0, "bilinear": 0.5, "backward": 1.0}


def dense(
    A: Tensor, B: Tensor, dt: Tensor | float, rule: str | float = "zoh"
) -> tuple[Tensor, Tensor]:
    r"""A dense system ``h' = A h + B x`` in steps.

    Equation::

        "zoh"      [a b; 0 1] = exp(dt [A B; 0 0])        a matrix exponential, A may be singular
        a number   a = (I - alpha dt A)^-1 (I + (1 - alpha) dt A)
                   b = (I - alpha dt A)^-1 dt B           "euler" 0, "bilinear" 1/2, "backward" 1

    Args:
        A: (..., N, N).
        B: (..., N), one input.
        dt: step sizes, positive, of any shape that goes with the axes before.
        rule: one of `RULES`, or alpha between 0 and 1.

    Returns:
        ``(a, b)``, (..., N, N) and (..., N), of ``h_t = a h_{t-1} + b x_t``.

    Raises:
        UnknownNameError: no such rule.
        ArgumentError: alpha outside [0, 1].

    Example:
        >>> turn, push = torch.tensor([[0.0, -1.0], [1.0, 0.0]]), torch.tensor([1.0, 0.0])
        >>> dense(turn, push, torch.pi / 2)[1]
        tensor([1.0000, 1.0000])
    """
    dt = torch.as_tensor(dt, dtype=A.dtype, device=A.device)
    size, step = A.shape[-1], dt[..., None, None] * A
    into = dt[..., None] * B
    lead = torch.broadcast_shapes(step.shape[:-2], into.shape[:-1])
    step, into = step.expand(*lead, size, size), into.expand(*lead, size)
    if rule == "zoh":
        top = torch.cat([step, into[..., None]], -1)
        square = torch.cat([top, torch.zeros_like(top[..., :1, :])], -2)  # (..., N + 1, N + 1)
        exponential = _exponential(square)
        return exponential[..., :size, :size], exponential[..., :size, size]
    alpha = _alpha(rule)
    eye = torch.eye(size, dtype=A.dtype, device=A.device)
    right = torch.cat([eye + (1 - alpha) * step, into[..., None]], -1)
    # not linalg.solve, whose forward derivative of a forward derivative is wrong in PyTorch
    solved = torch.linalg.inv(eye - alpha * step) @ right if alpha else right
    return solved[..., :size], solved[..., size]


def _exponential(square: Tensor) -> Tensor:
    """Matrix exponentials (..., N, N), of one matrix as those of several.

    PyTorch's own of a single one is 2e-13 off where the same among others is 1e-16 off: measured
    for the two rows of a window of 200 steps. Exporters have no rule for it: in a graph they are
    products alone, of norms up to 2^30.
    """
    if torch.compiler.is_compiling():
        return _by_products(square)
    every = square.reshape(-1, *square.shape[-2:])
    exponentials: Tensor = torch.linalg.matrix_exp(torch.cat([every, every[:1]]))
    return exponentials[: every.shape[0]].view(square.shape)


def _by_products(square: Tensor) -> Tensor:
    """A matrix exponential as ``I + E``: E of a part of the matrix, doubled by ``2 E + E^2``.

    Small matrices lose nothing, although their exponential would round to I.
    """
    eye = torch.eye(square.shape[-1], dtype=square.dtype, device=square.device)
    part = square / 2**_DOUBLINGS
    series: Tensor = eye
    for n in range(_DEGREE, 1, -1):
        series = eye + part @ series / n
    less_eye: Tensor = part @ series
    for _ in range(_DOUBLINGS):
        less_eye = 2 * less_eye + less_eye @ less_eye
    return eye + less_eye


def _alpha(rule: str | float) -> float:
    if isinstance(rule, str):
        check_in("discretise.dense", "rule", rule, RULES)
        return _ALPHA[rule]
    if not 0 <= rule <= 1:
        raise ArgumentError(
            f"discretise.dense: alpha must lie between 0 (forward Euler) and 1 (backward Euler), "
            f"got {rule}. 0.5 is the bilinear rule."
        )
    return rule
