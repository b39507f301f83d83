"""Diagonal systems in steps, from the parameters of layers: S4D, S5, DSS, GSS.

The parameters are few and their formulas long: dozens of operators of PyTorch, each of which is a
kernel on a GPU. There one kernel computes all of them, and another one the gradients. On a CPU the
gradients are formulas, so no graph of the operators is kept. All is in double precision.
"""

from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute.derivatives import Gradients
from linrnn.compute.product import Product
from linrnn.nn.discretise import DISCRETISATIONS, SMALL, exp_less_one
from linrnn.nn.parameters import LARGEST_LOG, bounded_exp

#: Terms of the derivative of ``(exp(w) - 1) / w``, of which the n-th is ``(n + 1) / (n + 2)! w^n``.
_TERMS = 6


class Coordinates(NamedTuple):
    """The meaning of the parameters of `diagonal_steps`, and the form of its results."""

    rule: str
    re_log: bool
    im_log: bool
    largest: float
    scale: float
    dtype: torch.dtype | None


def diagonal_steps(
    re: Tensor,
    im: Tensor | None,
    log_dt: Tensor | None,
    *,
    rule: str = "zoh",
    re_log: bool = True,
    im_log: bool = False,
    largest: float = inf,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
    times: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""``a`` and ``gain`` of ``h_t = a h_{t-1} + gain x_t`` by a rule of `linrnn.nn.discretise`.

    Equation::

        lam = -exp(re) + i im        dt = scale exp(log_dt)        a, gain = rule(lam, dt)

    Exponentials are those of `bounded_exp`.

    Args:
        re: (systems, modes).
        im: (systems, modes), or None where all is real.
        log_dt: (channels, 1) or (channels, modes), or None for steps of length 1. Channel c has
            the eigenvalues of the system c modulo systems, which divides channels.
        rule: a key of `DISCRETISATIONS`.
        re_log, im_log: whether ``re`` is the logarithm of -Re lam and ``im`` that of Im lam, or
            the number itself.
        largest: what Re lam is cut at, unless it is given by a logarithm.
        scale: a factor of every step.
        dtype: of the results, which are rounded once; double precision by default.
        times: (...), factors of the steps. Results are then (..., channels, modes).

    Returns:
        ``(a, gain)``, (channels, modes) each.

    Example:
        >>> diagonal_steps(torch.zeros(1, 1), None, torch.zeros(2, 1), dtype=torch.float32)[0]
        tensor([[0.3679],
                [0.3679]])
    """
    coordinates = Coordinates(rule, re_log, im_log, largest, scale, dtype)
    if times is not None:
        a, gain = _steps(re, im, log_dt, coordinates, times.double()[..., None, None])
    else:
        a, gain = _PRODUCT(re, im, log_dt, coordinates)
    return a, gain


def shared_systems(systems: Tensor, channels: int) -> Tensor:
    """The rows (systems, ...) repeated for all channels: channel c has row c modulo systems.

    Example:
        >>> shared_systems(torch.tensor([[1], [2]]), 4).flatten()
        tensor([1, 2, 1, 2])
    """
    copies = channels // len(systems)
    return systems if copies == 1 else systems.repeat(copies, *[1] * (systems.ndim - 1))


def _rates(
    re: Tensor, im: Tensor | None, log_dt: Tensor | None, coordinates: Coordinates
) -> tuple[Tensor, Tensor]:
    """``lam`` (channels, modes) and ``dt``, as `diagonal_steps` has them."""
    re = re.double()
    if coordinates.re_log:
        re = -bounded_exp(re)
    elif coordinates.largest < inf:
        re = re.clamp(max=coordinates.largest)
    lam = re
    if im is not None:
        lam = torch.complex(re, bounded_exp(im.double()) if coordinates.im_log else im.double())
    if log_dt is None:
        return lam, re.new_ones(())
    dt = bounded_exp(log_dt.double())
    dt = dt if coordinates.scale == 1 else coordinates.scale * dt
    return shared_systems(lam, log_dt.shape[0]), dt


def _steps(
    re: Tensor,
    im: Tensor | None,
    log_dt: Tensor | None,
    coordinates: Coordinates,
    times: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The definition of `diagonal_steps`."""
    lam, dt = _rates(re, im, log_dt, coordinates)
    a, gain = DISCRETISATIONS[coordinates.rule](lam, dt if times is None else times * dt)
    dtype = coordinates.dtype
    return (a, gain) if dtype is None else (a.to(dtype), gain.to(dtype))


class _WrittenOut:
    """`_steps` with the gradient as formulas."""

    def forward(self, *arguments: Any) -> tuple[Tensor, ...]:
        re, im, log_dt, coordinates = arguments
        return _steps(re, im, log_dt, coordinates)

    def backward(self, *inputs: Any) -> Gradients:
        re, im, log_dt, coordinates, *grads = inputs
        lam, dt = _rates(re, im, log_dt, coordinates)
        of_a, of_gain = (g.to(lam.dtype) for g in grads)
        of_lam, of_dt = _OF_RULE[coordinates.rule](lam, dt, of_a, of_gain)
        # first all copies of a system, then the chain to its parameters
        of_lam = of_lam.view(-1, *re.shape).sum(0)
        lam = lam[: len(re)]
        of_re, of_im = of_lam.real, None
        if coordinates.re_log:
            of_re = torch.where(re.abs() <= LARGEST_LOG, lam.real * of_re, 0)
        elif coordinates.largest < inf:
            of_re = torch.where(re <= coordinates.largest, of_re, 0)
        if im is not None:
            of_im = of_lam.imag
            if coordinates.im_log:
                of_im = torch.where(im.abs() <= LARGEST_LOG, lam.imag * of_im, 0)
            of_im = of_im.to(im.dtype)
        if log_dt is None:
            return [of_re.to(re.dtype), of_im, None]
        of_log = torch.where(log_dt.abs() <= LARGEST_LOG, dt * of_dt.sum_to_size(log_dt.shape), 0)
        return [of_re.to(re.dtype), of_im, of_log.to(log_dt.dtype)]


def _of_zoh(lam: Tensor, dt: Tensor, of_a: Tensor, of_gain: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``lam`` and of ``dt``, (channels, modes) each, by `zoh`.

    With ``w = dt lam``, its real part cut, ``a = exp(w)`` and ``gain = (a - 1) / lam``, or the
    series ``dt (1 + w/2 + ...)`` where w is small.
    """
    a, less_one, w = exp_less_one(lam, dt)
    small = w.abs() < SMALL
    slope = torch.ones_like(w)
    for n in range(_TERMS - 1, 0, -1):
        slope = 1 + (n + 1) / (n * (n + 2)) * w * slope
    inverse = 1 / torch.where(small, 1, lam)
    of_w = a.conj() * of_a + torch.where(small, 0.5 * dt * slope, a * inverse).conj() * of_gain
    cut = lam.real * dt > LARGEST_LOG
    of_w = torch.where(cut, 1j * of_w.imag if lam.is_complex() else 0, of_w)
    of_lam = dt * of_w - (torch.where(small, 0, less_one * inverse * inverse)).conj() * of_gain
    of_dt = (lam.conj() * of_w).real
    # d gain / d dt is a, of which only a part came through w
    near = (a.conj() * (lam.conj() * of_a + of_gain)).real
    return of_lam, torch.where(small, near, of_dt)


def _of_bilinear(lam: Tensor, dt: Tensor, of_a: Tensor, of_gain: Tensor) -> tuple[Tensor, Tensor]:
    """The same by `bilinear`: with ``z = 1 - dt lam / 2`` all four derivatives are over z^2."""
    below = 1 - 0.5 * dt * lam
    inverse = (below * below).reciprocal().conj()
    of_lam = dt * inverse * (of_a + 0.5 * dt * of_gain)
    return of_lam, (inverse * (lam.conj() * of_a + of_gain)).real


_OF_RULE = {"zoh": _of_zoh, "bilinear": _of_bilinear}

_PRODUCT = Product(
    "diagonal_steps",
    _steps,
    gradients=3,
    kernels={"triton": "linrnn.nn._diagonal_triton"},
    otherwise=_WrittenOut(),
)
