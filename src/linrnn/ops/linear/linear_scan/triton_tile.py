"""Triton functions by which a tiled scan works across warps, and across programs.

A tile is ``WARPS`` stretches of ``STEPS`` steps, one a warp, each held as a tuple of rows
(warps, channels), so that a thread sees its own steps in order. What a stretch does to a state is
a map ``state -> p * state + q``, or ``q`` alone behind a reset (``cut``). Maps are combined by a
selection there, since 0 times NaN is NaN.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.ops.linear.linear_scan.triton_walk import add, choose, multiply, parts, put

# Each element is the map of some stretches and, behind it, that of all of them but the last: so a
# scan also gives what enters each stretch. `tl.gather` would move rows from warp to warp, but
# makes the compiler lay out all rows anew, with barriers for each of them (Triton 3.7).


@triton.jit
@no_type_check
def _after(p, q, bp, bq, p2, q2, bp2, bq2):
    return p2 * p, p2 * q + q2, bp2 * p, bp2 * q + bq2


@triton.jit
@no_type_check
def _after_cut(p, q, c, bp, bq, bc, p2, q2, c2, bp2, bq2, bc2):
    all_q = tl.where(c2 != 0, q2, p2 * q + q2)
    before_q = tl.where(bc2 != 0, bq2, bp2 * q + bq2)
    return p2 * p, all_q, c | c2, bp2 * p, before_q, c | bc2


@triton.jit
@no_type_check
def _times(a, ai, x, xi):
    return a * x - ai * xi, a * xi + ai * x


@triton.jit
@no_type_check
def _after_complex(p, pi, q, qi, bp, bpi, bq, bqi, p2, pi2, q2, qi2, bp2, bpi2, bq2, bqi2):
    r, ri = _times(p2, pi2, p, pi)
    s, si = _times(p2, pi2, q, qi)
    t, ti = _times(bp2, bpi2, p, pi)
    u, ui = _times(bp2, bpi2, q, qi)
    return r, ri, s + q2, si + qi2, t, ti, u + bq2, ui + bqi2


@triton.jit
@no_type_check
def _after_complex_cut(
    p, pi, q, qi, c, bp, bpi, bq, bqi, bc, p2, pi2, q2, qi2, c2, bp2, bpi2, bq2, bqi2, bc2
):
    r, ri, s, si, t, ti, u, ui = _after_complex(
        p, pi, q, qi, bp, bpi, bq, bqi, p2, pi2, q2, qi2, bp2, bpi2, bq2, bqi2
    )
    s, si = tl.where(c2 != 0, q2, s), tl.where(c2 != 0, qi2, si)
    u, ui = tl.where(bc2 != 0, bq2, u), tl.where(bc2 != 0, bqi2, ui)
    return r, ri, s, si, c | c2, t, ti, u, ui, c | bc2


@triton.jit
@no_type_check
def _after_log(p, pi, q, qi, bp, bpi, bq, bqi, p2, pi2, q2, qi2, bp2, bpi2, bq2, bqi2):
    r, ri = multiply(p2, pi2, p, pi, 2)
    s, si = multiply(p2, pi2, q, qi, 2)
    s, si = add(s, si, q2, qi2, 2)
    t, ti = multiply(bp2, bpi2, p, pi, 2)
    u, ui = multiply(bp2, bpi2, q, qi, 2)
    u, ui = add(u, ui, bq2, bqi2, 2)
    return r, ri, s, si, t, ti, u, ui


@triton.jit
@no_type_check
def _after_log_cut(
    p, pi, q, qi, c, bp, bpi, bq, bqi, bc, p2, pi2, q2, qi2, c2, bp2, bpi2, bq2, bqi2, bc2
):
    r, ri, s, si, t, ti, u, ui = _after_log(
        p, pi, q, qi, bp, bpi, bq, bqi, p2, pi2, q2, qi2, bp2, bpi2, bq2, bqi2
    )
    s, si = tl.where(c2 != 0, q2, s), tl.where(c2 != 0, qi2, si)
    u, ui = tl.where(bc2 != 0, bq2, u), tl.where(bc2 != 0, bqi2, ui)
    return r, ri, s, si, c | c2, t, ti, u, ui, c | bc2


@triton.jit
@no_type_check
def stretched(
    a, ai, STEPS: tl.constexpr, PAIR: tl.constexpr, DTYPE: tl.constexpr, WIDE: tl.constexpr
):
    """The decay over a stretch, of a decay that is constant, rounded once.

    The factors are equal, so each rounding of a product would be, too, and not average out.
    """
    p, pi = a.to(WIDE), ai.to(WIDE)
    for _ in tl.static_range(STEPS - 1):
        p, pi = multiply(a.to(WIDE), ai.to(WIDE), p, pi, PAIR)
    return p.to(DTYPE), pi.to(DTYPE)


@triton.jit
@no_type_check
def across(p, pi, q, qi, cut, CUTS: tl.constexpr, PAIR: tl.constexpr):
    """The map of each stretch and all before it, and of those before it, from those of each."""
    bp, bq = tl.full(p.shape, 1, p.dtype), tl.zeros_like(q)
    bpi, bqi, bcut = bq, bq, cut
    if PAIR == 2:
        bp, bq = bpi, tl.full(q.shape, float("-inf"), q.dtype)
    if (PAIR == 2) and CUTS:
        bcut = tl.zeros_like(cut)
        p, pi, q, qi, cut, bp, bpi, bq, bqi, bcut = tl.associative_scan(
            (p, pi, q, qi, cut, bp, bpi, bq, bqi, bcut), 0, _after_log_cut
        )
    elif PAIR == 2:
        p, pi, q, qi, bp, bpi, bq, bqi = tl.associative_scan(
            (p, pi, q, qi, bp, bpi, bq, bqi), 0, _after_log
        )
    elif PAIR and CUTS:
        bcut = tl.zeros_like(cut)
        p, pi, q, qi, cut, bp, bpi, bq, bqi, bcut = tl.associative_scan(
            (p, pi, q, qi, cut, bp, bpi, bq, bqi, bcut), 0, _after_complex_cut
        )
    elif PAIR:
        p, pi, q, qi, bp, bpi, bq, bqi = tl.associative_scan(
            (p, pi, q, qi, bp, bpi, bq, bqi), 0, _after_complex
        )
    elif CUTS:
        bcut = tl.zeros_like(cut)
        p, q, cut, bp, bq, bcut = tl.associative_scan((p, q, cut, bp, bq, bcut), 0, _after_cut)
    else:
        p, q, bp, bq = tl.associative_scan((p, q, bp, bq), 0, _after)
    return (p, pi, q, qi, cut), (bp, bpi, bq, bqi, bcut)


@triton.jit
@no_type_check
def applied(a_map, x, xi, CUTS: tl.constexpr, PAIR: tl.constexpr):
    """A state behind a map, of the map's own rows."""
    p, pi, q, qi, cut = a_map
    y, yi = multiply(p, pi, x, xi, PAIR)
    y, yi = add(y, yi, q, qi, PAIR)
    if CUTS:
        y, yi = choose(cut != 0, q, qi, y, yi, PAIR)
    return y, yi


@triton.jit
@no_type_check
def of_last_warp(x, xi, PAIR: tl.constexpr):
    """The last warp's rows for every warp."""
    last = (tl.arange(0, x.shape[0]) == x.shape[0] - 1)[:, None]
    y = tl.where(last, x, 0)
    yi = y
    if PAIR:
        yi = tl.where(last, xi, 0)
    return of_all_warps(y, yi, PAIR)


@triton.jit
@no_type_check
def of_all_warps(x, xi, PAIR: tl.constexpr):
    """The sum over warps, for every warp."""
    y = tl.broadcast_to(tl.sum(x, 0)[None, :], x.shape)
    yi = y
    if PAIR:
        yi = tl.broadcast_to(tl.sum(xi, 0)[None, :], x.shape)
    return y, yi


@triton.jit
@no_type_check
def ends_in(left, k, chunk, n, warp, STEPS: tl.constexpr):
    """Which warp of a sequence's last chunk had its last step; the first one, where it has none."""
    owner = tl.maximum(n - 1, 0) // STEPS % warp.shape[0]
    return (warp == owner) & (left <= chunk) & ((left > 0) | (k == 0))


@triton.jit
@no_type_check
def wait(flag):
    """The value of a flag once it is not 0; the program that sets it took its ticket before."""
    value = tl.atomic_add(flag, 0, sem="acquire")
    while value == 0:
        value = tl.atomic_add(flag, 0, sem="acquire")
    return value


@triton.jit
@no_type_check
def signal(flag, value):
    """Set a flag, behind all that this program has stored."""
    tl.debug_barrier()
    tl.atomic_xchg(flag, value, sem="release")


@triton.jit
@no_type_check
def handed_over(
    own_map, x, xi, flags, maps, lane, lanes, k, chunks, at,
    CUTS: tl.constexpr, PAIR: tl.constexpr, DTYPE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The state that enters a tile, from the tiles before it; its own map is published first.

    It starts at the state behind the group of tiles before, which the last tile of that group
    publishes, and applies the maps of the tiles before it in that group in their order. So the same
    operations run in the same order, whichever tile is first, and give the same bits.

    Args:
        own_map: that of this tile, the same for all warps.
        x, xi: the state that enters the sequence.
        flags: a flag for each tile and one for each group; zero at first.
        maps: room for products, for sums and for the states behind groups.
        lane: which sequence and block of channels, of ``lanes``.
        k: which tile in time, of ``chunks``.
        at: places of the channels, from 0.
    """
    p, pi, q, qi, cut = own_map
    STORED: tl.constexpr = 1 if PAIR else 0  # what a digit of a logarithm lost goes with it
    width: tl.constexpr = (1 + STORED) * q.shape[1]
    plane = lanes.to(tl.int64) * chunks * width
    mine, first = lane.to(tl.int64) * chunks, tl.arange(0, q.shape[0])[:, None] == 0
    every = (at < width) & first
    own = maps + (mine + k) * width + at
    put(own, p, pi, every, STORED)
    put(own + plane, q, qi, every, STORED)
    value = 1
    if CUTS:
        value = 1 + tl.max(tl.max(cut, 1), 0)
    signal(flags + mine + k, value)
    done = flags + lanes.to(tl.int64) * chunks + mine
    group = k // GROUP
    for last in range(
        tl.maximum(group - 1, 0), group
    ):  # once or never: Triton 3.3 knows no if here
        wait(done + last)
        behind = maps + 2 * plane + (mine + last) * width + at
        x, xi = parts(tl.load(behind, volatile=True), STORED, DTYPE)
    for j in range(group * GROUP, k):
        reached = wait(flags + mine + j)
        from_ = maps + (mine + j) * width + at
        p_j, pi_j = parts(tl.load(from_, volatile=True), STORED, DTYPE)
        q_j, qi_j = parts(tl.load(from_ + plane, volatile=True), STORED, DTYPE)
        x, xi = applied((p_j, pi_j, q_j, qi_j, reached - 1), x, xi, CUTS, PAIR)
    if (k % GROUP == GROUP - 1) & (k < chunks - 1):
        y, yi = applied(own_map, x, xi, CUTS, PAIR)
        put(maps + 2 * plane + (mine + group) * width + at, y, yi, every, STORED)
        signal(done + group, 1)
    return x, xi


@triton.jit
@no_type_check
def entered(
    p, pi, q, qi, cut, x, xi, flags, maps, lane, lanes, k, chunks, at,
    CHAINED: tl.constexpr, CUTS: tl.constexpr, PAIR: tl.constexpr, DTYPE: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """The state that enters each stretch of a tile, and what leaves the tile; if chained, not that.

    Args:
        p, pi, q, qi, cut: the map of each stretch.
        x, xi: the state that enters the tile; if chained, the sequence.
        flags, maps, lane, lanes, k, chunks, at: as in `handed_over`.
    """
    through, before = across(p, pi, q, qi, cut, CUTS, PAIR)
    if CHAINED:
        r, ri, s, si, c = through
        r, ri = of_last_warp(r, ri, PAIR)
        s, si = of_last_warp(s, si, PAIR)
        own = (r, ri, s, si, tl.max(c, 0)[None, :])
        e, ei = handed_over(
            own, x, xi, flags, maps, lane, lanes, k, chunks, at, CUTS, PAIR, DTYPE, GROUP
        )
    else:
        e, ei = x, xi
        x, xi = applied(through, e, ei, CUTS, PAIR)
        x, xi = of_last_warp(x, xi, PAIR)
    y, yi = applied(before, e, ei, CUTS, PAIR)
    first = (tl.arange(0, q.shape[0]) == 0)[:, None]
    y, yi = choose(first, e, ei, y, yi, PAIR)
    return y, yi, x, xi
