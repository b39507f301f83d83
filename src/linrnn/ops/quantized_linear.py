"""Products with weights of 8 or 4 bits: what they mean, and the kernel that computes them.

A matrix (outputs, inputs) is cut along its rows into groups. A group has a scale, and may have the
whole number that stands for zero: a weight is ``(u - zero) * scale``, where u has no sign and
``zero`` is half of its range unless it is stored. It lies in memory as the kernel reads it
(``src/native/quantized.h``), on every device: 16 outputs are a tile.
"""

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.backend import requested
from linrnn.compute.layout import accumulator_dtype, unit_channels
from linrnn.compute.modes import eager
from linrnn.compute.native import pointer

TILE = 16
"""Outputs that lie side by side."""
_QUANTIZED = native.Kernel(
    "quantized",
    "bits outputs inputs group groups weight scales zeros rows digits x x_step bias y y_step "
    "first count",
)
#: More rows than these are a product of PyTorch's with blocks of the weights as floats, unless the
#: processor multiplies bytes: then the kernel takes 0.35 to 0.65 of the time of PyTorch's product
#: of float32 with 16 to 512 rows, and 0.6 to 1.15 of that of bfloat16 (2048 x 2048, 2026-11-28,
#: EPYC with VNNI and without AMX, one core, in turn). Blocks take 1.4 of it with 16 rows, 1.05 with
#: 128.
_MOST_ROWS = 32
_BLOCK = 1 << 18  # numbers of such a block, which stays in the second-level cache
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Form(NamedTuple):
    """The meaning of the bytes of a matrix."""

    inputs: int
    outputs: int
    bits: int
    group: int
    """Inputs that share a scale, a multiple of 8; the last group may be filled with zeros."""

    @property
    def tiles(self) -> int:
        """Number of tiles of outputs."""
        return -(-self.outputs // TILE)

    @property
    def groups(self) -> int:
        """Number of groups of each output."""
        return -(-self.inputs // self.group)


def pack(u: Tensor, form: Form) -> Tensor:
    """Lay numbers (outputs, inputs) out as a kernel reads them.

    Args:
        u: whole numbers from 0 to 255, or to 15 of 4 bits.
        form: the sizes.

    Returns:
        (tiles, groups, bytes), uint8.
    """
    tiles, groups = form.tiles, form.groups
    padding = (0, groups * form.group - form.inputs, 0, tiles * TILE - form.outputs)
    u = F.pad(u.to(torch.uint8), padding)  # (rows, columns)
    if form.bits == 8:
        # (tiles, groups, words, TILE, 4)
        u = u.view(tiles, TILE, groups, -1, 4).permute(0, 2, 3, 1, 4)
        return u.reshape(tiles, groups, -1)  # (tiles, groups, numbers)
    # (2, tiles, groups, words, TILE, 4)
    u = u.view(tiles, TILE, groups, -1, 2, 4).permute(4, 0, 2, 3, 1, 5)
    return (u[0] | (u[1] << 4)).reshape(tiles, groups, -1)  # (tiles, groups, numbers)


def unpack(packed: Tensor, form: Form) -> Tensor:
    """The numbers (outputs, inputs) of `pack`."""
    tiles, groups = form.tiles, form.groups
    if form.bits == 8:
        # (tiles, TILE, groups, words, 4)
        u = packed.view(tiles, groups, -1, TILE, 4).permute(0, 3, 1, 2, 4)
    else:
        both = packed.view(tiles, groups, -1, TILE, 4)  # (tiles, groups, words, TILE, 4)
        # (tiles, TILE, groups, words, 2, 4)
        u = torch.stack((both & 15, both >> 4)).permute(1, 4, 2, 3, 0, 5)
    return u.reshape(tiles * TILE, -1)[: form.outputs, : form.inputs]  # (outputs, inputs)


def weights(packed: Tensor, scales: Tensor, form: Form, dtype: torch.dtype) -> Tensor:
    """The matrix (outputs, inputs) that is stored, rounded to a dtype."""
    accumulator = torch.float64 if dtype is torch.float64 else torch.float32
    u = unpack(packed, form).to(accumulator)
    # of each tile (groups, 1 or 2, 16)
    parts = scales.to(accumulator).permute(2, 0, 3, 1).reshape(scales.shape[2], -1, form.groups)
    # (parts, outputs, inputs)
    parts = parts[:, : form.outputs].repeat_interleave(form.group, 2)[..., : form.inputs]
    zero = parts[1] if len(parts) > 1 else float(1 << (form.bits - 1))
    return ((u - zero) * parts[0]).to(dtype)


def quantized_linear(
    x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None, form: Form, digits: int = 3
) -> Tensor:
    """``x W^T + bias``, where W is stored in 8 or 4 bits a number.

    On a CPU a few rows are multiplied by a kernel that reads the bytes of W once. Where the
    processor multiplies bytes (VNNI) it does, and x is split into digits; elsewhere it computes
    with floats, as precisely as with three digits.

    Args:
        x: (..., inputs).
        packed, scales: (tiles, groups, bytes) as of `pack`, and bfloat16 (tiles, groups, 1 or 2,
            16): the scale of each group, and the number that stands for zero.
        bias: (outputs), of the dtype of x.
        form: the sizes.
        digits: of 8 bits, that the largest number of each group of x is split into, 1 to 3.
    """
    if eager(x) and not torch.is_grad_enabled():
        return _product(x, packed, scales, bias, *form, digits)
    if torch._C._are_functorch_transforms_active():
        return _definition(x, packed, scales, bias, form)
    y: Tensor = torch.ops.linrnn.quantized_linear(x, packed, scales, bias, *form, digits)
    return y


def _definition(
    x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None, form: Form
) -> Tensor:
    accumulator = accumulator_dtype(x.dtype)
    y = F.linear(x.to(accumulator), weights(packed, scales, form, accumulator)).to(x.dtype)
    return y if bias is None else y + bias


def _product(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    inputs: int,
    outputs: int,
    bits: int,
    group: int,
    digits: int,
) -> Tensor:
    form = Form(inputs, outputs, bits, group)
    if not _native(x) or not x.numel():
        return _definition(x, packed, scales, bias, form)
    rows = unit_channels(x.reshape(-1, inputs))  # (rows, inputs)
    if len(rows) > _MOST_ROWS and not _multiplies_bytes():
        y = _by_blocks(rows, packed, scales, form)
        y = y if bias is None else y.add_(bias)
    else:
        y = torch.empty((len(rows), outputs), dtype=x.dtype, device="cpu")
        where = (pointer(rows), rows.stride(0), pointer(bias), pointer(y), outputs)
        _run(x.dtype, packed, scales, form, (len(rows), digits, *where, 0, 0))
    return y.view(*x.shape[:-1], outputs)  # (..., outputs)


def _native(x: Tensor) -> bool:
    """Whether the kernel computes: the definition does where another backend is requested."""
    backend = requested(None)[0]
    return x.is_cpu and x.dtype in _DTYPES and backend in ("auto", "cpu") and _loaded()


@functools.cache
def _loaded() -> bool:
    return native.unavailable(torch.device("cpu"), torch.float32, kernel="quantized") is None


@functools.cache
def _multiplies_bytes() -> bool:
    """Whether the kernel has whole numbers multiplied; read as `has_vnni` of the kernel is."""
    library, _ = native.load()
    supported = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    return library is not None and library.isa == "avx512" and bool(supported())


def _run(
    dtype: torch.dtype, packed: Tensor, scales: Tensor, form: Form, remaining: tuple[Any, ...]
) -> None:
    sizes = (form.bits, form.outputs, form.inputs, form.group, form.groups)
    _QUANTIZED(dtype, *sizes, pointer(packed), pointer(scales), scales.shape[2] > 1, *remaining)


def _by_blocks(x: Tensor, packed: Tensor, scales: Tensor, form: Form) -> Tensor:
    """Products of PyTorch's with some rows of the weights at a time, as numbers of x's dtype."""
    y = x.new_empty((x.shape[0], form.outputs))
    step = max(TILE, _BLOCK // form.inputs // TILE * TILE)
    room = torch.empty((min(step, form.outputs), form.inputs), device="cpu")
    for first in range(0, form.outputs, step):
        n = min(step, form.outputs - first)
        _run(x.dtype, packed, scales, form, (0, 0, 0, 0, 0, pointer(room), form.inputs, first, n))
        torch.mm(x, room[:n].to(x.dtype).T, out=y[:, first : first + n])
    return y


_library = torch.library.Library("linrnn", "FRAGMENT")
_library.define(
    "quantized_linear(Tensor x, Tensor packed, Tensor scales, Tensor? bias, int inputs, "
    "int outputs, int bits, int group, int digits) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("quantized_linear", _product, "CompositeExplicitAutograd")


def _shaped(x: Tensor, packed: Tensor, scales: Tensor, bias: Any, *sizes: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], sizes[1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, packed, scales, bias, *sizes = inputs
    ctx.save_for_backward(packed, scales)
    ctx.form, ctx.bias = Form(*sizes[:4]), bias is not None


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of x and of the bias; the weights have none."""
    packed, scales = ctx.saved_tensors
    accumulator = accumulator_dtype(grad.dtype)
    to_x = (grad.to(accumulator) @ weights(packed, scales, ctx.form, accumulator)).to(grad.dtype)
    # (outputs,)
    to_bias = grad.flatten(0, -2).sum(0) if ctx.bias and ctx.needs_input_grad[3] else None
    return to_x, None, None, to_bias, *(None,) * 5


torch.library.register_fake("linrnn::quantized_linear", _shaped, lib=_library)
torch.library.register_autograd(
    "linrnn::quantized_linear", _gradients, setup_context=_keep, lib=_library
)
