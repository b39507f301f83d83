"""The causal convolution by the Triton kernels in ``_triton_kernels.py``: what runs where."""

import functools
import importlib
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import Launch, layout
from linrnn.compute.layout import accumulator_dtype, dense, n_sequences, unit_channels

#: Steps of a program: few enough for programs to fill a device, and enough to hide that it begins
#: with the last inputs of the one before.
SHORTEST, LONGEST = 32, 256
#: Programs of a multiprocessor that are wanted, of one warp each.
PROGRAMS = 16
#: Steps whose rows are under way at once.
STEPS, STEPS_BACK = 8, 4
#: Taps of a kernel: each is a row of channels in registers, twice in the backward pass.
MOST_TAPS = 8


class _Launches(NamedTuple):
    """The kernels of a layout."""

    chunks: int  # of the longest sequence there can be
    forward: Launch
    backward: Launch | None
    sums: Launch | None


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return f"it has no kernel for {dtype}" if dtype.is_complex else gpu.unavailable(device, dtype)


def declines(x: Tensor, past: Tensor, weight: Tensor, *remaining: Any) -> str | None:
    """Why operators are the better way, or None."""
    width = weight.shape[1]
    if 1 < width <= MOST_TAPS:
        return None
    return f"kernels have 2 to {MOST_TAPS} taps, and not {width}"


def forward(
    x: Tensor,
    past: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
    reverse: bool,
) -> Tensor:
    """The output."""
    x = unit_channels(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    seqs = n_sequences(x, cu_seqlens)
    run = _launches(layout(x), None, layout(reset), seqs, *_kinds(weight, bias), silu, reverse,
                    cu_seqlens is not None, x.device)  # fmt: skip
    with torch.cuda.device_of(x):
        run.forward(*_inputs(x, past, weight, bias, reset, cu_seqlens), y)
    return y


def backward(
    x: Tensor,
    past: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
    reverse: bool,
    grad_y: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of ``x``, ``past``, ``weight`` and ``bias``."""
    x, grad_y = unit_channels(x), unit_channels(grad_y)
    seqs, (channels, width), compute_dtype = len(past), weight.shape, accumulator_dtype(x.dtype)
    run = _launches(layout(x), layout(grad_y), layout(reset), seqs, *_kinds(weight, bias), silu,
                    reverse, cu_seqlens is not None, x.device)  # fmt: skip
    empty = functools.partial(torch.empty, dtype=compute_dtype, device=x.device)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grad_past, sums = empty(past.shape), empty(seqs * run.chunks, width + 1, channels)
    grad_weight, grad_bias = empty(weight.shape), empty(channels)
    assert run.backward is not None
    assert run.sums is not None
    with torch.cuda.device_of(x):
        inputs = _inputs(x, past, weight, bias, reset, cu_seqlens)
        run.backward(*inputs, grad_y, grad_x, grad_past, sums)
        run.sums(sums, grad_weight, grad_bias)
    grads = grad_past.to(past.dtype), grad_weight.to(weight.dtype), grad_bias.to(weight.dtype)
    return grad_x, *grads


def _inputs(
    x: Tensor,
    past: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor | None, ...]:
    compute_dtype = accumulator_dtype(x.dtype)
    past, weight = dense(past.to(compute_dtype)), dense(weight.to(compute_dtype))
    bias = None if bias is None else dense(bias.to(compute_dtype))
    offsets = cu_seqlens
    if offsets is not None:
        offsets = offsets.to(x.device, torch.int64).contiguous()
    return x, past, weight, bias, reset, offsets


def _kinds(weight: Tensor, bias: Tensor | None) -> tuple[int, bool]:
    return weight.shape[1], bias is not None


@functools.lru_cache(maxsize=256)
def _launches(
    inputs: tuple[Any, ...],
    grads: tuple[Any, ...] | None,
    resets: tuple[Any, ...] | None,
    seqs: int,
    width: int,
    has_bias: bool,
    silu: bool,
    reverse: bool,
    packed: bool,
    device: torch.device,
) -> _Launches:
    """How calls of one layout are computed; without ``grads`` the forward pass alone.

    Args:
        inputs, grads, resets: layouts of the input, of the output's gradient and of resets.
        seqs: how many sequences there are.
        width: taps.
        has_bias, silu, reverse: of the call.
        packed: whether the sequences lie in one row.
        device: of all tensors, on which kernels are loaded.
    """
    kernels, tl = _kernels(), gpu.language()
    (_, time, channels), strides, dtype = inputs
    block = _block(channels, dtype.itemsize)
    blocks, rows = -(-channels // block), 1 if packed else seqs
    chunk = -(-time * rows * blocks // (PROGRAMS * gpu.processors(device)))
    chunk = min(max(gpu.power_of_two(chunk), SHORTEST), LONGEST)
    chunks = -(-time // chunk)
    accumulator = tl.float64 if dtype == torch.float64 else tl.float32
    fixed = {
        "x_seq": strides[0], "x_step": strides[1], "time": time, "channels": channels,
        "chunks": chunks, "chunk": chunk, "WIDTH": width, "SILU": silu, "FLIP": reverse,
        "DTYPE": accumulator, "BLOCK": block,
    }  # fmt: skip
    fixed |= {"reset_seq": 0, "reset_step": 0}
    if resets is not None:
        fixed |= {"reset_seq": resets[1][0], "reset_step": resets[1][1]}
    # fusing a multiplication and an addition saves a rounding; the default changes with Triton 3.10
    options = {"num_warps": 1, "enable_fp_fusion": True}
    programs = seqs * chunks * blocks
    forward = Launch(kernels.run_forward, programs, fixed | {"UNROLL": STEPS}, options)
    if grads is None:
        return _Launches(chunks, forward, None, None)
    fixed |= {"g_seq": grads[1][0], "g_step": grads[1][1], "UNROLL": STEPS_BACK}
    backward = Launch(kernels.run_backward, programs, fixed, options)
    sums = {"batch": seqs * chunks, "channels": channels, "WIDTH": width, "WIDE": tl.float64}
    sums |= {"ROWS": 32, "BLOCK": 32}
    columns = -(-channels // 32) * (width + 1)
    return _Launches(chunks, forward, backward, Launch(kernels.run_sums, columns, sums, {}))


def _block(channels: int, itemsize: int) -> int:
    """Channels of a program: of a warp's threads, each reads 128 bits at once where it can."""
    return min(512 // itemsize, max(32, gpu.power_of_two(channels)))


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.conv.causal_conv._triton_kernels")
