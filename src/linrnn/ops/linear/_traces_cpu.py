"""Traces of linear maps by the native kernel ``src/native/kernels/traces.cpp``."""

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import dense
from linrnn.compute.native import pointer

_TRACES = native.Kernel(
    "traces",
    "parts rows outputs inputs channels index before after keep slope x credit total pairs gain",
)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    if dtype in (torch.bfloat16, torch.float16):
        return f"it has no kernel for {dtype}"
    return native.unavailable(device, dtype, real=True, kernel="traces")


def advance(
    trace: Tensor, keep: Tensor, index: Tensor, slope: Tensor | None, x: Tensor | None
) -> Tensor:
    """`linrnn.ops.linear.traces.advance`, of one step or none."""
    trace, keep, index = dense(trace), dense(keep), dense(index)
    slope, x = None if slope is None else dense(slope), None if x is None else dense(x)
    new_trace = torch.empty_like(trace)
    addresses = (pointer(z) for z in (index, trace, new_trace, keep, slope, x))
    _TRACES(trace.dtype, *trace.shape, keep.shape[-1], *addresses, 0, 0, 0, 0)
    return new_trace


def credited(trace: Tensor, credit: Tensor, index: Tensor, pairs: Tensor | None) -> Tensor:
    """`linrnn.ops.linear.traces.credited`."""
    trace, credit, index = dense(trace), dense(credit), dense(index)
    pairs = None if pairs is None else dense(pairs)
    outputs, inputs = trace.shape[2:]
    total = trace.new_empty(outputs if pairs is None else 2 * outputs, inputs)
    addresses = (pointer(index), pointer(trace), 0, 0, 0, 0, pointer(credit), pointer(total))
    _TRACES(trace.dtype, *trace.shape, credit.shape[-1], *addresses, pointer(pairs), 0)
    return total


def learned(
    trace: Tensor | None,
    keep: Tensor,
    index: Tensor,
    slope: Tensor,
    x: Tensor,
    credit: Tensor,
    gain: Tensor,
    pairs: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`linrnn.ops.linear.traces.learned`."""
    trace = None if trace is None else dense(trace)
    pairs = None if pairs is None else dense(pairs)
    operands = [dense(z) for z in (keep, index, slope, x, credit, gain)]
    keep, index, slope, x, credit, gain = operands
    rows, parts, outputs = slope.shape
    shape = (parts, rows, outputs, x.shape[1])
    new_trace, total = x.new_empty(shape), x.new_empty(gain.shape[1], x.shape[1])
    addresses = (
        pointer(z) for z in (index, trace, new_trace, keep, slope, x, credit, total, pairs, gain)
    )
    _TRACES(x.dtype, *shape, keep.shape[-1], *addresses)
    return new_trace, total
