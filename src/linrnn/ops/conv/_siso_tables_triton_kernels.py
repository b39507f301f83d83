"""Triton kernels of the matrices of a block; `linrnn.ops.conv.siso` has the equations.

Powers are found where they are needed, in double precision, and are never written. What is written
is rounded once.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.conv._block_carry_triton_kernels import power
from linrnn.ops.linear.linear_scan.triton_walk import multiply, parts, put


@triton.jit
@no_type_check
def _row(x, channel, modes, first, PAIR: tl.constexpr, BLOCK: tl.constexpr):
    """Numbers of a channel from ``first`` on, (1, modes), in double precision."""
    width: tl.constexpr = 2 if PAIR else 1
    at = first * width + tl.arange(0, BLOCK * width)[None, :]
    row = tl.load(x + channel * modes * width + at, mask=at < modes * width, other=0)
    return parts(row, PAIR, tl.float64)


@kernel
@no_type_check
def run_forward(
    a, b, c, d, response, into, out, decay, steps, modes,
    PAIR: tl.constexpr, DTYPE: tl.constexpr, DIGITS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The matrices of a channel, for some of the powers 0 .. ``steps``."""
    width: tl.constexpr = 2 if PAIR else 1
    groups = tl.cdiv(steps + 1, ROWS)
    channel = (tl.program_id(0) // groups).to(tl.int64)
    t = (tl.program_id(0) % groups) * ROWS + tl.arange(0, ROWS)[:, None]
    total = tl.zeros([ROWS, BLOCK], tl.float64)
    for first in range(0, modes, BLOCK):
        a_re, a_im = _row(a, channel, modes, first, PAIR, BLOCK)
        b_re, b_im = _row(b, channel, modes, first, PAIR, BLOCK)
        c_re, c_im = _row(c, channel, modes, first, PAIR, BLOCK)
        p_re, p_im = power(a_re, a_im, t, DIGITS, PAIR)
        number = first * width + tl.arange(0, BLOCK * width)[None, :]
        known = number < modes * width
        y_re, y_im = multiply(b_re, b_im, p_re, p_im, PAIR)
        z_re, z_im = multiply(c_re, c_im, p_re, p_im, PAIR)
        rows = (channel * steps + t) * modes * width + number
        back = (channel * steps + steps - 1 - t) * modes * width + number
        put(into + back, y_re.to(DTYPE), y_im.to(DTYPE), (t < steps) & known, PAIR)
        put(
            out + rows - modes * width, z_re.to(DTYPE), (-z_im).to(DTYPE),
            (t >= 1) & (t <= steps) & known, PAIR,
        )  # fmt: skip
        put(
            decay + channel * modes * width + number + 0 * t, p_re.to(DTYPE), p_im.to(DTYPE),
            (t == steps) & known, PAIR,
        )  # fmt: skip
        y_re, y_im = multiply(c_re, c_im, y_re, y_im, PAIR)
        total += y_re
    y = tl.sum(total, 1)
    t = tl.reshape(t, [ROWS])
    y += tl.where(t == 0, tl.load(d + channel).to(tl.float64), 0)
    tl.store(response + channel * steps + t, y.to(DTYPE), mask=t < steps)


@triton.jit
@no_type_check
def _cotangents(
    response, into, out, decay, channel, t, steps, number, numbers, PAIR: tl.constexpr
):  # fmt: skip
    """Gradients of what the powers ``t`` of a channel are in, in double precision.

    Of what is added to a state, of what reads it, of the decay, and of the response.
    """
    known = number < numbers
    row = (channel * steps + t - 1) * numbers + number
    back = (channel * steps + steps - 1 - t) * numbers + number
    g = tl.load(into + back, mask=(t < steps) & known, other=0)
    in_re, in_im = parts(g, PAIR, tl.float64)
    g = tl.load(out + row, mask=(t >= 1) & (t <= steps) & known, other=0)
    out_re, out_im = parts(g, PAIR, tl.float64)
    at = channel * numbers + number + 0 * t
    g = tl.load(decay + at, mask=(t == steps) & known, other=0)
    of_re, of_im = parts(g, PAIR, tl.float64)
    now = tl.load(response + channel * steps + t, mask=t < steps, other=0).to(tl.float64)
    return in_re, in_im, out_re, -out_im, of_re, of_im, now


@kernel
@no_type_check
def run_backward(
    a, b, c, grad_response, grad_into, grad_out, grad_decay, grad_a, grad_b, grad_c, steps, modes,
    PAIR: tl.constexpr, DIGITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of some modes of a channel."""
    width: tl.constexpr = 2 if PAIR else 1
    cuts = tl.cdiv(modes, BLOCK)
    channel = (tl.program_id(0) // cuts).to(tl.int64)
    first = (tl.program_id(0) % cuts) * BLOCK
    a_re, a_im = _row(a, channel, modes, first, PAIR, BLOCK)
    b_re, b_im = _row(b, channel, modes, first, PAIR, BLOCK)
    c_re, c_im = _row(c, channel, modes, first, PAIR, BLOCK)
    both_re, both_im = multiply(b_re, b_im, c_re, c_im, PAIR)
    number = first * width + tl.arange(0, BLOCK * width)[None, :]
    known = number < modes * width
    of_a_re = tl.zeros([ROWS, BLOCK], tl.float64)
    of_a_im, of_b_re, of_b_im = of_a_re, of_a_re, of_a_re
    of_c_re, of_c_im = of_a_re, of_a_re
    for start in range(0, steps + 1, ROWS):
        t = start + tl.arange(0, ROWS)[:, None]
        # one power less, for the derivative; it is 1 for both of the first two
        less_re, less_im = power(a_re, a_im, tl.where(t > 0, t - 1, 0), DIGITS, PAIR)
        p_re, p_im = multiply(a_re, a_im, less_re, less_im, PAIR)
        p_re = tl.where(t > 0, p_re, 1)
        p_im = tl.where(t > 0, p_im, 0)
        in_re, in_im, out_re, out_im, p_g_re, p_g_im, now = _cotangents(
            grad_response, grad_into, grad_out, grad_decay, channel, t, steps, number,
            modes * width, PAIR,
        )  # fmt: skip
        # of what is added to a state, of what reads it, and of the power
        y_re, y_im = multiply(c_re, c_im, p_re, p_im, PAIR)
        g_re, g_im = multiply(p_re, -p_im, in_re, in_im, PAIR)
        of_b_re += g_re + now * y_re
        y_re, z_im = multiply(b_re, b_im, p_re, p_im, PAIR)
        h_re, h_im = multiply(p_re, -p_im, out_re, out_im, PAIR)
        of_c_re += h_re + now * y_re
        x_re, x_im = multiply(b_re, -b_im, in_re, in_im, PAIR)
        p_g_re += x_re + now * both_re
        w_re, w_im = multiply(c_re, -c_im, out_re, out_im, PAIR)
        p_g_re += w_re
        if PAIR:
            of_b_im += g_im - now * y_im
            of_c_im += h_im - now * z_im
            p_g_im += x_im + w_im - now * both_im
        y_re, y_im = multiply(less_re, -less_im, p_g_re, p_g_im, PAIR)
        of_a_re += t * y_re
        if PAIR:
            of_a_im += t * y_im
    own = channel * modes * width + number
    _put_sum(grad_a + own, of_a_re, of_a_im, known, PAIR)
    _put_sum(grad_b + own, of_b_re, of_b_im, known, PAIR)
    _put_sum(grad_c + own, of_c_re, of_c_im, known, PAIR)


@triton.jit
@no_type_check
def _put_sum(p, re, im, known, PAIR: tl.constexpr):
    """Store the sum over all rows."""
    put(p, tl.sum(re, 0)[None, :], tl.sum(im, 0)[None, :], known, PAIR)
