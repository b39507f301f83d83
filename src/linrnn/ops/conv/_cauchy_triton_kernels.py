"""Triton kernels of the Cauchy product and its adjoint; `linrnn.ops.conv.cauchy` has the equations.

Forward, a program owns a channel and a block of nodes and goes through the modes; in the adjoint it
owns a mode and goes through the nodes. Nothing of modes times nodes leaves the registers, no two
programs write to one place, and sums have a fixed order: the same bits in every run. What is near
a pole is subtracted in double precision, whatever the precision of the sums.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _pole(radius, real, s, c, DTYPE: tl.constexpr):
    """The denominator ``r + i m`` of a mode at some nodes: r, m and 1 / (r^2 + m^2)."""
    scaled = radius * c
    r = ((scaled - s) * (scaled + s)).to(DTYPE)
    m = (-2 * real).to(DTYPE) * (s * c).to(DTYPE)
    return r, m, 1 / (r * r + m * m)


@triton.jit
@no_type_check
def run_forward(
    beta_p,
    alpha_p,
    radius_p,
    real_p,
    sine_p,
    cosine_p,
    re_p,
    im_p,
    rows,
    channels,
    modes,
    nodes,
    ROWS: tl.constexpr,
    NODES: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """The sums of a channel at a block of nodes, of all rows."""
    blocks = tl.cdiv(nodes, NODES)
    channel = (tl.program_id(0) // blocks).to(tl.int64)
    node = (tl.program_id(0) % blocks) * NODES + tl.arange(0, NODES)
    row = tl.arange(0, ROWS)
    at = node < nodes
    s = tl.load(sine_p + node, mask=at, other=0.0)
    c = tl.load(cosine_p + node, mask=at, other=1.0)
    br = tl.zeros((ROWS, NODES), DTYPE)
    bm = tl.zeros((ROWS, NODES), DTYPE)
    ar = tl.zeros((ROWS, NODES), DTYPE)
    am = tl.zeros((ROWS, NODES), DTYPE)
    for mode in range(modes):
        place = channel * modes + mode
        r, m, inverse = _pole(tl.load(radius_p + place), tl.load(real_p + place), s, c, DTYPE)
        of = row.to(tl.int64) * channels * modes + place
        beta = tl.load(beta_p + of, mask=row < rows, other=0)[:, None]
        alpha = tl.load(alpha_p + of, mask=row < rows, other=0)[:, None]
        over_r = (r * inverse)[None, :]
        over_m = (m * inverse)[None, :]
        br += beta * over_r
        bm += beta * over_m
        ar += alpha * over_r
        am += alpha * over_m
    s = s.to(DTYPE)[None, :]
    c = c.to(DTYPE)[None, :]
    to = (row.to(tl.int64)[:, None] * channels + channel) * nodes + node[None, :]
    inside = (row < rows)[:, None] & at[None, :]
    tl.store(re_p + to, s * bm - c * ar, mask=inside)
    tl.store(im_p + to, s * br + c * am, mask=inside)


@triton.jit
@no_type_check
def run_backward(
    beta_p,
    alpha_p,
    radius_p,
    real_p,
    sine_p,
    cosine_p,
    grad_re_p,
    grad_im_p,
    grad_beta_p,
    grad_alpha_p,
    grad_radius_p,
    grad_real_p,
    rows,
    channels,
    modes,
    nodes,
    ROWS: tl.constexpr,
    NODES: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """The gradients of a mode, of all rows."""
    place = tl.program_id(0).to(tl.int64)
    channel = place // modes
    row = tl.arange(0, ROWS)
    of = row.to(tl.int64) * channels * modes + place
    radius = tl.load(radius_p + place)
    real = tl.load(real_p + place)
    beta = tl.load(beta_p + of, mask=row < rows, other=0)[:, None]
    alpha = tl.load(alpha_p + of, mask=row < rows, other=0)[:, None]
    to_beta = tl.zeros((ROWS, NODES), DTYPE)
    to_alpha = tl.zeros((ROWS, NODES), DTYPE)
    to_radius = tl.zeros((NODES,), tl.float64)
    to_real = tl.zeros((NODES,), tl.float64)
    for first in range(0, nodes, NODES):
        node = first + tl.arange(0, NODES)
        at = node < nodes
        wide_s = tl.load(sine_p + node, mask=at, other=0.0)
        wide_c = tl.load(cosine_p + node, mask=at, other=1.0)
        r, m, inverse = _pole(radius, real, wide_s, wide_c, DTYPE)
        s = wide_s.to(DTYPE)[None, :]
        c = wide_c.to(DTYPE)[None, :]
        come = (row.to(tl.int64)[:, None] * channels + channel) * nodes + node[None, :]
        inside = (row < rows)[:, None] & at[None, :]
        g_re = tl.load(grad_re_p + come, mask=inside, other=0)
        g_im = tl.load(grad_im_p + come, mask=inside, other=0)
        over_r = r * inverse
        over_m = m * inverse
        to_beta += g_re * s * over_m[None, :] + g_im * s * over_r[None, :]
        to_alpha += g_im * c * over_m[None, :] - g_re * c * over_r[None, :]
        # of r / (r^2 + m^2) and m / (r^2 + m^2)
        by_r = tl.sum(g_im * s * beta - g_re * c * alpha, 0)
        by_m = tl.sum(g_re * s * beta + g_im * c * alpha, 0)
        square = over_m * over_m - over_r * over_r
        mixed = 2 * over_r * over_m
        of_r = (by_r * square - by_m * mixed).to(tl.float64)
        of_m = (-by_r * mixed - by_m * square).to(tl.float64)
        to_radius += of_r * 2 * radius * wide_c * wide_c
        to_real += of_m * -2 * wide_s * wide_c
    tl.store(grad_beta_p + of, tl.sum(to_beta, 1), mask=row < rows)
    tl.store(grad_alpha_p + of, tl.sum(to_alpha, 1), mask=row < rows)
    tl.store(grad_radius_p + place, tl.sum(to_radius, 0))
    tl.store(grad_real_p + place, tl.sum(to_real, 0))
