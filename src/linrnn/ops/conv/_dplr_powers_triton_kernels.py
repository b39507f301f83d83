"""Triton kernels of the powers of S4's transition, ``A = diag(a) - sum_r p_r q_r``.

Vectors are walked power by power, in double precision: A^j b, what reads a state, c A^j and q A^j,
and the diagonal alone, a^j and a^j p. A dense power is a product of the thin ones. A walk of the
transposed transition, back in time, makes the gradients. `_dplr_powers` has the equations.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.linear.linear_scan.triton_walk import parts, put


@triton.jit
@no_type_check
def _vector(x, modes, sign, BLOCK: tl.constexpr):
    """One vector (1, modes) of complex numbers, conjugates where ``sign`` is -1."""
    at = tl.arange(0, BLOCK * 2)[None, :]
    re, im = parts(tl.load(x + at, mask=at < modes * 2, other=0), True, tl.float64)
    return re, sign * im


@triton.jit
@no_type_check
def _factors(p, q, at, modes, part, BLOCK: tl.constexpr):
    """Vectors that a step of a walk adds, and those it reads by; zeros of the diagonal."""
    p_re, p_im = _vector(p + at, modes, 1.0, BLOCK)
    q_re, q_im = _vector(q + at, modes, -1.0, BLOCK)
    reads = part == 1
    low = tl.where(part == 2, 0.0, 1.0).to(tl.float64)
    add_re, add_im = tl.where(reads, q_re, p_re), tl.where(reads, q_im, p_im)
    read_re, read_im = tl.where(reads, p_re, q_re), tl.where(reads, p_im, q_im)
    return low * add_re, low * add_im, low * read_re, low * read_im


@triton.jit
@no_type_check
def _first(b, c, p, q, channel, modes, part, row, RANK: tl.constexpr, BLOCK: tl.constexpr):
    """The vectors (ROWS, modes) that a walk begins with: b; c and q; 1 and p."""
    at = channel * modes * 2
    b_re, b_im = _vector(b + at, modes, 1.0, BLOCK)
    c_re, c_im = _vector(c + at, modes, -1.0, BLOCK)
    re = tl.where(part == 0, b_re, tl.where(part == 1, c_re, 1.0)) + tl.zeros_like(row)
    im = tl.where(part == 0, b_im, tl.where(part == 1, c_im, 0.0)) + tl.zeros_like(row)
    re, im = tl.where(row == 0, re, 0.0), tl.where(row == 0, im, 0.0)
    for r in tl.static_range(RANK):
        at = (channel * RANK + r) * modes * 2
        p_re, p_im = _vector(p + at, modes, 1.0, BLOCK)
        q_re, q_im = _vector(q + at, modes, -1.0, BLOCK)
        re = tl.where((row == r + 1) & (part > 0), tl.where(part == 1, q_re, p_re), re)
        im = tl.where((row == r + 1) & (part > 0), tl.where(part == 1, q_im, p_im), im)
    return re, im


@kernel
@no_type_check
def run_walks(
    a, b, c, p, q, walks, response, into, out, steps, modes,
    RANK: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One of three walks of a channel: states, what reads them, the diagonal."""
    channel, part = (tl.program_id(0) // 3).to(tl.int64), tl.program_id(0) % 3
    numbers, row = modes * 2, tl.arange(0, ROWS)[:, None]
    number = tl.arange(0, BLOCK * 2)[None, :]
    a_re, a_im = _vector(a + channel * numbers, modes, tl.where(part == 1, -1.0, 1.0), BLOCK)
    c_re, c_im = _vector(c + channel * numbers, modes, -1.0, BLOCK)
    x_re, x_im = _first(b, c, p, q, channel, modes, part, row.to(tl.float64), RANK, BLOCK)
    walks += (channel * 3 + part) * (steps + 1) * (RANK + 1) * numbers
    known, only = (row <= RANK) & (number < numbers), (row == 0) & (number < numbers)
    for j in range(steps + 1):
        put(walks + (j * (RANK + 1) + row) * numbers + number, x_re, x_im, known, True)
        to = channel * steps * numbers + number + 0 * row
        y_re, y_im = x_re.to(DTYPE), x_im.to(DTYPE)
        put(
            into + to + (steps - 1 - j) * numbers,
            y_re,
            y_im,
            only & (part == 0) & (j < steps),
            True,
        )
        put(out + to + (j - 1) * numbers, y_re, y_im, only & (part == 1) & (j > 0), True)
        read = tl.sum(tl.sum(tl.where(row == 0, c_re * x_re + c_im * x_im, 0.0), 1), 0)
        tl.store(response + channel * steps + j, read.to(DTYPE), mask=(part == 0) & (j < steps))
        y_re, y_im = a_re * x_re - a_im * x_im, a_re * x_im + a_im * x_re
        for r in tl.static_range(RANK):
            at = (channel * RANK + r) * numbers
            add_re, add_im, read_re, read_im = _factors(p, q, at, modes, part, BLOCK)
            read = tl.sum(read_re * x_re + read_im * x_im, 1)[:, None]
            y_re, y_im = y_re - read * add_re, y_im - read * add_im
        x_re, x_im = y_re, y_im


@triton.jit
@no_type_check
def _power(walks, channel, n, steps, numbers, number, RANK: tl.constexpr):
    """The diagonal to the power n: number k of ``number``, or the other one of its pair."""
    at = ((channel * 3 + 2) * (steps + 1) + n) * (RANK + 1) * numbers
    same = tl.load(walks + at + number, mask=number < numbers, other=0)
    return same, tl.load(walks + at + (number ^ 1), mask=number < numbers, other=0)


@kernel
@no_type_check
def run_dense_powers(
    walks, decay, rest_decay, steps, rest, numbers,
    RANK: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some rows of a dense power of a channel, of all steps or, for the last programs, the rest."""
    cuts, size = tl.cdiv(numbers, ROWS), steps + 1
    program = tl.program_id(0)
    of_rest = tl.where(rest > 0, program % 2, 0)
    program = tl.where(rest > 0, program // 2, program)
    channel, n = (program // cuts).to(tl.int64), tl.where(of_rest == 1, rest, steps)
    row, number = program % cuts * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    left = walks + (channel * 3 + 1) * size * (RANK + 1) * numbers
    right = walks + (channel * 3 + 2) * size * (RANK + 1) * numbers
    same, other = _power(walks, channel, n, steps, numbers, row, RANK)
    # of a real number re and im, of an imaginary one -im and re
    real, diagonal = tl.where(row % 2 == 0, same, other), row[:, None] == number[None, :]
    beside = tl.where(row % 2 == 0, other, -same)
    total = tl.where(diagonal, real[:, None], 0.0)
    total += tl.where((row ^ 1)[:, None] == number[None, :], beside[:, None], 0.0)
    for j in range(n):
        for r in tl.static_range(RANK):
            at = (j * (RANK + 1) + r + 1) * numbers
            x = tl.load(left + at + row, mask=row < numbers, other=0)
            at = ((n - 1 - j) * (RANK + 1) + r + 1) * numbers
            y = tl.load(right + at + number, mask=number < numbers, other=0)
            total -= x[:, None] * y[None, :]
    at = (channel * numbers + row[:, None]) * numbers + number[None, :]
    known = (row[:, None] < numbers) & (number[None, :] < numbers)
    tl.store(decay + at, total.to(DTYPE), mask=known & (of_rest == 0))
    tl.store(rest_decay + at, total.to(DTYPE), mask=known & (of_rest == 1))


@triton.jit
@no_type_check
def _thin_sum(
    matrix, thin, n, t, column, k_row, k_column, numbers, RANK: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Minus the products of a matrix and rows n - 1 - t of a walk."""
    total = tl.zeros([ROWS, BLOCK], tl.float64)
    there = (t >= 0) & (t < n)
    for k in range(numbers):
        x = tl.load(thin + (n - 1 - t) * (RANK + 1) * numbers + k, mask=there, other=0)
        y = tl.load(matrix + k * k_row + column * k_column, mask=column < numbers, other=0)
        total -= x[:, None] * y.to(tl.float64)[None, :]
    return total


@kernel
@no_type_check
def run_dense_powers_backward(
    walks, grad, grad_rest, of_walks, steps, rest, numbers,
    RANK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of some thin vectors of a channel: of those on the left, or on the right."""
    cuts, program = tl.cdiv(steps, ROWS), tl.program_id(0)
    side, r = program % 2, program // 2 % RANK
    program = program // (2 * RANK)
    channel = (program // cuts).to(tl.int64)
    t, column = program % cuts * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    size = (steps + 1) * (RANK + 1) * numbers
    thin = walks + (channel * 3 + 2 - side) * size + (r + 1) * numbers
    k_row, k_column = tl.where(side == 0, 1, numbers), tl.where(side == 0, numbers, 1)
    at = channel * numbers * numbers
    total = _thin_sum(
        grad + at, thin, steps, t, column, k_row, k_column, numbers, RANK, ROWS, BLOCK
    )
    if rest > 0:
        total += _thin_sum(
            grad_rest + at, thin, rest, t, column, k_row, k_column, numbers, RANK, ROWS, BLOCK
        )
    to = ((channel * 2 + side) * RANK + r) * steps * numbers
    known = (t[:, None] < steps) & (column[None, :] < numbers)
    tl.store(of_walks + to + t[:, None] * numbers + column[None, :], total, mask=known)


@triton.jit
@no_type_check
def _of_power(grad, channel, modes, here, BLOCK: tl.constexpr):
    """The gradient of a diagonal power from that of the dense one, (1, modes) re and im."""
    mode = tl.arange(0, BLOCK)[None, :]
    numbers, known = modes * 2, (mode < modes) & here
    at = grad + channel * numbers * numbers + 2 * mode * numbers + 2 * mode
    g, h = tl.load(at, mask=known, other=0), tl.load(at + numbers + 1, mask=known, other=0)
    re = g.to(tl.float64) + h.to(tl.float64)
    g, h = tl.load(at + 1, mask=known, other=0), tl.load(at + numbers, mask=known, other=0)
    return re, g.to(tl.float64) - h.to(tl.float64)


@triton.jit
@no_type_check
def _cotangent(
    response, into, out, decay, rest_decay, of_walks, c_re, c_im, channel, part, j, row, steps,
    rest, modes, RANK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient that results give vector j of a walk, and that of its response."""
    numbers, number = modes * 2, tl.arange(0, BLOCK * 2)[None, :] + 0 * row
    only = (row == 0) & (number < numbers)
    at = channel * steps * numbers + number
    is_state, is_reader = (part == 0) & (j < steps), (part == 1) & (j > 0)
    g = tl.load(into + at + (steps - 1 - j) * numbers, mask=only & is_state, other=0)
    g_re, g_im = parts(g, True, tl.float64)
    h = tl.load(out + at + (j - 1) * numbers, mask=only & is_reader, other=0)
    h_re, h_im = parts(h, True, tl.float64)
    now = tl.load(response + channel * steps + j, mask=is_state, other=0).to(tl.float64)
    p_re, p_im = _of_power(decay, channel, modes, (part == 2) & (j == steps), BLOCK)
    r_re, r_im = _of_power(
        rest_decay, channel, modes, (part == 2) & (j == rest) & (rest > 0), BLOCK
    )
    side = tl.where(part == 2, 1, 0)
    thin = (((channel * 2 + side) * RANK + row - 1) * steps + j) * numbers + number
    is_thin = (row > 0) & (row <= RANK) & (number < numbers) & (part > 0) & (j < steps)
    l_re, l_im = parts(tl.load(of_walks + thin, mask=is_thin, other=0), True, tl.float64)
    first = row == 0
    re = g_re + h_re + l_re + tl.where(first, now * c_re + p_re + r_re, 0.0)
    im = g_im + h_im + l_im + tl.where(first, now * c_im + p_im + r_im, 0.0)
    return re, im, now


@triton.jit
@no_type_check
def _step_back(
    p, q, channel, modes, part, row, x_re, x_im, g_re, g_im, RANK: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Gradients of p and q, in row r + 1, and of x, from those behind a step: low rank alone."""
    zero = tl.zeros_like(x_re)
    p_re, p_im, q_re, q_im, y_re, y_im = zero, zero, zero, zero, zero, zero
    for r in tl.static_range(RANK):
        at = (channel * RANK + r) * modes * 2
        add_re, add_im, read_re, read_im = _factors(p, q, at, modes, part, BLOCK)
        read = tl.sum(read_re * x_re + read_im * x_im, 1)[:, None]
        back = tl.sum(add_re * g_re + add_im * g_im, 1)[:, None]
        u_re, u_im = tl.sum(read * g_re, 0)[None, :], tl.sum(read * g_im, 0)[None, :]
        w_re, w_im = tl.sum(back * x_re, 0)[None, :], tl.sum(back * x_im, 0)[None, :]
        here, reads = row == r + 1, part == 1
        p_re -= tl.where(here, tl.where(reads, w_re, u_re), 0.0)
        p_im -= tl.where(here, tl.where(reads, w_im, u_im), 0.0)
        q_re -= tl.where(here, tl.where(reads, u_re, w_re), 0.0)
        q_im -= tl.where(here, tl.where(reads, u_im, w_im), 0.0)
        y_re, y_im = y_re - back * read_re, y_im - back * read_im
    return p_re, p_im, q_re, q_im, y_re, y_im


@kernel
@no_type_check
def run_walks_backward(
    a, b, c, p, q, walks, of_walks, response, into, out, decay, rest_decay,
    grad_a, grad_b, grad_c, grad_p, grad_q, steps, rest, modes,
    RANK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of a channel's system: all three walks of it, back."""
    channel, numbers = tl.program_id(0).to(tl.int64), modes * 2
    row, number = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK * 2)[None, :]
    a_re, a_im = _vector(a + channel * numbers, modes, 1.0, BLOCK)
    c_re, c_im = _vector(c + channel * numbers, modes, -1.0, BLOCK)
    one = tl.zeros([ROWS, BLOCK], tl.float64)
    of_a_re, of_a_im, of_b_re, of_b_im, of_c_re, of_c_im = one, one, one, one, one, one
    of_p_re, of_p_im, of_q_re, of_q_im = one, one, one, one
    for part in range(3):
        turn, low = tl.where(part == 1, -1.0, 1.0), tl.where(part == 2, 0.0, 1.0)
        walk = walks + (channel * 3 + part) * (steps + 1) * (RANK + 1) * numbers
        g_re, g_im = one, one
        for i in range(steps + 1):
            j = steps - i
            at = walk + (j * (RANK + 1) + row) * numbers + number
            known = (row <= tl.where(part == 0, 0, RANK)) & (number < numbers)
            x_re, x_im = parts(tl.load(at, mask=known, other=0), True, tl.float64)
            of_a_re += x_re * g_re + x_im * g_im
            of_a_im += turn * (x_re * g_im - x_im * g_re)
            l_re, l_im, m_re, m_im, y_re, y_im = _step_back(
                p, q, channel, modes, part, row, x_re, x_im, g_re, g_im, RANK, BLOCK
            )
            of_p_re, of_p_im = of_p_re + low * l_re, of_p_im + low * l_im
            of_q_re, of_q_im = of_q_re + low * m_re, of_q_im + low * m_im
            y_re += a_re * g_re + turn * a_im * g_im
            y_im += a_re * g_im - turn * a_im * g_re
            h_re, h_im, now = _cotangent(
                response, into, out, decay, rest_decay, of_walks, c_re, c_im, channel, part, j,
                row, steps, rest, modes, RANK, BLOCK,
            )  # fmt: skip
            of_c_re, of_c_im = of_c_re + now * x_re, of_c_im + now * x_im
            g_re, g_im = y_re + h_re, y_im + h_im
        of_b_re, of_b_im = of_b_re + (part == 0) * g_re, of_b_im + (part == 0) * g_im
        of_c_re, of_c_im = of_c_re + (part == 1) * g_re, of_c_im + (part == 1) * g_im
        of_p_re, of_p_im = of_p_re + (part == 2) * g_re, of_p_im + (part == 2) * g_im
        of_q_re, of_q_im = of_q_re + (part == 1) * g_re, of_q_im + (part == 1) * g_im
    of_a_re, of_a_im = tl.sum(of_a_re, 0)[None, :], tl.sum(of_a_im, 0)[None, :]
    put(grad_a + channel * numbers + number, of_a_re, of_a_im, number < numbers, True)
    to = channel * numbers + number + 0 * row
    first = (row == 0) & (number < numbers)
    put(grad_b + to, of_b_re, of_b_im, first, True)
    put(grad_c + to, of_c_re, -of_c_im, first, True)
    to = (channel * RANK + row - 1) * numbers + number
    others = (row > 0) & (row <= RANK) & (number < numbers)
    put(grad_p + to, of_p_re, of_p_im, others, True)
    put(grad_q + to, of_q_re, -of_q_im, others, True)
