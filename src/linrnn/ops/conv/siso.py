"""Many independent diagonal systems of one input and one output each: S4D, DSS, the core of H3.

A sequence is computed either in blocks of time, with matrix products inside a block and a scan
over the blocks, or as a convolution by FFT. Neither holds a state for every step: the block form
holds one a block, the convolution one in about the square root of the length.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.composed import composed
from linrnn.compute.modes import seen_zero
from linrnn.compute.pairs import columns, pairs, products, rows
from linrnn.compute.product import Product
from linrnn.ops.conv._block_carry import carried_by
from linrnn.ops.conv._blocks import Blocks, add_now, convolve_shapes, scan_all, scan_shapes, spans
from linrnn.ops.conv._fft import causal_product
from linrnn.ops.conv.vandermonde import Factors, table, vandermonde
from linrnn.ops.linear.linear_scan import linear_scan

# Longer blocks do more arithmetic, shorter ones move more states. A training step of S4D (64
# channels, 4 rows) takes 1.01 times as long with 16 and 1.46 with 64 at 1,024 steps, 1.08 and 0.94
# at 4,096 (2026-11-27, EPYC with AVX-512, one busy core, in turn).
BLOCK = 32
# Steps of a block where modes are many and states most of the traffic. With 256, a training
# step of S4D with 128 to 512 modes takes 2 to 3 times as long. With 32 it takes 0.8 to 1.1, and
# twice as many states are in memory (2026-11-28, EPYC with AVX-512, one and two cores, in turn).
LONGEST = 64
# With resets the inside of a block is a loop of that many shifts. A training step (S4D, 64
# channels, 4 rows of 1,024 steps) takes 1.49 times as long with 4, 1.03 with 8, 1.43 with 32, 2.49
# with 64 (2026-11-28, EPYC with AVX-512, one core, in turn).
RESET_BLOCK = 16


class System(NamedTuple):
    """``h_t = a h_{t-1} + b u_t``, ``y_t = Re sum_m c_m h_{t,m} + d u_t``, for every channel.

    The first three are (channels, modes). ``a`` and ``b`` are float64 or complex128: a rounding of
    ``a`` to float32 would be an error of the phase that grows with the distance in time. They
    are (1, modes) where the channels share their modes, whose powers are then held once. They may
    have the axes of batch and time before these, for `varying` and `step`.
    """

    a: Tensor
    b: Tensor
    c: Tensor
    d: Tensor  # (channels,)


def step(system: System, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One step: ``u`` (B, H), ``h`` (B, H, M); ``(y, h)``."""
    a, b, c = (p.to(h.dtype) for p in system[:3])
    h = a * h + b * u[..., None]
    return (columns(c) * rows(h)).sum(-1) + system.d * u, h


def varying(system: System, u: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """A `System` of which every step has its own: as `scan`, with all states held at once."""
    a, b, c = (p.to(h.dtype) for p in system[:3])
    states, last = linear_scan(a, b * u[..., None], h, reset=reset)
    return (columns(c) * rows(states)).sum(-1) + system.d * u, last


def _explained(system: Sequence[Tensor], u: Tensor, h: Tensor, reset: Tensor | None) -> str:
    """The code that computes `scan`, in words."""
    if reset is not None:
        return f"PyTorch's operators and linear_scan, in blocks of {RESET_BLOCK} steps"
    size = _block(rows(h).shape[-1])
    name, why = carried_by(h)
    said = f"products of matrices inside of blocks of {size} steps, and between them {why}"
    if name == "triton":
        # counted at 256 channels of 64 numbers, 32 rows of 1,024 steps, and 2 of 16,384
        said += "; a convolution by FFT launches nine times as many kernels and moves more bytes"
    return said


@composed(
    "siso_scan",
    "Tensor[] system, Tensor u, Tensor h, Tensor? reset",
    scan_shapes,
    lead=1,
    explained=_explained,
)
def scan(
    system: Sequence[Tensor], u: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A `System`, in blocks: ``u`` (B, T, H), ``h`` (B, H, M); ``(y, h)``, and any ``reset``."""
    system, time = System(*system), u.shape[1]
    if u.numel() == 0:
        return u, h
    size = _block(rows(h).shape[-1]) if reset is None else RESET_BLOCK
    blocks = _blocks(system, [n for _, _, n in spans(time, size)], h.dtype)
    parts = ((lo, hi, x) for (lo, hi, _), x in zip(spans(time, size), blocks, strict=True))
    return scan_all(parts, u, h, reset)


def _block(columns: int) -> int:
    """Steps of a block: half as many as a state has real numbers, for then it moves few more."""
    return min(max(columns // 2, BLOCK), LONGEST)


def _blocks(system: System, sizes: Sequence[int], dtype: torch.dtype) -> list[Blocks]:
    """The blocks of some sizes, the largest first."""
    if system.a.shape[0] == system.c.shape[0]:
        tables = iter(_TABLES(*system, tuple(sizes), dtype))
        each = zip(tables, tables, tables, tables, strict=True)
        # out.mT: (H, K, Q)
        return [Blocks(kernel, into, out.mT, decay) for kernel, into, out, decay in each]
    powers = table(system.a, sizes[0] + 1, dtype)
    return [_shared(system, powers[:, : n + 1]) for n in sizes]


def _shared(system: System, powers: Tensor) -> Blocks:
    """The blocks of Q steps of modes that all channels share, from ``a^0 .. a^Q`` (1, Q + 1, M)."""
    b, c = system.b.to(powers.dtype), system.c.to(powers.dtype)
    into = rows(b[:, None] * powers[:, :-1].flip(1))  # (1, Q, K), K real numbers of a state
    out = rows(powers).transpose(1, 2)  # (1, K, Q + 1)
    kernel = columns(b * c) @ out[0, :, :-1]  # (H, Q)
    return Blocks(add_now(kernel, system.d), into, out[..., 1:], powers[:, -1], c)


def block_tables(
    a: Tensor, b: Tensor, c: Tensor, d: Tensor, sizes: Sequence[int], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """For blocks of each size Q, the largest first, four tensors from a `System` without sharing.

    The response (H, Q) to an impulse; (H, Q, K) of what each input leaves in a state of K real
    numbers; (H, Q, K) of what a state adds to each output; and the decay (H, M) over a block.
    """
    powers, tables = table(a, sizes[0] + 1, dtype), []
    b, c = b.to(dtype), c.to(dtype)
    for n in sizes:
        into = rows(b[:, None] * powers[:, :n].flip(1))  # (H, Q, K)
        out = columns(c[:, None] * powers[:, : n + 1])  # (H, Q + 1, K)
        kernel = (rows(b)[:, None] @ out[:, :-1].mT)[:, 0]  # (H, Q)
        tables += [add_now(kernel, d), into, out[:, 1:], powers[:, n]]
    return tuple(tables)


_TABLES = Product(
    "siso_tables",
    block_tables,
    gradients=4,
    kernels={"triton": "linrnn.ops.conv._siso_tables_triton"},
)


@composed("siso_convolve", "Tensor[] system, Tensor u, Tensor h", convolve_shapes, lead=1)
def convolve(system: Sequence[Tensor], u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A `System`, by FFT: ``u`` (B, T, H), ``h`` (B, H, M); ``(y, h)``."""
    system, (batch, time, channels) = System(*system), u.shape
    if u.numel() == 0:  # an FFT refuses an empty batch
        return u, h
    factors = Factors.of(system.a, time, h.dtype, channels)
    a, b, c = (p.to(h.dtype) for p in system[:3])
    kernel = vandermonde((c * b)[None], system.a, time)[0]
    y = causal_product(u, add_now(kernel, system.d))
    if not seen_zero(h):
        y = y + vandermonde(c * a * h, system.a, time).transpose(1, 2)  # (B, T, H)

    size, count = factors.fine.shape[1], factors.coarse.shape[1]
    # (B, T/Q, Q, H)
    padded = F.pad(u, (0, 0, size * count - time, 0)).view(batch, count, size, channels)
    x = padded.permute(3, 0, 1, 2).flatten(1, 2)  # (H, B T/Q, Q)
    sums = products(x, rows(b[:, None] * factors.fine.flip(1)))
    sums = pairs(sums.view(channels, batch, count, -1), h)  # (H, B, T/Q, M)
    left_over = (sums * factors.coarse.flip(1)[:, None]).sum(2)  # (H, B, M)
    return y, factors.across * h + left_over.transpose(0, 1)  # (B, T, H), (B, H, M)
