"""Triton kernels that turn (B, T, H) into blocks (H, n, Q) and back; `_block_layout` says why.

A program owns a block of time and some channels. It reads and writes each number once: rows of
channels on one side, rows of steps on the other.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel


@triton.jit
@no_type_check
def _places(
    seq, step, batch, chunks, channels, size, STEPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Where a program's numbers are: of the sequence, of blocks, and of values a block."""
    cuts = tl.cdiv(channels, BLOCK)
    block = (tl.program_id(0) // cuts).to(tl.int64)
    t = tl.arange(0, STEPS)[:, None]
    c = (tl.program_id(0) % cuts) * BLOCK + tl.arange(0, BLOCK)[None, :]
    of_block = c.to(tl.int64) * batch + block
    of_sequence = (block // chunks) * seq + (block % chunks * size + t) * step + c
    return of_sequence, of_block * size + t, of_block, t, (t < size) & (c < channels)


@triton.jit
@no_type_check
def _finite(x):
    """Whether a number is neither NaN nor infinite: then its difference from itself is 0."""
    return x - x == 0


@kernel
@no_type_check
def run_cut(
    u, x, states, first, seq, step, batch, chunks, channels, size,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Blocks with zeros for what is not finite, and where the first of that is."""
    at, to, block, t, inside = _places(seq, step, batch, chunks, channels, size, STEPS, BLOCK)
    read = tl.load(u + at, mask=inside, other=0)
    good = _finite(read)
    tl.store(x + to, tl.where(good, read, 0), mask=inside)
    bad = tl.min(tl.where(good, size, t), 0)[None, :]
    known = tl.max(inside.to(tl.int32), 0)[None, :] > 0
    tl.store(first + block, bad, mask=known)
    tl.store(states + block, tl.where(bad < size, float("nan"), 0.0), mask=known)


@kernel
@no_type_check
def run_join(
    u, y, first, joined, seq, step, batch, chunks, channels, size,
    GUARDED: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The inverse: NaN from a first bad step on, or zero where ``u`` is not finite."""
    at, of, block, t, inside = _places(seq, step, batch, chunks, channels, size, STEPS, BLOCK)
    value = tl.load(y + of, mask=inside, other=0)
    if first is not None:
        known = tl.max(inside.to(tl.int32), 0)[None, :] > 0
        bad = tl.load(first + block, mask=known, other=0)
        value = tl.where(t < bad, value, float("nan"))
    if GUARDED:
        value = tl.where(_finite(tl.load(u + at, mask=inside, other=0)), value, 0)
        time = chunks * size
        dense, _, _, _, _ = _places(
            time * channels, channels, batch, chunks, channels, size, STEPS, BLOCK
        )
        tl.store(joined + dense, value, mask=inside)
    else:
        tl.store(joined + at, value, mask=inside)
