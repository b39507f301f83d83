"""`token_mix` by the native kernel ``src/native/kernels/token_mix.cpp``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import accumulator_of, dense, unit_channels
from linrnn.compute.native import array, pointer

_MIX = native.Kernel(
    "token_mix",
    "seqs time channels mixes x x_dtype past mu moved moved_dtype moved_mix reset outputs "
    "output_dtype backward parts grad_x grad_past grad_moved sums",
)
_NO_GRADIENTS = (False, 0, 0, 0, 0, 0)
_CHUNK = 64  # steps of a unit of the kernel's work


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="token_mix")


def forward(
    x: Tensor,
    past: Tensor,
    mu: Tensor,
    moved: Tensor | None,
    reset: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """A tensor for each mix."""
    outputs = tuple(torch.empty(x.shape, dtype=dtype, device="cpu") for _ in mu)
    _run((x, past, mu, _by_channel(moved), reset), outputs, *_NO_GRADIENTS)
    return outputs


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """Gradients of ``x``, ``past``, ``mu`` and ``moved``."""
    (x, past, mu, moved, reset, _), grads = inputs[:6], [dense(g) for g in inputs[6:]]
    moved = _by_channel(moved)
    batch, time, _ = x.shape
    computed = accumulator_of(x, past, mu, moved)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    grad_past = torch.zeros(past.shape, dtype=computed, device="cpu")
    grad_moved = None if moved is None else torch.empty_like(moved)
    parts = native.parts_of(batch * (-(-time // _CHUNK)))
    sums = torch.zeros(parts, *mu.shape, dtype=torch.float64, device="cpu")
    outputs = (pointer(t) for t in (grad_x, grad_past, grad_moved, sums))
    _run((x, past, mu, moved, reset), grads, True, parts, *outputs)
    return grad_x, grad_past.to(past.dtype), sums.sum(0).to(mu.dtype), grad_moved


def _by_channel(moved: Tensor | None) -> Tensor | None:
    """As the kernel reads it: channels side by side, and no number at two places."""
    if moved is None:
        return None
    moved = unit_channels(moved)
    like = torch.empty_like(moved, device="meta")
    return moved if like.stride() == moved.stride() else dense(moved)


def _run(arguments: Sequence[Any], outputs: Sequence[Tensor], *ends: int) -> None:
    x, past, mu, moved, reset = arguments
    computed = accumulator_of(x, past, mu, moved)
    x, past, mu = unit_channels(x), dense(past.to(computed)), dense(mu.to(computed))
    addresses = torch.tensor([y.data_ptr() for y in outputs], device="cpu")
    places = (0, 0, 0) if moved is None else (moved.data_ptr(), *moved.stride()[1:3])
    _MIX(
        computed,
        *(*x.shape, len(mu)),
        *(*array(x), native.DTYPES[x.dtype]),
        *(past.data_ptr(), mu.data_ptr()),
        *places,
        *((0, 0) if moved is None else (native.DTYPES[moved.dtype], moved.stride(0))),
        *array(reset),
        *(addresses.data_ptr(), native.DTYPES[outputs[0].dtype]),
        *ends,
    )
