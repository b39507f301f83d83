"""`fft_conv`: a long causal convolution along time by FFT, with what came before as its state."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.arguments import (
    check_device,
    check_flags,
    check_numbers,
    check_packed,
    check_reset,
)
from linrnn.compute.layout import accumulator_dtype, ends, mirrored
from linrnn.compute.op import Op
from linrnn.errors import check_shape
from linrnn.ops.conv._fft import causal_product, cuts, piecewise, strict_product
from linrnn.ops.conv.causal_conv import convolve as convolve_taps
from linrnn.ops.conv.past import last_inputs
from linrnn.typing import CuSeqlens, Float, ResetMask


def fft_conv(
    x: Float[Tensor, "batch time channels"],
    kernel: Float[Tensor, "channels width"],
    initial_state: Float[Tensor, "seqs past channels"] | None = None,
    *,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    strict: bool = False,
    backend: str | None = None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "seqs kept channels"]]:
    r"""Convolve every channel with its own long kernel, reaching back in time only.

    Equation::

        y_t = sum_{j < width} kernel[:, j] * x_{t-j}

    computed with FFTs over time and past together, O(n log n). `causal_conv` is the one for a few
    taps. The rounding error of an FFT is spread evenly over its outputs, so a huge input changes
    what comes before it in its row and channel by some roundings of the largest number there, and
    NaN, infinity or an overflow make that NaN, as in `fft_scan`; not so with ``strict``, where the
    first 32 taps are summed one by one and FFTs are of blocks that lie before their outputs: four
    times slower for 256 to 16,384 steps (one thread of a busy AMD EPYC). What resets and
    ``cu_seqlens`` cut apart is convolved apart, those of about one length together.

    Args:
        x: input, real.
        kernel: taps of every channel, that of the current input first.
        initial_state: inputs before the first, oldest first, one row for each packed sequence; as
            many as there are, those before them are zero and those more than ``width - 1`` steps
            back are not seen. None is none.
        reset: boolean (batch, time); no sum reaches over a True.
        cu_seqlens, reverse: as in `linear_scan`; in reverse, the past is what comes after.
        strict: let no output depend on later inputs in any digit.
        backend: all are the same, PyTorch's FFT.

    Returns:
        ``(y, final_state)``: the outputs in the dtype of ``x``, and the last ``width - 1`` inputs,
        float32 for half precision, which is computed in float32. Gradients flow to ``x``,
        ``kernel`` and ``initial_state`` from both, to any order.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: ``cu_seqlens`` that do not rise from 0 to ``time``.

    Example:
        >>> import torch
        >>> from linrnn.ops import fft_conv
        >>> x = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
        >>> y, last = fft_conv(x, torch.tensor([[1.0, 0.5]]))
        >>> y.flatten(), last.flatten()
        (tensor([1.0000, 2.5000, 4.0000]), tensor([3.]))
    """
    where = "fft_conv"
    check_numbers(where, {"x": x, "kernel": kernel}, real=True, initial_state=initial_state)
    check_flags(where, reverse=reverse, strict=strict)
    check_shape(where, "x", x.shape, {"batch": None, "time": None, "channels": None})
    batch, time, channels = x.shape
    check_shape(where, "kernel", kernel.shape, {"channels": channels, "width": None})
    taps = kernel.shape[1]
    if taps == 0:
        check_shape(where, "kernel", kernel.shape, {"channels": channels, "width": 1})
    seqs = check_packed(where, "x", x, cu_seqlens)
    if initial_state is not None:
        rows = "batch" if cu_seqlens is None else "sequences"
        axes: dict[str, int | None] = {rows: seqs, "past": None, "channels": channels}
        check_shape(where, "initial_state", initial_state.shape, axes)
    check_reset(where, reset, batch, time)
    check_device(where, "x", x.device, kernel=kernel, initial_state=initial_state, reset=reset)
    store = torch.float64 if kernel.dtype == torch.float64 else x.dtype
    compute_dtype = accumulator_dtype(store)
    past = x.new_zeros(seqs, 0, channels, dtype=compute_dtype)
    past = past if initial_state is None else initial_state.to(compute_dtype)
    cast_kernel = kernel.to(compute_dtype)
    y = convolve(x.to(store), past, cast_kernel, reset, cu_seqlens, reverse, backend, strict=strict)
    if past.shape[1] != taps - 1:  # oldest first: others are zero, or cut off
        past = F.pad(past, (0, 0, taps - 1 - past.shape[1], 0))  # (seqs, taps - 1, C)
    return y, last_inputs(x, past, reset, cu_seqlens, reverse)


def convolve(
    x: Tensor,
    past: Tensor,
    kernel: Tensor,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
    backend: str | None = None,
    *,
    strict: bool = False,
) -> Tensor:
    """The outputs of `fft_conv` for checked arguments and any past (S, P, C)."""
    y: Tensor = _OP(x, past, kernel, reset, cu_seqlens, reverse, strict, backend=backend)
    return y


def _definition(
    x: Tensor,
    past: Tensor,
    kernel: Tensor,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    strict: bool,
    *,
    backend: str | None = None,
) -> Tensor:
    if x.numel() == 0:
        return x.clone()
    if reset is not None and torch._C._functorch.is_batchedtensor(reset):
        # where the pieces lie is another matter for each call
        return _tap_by_tap(x, past, kernel, reset, cu_seqlens, reverse)
    if reverse:
        x, past, reset, cu_seqlens = mirrored(x, past, reset, cu_seqlens)
    compute_dtype = torch.promote_types(kernel.dtype, past.dtype)
    past = past[:, max(0, past.shape[1] - kernel.shape[1] + 1) :].to(compute_dtype)
    inputs, kernel = x.to(compute_dtype), kernel.to(compute_dtype)
    if cu_seqlens is not None:
        y = _packed(inputs, past, kernel, reset, cu_seqlens, strict)
    else:
        u, past_steps = torch.cat([past, inputs], 1), past.shape[1]  # (B, P + T, C)
        if reset is None:
            y = (strict_product if strict else causal_product)(u, kernel, past_steps)
        else:
            cut = F.pad(reset, (past_steps, 0))  # (B, past_steps + T)
            y = _pieces(u, kernel, cut, strict=strict)[:, past_steps:]
    y = y.to(x.dtype)
    return y.flip(1) if reverse else y


def _packed(
    x: Tensor,
    past: Tensor,
    kernel: Tensor,
    reset: Tensor | None,
    cu_seqlens: Tensor,
    strict: bool,
) -> Tensor:
    """Every sequence behind its past, in one row."""
    time, width = x.shape[1], past.shape[1]
    offsets, t = cu_seqlens.to(x.device, torch.long), torch.arange(time, device=x.device)
    sequence = torch.arange(past.shape[0], device=x.device)[:, None]
    past_place = offsets[:-1, None] + sequence * width + torch.arange(width, device=x.device)
    place = t + (torch.searchsorted(offsets[1:], t, right=True) + 1) * width
    order = torch.cat([past_place.flatten(), place]).argsort()  # (S * P + T,)
    u = torch.cat([past.flatten(0, 1), x[0]])[order][None]  # (1, seqs * width + time, channels)
    cut = None
    if reset is not None:
        cut = reset.new_zeros(u.shape[1]).index_put((place,), reset[0])[None]
    lengths = torch.arange(len(offsets), device=x.device) * width
    return _pieces(u, kernel, cut, offsets + lengths, strict=strict)[:, place]


def _pieces(
    u: Tensor,
    kernel: Tensor,
    reset: Tensor | None,
    cu_seqlens: Tensor | None = None,
    *,
    strict: bool,
) -> Tensor:
    product = strict_product if strict else causal_product
    start = cuts(u, reset, ends(u, cu_seqlens))
    return piecewise(u, start, lambda inputs, _: product(inputs, kernel))


def _tap_by_tap(
    x: Tensor,
    past: Tensor,
    kernel: Tensor,
    reset: Tensor,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> Tensor:
    """The definition for a few taps, to which resets are numbers."""
    past = F.pad(past, (0, 0, kernel.shape[1] - 1 - past.shape[1], 0))  # (seqs, taps - 1, C)
    y, _ = convolve_taps(x, past, kernel.flip(1), None, reset, cu_seqlens, False, reverse)
    return y


_OP = Op(
    "fft_conv",
    "Tensor x, Tensor past, Tensor kernel, Tensor? reset, Tensor? cu_seqlens, bool reverse, "
    "bool strict",
    gradients=3,
    results=1,
    definition=_definition,
    shapes=lambda x, *rest: x.new_empty(x.shape),
    kernels={},
    opaque=True,
)
