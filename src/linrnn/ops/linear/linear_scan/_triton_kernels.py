"""Triton kernels of the recurrence ``h_t = a_t h_{t-1} + b_t`` and its adjoint.

A program owns one chunk of one sequence and a block of channels, keeps the state in registers and
walks along time. Nothing ever crosses a thread: every number comes out of the same operations in
the same order as in a loop, which keeps its accuracy and gives the same bits in every run. What
hides the latency of memory is that the rows of the next steps are on their way, ``UNROLL`` of them
for every input, while those of the present steps are used.

With ``GATES``, a step's ``a`` and ``b`` are computed as its row arrives, from parts of a row of
``b`` that lie ``part`` numbers apart: the value, then one or two logits.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.linear.linear_scan._triton_gates import gated, put_gated
from linrnn.ops.linear.linear_scan.triton_walk import (
    choose,
    flags,
    lanes,
    last,
    multiply,
    parts,
    place,
    put,
    rows,
)


@kernel
@no_type_check
def run_forward(
    a,
    a_seq,
    a_step,
    b,
    b_seq,
    b_step,
    part,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    entering,
    enters_at,
    h,
    final,
    time,
    channels,
    chunks,
    chunk,
    GATES: tl.constexpr,
    POSITIVE: tl.constexpr,
    START: tl.constexpr,
    CONSTANT: tl.constexpr,
    FLIP: tl.constexpr,
    CX: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """All states of one chunk from the state that enters it; the last chunk writes the final.

    They are ``enters_at`` numbers behind ``entering``; a state that is not given is ``START``.
    """
    s, k, row, t, left, n, c = place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    at, inside = lanes(c, channels, CX)
    steps = tl.where(inside, n, 0)  # of each lane: the mask of a row is one comparison
    width: tl.constexpr = 2 if CX else 1
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    b_by = sign * width * b_step
    h_by = sign * width * channels
    zero = tl.zeros([BLOCK], DTYPE)
    start = zero + START
    x_re, x_im = start, zero
    if entering is not None:
        p = entering + (enters_at + (s * chunks + k) * channels) * width + at
        x_re, x_im = parts(tl.load(p, mask=inside, other=0), CX, DTYPE)
    b += (row * b_seq + t * b_step) * width
    b_next = rows(b, b_by, at, steps, UNROLL)
    if CONSTANT:
        a_re, a_im = parts(tl.load(a + at, mask=inside, other=0), CX, DTYPE)
    elif GATES > 0:
        a_from, a_by = b + part, b_by
    else:
        a_from, a_by = a + (row * a_seq + t * a_step) * width, sign * width * a_step
    if not CONSTANT:
        a_next = rows(a_from, a_by, at, steps, UNROLL)
    if GATES > 1:
        w_next = rows(a_from + part, a_by, at, steps, UNROLL)
    if reset is not None:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step
        reset_next = flags(reset, reset_by, n, UNROLL)
    h += (row * time + t) * channels * width
    for j in range(0, n, UNROLL):
        b_now = b_next
        b += UNROLL * b_by
        b_next = rows(b, b_by, at, steps - j - UNROLL, UNROLL)
        if not CONSTANT:
            a_now = a_next
            a_from += UNROLL * a_by
            a_next = rows(a_from, a_by, at, steps - j - UNROLL, UNROLL)
        if GATES > 1:
            w_now = w_next
            w_next = rows(a_from + part, a_by, at, steps - j - UNROLL, UNROLL)
        if reset is not None:
            reset_now = reset_next
            reset += UNROLL * reset_by
            reset_next = flags(reset, reset_by, n - j - UNROLL, UNROLL)
        for i in tl.static_range(UNROLL):
            exists = i < n - j
            if not CONSTANT:
                a_re, a_im = parts(a_now[i], CX, DTYPE)
            b_re, b_im = parts(b_now[i], CX, DTYPE)
            if GATES > 1:
                a_re, b_re = gated(b_re, a_re, w_now[i].to(DTYPE), GATES, POSITIVE)
            elif GATES == 1:
                a_re, b_re = gated(b_re, a_re, a_re, GATES, POSITIVE)
            y_re, y_im = x_re, x_im
            if reset is not None:
                y_re, y_im = choose(reset_now[i], start, zero, y_re, y_im, CX)
            y_re, y_im = multiply(a_re, a_im, y_re, y_im, CX)
            y_re += b_re
            if CX:
                y_im += b_im
            x_re, x_im = choose(exists, y_re, y_im, x_re, x_im, CX)
            put(h + i * h_by + at, x_re, x_im, i < steps - j, CX)
        h += UNROLL * h_by
    put(final + s * channels * width + at, x_re, x_im, last(left, k, chunk, inside), CX)


@kernel
@no_type_check
def run_backward(
    a,
    a_seq,
    a_step,
    b,
    b_seq,
    b_step,
    part,
    g,
    g_seq,
    g_step,
    h,
    h_seq,
    h_step,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    initial,
    entering,
    enters_at,
    grad_a,
    grad_b,
    grad_initial,
    time,
    channels,
    chunks,
    chunk,
    GATES: tl.constexpr,
    POSITIVE: tl.constexpr,
    START: tl.constexpr,
    CONSTANT: tl.constexpr,
    FLIP: tl.constexpr,
    CX: tl.constexpr,
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The adjoint of one chunk, from its last step to its first, given the cotangent entering.

    ``grad_a`` is a row for each step, or, when ``a`` is constant, a sum for each chunk in double
    precision, to which every group of steps adds what it summed in working precision. With gates
    ``grad_b`` is that of all parts.
    """
    s, k, row, t, left, n, c = place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    at, inside = lanes(c, channels, CX)
    steps = tl.where(inside, n, 0)  # of each lane: the mask of a row is one comparison
    width: tl.constexpr = 2 if CX else 1
    PARTS: tl.constexpr = 1 if GATES == 0 else 2 if GATES == 1 else 3
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    g_by = sign * width * g_step
    h_by = sign * width * h_step
    zero = tl.zeros([BLOCK], DTYPE)
    start = zero + START
    state = s * channels * width + at
    carry_re, carry_im = zero, zero
    if entering is not None:
        p = entering + (enters_at + (s * chunks + k) * channels) * width + at
        carry_re, carry_im = parts(tl.load(p, mask=inside, other=0), CX, DTYPE)
    first_re, first_im = start, zero
    if initial is not None:
        first_re, first_im = parts(tl.load(initial + state, mask=inside, other=0), CX, DTYPE)
    if CONSTANT:
        a_re, a_im = parts(tl.load(a + at, mask=inside, other=0), CX, DTYPE)
    elif GATES > 0:
        b_by = sign * b_step
        b += row * b_seq + t * b_step
        b_next = rows(b, b_by, at, steps, UNROLL)
        a_from, a_by = b + part, b_by
    else:
        a_from, a_by = a + (row * a_seq + t * a_step) * width, sign * width * a_step
    if not CONSTANT:
        a_next = rows(a_from, a_by, at, steps, UNROLL)
    if GATES > 1:
        w_next = rows(a_from + part, a_by, at, steps, UNROLL)
    g += (row * g_seq + t * g_step) * width
    g_next = rows(g, g_by, at, steps, UNROLL)
    # the state a step started from is that of the step the adjoint comes to next
    h += (row * h_seq + (t + sign) * h_step) * width
    previous = tl.where(inside, tl.minimum(left - 1, n).to(tl.int32), 0)
    h_next = rows(h, h_by, at, previous, UNROLL)
    if reset is not None:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step
        reset_next = flags(reset, reset_by, n, UNROLL)
    dense = (row * time + t) * PARTS * channels * width
    out_step = sign * PARTS * channels * width
    grad_b += dense
    if grad_a is not None and not CONSTANT:
        grad_a += dense
    total_re, total_im = tl.zeros([BLOCK], WIDE), tl.zeros([BLOCK], WIDE)
    for j in range(0, n, UNROLL):
        if GATES > 0:
            b_now = b_next
            b += UNROLL * b_by
            b_next = rows(b, b_by, at, steps - j - UNROLL, UNROLL)
        if not CONSTANT:
            a_now = a_next
            a_from += UNROLL * a_by
            a_next = rows(a_from, a_by, at, steps - j - UNROLL, UNROLL)
        if GATES > 1:
            w_now = w_next
            w_next = rows(a_from + part, a_by, at, steps - j - UNROLL, UNROLL)
        g_now, h_now = g_next, h_next
        g += UNROLL * g_by
        g_next = rows(g, g_by, at, steps - j - UNROLL, UNROLL)
        h += UNROLL * h_by
        h_next = rows(h, h_by, at, previous - j - UNROLL, UNROLL)
        if reset is not None:
            reset_now = reset_next
            reset += UNROLL * reset_by
            reset_next = flags(reset, reset_by, n - j - UNROLL, UNROLL)
        sum_re, sum_im = zero, zero
        for i in tl.static_range(UNROLL):
            exists = i < n - j
            writes = i < steps - j
            if not CONSTANT:
                a_re, a_im = parts(a_now[i], CX, DTYPE)
            delta_re, delta_im = parts(g_now[i], CX, DTYPE)
            delta_re += carry_re
            if CX:
                delta_im += carry_im
            h_re, h_im = parts(h_now[i], CX, DTYPE)
            h_re, h_im = choose(i < left - 1 - j, h_re, h_im, first_re, first_im, CX)
            out = i * out_step + at
            if GATES > 0:
                if reset is not None:
                    h_re = tl.where(reset_now[i], start, h_re)
                b_re, w = b_now[i].to(DTYPE), a_re
                if GATES > 1:
                    w = w_now[i].to(DTYPE)
                a_re = put_gated(
                    grad_b + out, channels, delta_re, h_re, b_re, a_re, w, writes, GATES, POSITIVE
                )
            else:
                put(grad_b + out, delta_re, delta_im, writes, CX)
                to_a_re, to_a_im = multiply(h_re, -h_im, delta_re, delta_im, CX)
                if reset is not None:
                    to_a_re, to_a_im = choose(reset_now[i], zero, zero, to_a_re, to_a_im, CX)
            next_re, next_im = multiply(a_re, -a_im, delta_re, delta_im, CX)
            if reset is not None:
                next_re, next_im = choose(reset_now[i], zero, zero, next_re, next_im, CX)
            carry_re, carry_im = choose(exists, next_re, next_im, carry_re, carry_im, CX)
            if CONSTANT:
                to_a_re, to_a_im = choose(exists, to_a_re, to_a_im, zero, zero, CX)
                sum_re += to_a_re
                if CX:
                    sum_im += to_a_im
            elif GATES == 0:
                put(grad_a + out, to_a_re, to_a_im, writes, CX)
        if CONSTANT:
            total_re += sum_re.to(WIDE)
            total_im += sum_im.to(WIDE)
        elif GATES == 0:
            grad_a += UNROLL * out_step
        grad_b += UNROLL * out_step
    if CONSTANT:
        put(grad_a + (s * chunks + k) * channels * width + at, total_re, total_im, inside, CX)
    put(grad_initial + state, carry_re, carry_im, last(left, k, chunk, inside), CX)


@kernel
@no_type_check
def summarise(
    a,
    a_seq,
    a_step,
    b,
    b_seq,
    b_step,
    part,
    g,
    g_seq,
    g_step,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    scratch,
    enters_at,
    time,
    channels,
    chunks,
    chunk,
    ADJOINT: tl.constexpr,
    GATES: tl.constexpr,
    POSITIVE: tl.constexpr,
    START: tl.constexpr,
    CONSTANT: tl.constexpr,
    FLIP: tl.constexpr,
    CX: tl.constexpr,
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The map of a state by a chunk: ``product * it + state``, or ``state`` alone after a cut.

    The product is kept in double precision: equal factors round equally, so its error would grow
    with the length of the chunk and not with the root of it. ``scratch`` has the products, states
    and cuts of all chunks, one after the other, ``enters_at`` numbers apart.
    """
    s, k, row, t, _, n, c = place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    at, inside = lanes(c, channels, CX)
    steps = tl.where(inside, n, 0)  # of each lane: the mask of a row is one comparison
    width: tl.constexpr = 2 if CX else 1
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    zero = tl.zeros([BLOCK], DTYPE)
    start = zero + START
    x_re, x_im = zero, zero
    p_re, p_im = tl.zeros([BLOCK], WIDE) + 1, tl.zeros([BLOCK], WIDE)
    was_cut = n < 0
    if CONSTANT:
        a_re, a_im = parts(tl.load(a + at, mask=inside, other=0), CX, DTYPE)
    elif GATES > 0:
        a_from, a_by = b + row * b_seq + t * b_step + part, sign * b_step
    else:
        a_from, a_by = a + (row * a_seq + t * a_step) * width, sign * width * a_step
    if not CONSTANT:
        a_next = rows(a_from, a_by, at, steps, UNROLL)
    if GATES > 1:
        w_next = rows(a_from + part, a_by, at, steps, UNROLL)
    if ADJOINT:  # what is added: cotangents of states
        y_from, y_by = g + (row * g_seq + t * g_step) * width, sign * width * g_step
    else:
        y_from, y_by = b + (row * b_seq + t * b_step) * width, sign * width * b_step
    y_next = rows(y_from, y_by, at, steps, UNROLL)
    if reset is not None:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step
        reset_next = flags(reset, reset_by, n, UNROLL)
    for j in range(0, n, UNROLL):
        if not CONSTANT:
            a_now = a_next
            a_from += UNROLL * a_by
            a_next = rows(a_from, a_by, at, steps - j - UNROLL, UNROLL)
        if GATES > 1:
            w_now = w_next
            w_next = rows(a_from + part, a_by, at, steps - j - UNROLL, UNROLL)
        y_now = y_next
        y_from += UNROLL * y_by
        y_next = rows(y_from, y_by, at, steps - j - UNROLL, UNROLL)
        if reset is not None:
            reset_now = reset_next
            reset += UNROLL * reset_by
            reset_next = flags(reset, reset_by, n - j - UNROLL, UNROLL)
        for i in tl.static_range(UNROLL):
            exists = i < n - j
            if not CONSTANT:
                a_re, a_im = parts(a_now[i], CX, DTYPE)
            b_re, b_im = parts(y_now[i], CX, DTYPE)
            f_re, f_im = a_re, a_im
            if GATES > 0:
                w = a_re
                if GATES > 1:
                    w = w_now[i].to(DTYPE)
                f_re, input_re = gated(b_re, a_re, w, GATES, POSITIVE)
                if not ADJOINT:
                    b_re = input_re
            y_re, y_im = x_re, x_im
            if ADJOINT:
                f_im = -f_im
                y_re += b_re
                if CX:
                    y_im += b_im
                y_re, y_im = multiply(f_re, f_im, y_re, y_im, CX)
            if reset is not None:
                was_cut = was_cut | reset_now[i]
                if ADJOINT:
                    y_re, y_im = choose(reset_now[i], zero, zero, y_re, y_im, CX)
                else:
                    y_re, y_im = choose(reset_now[i], start, zero, y_re, y_im, CX)
            if not ADJOINT:
                y_re, y_im = multiply(f_re, f_im, y_re, y_im, CX)
                y_re += b_re
                if CX:
                    y_im += b_im
            q_re, q_im = multiply(f_re.to(WIDE), f_im.to(WIDE), p_re, p_im, CX)
            x_re, x_im = choose(exists, y_re, y_im, x_re, x_im, CX)
            p_re, p_im = choose(exists, q_re, q_im, p_re, p_im, CX)
    summary = scratch + (s * chunks + k) * channels * width + at
    put(summary, p_re, p_im, inside, CX)
    put(summary + enters_at * width, x_re, x_im, inside, CX)
    if reset is not None:  # the same from every block of channels
        cut = scratch + tl.full((), 2 * width, tl.int64) * enters_at
        tl.store(cut + s * chunks + k, was_cut.to(WIDE))


@kernel
@no_type_check
def carry(
    reset,
    initial,
    scratch,
    enters_at,
    channels,
    chunks,
    START: tl.constexpr,
    CX: tl.constexpr,
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Replace what each chunk of one sequence adds by the state that enters it."""
    blocks, first = tl.cdiv(channels, BLOCK), tl.program_id(0)
    s = (first // blocks).to(tl.int64)
    at, inside = lanes(first % blocks * BLOCK + tl.arange(0, BLOCK), channels, CX)
    width: tl.constexpr = 2 if CX else 1
    step = channels * width
    zero = tl.zeros([BLOCK], DTYPE)
    x_re, x_im = zero + START, zero
    if initial is not None:
        x_re, x_im = parts(tl.load(initial + s * step + at, mask=inside, other=0), CX, DTYPE)
    count = tl.where(inside, chunks, 0)
    product = scratch + s * chunks * step
    state = product + enters_at * width
    p_next = rows(product, step, at, count, UNROLL)
    y_next = rows(state, step, at, count, UNROLL)
    if reset is not None:
        cut = scratch + tl.full((), 2 * width, tl.int64) * enters_at + s * chunks
        cut_next = flags(cut, 1, chunks, UNROLL)
    for k in range(0, chunks, UNROLL):
        p_now, y_now = p_next, y_next
        product += UNROLL * step
        state += UNROLL * step
        p_next = rows(product, step, at, count - k - UNROLL, UNROLL)
        y_next = rows(state, step, at, count - k - UNROLL, UNROLL)
        if reset is not None:
            cut_now = cut_next
            cut += UNROLL
            cut_next = flags(cut, 1, chunks - k - UNROLL, UNROLL)
        for i in tl.static_range(UNROLL):
            put(state + (i - UNROLL) * step + at, x_re, x_im, i < count - k, CX)
            p_re, p_im = parts(p_now[i], CX, WIDE)
            y_re, y_im = parts(y_now[i], CX, WIDE)
            q_re, q_im = multiply(p_re, p_im, x_re.to(WIDE), x_im.to(WIDE), CX)
            if reset is not None:
                none = tl.zeros([BLOCK], WIDE)
                q_re, q_im = choose(cut_now[i], none, none, q_re, q_im, CX)
            x_re = (q_re + y_re).to(DTYPE)
            if CX:
                x_im = (q_im + y_im).to(DTYPE)


@kernel
@no_type_check
def add_rows(
    values, total, batch, columns, DTYPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """The sum of ``batch`` rows, in their own precision and a fixed order."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, ROWS)
    by = tl.full((), columns, tl.int64)
    p = values + r[:, None] * by + c[None, :]
    x = tl.zeros([ROWS, BLOCK], values.dtype.element_ty)
    for j in range(0, batch, ROWS):
        x += tl.load(p, mask=(r < batch - j)[:, None] & (c < columns)[None, :], other=0)
        p += ROWS * by
    tl.store(total + c, tl.sum(x, 0).to(DTYPE), mask=c < columns)
