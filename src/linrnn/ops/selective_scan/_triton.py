"""`selective_scan` by the Triton kernels in ``_triton_kernels.py``."""

import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import launch
from linrnn.compute.layout import dense, unit_channels, with_strides
from linrnn.ops.selective_scan._reference import Problem

#: Steps between the states kept for the backward pass, which finds those between again.
CHUNK = 16
#: States of a program, which is one warp: eight in each thread's registers.
_TILE = 256
#: Steps whose inputs are under way at once, a divisor of a chunk: of a pass, and of its adjoint,
#: which has their states in registers; with gates or few modes half of them, or some would spill.
_STEPS, _STEPS_BACK = 4, 4


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    if dtype.is_complex:
        return f"it has no kernel for {dtype}"
    return gpu.unavailable(device, dtype)


def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """``(y, final_state)`` of a `Problem`; the state before each chunk goes to the last input."""
    *fields, chunk_states = inputs
    p = Problem(*fields)
    y = torch.empty_like(p.x, memory_format=torch.contiguous_format)
    final = p.A.new_empty(p.seqs, *p.A.shape)
    programs, options = _programs(p)
    with torch.cuda.device_of(p.x):
        launch(
            _kernels().run_forward,
            programs,
            *_inputs(p),
            None if p.initial_state is None else dense(p.initial_state),
            *with_strides(y),
            final,
            chunk_states,
            *_sizes(p),
            **options,
            UNROLL=_STEPS,
        )
    return y, final


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """The gradients of the nine tensors at the head of a `Problem`; None for those that are.

    Its fields are followed by the states before each chunk and the gradients of the results.
    """
    *fields, chunk_states, grad_y, grad_final = inputs
    p = Problem(*fields)
    batch, time, channels = p.x.shape
    modes = p.A.shape[1]
    programs, options = _programs(p)
    seqs = p.seqs
    parts = (programs // seqs, batch, time, modes)
    x, dt = (torch.empty(p.x.shape, dtype=p.x.dtype, device=p.x.device) for _ in "xd")
    z = None if p.z is None else torch.empty_like(x)
    B, C = (p.A.new_empty(parts) for _ in "BC")
    A, initial = (p.A.new_empty(seqs, channels, modes) for _ in "Ah")
    D, bias = (p.A.new_empty(seqs, channels) for _ in "Db")
    steps = _STEPS_BACK if z is None and options["MODES"] >= 16 else _STEPS_BACK // 2
    with torch.cuda.device_of(p.x):
        launch(
            _kernels().run_backward,
            programs,
            *_inputs(p),
            *with_strides(unit_channels(grad_y)),
            dense(grad_final),
            chunk_states,
            *(x, dt, z, B, C, A, D, bias, initial),
            batch,
            *_sizes(p),
            **options,
            UNROLL=steps,
            PARTS=-(-CHUNK // steps),
        )
    # in a fixed order: the same bits in every run
    A, D, bias = (t.sum(0) for t in (A, D, bias))
    B, C = (t.sum(0).to(p.B.dtype) for t in (B, C))
    grads = (x, dt, A, B, C, D, initial, z, bias)
    return tuple(None if t is None else g for g, t in zip(grads, p.tensors, strict=True))


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.selective_scan._triton_kernels")


def _programs(p: Problem) -> tuple[int, dict[str, Any]]:
    """Programs, and what they are compiled for."""
    kernels = _kernels()
    modes = gpu.power_of_two(p.A.shape[1])
    block = max(1, _TILE // modes)
    double = p.A.dtype == torch.float64
    return p.seqs * -(-p.x.shape[2] // block), {
        "SOFTPLUS": p.dt_softplus,
        "ZOH": p.zoh,
        "REVERSE": p.reverse,
        "DTYPE": kernels.tl.float64 if double else kernels.tl.float32,
        "BLOCK": block,
        "MODES": modes,
        "num_warps": 1,
    }


def _inputs(p: Problem) -> tuple[Any, ...]:
    """Sequences with their strides, then the parameters."""
    rows = (None if t is None else unit_channels(t) for t in (p.x, p.dt, p.B, p.C, p.z))
    parameters = (None if t is None else dense(t) for t in (p.A, p.D, p.dt_bias))
    sequences = (field for t in (*rows, p.reset) for field in with_strides(t))
    offsets = None if p.cu_seqlens is None else p.cu_seqlens.to(p.x.device, torch.long)
    return (*sequences, *parameters, offsets)


def _sizes(p: Problem) -> tuple[int, int, int, int]:
    _, time, channels = p.x.shape
    return time, channels, p.A.shape[1], min(CHUNK, time)
