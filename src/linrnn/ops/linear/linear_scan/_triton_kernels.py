"""Triton kernels of the recurrence ``h_t = a_t h_{t-1} + b_t`` and its adjoint.

A program owns one chunk of one sequence and a block of channels, keeps the state in registers and
walks along time. Nothing ever crosses a thread: every number comes out of the same operations in
the same order as in a loop, which keeps its accuracy and gives the same bits in every run. What
hides the latency of memory is that the rows of the next steps are on their way, ``UNROLL`` of them
for every input, while those of the present steps are used.

Numbers are pairs (re, im); for a real recurrence the second is never computed with. They travel as
(BLOCK,) or, complex, (BLOCK, 2): one access a complex number, which the compiler only dares when it
sees that rows begin at even places, so strides count numbers and are doubled here.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# ruff: noqa: RUF005  # Triton knows no unpacking into a tuple
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel


@triton.jit
@no_type_check
def _place(cu_seqlens, time, channels, chunks, chunk, FLIP: tl.constexpr, BLOCK: tl.constexpr):
    """The chunk and channels that this program computes, and the chunk's start in time."""
    program = tl.program_id(0)
    blocks = tl.cdiv(channels, BLOCK)
    c = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    k = ((program // blocks) % chunks).to(tl.int64)
    s = (program // blocks // chunks).to(tl.int64)
    if cu_seqlens is not None:
        start = tl.load(cu_seqlens + s)
        length = tl.load(cu_seqlens + s + 1) - start
        row = s * 0
    else:
        start = s * 0
        length = start + time
        row = s
    first = k * chunk
    n = tl.maximum(tl.minimum(length - first, chunk), 0).to(tl.int32)
    t = start + length - 1 - first if FLIP else start + first
    return s, k, row, t, length - first, n, c


@triton.jit
@no_type_check
def _lanes(c, channels, CX: tl.constexpr):
    """Offsets of the channels inside a row, in real numbers, and which of them exist."""
    if CX:
        lanes = 2 * c[:, None] + tl.arange(0, 2)[None, :]
        inside = (c < channels)[:, None] & (tl.arange(0, 2) < 2)[None, :]
    else:
        lanes = c
        inside = c < channels
    return lanes, inside


@triton.jit
@no_type_check
def _last(left, k, chunk, inside):
    """Lanes of a sequence's last chunk; an empty sequence has one empty chunk."""
    left = tl.where(inside, left, chunk + 1)
    return (left <= chunk) & (left + (k == 0).to(tl.int32) > 0)


@triton.jit
@no_type_check
def _rows(p, by, lanes, n, UNROLL: tl.constexpr):
    """Start loading the next rows; lane by lane, from the ``n``-th on they read as 0."""
    rows = ()
    for i in tl.static_range(UNROLL):
        rows = rows + (tl.load(p + i * by + lanes, mask=i < n, other=0),)
    return rows


@triton.jit
@no_type_check
def _flags(p, by, n, UNROLL: tl.constexpr):
    """The same for the reset mask: one flag a step."""
    flags = ()
    for i in tl.static_range(UNROLL):
        flags = flags + (tl.load(p + i * by, mask=i < n, other=0) != 0,)
    return flags


@triton.jit
@no_type_check
def _parts(x, CX: tl.constexpr, DTYPE: tl.constexpr):
    if CX:
        re, im = tl.split(x.to(DTYPE))
    else:
        re = x.to(DTYPE)
        im = re
    return re, im


@triton.jit
@no_type_check
def _put(p, re, im, inside, CX: tl.constexpr):
    if CX:
        tl.store(p, tl.join(re, im), mask=inside)
    else:
        tl.store(p, re, mask=inside)


@triton.jit
@no_type_check
def _multiply(a_re, a_im, x_re, x_im, CX: tl.constexpr):
    if CX:
        re = a_re * x_re - a_im * x_im
        im = a_re * x_im + a_im * x_re
    else:
        re = a_re * x_re
        im = x_im
    return re, im


@triton.jit
@no_type_check
def _choose(which, re, im, other_re, other_im, CX: tl.constexpr):
    """A selection, never a product with 0, which would let NaN and infinity through."""
    re = tl.where(which, re, other_re)
    if CX:
        im = tl.where(which, im, other_im)
    return re, im


@kernel
@no_type_check
def run_forward(
    a,
    a_seq,
    a_step,
    b,
    b_seq,
    b_step,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    entering,
    h,
    h_seq,
    h_step,
    final,
    time,
    channels,
    chunks,
    chunk,
    CONSTANT: tl.constexpr,
    FLIP: tl.constexpr,
    CX: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """All states of one chunk from the state that enters it; the last chunk writes the final."""
    s, k, row, t, left, n, c = _place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    lanes, inside = _lanes(c, channels, CX)
    steps = tl.where(inside, n, 0)  # of each lane: the mask of a row is one comparison
    width: tl.constexpr = 2 if CX else 1
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    a_by = sign * width * a_step
    b_by = sign * width * b_step
    h_by = sign * width * h_step
    zero = tl.zeros([BLOCK], DTYPE)
    x_re, x_im = zero, zero
    if entering is not None:
        x = tl.load(entering + (s * chunks + k) * channels * width + lanes, mask=inside, other=0)
        x_re, x_im = _parts(x, CX, DTYPE)
    if CONSTANT:
        a_re, a_im = _parts(tl.load(a + lanes, mask=inside, other=0), CX, DTYPE)
    else:
        a += (row * a_seq + t * a_step) * width
        a_next = _rows(a, a_by, lanes, steps, UNROLL)
    b += (row * b_seq + t * b_step) * width
    b_next = _rows(b, b_by, lanes, steps, UNROLL)
    if reset is not None:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step
        reset_next = _flags(reset, reset_by, n, UNROLL)
    h += (row * h_seq + t * h_step) * width
    for j in range(0, n, UNROLL):
        if not CONSTANT:
            a_now = a_next
            a += UNROLL * a_by
            a_next = _rows(a, a_by, lanes, steps - j - UNROLL, UNROLL)
        b_now = b_next
        b += UNROLL * b_by
        b_next = _rows(b, b_by, lanes, steps - j - UNROLL, UNROLL)
        if reset is not None:
            reset_now = reset_next
            reset += UNROLL * reset_by
            reset_next = _flags(reset, reset_by, n - j - UNROLL, UNROLL)
        for i in tl.static_range(UNROLL):
            exists = i < n - j
            if not CONSTANT:
                a_re, a_im = _parts(a_now[i], CX, DTYPE)
            b_re, b_im = _parts(b_now[i], CX, DTYPE)
            y_re, y_im = x_re, x_im
            if reset is not None:
                y_re, y_im = _choose(reset_now[i], zero, zero, y_re, y_im, CX)
            y_re, y_im = _multiply(a_re, a_im, y_re, y_im, CX)
            y_re += b_re
            if CX:
                y_im += b_im
            x_re, x_im = _choose(exists, y_re, y_im, x_re, x_im, CX)
            _put(h + i * h_by + lanes, x_re, x_im, i < steps - j, CX)
        h += UNROLL * h_by
    last = _last(left, k, chunk, inside)
    _put(final + s * channels * width + lanes, x_re, x_im, last, CX)


@kernel
@no_type_check
def run_backward(
    a,
    a_seq,
    a_step,
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
    grad_a,
    grad_b,
    grad_initial,
    time,
    channels,
    chunks,
    chunk,
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
    precision, to which every group of steps adds what it summed in working precision.
    """
    s, k, row, t, left, n, c = _place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    lanes, inside = _lanes(c, channels, CX)
    steps = tl.where(inside, n, 0)  # of each lane: the mask of a row is one comparison
    width: tl.constexpr = 2 if CX else 1
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    a_by = sign * width * a_step
    g_by = sign * width * g_step
    h_by = sign * width * h_step
    zero = tl.zeros([BLOCK], DTYPE)
    state = s * channels * width + lanes
    x = tl.load(entering + (s * chunks + k) * channels * width + lanes, mask=inside, other=0)
    carry_re, carry_im = _parts(x, CX, DTYPE)
    first_re, first_im = zero, zero
    if initial is not None:
        first_re, first_im = _parts(tl.load(initial + state, mask=inside, other=0), CX, DTYPE)
    if CONSTANT:
        a_re, a_im = _parts(tl.load(a + lanes, mask=inside, other=0), CX, DTYPE)
    else:
        a += (row * a_seq + t * a_step) * width
        a_next = _rows(a, a_by, lanes, steps, UNROLL)
    g += (row * g_seq + t * g_step) * width
    g_next = _rows(g, g_by, lanes, steps, UNROLL)
    # the state a step started from is that of the step the adjoint comes to next
    h += (row * h_seq + (t + sign) * h_step) * width
    previous = tl.where(inside, tl.minimum(left - 1, n).to(tl.int32), 0)
    h_next = _rows(h, h_by, lanes, previous, UNROLL)
    if reset is not None:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step
        reset_next = _flags(reset, reset_by, n, UNROLL)
    dense = (row * time + t) * channels * width
    out_step = sign * channels * width
    grad_b += dense
    if not CONSTANT:
        grad_a += dense
    total_re, total_im = tl.zeros([BLOCK], WIDE), tl.zeros([BLOCK], WIDE)
    for j in range(0, n, UNROLL):
        if not CONSTANT:
            a_now = a_next
            a += UNROLL * a_by
            a_next = _rows(a, a_by, lanes, steps - j - UNROLL, UNROLL)
        g_now = g_next
        g += UNROLL * g_by
        g_next = _rows(g, g_by, lanes, steps - j - UNROLL, UNROLL)
        h_now = h_next
        h += UNROLL * h_by
        h_next = _rows(h, h_by, lanes, previous - j - UNROLL, UNROLL)
        if reset is not None:
            reset_now = reset_next
            reset += UNROLL * reset_by
            reset_next = _flags(reset, reset_by, n - j - UNROLL, UNROLL)
        sum_re, sum_im = zero, zero
        for i in tl.static_range(UNROLL):
            exists = i < n - j
            if not CONSTANT:
                a_re, a_im = _parts(a_now[i], CX, DTYPE)
            delta_re, delta_im = _parts(g_now[i], CX, DTYPE)
            delta_re += carry_re
            if CX:
                delta_im += carry_im
            _put(grad_b + i * out_step + lanes, delta_re, delta_im, i < steps - j, CX)
            h_re, h_im = _parts(h_now[i], CX, DTYPE)
            h_re, h_im = _choose(i < left - 1 - j, h_re, h_im, first_re, first_im, CX)
            to_a_re, to_a_im = _multiply(h_re, -h_im, delta_re, delta_im, CX)
            next_re, next_im = _multiply(a_re, -a_im, delta_re, delta_im, CX)
            if reset is not None:
                to_a_re, to_a_im = _choose(reset_now[i], zero, zero, to_a_re, to_a_im, CX)
                next_re, next_im = _choose(reset_now[i], zero, zero, next_re, next_im, CX)
            carry_re, carry_im = _choose(exists, next_re, next_im, carry_re, carry_im, CX)
            if CONSTANT:
                to_a_re, to_a_im = _choose(exists, to_a_re, to_a_im, zero, zero, CX)
                sum_re += to_a_re
                if CX:
                    sum_im += to_a_im
            else:
                _put(grad_a + i * out_step + lanes, to_a_re, to_a_im, i < steps - j, CX)
        if CONSTANT:
            total_re += sum_re.to(WIDE)
            total_im += sum_im.to(WIDE)
        else:
            grad_a += UNROLL * out_step
        grad_b += UNROLL * out_step
    if CONSTANT:
        part = grad_a + (s * chunks + k) * channels * width + lanes
        _put(part, total_re, total_im, inside, CX)
    last = _last(left, k, chunk, inside)
    _put(grad_initial + state, carry_re, carry_im, last, CX)


@kernel
@no_type_check
def summarise(
    a,
    a_seq,
    a_step,
    b,
    b_seq,
    b_step,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    product,
    state,
    cut,
    time,
    channels,
    chunks,
    chunk,
    ADJOINT: tl.constexpr,
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
    with the length of the chunk and not with the root of it.
    """
    s, k, row, t, _, n, c = _place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    lanes, inside = _lanes(c, channels, CX)
    steps = tl.where(inside, n, 0)  # of each lane: the mask of a row is one comparison
    width: tl.constexpr = 2 if CX else 1
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    a_by = sign * width * a_step
    b_by = sign * width * b_step
    zero = tl.zeros([BLOCK], DTYPE)
    x_re, x_im = zero, zero
    p_re, p_im = tl.zeros([BLOCK], WIDE) + 1, tl.zeros([BLOCK], WIDE)
    was_cut = n < 0
    if CONSTANT:
        a_re, a_im = _parts(tl.load(a + lanes, mask=inside, other=0), CX, DTYPE)
    else:
        a += (row * a_seq + t * a_step) * width
        a_next = _rows(a, a_by, lanes, steps, UNROLL)
    b += (row * b_seq + t * b_step) * width
    b_next = _rows(b, b_by, lanes, steps, UNROLL)
    if reset is not None:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step
        reset_next = _flags(reset, reset_by, n, UNROLL)
    for j in range(0, n, UNROLL):
        if not CONSTANT:
            a_now = a_next
            a += UNROLL * a_by
            a_next = _rows(a, a_by, lanes, steps - j - UNROLL, UNROLL)
        b_now = b_next
        b += UNROLL * b_by
        b_next = _rows(b, b_by, lanes, steps - j - UNROLL, UNROLL)
        if reset is not None:
            reset_now = reset_next
            reset += UNROLL * reset_by
            reset_next = _flags(reset, reset_by, n - j - UNROLL, UNROLL)
        for i in tl.static_range(UNROLL):
            exists = i < n - j
            if not CONSTANT:
                a_re, a_im = _parts(a_now[i], CX, DTYPE)
            f_re, f_im = a_re, a_im
            if ADJOINT:
                f_im = -a_im
            b_re, b_im = _parts(b_now[i], CX, DTYPE)
            y_re, y_im = x_re, x_im
            if ADJOINT:
                y_re += b_re
                if CX:
                    y_im += b_im
                y_re, y_im = _multiply(f_re, f_im, y_re, y_im, CX)
            if reset is not None:
                was_cut = was_cut | reset_now[i]
                y_re, y_im = _choose(reset_now[i], zero, zero, y_re, y_im, CX)
            if not ADJOINT:
                y_re, y_im = _multiply(f_re, f_im, y_re, y_im, CX)
                y_re += b_re
                if CX:
                    y_im += b_im
            q_re, q_im = _multiply(f_re.to(WIDE), f_im.to(WIDE), p_re, p_im, CX)
            x_re, x_im = _choose(exists, y_re, y_im, x_re, x_im, CX)
            p_re, p_im = _choose(exists, q_re, q_im, p_re, p_im, CX)
    summary = (s * chunks + k) * channels * width + lanes
    _put(product + summary, p_re, p_im, inside, CX)
    _put(state + summary, x_re, x_im, inside, CX)
    if reset is not None:
        tl.store(cut + s * chunks + k, was_cut.to(tl.int8))  # the same from every block of channels


@kernel
@no_type_check
def carry(
    product,
    state,
    cut,
    initial,
    entering,
    channels,
    chunks,
    CX: tl.constexpr,
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The state that enters every chunk of one sequence, from the summaries of the chunks."""
    blocks = tl.cdiv(channels, BLOCK)
    s = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    lanes, inside = _lanes(c, channels, CX)
    step = channels * (2 if CX else 1)
    zero = tl.zeros([BLOCK], DTYPE)
    x_re, x_im = zero, zero
    if initial is not None:
        x = tl.load(initial + s * step + lanes, mask=inside, other=0)
        x_re, x_im = _parts(x, CX, DTYPE)
    count = tl.where(inside, chunks, 0)
    product += s * chunks * step
    state += s * chunks * step
    entering += s * chunks * step
    p_next = _rows(product, step, lanes, count, UNROLL)
    y_next = _rows(state, step, lanes, count, UNROLL)
    if cut is not None:
        cut += s * chunks
        cut_next = _flags(cut, 1, chunks, UNROLL)
    for k in range(0, chunks, UNROLL):
        p_now, y_now = p_next, y_next
        product += UNROLL * step
        state += UNROLL * step
        p_next = _rows(product, step, lanes, count - k - UNROLL, UNROLL)
        y_next = _rows(state, step, lanes, count - k - UNROLL, UNROLL)
        if cut is not None:
            cut_now = cut_next
            cut += UNROLL
            cut_next = _flags(cut, 1, chunks - k - UNROLL, UNROLL)
        for i in tl.static_range(UNROLL):
            _put(entering + i * step + lanes, x_re, x_im, i < count - k, CX)
            p_re, p_im = _parts(p_now[i], CX, WIDE)
            y_re, y_im = _parts(y_now[i], CX, WIDE)
            q_re, q_im = _multiply(p_re, p_im, x_re.to(WIDE), x_im.to(WIDE), CX)
            if cut is not None:
                none = tl.zeros([BLOCK], WIDE)
                q_re, q_im = _choose(cut_now[i], none, none, q_re, q_im, CX)
            x_re = (q_re + y_re).to(DTYPE)
            if CX:
                x_im = (q_im + y_im).to(DTYPE)
        entering += UNROLL * step
