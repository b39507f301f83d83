"""The weighted mean of RWKV-4 with the native kernel ``src/native/kernels/wkv.cpp``."""

import functools
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import all_unit_channels, dense
from linrnn.errors import BackendError
from linrnn.ops.linear.weighted_mean import EMPTY

_KERNEL = native.Kernel(
    "wkv",
    "backward seqs time channels k v r decay bonus reset empty initial_mean initial_norm y "
    "final_mean final_norm marks grad_y grad_k grad_v grad_r grad_mean grad_norm sums",
)
_HALF = torch.bfloat16
_WINDOW = 8  # WINDOW of the kernel
_NO_ADJOINT = (*native.array(None), 0, 0, 0, 0, 0, 0)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    if dtype is not _HALF:
        return f"it has no kernel for {dtype}"
    return native.unavailable(device, dtype, real=True, kernel="wkv") or _refusal()


@functools.cache
def _refusal() -> str | None:
    """Why the kernel refuses a call of one number, or None."""
    x = torch.zeros(1, 1, 1, dtype=_HALF, device="cpu")
    row, state = (torch.zeros(size, device="cpu") for size in ((1,), (1, 1)))
    try:
        forward(x, x, x, row, row, state, state, None)
    except BackendError as error:
        return str(error)
    return None


def forward(
    k: Tensor,
    v: Tensor,
    r: Tensor,
    decay: Tensor,
    bonus: Tensor,
    mean: Tensor,
    log_norm: Tensor,
    reset: Tensor | None,
    *,
    keep: bool = False,
) -> tuple[Tensor, ...]:
    """Outputs and final states; with ``keep`` also the states before each window of steps."""
    y = torch.empty(k.shape, dtype=_HALF, device="cpu")
    finals = [torch.empty(mean.shape, dtype=torch.float32, device="cpu") for _ in range(2)]
    shape = len(mean), -(-k.shape[1] // _WINDOW), 2, mean.shape[1]
    marks = [torch.empty(shape, dtype=torch.float32, device="cpu")] if keep else []
    _run(k, v, r, decay, bonus, mean, log_norm, reset, [y, *finals, *marks], *_NO_ADJOINT)
    return y, *finals, *marks


def backward(
    k: Tensor,
    v: Tensor,
    r: Tensor,
    decay: Tensor,
    bonus: Tensor,
    mean: Tensor,
    log_norm: Tensor,
    reset: Tensor | None,
    *saved: Any,
) -> tuple[Tensor, ...]:
    """Gradients of the first seven arguments."""
    marks, grad_y, *into_finals = saved
    (grad_y,), into_finals = all_unit_channels([grad_y]), [dense(g) for g in into_finals]
    grads = [torch.empty(k.shape, dtype=_HALF, device="cpu") for _ in range(3)]
    of_states = [torch.empty(mean.shape, dtype=torch.float32, device="cpu") for _ in range(2)]
    sums = torch.empty((len(mean), 2, mean.shape[1]), dtype=torch.float64, device="cpu")
    places = [x.data_ptr() for x in (*grads, *of_states, sums)]
    results = [None, *into_finals, marks]
    _run(k, v, r, decay, bonus, mean, log_norm, reset, results, *native.array(grad_y), *places)
    of_decay, of_bonus = sums.sum(0).to(torch.float32)
    return *grads, of_decay, of_bonus, *of_states


def _run(
    k: Tensor,
    v: Tensor,
    r: Tensor,
    decay: Tensor,
    bonus: Tensor,
    mean: Tensor,
    log_norm: Tensor,
    reset: Tensor | None,
    results: list[Tensor | None],
    *adjoint: int,
) -> None:
    """Compute; with places of gradients, against time."""
    k, v, r = all_unit_channels([k, v, r])
    decay, bonus, mean, log_norm = dense(decay), dense(bonus), dense(mean), dense(log_norm)
    y, final_mean, final_norm, marks = (*results, None)[:4]
    _KERNEL(
        _HALF,
        bool(adjoint[0]),
        *k.shape,
        *native.array(k),
        *native.array(v),
        *native.array(r),
        decay.data_ptr(),
        bonus.data_ptr(),
        *native.array(reset),
        EMPTY,
        mean.data_ptr(),
        log_norm.data_ptr(),
        *native.array(y),
        native.pointer(final_mean),
        native.pointer(final_norm),
        native.pointer(marks),
        *adjoint,
    )
