"""`low_rank_keys` by the native kernel ``src/native/kernels/low_rank_keys.cpp``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import accumulator_of, dense

_KEYS = native.Kernel(
    "low_rank_keys",
    "rows heads width eps scale key key_dtype rate rate_dtype decay decay_dtype direction relax "
    "k a b out_dtype g backward parts grad_key grad_rate grad_decay sums",
)
_NO_GRADIENTS = (False, 0, 0, 0, 0, 0)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="low_rank_keys")


def forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Keys, both factors of the low rank, and the logarithms of decays."""
    tensors, (*_, dtype) = arguments[:5], arguments[5:]
    shape = tensors[0].shape
    outputs = [torch.empty(shape, dtype=dtype, device="cpu") for _ in range(3)]
    outputs.append(torch.empty(shape, dtype=accumulator_of(*tensors), device="cpu"))
    _run(arguments, outputs, *_NO_GRADIENTS)
    return tuple(outputs)


def backward(*inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of the five tensors."""
    arguments, grads = inputs[:-4], [dense(g) for g in inputs[-4:]]
    *by_row, direction, relax = arguments[:5]
    into = [torch.empty(t.shape, dtype=t.dtype, device="cpu") for t in by_row]
    rows = by_row[0].numel() // max(1, direction.numel())
    parts = native.parts_of(rows // 32)
    sums = torch.zeros(parts, 2, direction.numel(), dtype=torch.float64, device="cpu")
    _run(arguments, grads, True, parts, *(t.data_ptr() for t in (*into, sums)))
    of_direction, of_relax = sums.sum(0)
    return *into, of_direction.to(direction.dtype), of_relax.to(relax.dtype)


def _run(arguments: Sequence[Any], outputs: Sequence[Tensor], *ends: int) -> None:
    tensors, (heads, scale, eps, dtype) = arguments[:5], arguments[5:]
    computed = accumulator_of(*tensors)
    *by_row, direction, relax = (dense(t) for t in tensors)
    vectors = [dense(t.to(computed)) for t in (direction, relax)]
    channels = direction.numel()
    if not by_row[0].numel():
        return
    rows = by_row[0].numel() // channels
    k, a, b, g = outputs
    _KEYS(
        computed,
        *(rows, heads, channels // heads, eps, scale),
        *(word for t in by_row for word in (t.data_ptr(), native.DTYPES[t.dtype])),
        *(t.data_ptr() for t in vectors),
        *(t.data_ptr() for t in (k, a, b)),
        native.DTYPES[dtype],
        g.data_ptr(),
        *ends,
    )
