"""Triton kernels of the recurrence ``h_t = A_t h_{t-1} + b_t`` in blocks, and of its adjoint.

A program owns one sequence and some blocks, and walks along time with their states in registers.
The matrices of the next steps load while the present ones are multiplied. Every number is read and
written once, and the order of operations is that of a loop. Complex numbers are pairs; where all is
real, tuples of second parts are empty.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.linear.linear_scan.triton_walk import flags, place, rows


@triton.jit
@no_type_check
def _pair(p, at, inside, PAIR: tl.constexpr, DTYPE: tl.constexpr):
    """Numbers that lie at ``at``, counted in numbers."""
    width: tl.constexpr = 2 if PAIR else 1
    re = tl.load(p + width * at, mask=inside, other=0).to(DTYPE)
    im = re
    if PAIR:
        im = tl.load(p + width * at + 1, mask=inside, other=0).to(DTYPE)
    return re, im


@triton.jit
@no_type_check
def _put(p, at, re, im, inside, PAIR: tl.constexpr):
    width: tl.constexpr = 2 if PAIR else 1
    tl.store(p + width * at, re, mask=inside)
    if PAIR:
        tl.store(p + width * at + 1, im, mask=inside)


@triton.jit
@no_type_check
def _pair_rows(p, by, at, n, PAIR: tl.constexpr, UNROLL: tl.constexpr):
    """Start loading the next rows of pairs; lane by lane, from the ``n``-th on they read as 0."""
    width: tl.constexpr = 2 if PAIR else 1
    re, im = rows(p, by, width * at, n, UNROLL), ()
    if PAIR:
        im = rows(p + 1, by, width * at, n, UNROLL)
    return re, im


@triton.jit
@no_type_check
def _group(
    A, A_by, A_at, A_n, b, b_by, b_at, b_n,
    CONSTANT: tl.constexpr, PAIR: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Start loading the matrices and vectors of the next steps."""
    A_re, A_im = (), ()
    if not CONSTANT:
        A_re, A_im = _pair_rows(A, A_by, A_at, A_n, PAIR, UNROLL)
    b_re, b_im = _pair_rows(b, b_by, b_at, b_n, PAIR, UNROLL)
    return A_re, A_im, b_re, b_im


@triton.jit
@no_type_check
def _chosen(
    A_re, A_im, re, im,
    i: tl.constexpr, CONSTANT: tl.constexpr, PAIR: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The matrices of step i, or those of all steps."""
    if not CONSTANT:
        re = A_re[i].to(DTYPE)
        im = re
        if PAIR:
            im = A_im[i].to(DTYPE)
    return re, im


@triton.jit
@no_type_check
def _vector(b_re, b_im, i: tl.constexpr, PAIR: tl.constexpr, DTYPE: tl.constexpr):
    """The row of step i."""
    re = b_re[i].to(DTYPE)
    im = re
    if PAIR:
        im = b_im[i].to(DTYPE)
    return re, im


@triton.jit
@no_type_check
def _times(A_re, A_im, x_re, x_im, PAIR: tl.constexpr):
    """``A x`` of blocks: (blocks, i, j) times (blocks, j)."""
    re = tl.sum(A_re * x_re[:, None, :], 2)
    im = re
    if PAIR:
        re -= tl.sum(A_im * x_im[:, None, :], 2)
        im = tl.sum(A_re * x_im[:, None, :], 2) + tl.sum(A_im * x_re[:, None, :], 2)
    return re, im


@triton.jit
@no_type_check
def _adjoint_times(A_re, A_im, x_re, x_im, PAIR: tl.constexpr):
    """``A^H x`` of blocks: (blocks, i, j) and (blocks, i)."""
    re = tl.sum(A_re * x_re[:, :, None], 1)
    im = re
    if PAIR:
        re += tl.sum(A_im * x_im[:, :, None], 1)
        im = tl.sum(A_re * x_im[:, :, None], 1) - tl.sum(A_im * x_re[:, :, None], 1)
    return re, im


@triton.jit
@no_type_check
def _outer(x_re, x_im, y_re, y_im, PAIR: tl.constexpr):
    """``x conj(y)^T`` of blocks."""
    re = x_re[:, :, None] * y_re[:, None, :]
    im = re
    if PAIR:
        re += x_im[:, :, None] * y_im[:, None, :]
        im = x_im[:, :, None] * y_re[:, None, :] - x_re[:, :, None] * y_im[:, None, :]
    return re, im


@triton.jit
@no_type_check
def _places(c, blocks, side: tl.constexpr, SIDE: tl.constexpr):
    """Where a step's vectors and matrices lie, and which there are."""
    i = tl.arange(0, SIDE)
    vector = c[:, None] * side + i[None, :]
    known = (c[:, None] < blocks) & (i[None, :] < SIDE)
    matrix = vector[:, :, None] * side + i[None, None, :]
    matrix_known = (c[:, None, None] < blocks) & (i[None, None, :] < SIDE)
    if side < SIDE:  # a comparison with nothing to hide would keep loads narrow
        known = known & (i[None, :] < side)
        matrix_known = known[:, :, None] & (i[None, None, :] < side)
    return vector, known, matrix, matrix_known


@triton.jit
@no_type_check
def _entering(
    p, at, known, PAIR: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr, SIDE: tl.constexpr
):
    """The state that enters a sequence: zeros where none is given."""
    re = tl.zeros([BLOCK, SIDE], DTYPE)
    im = re
    if p is not None:
        re, im = _pair(p, at, known, PAIR, DTYPE)
    return re, im


@triton.jit
@no_type_check
def _of_all_steps(
    A, at, known, CONSTANT: tl.constexpr, PAIR: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Matrices that are constant in time."""
    re = tl.zeros([BLOCK, SIDE, SIDE], DTYPE)
    im = re
    if CONSTANT:
        re, im = _pair(A, at, known, PAIR, DTYPE)
    return re, im


@triton.jit
@no_type_check
def _step_back(a_re, a_im, d_re, d_im, y_re, y_im, cut, PAIR: tl.constexpr, CUTS: tl.constexpr):
    """The gradient of a step's matrices, and of the state before it; from d and that state, y."""
    o_re, o_im = _outer(d_re, d_im, y_re, y_im, PAIR)
    e_re, e_im = _adjoint_times(a_re, a_im, d_re, d_im, PAIR)
    if CUTS:
        # what is not finite times the zero before a reset is no gradient
        o_re, o_im = tl.where(cut, 0, o_re), tl.where(cut, 0, o_im)
        e_re, e_im = tl.where(cut, 0, e_re), tl.where(cut, 0, e_im)
    return o_re, o_im, e_re, e_im


@kernel
@no_type_check
def run_forward(
    A, A_seq, A_step, b, b_seq, b_step, reset, reset_seq, reset_step, cu_seqlens, initial, h, final,
    time, blocks, side: tl.constexpr,
    CONSTANT: tl.constexpr, FLIP: tl.constexpr, PAIR: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK: tl.constexpr, SIDE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """All states of one sequence and some blocks, and the final ones."""
    width: tl.constexpr = 2 if PAIR else 1
    s, _, row, t, _, n, c = place(cu_seqlens, time, blocks, 1, time, FLIP, BLOCK)
    at, known, A_at, A_known = _places(c, blocks, side, SIDE)
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    A_by, b_by, h_by = sign * width * A_step, sign * width * b_step, sign * width * blocks * side
    A_n, b_n = tl.where(A_known, n, 0), tl.where(known, n, 0)
    state = s * blocks * side + at
    x_re, x_im = _entering(initial, state, known, PAIR, DTYPE, BLOCK, SIDE)
    M_re, M_im = _of_all_steps(A, A_at, A_known, CONSTANT, PAIR, DTYPE, BLOCK, SIDE)
    if not CONSTANT:
        A += (row * A_seq + t * A_step) * width
    b += (row * b_seq + t * b_step) * width
    h += (row * time + t) * blocks * side * width
    if reset is not None:
        reset += row * reset_seq + t * reset_step
    following = _group(A, A_by, A_at, A_n, b, b_by, at, b_n, CONSTANT, PAIR, UNROLL)
    for j in range(0, n, UNROLL):
        A_re, A_im, b_re, b_im = following
        if not CONSTANT:
            A += UNROLL * A_by
        b += UNROLL * b_by
        following = _group(
            A, A_by, A_at, A_n - j - UNROLL, b, b_by, at, b_n - j - UNROLL, CONSTANT, PAIR, UNROLL
        )
        cuts = ()
        if reset is not None:
            cuts = flags(reset, sign * reset_step, n - j, UNROLL)
            reset += UNROLL * sign * reset_step
        for i in tl.static_range(UNROLL):
            a_re, a_im = _chosen(A_re, A_im, M_re, M_im, i, CONSTANT, PAIR, DTYPE)
            c_re, c_im = _vector(b_re, b_im, i, PAIR, DTYPE)
            y_re, y_im = x_re, x_im
            if reset is not None:
                y_re = tl.where(cuts[i], 0, y_re)
                y_im = tl.where(cuts[i], 0, y_im)
            y_re, y_im = _times(a_re, a_im, y_re, y_im, PAIR)
            y_re, y_im = y_re + c_re, y_im + c_im
            _put(h + i * h_by, at, y_re, y_im, known & (i < n - j), PAIR)
            x_re = tl.where(i < n - j, y_re, x_re)
            x_im = tl.where(i < n - j, y_im, x_im)
        h += UNROLL * h_by
    _put(final, state, x_re, x_im, known, PAIR)


@kernel
@no_type_check
def run_backward(
    A, A_seq, A_step, g, g_seq, g_step, h, h_seq, h_step, reset, reset_seq, reset_step,
    cu_seqlens, initial, grad_final, grad_A, grad_b, grad_initial, time, blocks, side: tl.constexpr,
    CONSTANT: tl.constexpr, FLIP: tl.constexpr, PAIR: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK: tl.constexpr, SIDE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Gradients of one sequence and some blocks, from the last step that was taken to the first.

    Of matrices that are constant in time the gradient is summed in double precision, a row for each
    sequence.
    """
    width: tl.constexpr = 2 if PAIR else 1
    s, _, row, t, _, n, c = place(cu_seqlens, time, blocks, 1, time, FLIP, BLOCK)
    at, known, A_at, A_known = _places(c, blocks, side, SIDE)
    CUTS: tl.constexpr = reset is not None
    numbers = blocks * side
    sign = tl.full((), -1 if FLIP else 1, tl.int64)
    A_by, g_by, h_by = sign * width * A_step, sign * width * g_step, sign * width * h_step
    gb_by = sign * width * numbers
    A_n, g_n = tl.where(A_known, n, 0), tl.where(known, n, 0)
    state = s * numbers + at
    x_re, x_im = _pair(grad_final, state, known, PAIR, DTYPE)
    first_re, first_im = _entering(initial, state, known, PAIR, DTYPE, BLOCK, SIDE)
    M_re, M_im = _of_all_steps(A, A_at, A_known, CONSTANT, PAIR, DTYPE, BLOCK, SIDE)
    S_re = tl.zeros([BLOCK, SIDE, SIDE], tl.float64)
    S_im = S_re
    step = row * time + t
    if CONSTANT:
        grad_A += s * numbers * side * width
    else:
        A += (row * A_seq + t * A_step) * width
        grad_A += step * numbers * side * width
    g += (row * g_seq + t * g_step) * width
    h += (row * h_seq + t * h_step) * width + h_by  # the states before
    grad_b += step * numbers * width
    if CUTS:
        reset += row * reset_seq + t * reset_step
    following = _group(A, A_by, A_at, A_n, g, g_by, at, g_n, CONSTANT, PAIR, UNROLL)
    before = _pair_rows(h, h_by, at, g_n - 1, PAIR, UNROLL)
    for j in range(0, n, UNROLL):
        A_re, A_im, g_re, g_im = following
        h_re, h_im = before
        if not CONSTANT:
            A += UNROLL * A_by
        g += UNROLL * g_by
        h += UNROLL * h_by
        left = g_n - j - UNROLL
        following = _group(
            A, A_by, A_at, A_n - j - UNROLL, g, g_by, at, left, CONSTANT, PAIR, UNROLL
        )
        before = _pair_rows(h, h_by, at, left - 1, PAIR, UNROLL)
        cuts = ()
        if CUTS:
            cuts = flags(reset, sign * reset_step, n - j, UNROLL)
            reset += UNROLL * sign * reset_step
        for i in tl.static_range(UNROLL):
            there = i < n - j
            a_re, a_im = _chosen(A_re, A_im, M_re, M_im, i, CONSTANT, PAIR, DTYPE)
            d_re, d_im = _vector(g_re, g_im, i, PAIR, DTYPE)
            d_re, d_im = d_re + x_re, d_im + x_im
            y_re, y_im = _vector(h_re, h_im, i, PAIR, DTYPE)
            is_first = i == n - j - 1
            y_re, y_im = tl.where(is_first, first_re, y_re), tl.where(is_first, first_im, y_im)
            o_re, o_im, e_re, e_im = _step_back(
                a_re, a_im, d_re, d_im, y_re, y_im, cuts[i] if CUTS else False, PAIR, CUTS
            )
            _put(grad_b + i * gb_by, at, d_re, d_im, known & there, PAIR)
            if CONSTANT:
                S_re = tl.where(there, S_re + o_re, S_re)
                S_im = tl.where(there, S_im + o_im, S_im)
            else:
                _put(grad_A + i * gb_by * side, A_at, o_re, o_im, A_known & there, PAIR)
            x_re, x_im = tl.where(there, e_re, x_re), tl.where(there, e_im, x_im)
        grad_b += UNROLL * gb_by
        if not CONSTANT:
            grad_A += UNROLL * gb_by * side
    if CONSTANT:
        _put(grad_A, A_at, S_re, S_im, A_known, PAIR)
    _put(grad_initial, state, x_re, x_im, known, PAIR)
