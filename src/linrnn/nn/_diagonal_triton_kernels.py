"""Triton kernels of diagonal systems in steps; `linrnn.nn.diagonal` has the equations.

A program owns a channel and a block of its modes. All is in double precision, and rounded once.
Real and imaginary parts are separate numbers; where all is real the second ones are never used.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.nn import discretise, parameters
from linrnn.ops.cell.cell_scan.triton_functions import exp, expm1
from linrnn.ops.linear.linear_scan.triton_walk import multiply, parts, put

_LARGEST_LOG = tl.constexpr(parameters.LARGEST_LOG)
_SMALL_SQUARED = tl.constexpr(discretise.SMALL**2)


@triton.jit
@no_type_check
def _bounded_exp(x):
    """`linrnn.nn.bounded_exp`, and whether its argument is inside of the bounds."""
    high, low = x > _LARGEST_LOG, x < -_LARGEST_LOG
    y = exp(tl.where(high, _LARGEST_LOG, tl.where(low, -_LARGEST_LOG, x)))
    return y, (x <= _LARGEST_LOG) & (x >= -_LARGEST_LOG)


@triton.jit
@no_type_check
def _places(systems, modes, PER_MODE: tl.constexpr, PAIR: tl.constexpr, BLOCK: tl.constexpr):
    """Where a program's numbers are: of its system, steps and channel, and of sums over modes."""
    width: tl.constexpr = 2 if PAIR else 1
    cuts = tl.cdiv(modes, BLOCK)
    channel = (tl.program_id(0) // cuts).to(tl.int64)
    cut = tl.program_id(0) % cuts
    mode = cut * BLOCK + tl.arange(0, BLOCK)[None, :]
    number = cut * (BLOCK * width) + tl.arange(0, BLOCK * width)[None, :]
    own = channel * modes + mode
    return (
        channel % systems * modes + mode,
        own if PER_MODE else channel + tl.zeros_like(mode),
        own,
        channel * modes * width + number,
        mode < modes,
        number < modes * width,
        channel * cuts + cut,
    )


@triton.jit
@no_type_check
def _rates(
    re, im, log_dt, of_system, of_step, known,
    RE_LOG: tl.constexpr, IM_LOG: tl.constexpr, LARGEST: tl.constexpr, SCALE: tl.constexpr,
    PAIR: tl.constexpr, TIMED: tl.constexpr,
):  # fmt: skip
    """Eigenvalues and steps, and the derivative of each by its parameter."""
    x = tl.load(re + of_system, mask=known, other=0).to(tl.float64)
    one = tl.full(x.shape, 1, tl.float64)
    lam_re, by_re = x, one
    if RE_LOG:
        y, inside = _bounded_exp(x)
        lam_re = -y
        by_re = tl.where(inside, lam_re, 0)
    elif LARGEST is not None:
        lam_re = tl.where(x > LARGEST, LARGEST, x)
        by_re = tl.where(x <= LARGEST, one, 0)
    lam_im, by_im, dt, by_dt = tl.zeros_like(x), one, one, one
    if PAIR:
        lam_im = tl.load(im + of_system, mask=known, other=0).to(tl.float64)
        if IM_LOG:
            lam_im, inside = _bounded_exp(lam_im)
            by_im = tl.where(inside, lam_im, 0)
    if TIMED:
        y, inside = _bounded_exp(tl.load(log_dt + of_step, mask=known, other=0).to(tl.float64))
        dt = y * SCALE
        by_dt = tl.where(inside, dt, 0)
    return lam_re, lam_im, dt, by_re, by_im, by_dt


@triton.jit
@no_type_check
def _inverse(re, im, PAIR: tl.constexpr):
    """``1 / z``."""
    if PAIR:
        over = 1 / (re * re + im * im)
        inverse_re, inverse_im = re * over, -im * over
    else:
        inverse_re, inverse_im = 1 / re, im
    return inverse_re, inverse_im


@triton.jit
@no_type_check
def _exp_less_one(lam_re, lam_im, dt, PAIR: tl.constexpr):
    """`linrnn.nn.discretise.exp_less_one`: ``exp(w)``, the same less one, and w."""
    w_re, w_im = lam_re * dt, lam_im * dt
    w_re = tl.where(w_re > _LARGEST_LOG, _LARGEST_LOG, w_re)
    growth, less_re, less_im = exp(w_re), expm1(w_re), w_im
    a_re, a_im = growth, w_im
    if PAIR:
        cos, half = tl.cos(w_im), tl.sin(0.5 * w_im)
        a_re, a_im = growth * cos, growth * tl.sin(w_im)
        less_re, less_im = less_re * cos - 2 * half * half, a_im
    return a_re, a_im, less_re, less_im, w_re, w_im


@triton.jit
@no_type_check
def _zoh(lam_re, lam_im, dt, PAIR: tl.constexpr):
    """`linrnn.nn.discretise.zoh`."""
    a_re, a_im, less_re, less_im, w_re, w_im = _exp_less_one(lam_re, lam_im, dt, PAIR)
    small = w_re * w_re + w_im * w_im < _SMALL_SQUARED
    inverse_re, inverse_im = _inverse(tl.where(small, 1, lam_re), lam_im, PAIR)
    gain_re, gain_im = multiply(less_re, less_im, inverse_re, inverse_im, PAIR)
    s_re, s_im = tl.full(w_re.shape, 1, tl.float64), tl.zeros_like(w_re)
    for n in tl.static_range(5):
        s_re, s_im = multiply(w_re / (6 - n), w_im / (6 - n), s_re, s_im, PAIR)
        s_re += 1
    gain_re = tl.where(small, dt * s_re, gain_re)
    if PAIR:
        gain_im = tl.where(small, dt * s_im, gain_im)
    return a_re, a_im, gain_re, gain_im


@triton.jit
@no_type_check
def _bilinear(lam_re, lam_im, dt, PAIR: tl.constexpr):
    """`linrnn.nn.discretise.bilinear`."""
    half_re, half_im = 0.5 * dt * lam_re, 0.5 * dt * lam_im
    inverse_re, inverse_im = _inverse(1 - half_re, -half_im, PAIR)
    a_re, a_im = multiply(1 + half_re, half_im, inverse_re, inverse_im, PAIR)
    return a_re, a_im, dt * inverse_re, dt * inverse_im


@triton.jit
@no_type_check
def _zoh_back(lam_re, lam_im, dt, a_g_re, a_g_im, gain_g_re, gain_g_im, PAIR: tl.constexpr):
    """`linrnn.nn.diagonal._of_zoh`, the products with conjugates written out."""
    a_re, a_im, less_re, less_im, w_re, w_im = _exp_less_one(lam_re, lam_im, dt, PAIR)
    small = w_re * w_re + w_im * w_im < _SMALL_SQUARED
    s_re, s_im = tl.full(w_re.shape, 1, tl.float64), tl.zeros_like(w_re)
    for i in tl.static_range(5):
        s_re, s_im = multiply(w_re, w_im, s_re, s_im, PAIR)
        s_re *= (6 - i) / ((5 - i) * (7 - i))
        s_im *= (6 - i) / ((5 - i) * (7 - i))
        s_re += 1
    inverse_re, inverse_im = _inverse(tl.where(small, 1, lam_re), lam_im, PAIR)
    by_re, by_im = multiply(a_re, a_im, inverse_re, inverse_im, PAIR)
    by_re = tl.where(small, 0.5 * dt * s_re, by_re)
    by_im = tl.where(small, 0.5 * dt * s_im, by_im)
    # the gradient of w, whose real part is cut
    first_re, first_im = multiply(a_re, -a_im, a_g_re, a_g_im, PAIR)
    second_re, second_im = multiply(by_re, -by_im, gain_g_re, gain_g_im, PAIR)
    w_g_re = tl.where(lam_re * dt > _LARGEST_LOG, 0, first_re + second_re)
    w_g_im = first_im + second_im
    # of what gain is divided by
    over_re, over_im = multiply(less_re, less_im, inverse_re, inverse_im, PAIR)
    over_re, over_im = multiply(over_re, over_im, inverse_re, inverse_im, PAIR)
    over_re, over_im = multiply(over_re, -over_im, gain_g_re, gain_g_im, PAIR)
    lam_g_re = dt * w_g_re - tl.where(small, 0, over_re)
    lam_g_im = dt * w_g_im - tl.where(small, 0, over_im)
    # d gain / d dt is a, of which only a part came through w
    dt_g = lam_re * w_g_re
    near_re, near_im = multiply(lam_re, -lam_im, a_g_re, a_g_im, PAIR)
    near_re, near_im = near_re + gain_g_re, near_im + gain_g_im
    near = a_re * near_re
    if PAIR:
        dt_g += lam_im * w_g_im
        near += a_im * near_im
    return lam_g_re, lam_g_im, tl.where(small, near, dt_g)


@triton.jit
@no_type_check
def _bilinear_back(lam_re, lam_im, dt, a_g_re, a_g_im, gain_g_re, gain_g_im, PAIR: tl.constexpr):
    """`linrnn.nn.diagonal._of_bilinear`."""
    below_re, below_im = _inverse(1 - 0.5 * dt * lam_re, -0.5 * dt * lam_im, PAIR)
    below_re, below_im = multiply(below_re, below_im, below_re, below_im, PAIR)
    half = 0.5 * dt
    g_re, g_im = a_g_re + half * gain_g_re, a_g_im + half * gain_g_im
    lam_g_re, lam_g_im = multiply(below_re, -below_im, dt * g_re, dt * g_im, PAIR)
    g_re, g_im = multiply(lam_re, -lam_im, a_g_re, a_g_im, PAIR)
    g_re, g_im = g_re + gain_g_re, g_im + gain_g_im
    dt_g = below_re * g_re
    if PAIR:
        dt_g += below_im * g_im
    return lam_g_re, lam_g_im, dt_g


@kernel
@no_type_check
def run_forward(
    re, im, log_dt, a, gain, systems, modes,
    PAIR: tl.constexpr, TIMED: tl.constexpr, PER_MODE: tl.constexpr, RULE: tl.constexpr,
    RE_LOG: tl.constexpr, IM_LOG: tl.constexpr, LARGEST: tl.constexpr, SCALE: tl.constexpr,
    DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``a`` and ``gain`` of a channel's modes."""
    of_system, of_step, _, at, known, inside, _ = _places(systems, modes, PER_MODE, PAIR, BLOCK)
    lam_re, lam_im, dt, _, _, _ = _rates(
        re, im, log_dt, of_system, of_step, known, RE_LOG, IM_LOG, LARGEST, SCALE, PAIR, TIMED
    )
    if RULE == "zoh":
        a_re, a_im, gain_re, gain_im = _zoh(lam_re, lam_im, dt, PAIR)
    else:
        a_re, a_im, gain_re, gain_im = _bilinear(lam_re, lam_im, dt, PAIR)
    put(a + at, a_re.to(DTYPE), a_im.to(DTYPE), inside, PAIR)
    put(gain + at, gain_re.to(DTYPE), gain_im.to(DTYPE), inside, PAIR)


@kernel
@no_type_check
def run_backward(
    re, im, log_dt, grad_a, grad_gain, grad_re, grad_im, grad_dt, systems, modes,
    PAIR: tl.constexpr, TIMED: tl.constexpr, PER_MODE: tl.constexpr, RULE: tl.constexpr,
    RE_LOG: tl.constexpr, IM_LOG: tl.constexpr, LARGEST: tl.constexpr, SCALE: tl.constexpr,
    DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of a channel's parameters; where a step is that of all modes, of each block."""
    of_system, of_step, own, at, known, inside, block = _places(
        systems, modes, PER_MODE, PAIR, BLOCK
    )
    lam_re, lam_im, dt, by_re, by_im, by_dt = _rates(
        re, im, log_dt, of_system, of_step, known, RE_LOG, IM_LOG, LARGEST, SCALE, PAIR, TIMED
    )
    a_g_re, a_g_im = parts(tl.load(grad_a + at, mask=inside, other=0), PAIR, tl.float64)
    gain_g_re, gain_g_im = parts(tl.load(grad_gain + at, mask=inside, other=0), PAIR, tl.float64)
    if RULE == "zoh":
        g_re, g_im, g_dt = _zoh_back(lam_re, lam_im, dt, a_g_re, a_g_im, gain_g_re, gain_g_im, PAIR)
    else:
        g_re, g_im, g_dt = _bilinear_back(
            lam_re, lam_im, dt, a_g_re, a_g_im, gain_g_re, gain_g_im, PAIR
        )
    tl.store(grad_re + own, g_re * by_re, mask=known)
    if PAIR:
        tl.store(grad_im + own, g_im * by_im, mask=known)
    if TIMED:
        g_dt = g_dt * by_dt
        if PER_MODE:
            tl.store(grad_dt + own, g_dt, mask=known)
        else:
            tl.store(grad_dt + block, tl.sum(tl.where(known, g_dt, 0)))
