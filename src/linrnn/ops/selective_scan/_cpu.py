"""`selective_scan` by the native kernels in ``src/native/kernels/selective_scan.cpp``."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import checked_offsets, dense, unit_channels
from linrnn.compute.native import array, pointer
from linrnn.ops.selective_scan._reference import Problem

#: Steps between the states kept for the backward pass, which expands one chunk at a time. A
#: training step of Mamba (64 channels, 4 rows of 1,024 steps) takes 1.02 times as long with 16 and
#: 0.93 with 64, which expands twice as many
#: (2026-11-27, EPYC with AVX-512, one busy core, in turn).
CHUNK = 32

_SCAN = native.Kernel(
    "selective_scan",
    "reverse softplus zoh chunk seqs time channels modes offsets groups rows x dt B C z reset "
    "A D bias initial kept y final backward grad_x grad_dt grad_z grad_B grad_C grad_initial sums",
)
_NO_GRADIENTS = (0,) * 18
#: Rows of partial sums over sequences: their number bounds the memory, not the threads.
_MOST_ROWS = 64
#: Channels are divided into groups where there are not this many sequences a thread. A training
#: step of Mamba (64 channels, 7 rows of 512 steps, 2 threads) takes 1.00 times as long with 1, 0.95
#: with 2 and 8, 0.92 with 16 (2026-11-28, EPYC with AVX-512, in turn).
_ENOUGH = 4


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True)


def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """``(y, final_state)`` of a `Problem`; the state before each chunk goes to the last input."""
    *fields, chunk_states = inputs
    p = _prepare(Problem(*fields))
    y = torch.empty_like(p.x, memory_format=torch.contiguous_format)
    final = p.A.new_empty(p.seqs, *p.A.shape)
    _run(p, _groups(p), p.seqs, chunk_states, y, final, _NO_GRADIENTS)
    return y, final


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """The gradients of the nine tensors at the head of a `Problem`; None for those that are.

    Its fields are followed by the states before each chunk and the gradients of the results.
    """
    *fields, chunk_states, grad_y, grad_final = inputs
    p = _prepare(Problem(*fields))
    batch, time, channels = p.x.shape
    modes, groups, rows = p.A.shape[1], _groups(p), min(p.seqs, _MOST_ROWS)
    x, dt, z = (
        None if t is None else torch.empty(t.shape, dtype=t.dtype, device="cpu")
        for t in (p.x, p.dt, p.z)
    )
    B, C = (p.A.new_empty(groups, batch, time, modes) for _ in "BC")
    initial = p.A.new_empty(p.seqs, channels, modes)
    sums = torch.zeros(rows, modes + 2, channels, dtype=torch.float64, device="cpu")
    grad_y, grad_final = unit_channels(grad_y), dense(grad_final)
    gradients = (field for t in (x, dt, z, B[0], C[0]) for field in array(t))
    outputs = (True, *gradients, initial.data_ptr(), sums.data_ptr())
    _run(p, groups, rows, chunk_states, grad_y, grad_final, outputs)
    B, C = (t.sum(0) if groups > 1 else t.squeeze(0) for t in (B, C))  # (B, T, N) each
    total = sums.sum(0)
    # an operator's results must not share memory
    A = total[:modes].T.to(p.A.dtype, copy=True, memory_format=torch.contiguous_format)  # (d, N)
    D, bias = (total[modes + i].to(p.A.dtype, copy=True) for i in (0, 1))
    grads = (x, dt, A, B.to(p.B.dtype), C.to(p.C.dtype), D, initial, z, bias)
    return tuple(None if t is None else g for g, t in zip(grads, p.tensors, strict=True))


def _run(
    p: Problem,
    groups: int,
    rows: int,
    chunk_states: Tensor | None,
    y: Tensor,
    final: Tensor,
    outputs: tuple[int, ...],
) -> None:
    _, time, channels = p.x.shape
    _SCAN(
        p.x.dtype,
        p.reverse,
        p.dt_softplus,
        p.zoh,
        CHUNK,
        p.seqs,
        time,
        channels,
        p.A.shape[1],
        pointer(p.cu_seqlens),
        groups,
        rows,
        *(field for t in (p.x, p.dt, p.B, p.C, p.z, p.reset) for field in array(t)),
        *(pointer(t) for t in (p.A, p.D, p.dt_bias, p.initial_state)),
        pointer(chunk_states),
        *array(y),
        final.data_ptr(),
        *outputs,
    )


def _prepare(p: Problem) -> Problem:
    """Inputs as the kernel reads them: channels or modes side by side, parameters contiguous."""
    x, dt, B, C = (unit_channels(t) for t in (p.x, p.dt, p.B, p.C))
    z = None if p.z is None else unit_channels(p.z)
    D, h, bias = (None if t is None else dense(t) for t in (p.D, p.initial_state, p.dt_bias))
    offsets = checked_offsets("selective_scan", p.cu_seqlens, p.x.shape[1])
    return Problem(x, dt, dense(p.A), B, C, D, h, z, bias, p.reset, offsets, *p[-3:])


def _groups(p: Problem) -> int:
    """Parts the channels are divided into, so that every thread has something to do."""
    batch, threads = p.seqs, native.threads()
    if batch % threads == 0 or batch >= _ENOUGH * threads:
        return 1
    blocks = -(-p.x.shape[2] * p.A.element_size() // 128)
    return min(blocks, -(-threads // batch) if batch < threads else threads)
