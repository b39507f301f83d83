"""Powers ``a ** 2**k`` of a constant decay, to the last bit but one of its dtype.

Squaring in working precision doubles the relative error each time: after 20 squarings a float32
decay near 1 has lost four digits, while a loop of as many steps loses two. An unevaluated sum of
two float64 numbers (Dekker 1971) keeps the error of every power below one rounding.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

_SPLITTER = 134217729.0  # 2**27 + 1 halves a float64 mantissa


def squared_powers(a: Tensor) -> Iterator[Tensor]:
    """Yield ``a, a**2, a**4, ...`` for ever, each rounded once to the dtype of ``a``."""
    dtype = torch.float64 if a.device.type != "mps" else torch.float32
    if not a.is_complex():
        hi, lo = a.to(dtype), torch.zeros_like(a, dtype=dtype)
        while True:
            yield (hi + lo).to(a.dtype)
            hi, lo = _multiply(hi, lo, hi, lo)
    re, im = a.real.to(dtype), a.imag.to(dtype)
    re_lo, im_lo = torch.zeros_like(re), torch.zeros_like(im)
    while True:
        yield torch.complex(re + re_lo, im + im_lo).to(a.dtype)
        rr, ii = _multiply(re, re_lo, re, re_lo), _multiply(im, im_lo, im, im_lo)
        ri = _multiply(re, re_lo, im, im_lo)
        re, re_lo = _add(*rr, -ii[0], -ii[1])
        im, im_lo = 2 * ri[0], 2 * ri[1]


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    scaled = _SPLITTER * x
    hi = scaled - (scaled - x)
    return hi, x - hi


def _multiply(x: Tensor, x_lo: Tensor, y: Tensor, y_lo: Tensor) -> tuple[Tensor, Tensor]:
    product = x * y
    (xh, xl), (yh, yl) = _split(x), _split(y)
    error = ((xh * yh - product) + xh * yl + xl * yh) + xl * yl
    return _renormalise(product, error + (x * y_lo + x_lo * y))


def _add(x: Tensor, x_lo: Tensor, y: Tensor, y_lo: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    back = total - x
    error = (x - (total - back)) + (y - back)
    return _renormalise(total, error + (x_lo + y_lo))


def _renormalise(hi: Tensor, lo: Tensor) -> tuple[Tensor, Tensor]:
    lo = torch.where(lo.isfinite(), lo, 0)  # an overflowing product has no error term
    total = hi + lo
    return total, torch.where(total.isfinite(), lo - (total - hi), 0)
