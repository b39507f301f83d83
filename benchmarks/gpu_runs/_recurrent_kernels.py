"""LSTMs to be tried on a GPU: all matrices stay on chip for all steps. Forward alone.

Inputs are (time, batch, 4, channels) and matrices (4, channels, channels), gates i, f, g, o.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _matrices(R, i, j, H: tl.constexpr):
    """Columns ``j`` of the four matrices."""
    p = R + i[:, None] * H + j[None, :]
    one: tl.constexpr = H * H
    return tl.load(p), tl.load(p + one), tl.load(p + 2 * one), tl.load(p + 3 * one)


@triton.jit
def _step(h, c, p, m, R_i, R_f, R_g, R_o, H: tl.constexpr, PRECISION: tl.constexpr):
    """State and cell of the next step."""
    i = tl.dot(h, R_i, input_precision=PRECISION) + tl.load(p, m, 0)
    f = tl.dot(h, R_f, input_precision=PRECISION) + tl.load(p + H, m, 0)
    g = tl.dot(h, R_g, input_precision=PRECISION) + tl.load(p + 2 * H, m, 0)
    o = tl.dot(h, R_o, input_precision=PRECISION) + tl.load(p + 3 * H, m, 0)
    c = tl.sigmoid(f) * c + tl.sigmoid(i) * _tanh(g)
    return tl.sigmoid(o) * _tanh(c), c


@triton.jit
def whole_kernel(
    x, R, h_out, time, batch, H: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr
):
    """One program has all channels of ROWS sequences."""
    i, s = tl.arange(0, H), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    m = (s < batch)[:, None]
    R_i, R_f, R_g, R_o = _matrices(R, i, i, H)
    h, c = tl.zeros((ROWS, H), tl.float32), tl.zeros((ROWS, H), tl.float32)
    p = x + s[:, None].to(tl.int64) * 4 * H + i[None, :]
    out = h_out + s[:, None].to(tl.int64) * H + i[None, :]
    for _ in range(time):
        h, c = _step(h.to(R_i.dtype), c, p, m, R_i, R_f, R_g, R_o, H, PRECISION)
        tl.store(out, h.to(h_out.dtype.element_ty), m)
        p += batch * 4 * H
        out += batch * H


@triton.jit
def parts_kernel(
    x, R, h_out, arrived, time, batch, PARTS: tl.constexpr, H: tl.constexpr, N: tl.constexpr,
    ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """PARTS programs have N channels each of ROWS sequences, and wait for each other every step.

    All of them must be on the device at once.
    """
    group, i = tl.program_id(0) // PARTS, tl.arange(0, H)
    j = tl.program_id(0) % PARTS * N + tl.arange(0, N)
    s = group * ROWS + tl.arange(0, ROWS)
    m = (s < batch)[:, None]
    R_i, R_f, R_g, R_o = _matrices(R, i, j, H)
    h, c = tl.zeros((ROWS, H), R_i.dtype), tl.zeros((ROWS, N), tl.float32)
    p = x + s[:, None].to(tl.int64) * 4 * H + j[None, :]
    out = h_out + s[:, None].to(tl.int64) * H + j[None, :]
    before = h_out + s[:, None].to(tl.int64) * H + i[None, :]
    arrived += group * time
    for t in range(time):
        if t > 0:
            n = tl.atomic_add(arrived + t - 1, 0, sem="acquire")
            while n < PARTS:
                n = tl.atomic_add(arrived + t - 1, 0, sem="acquire")
            h = tl.load(before, m, 0, cache_modifier=".cg").to(R_i.dtype)
            before += batch * H
        new, c = _step(h, c, p, m, R_i, R_f, R_g, R_o, H, PRECISION)
        tl.store(out, new.to(h_out.dtype.element_ty), m)
        tl.debug_barrier()
        tl.atomic_add(arrived + t, 1, sem="release")
        p += batch * 4 * H
        out += batch * H


def lstm(x: Tensor, R: Tensor, parts: int, warps: int, rows: int = 16) -> Tensor:
    """States of all steps; by one program a group of sequences, or by ``parts``."""
    time, batch, _, H = x.shape
    h, groups = x.new_empty(time, batch, H), -(-batch // rows)
    precision = "tf32" if x.dtype == torch.float32 and x.is_cuda else None
    more = {"H": H, "ROWS": rows, "PRECISION": precision, "num_warps": warps}
    if not parts:
        whole_kernel[(groups,)](x, R, h, time, batch, **more)
        return h
    arrived = torch.zeros(groups * time, dtype=torch.int32, device=x.device)
    if x.is_cuda:
        more["launch_cooperative_grid"] = True
    parts_kernel[(groups * parts,)](
        x, R, h, arrived, time, batch, PARTS=parts, N=H // parts, **more
    )
    return h
