"""`selective_scan` by the native kernels in ``src/native/kernels/selective_scan.cpp``."""

import struct
from typing import Any

import torch
from torch import Tensor

from linrnn.ops import _native
from linrnn.ops._layout import dense, unit_channels
from linrnn.ops._native import DTYPES, pointer
from linrnn.ops.selective_scan._reference import Problem

#: Steps between the states kept for the backward pass, which expands one chunk at a time.
CHUNK = 32

# the fields of SelectiveScanArgs in src/native/selective_scan_args.h, in order
_RECORD = struct.Struct("=47q")
#: Rows of partial sums over sequences: their number bounds the memory, not the threads.
_MOST_ROWS = 64
#: Channels are divided into groups where there are not this many sequences a thread.
_ENOUGH = 4


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return _native.unavailable(device, dtype, real=True)


def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """``(y, final_state)`` of a `Problem`; the state before each chunk goes to the last input."""
    *fields, kept = inputs
    p = _prepare(Problem(*fields))
    y = torch.empty_like(p.x, memory_format=torch.contiguous_format)
    final = p.A.new_empty(len(p.x), *p.A.shape)
    _run(p, kept, y, final, _groups(p), len(p.x), (0,) * 7)
    return y, final


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """The gradients of the nine tensors at the head of a `Problem`; None for those that are.

    Its fields are followed by the states before each chunk and the gradients of the results.
    """
    *fields, kept, grad_y, grad_final = inputs
    p = _prepare(Problem(*fields))
    batch, time, channels = p.x.shape
    modes, groups, rows = p.A.shape[1], _groups(p), min(batch, _MOST_ROWS)
    x, dt, z = (
        None if t is None else torch.empty(t.shape, dtype=t.dtype) for t in (p.x, p.dt, p.z)
    )
    B, C = (p.A.new_empty(groups, batch, time, modes) for _ in "BC")
    initial = p.A.new_empty(batch, channels, modes)
    sums = torch.zeros(rows, modes + 2, channels, dtype=torch.float64)
    outputs = tuple(pointer(t) for t in (x, dt, z, B, C, initial, sums))
    _run(p, kept, unit_channels(grad_y), dense(grad_final), groups, rows, outputs)
    B, C = (t.sum(0) if groups > 1 else t.squeeze(0) for t in (B, C))
    total = sums.sum(0)
    # an operator's results must not share memory
    A = total[:modes].T.to(p.A.dtype, copy=True, memory_format=torch.contiguous_format)
    D, bias = (total[modes + i].to(p.A.dtype, copy=True) for i in (0, 1))
    grads = (x, dt, A, B.to(p.B.dtype), C.to(p.C.dtype), D, initial, z, bias)
    return tuple(None if t is None else g for g, t in zip(grads, p.tensors, strict=True))


def _run(
    p: Problem,
    kept: Tensor | None,
    y: Tensor,
    final: Tensor,
    groups: int,
    rows: int,
    outputs: tuple[int, ...],
) -> None:
    record = _RECORD.pack(
        _RECORD.size,
        DTYPES[p.x.dtype],
        _native.threads(),
        any(outputs),
        p.dt_softplus,
        p.zoh,
        CHUNK,
        *p.x.shape,
        p.A.shape[1],
        groups,
        rows,
        *(field for t in (p.x, p.dt, p.B, p.C, p.z, p.reset, y) for field in _array(t)),
        *(pointer(t) for t in (p.A, p.D, p.dt_bias, p.initial_state, final)),
        pointer(kept),
        *outputs,
    )
    _native.run("selective_scan", record)


def _array(t: Tensor | None) -> tuple[int, int, int]:
    return (0, 0, 0) if t is None else (t.data_ptr(), t.stride(0), t.stride(1))


def _prepare(p: Problem) -> Problem:
    """Inputs as the kernel reads them: channels or modes side by side, parameters contiguous."""
    x, dt, B, C = (unit_channels(t) for t in (p.x, p.dt, p.B, p.C))
    z = None if p.z is None else unit_channels(p.z)
    D, h, bias = (None if t is None else dense(t) for t in (p.D, p.initial_state, p.dt_bias))
    return Problem(x, dt, dense(p.A), B, C, D, h, z, bias, p.reset, p.dt_softplus, p.zoh)


def _groups(p: Problem) -> int:
    """Parts the channels are divided into, so that every thread has something to do."""
    batch, threads = len(p.x), _native.threads()
    if batch % threads == 0 or batch >= _ENOUGH * threads:
        return 1
    blocks = -(-p.x.shape[2] * p.A.element_size() // 128)
    return min(blocks, -(-threads // batch) if batch < threads else threads)
