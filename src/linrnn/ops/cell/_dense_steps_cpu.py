"""A GRU or LSTM along time with the native kernel ``src/native/kernels/dense_steps.cpp``."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import all_dense, dense
from linrnn.ops.half_linear import available, half_outer_sum, half_outer_sums

_KERNEL = native.Kernel(
    "dense_steps",
    "gates backward seqs time channels reset matrix bias parts inner h initial_h initial_c "
    "final_h final_c grad_h grad_parts grad_inner before grad_initial_h grad_initial_c",
)
_HALF = torch.bfloat16


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype of the input, or None."""
    if dtype is not _HALF:
        return f"it has no kernel for {dtype}"
    reason = native.unavailable(device, dtype, real=True, kernel="dense_steps")
    if reason is None and not available():
        return "the processor has no matrix tiles, or the system does not lend them"
    return reason


def forward(
    x: Tensor,
    weight: Tensor,
    matrix: Tensor,
    input_bias: Tensor | None,
    bias: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    reset: Tensor | None,
    *,
    keep: bool,
) -> tuple[Tensor, ...]:
    """Outputs and final states; with ``keep`` also the gates, and what is inside of them."""
    # the biases are added where logits are read: PyTorch's product would begin with a copy of them
    parts, (h0, *cells) = dense(F.linear(x, weight.to(_HALF))), all_dense(_present(h0, c0))
    y = torch.empty((*x.shape[:2], h0.shape[1]), dtype=_HALF, device="cpu")
    inner = [torch.empty_like(y)] if keep else []
    last = [torch.empty_like(h) for h in (h0, *cells)]
    biases = _biases(input_bias, bias, c0)
    _run(matrix, biases, parts, inner, y, [h0, *cells], last, reset)
    return (y, *last, parts, *inner) if keep else (y, *last)


def backward(
    x: Tensor,
    weight: Tensor,
    matrix: Tensor,
    input_bias: Tensor | None,
    bias: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    reset: Tensor | None,
    y: Tensor,
    parts: Tensor,
    inner: Tensor,
    grad_y: Tensor,
    *remaining: Any,
) -> tuple[Tensor | None, ...]:
    """Gradients of the first seven arguments; the last argument says which are needed."""
    *into_last, needs = remaining
    starts = all_dense(_present(h0, c0))
    grad_parts, before = torch.empty_like(parts), torch.empty_like(y)
    grad_inner = torch.empty_like(y) if c0 is None else None
    grads = [torch.empty_like(h) for h in starts]
    places = dense(grad_y), grad_parts, grad_inner, before, grads
    _run(matrix, None, parts, [inner], y, starts, all_dense(into_last), reset, places)
    rows, sums = grad_parts.flatten(0, 1), bias is not None and any(needs[3:5])  # (B T, outputs)
    grad_x = (rows @ weight.to(_HALF)).view(x.shape) if needs[0] else None  # (B, T, inputs)
    if not any(needs[1:5]):
        return grad_x, None, None, None, None, *(*grads, None)[:2]
    # (outputs, inputs), (outputs,)
    grad_weight, total = half_outer_sums(rows, x.flatten(0, 1), sums=sums)
    # (rows, columns), (rows,)
    grad_matrix, total_inner = _of_matrix(rows, grad_inner, before.flatten(0, 1), sums=sums)
    of_weights = grad_weight.to(weight.dtype), grad_matrix.to(matrix.dtype)
    return grad_x, *of_weights, *_of_biases(total, total_inner), *(*grads, None)[:2]


def _run(
    matrix: Tensor,
    bias: Tensor | None,
    parts: Tensor,
    inner: Sequence[Tensor],
    y: Tensor,
    starts: Sequence[Tensor],
    last: Sequence[Tensor],
    reset: Tensor | None,
    adjoint: tuple[Any, ...] | None = None,
) -> None:
    """Compute; with ``adjoint``, its places, against time."""
    matrix, pointer = dense(matrix.to(_HALF)), native.pointer
    sizes = matrix.shape[0] // matrix.shape[1], adjoint is not None, *y.shape
    states = [pointer(h) for pair in (starts, last) for h in (*pair, None)[:2]]
    *of_steps, of_starts = adjoint or (None, None, None, None, [None, None])
    grads = [pointer(g) for g in (*of_steps, *(*of_starts, None)[:2])]
    arrays = parts.data_ptr(), pointer(inner[0] if inner else None), y.data_ptr()
    marks = native.array(reset)
    _KERNEL(_HALF, *sizes, *marks, matrix.data_ptr(), pointer(bias), *arrays, *states, *grads)


def _present(h: Tensor, c: Tensor | None) -> list[Tensor]:
    return [h] if c is None else [h, c]


def _biases(input_bias: Tensor | None, bias: Tensor | None, c0: Tensor | None) -> Tensor | None:
    """The biases of each logit, and last, of a GRU, the one inside of its third, (4 * D,)."""
    if input_bias is None or bias is None:
        return None
    if c0 is not None:
        return dense(input_bias + bias)
    outer = len(bias) // 3 * 2
    # (outputs,)
    return torch.cat([input_bias[:outer] + bias[:outer], input_bias[outer:], bias[outer:]])


def _of_matrix(
    rows: Tensor, grad_inner: Tensor | None, before: Tensor, *, sums: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradient of the matrix, and with ``sums`` that of a bias inside of the last gate."""
    if grad_inner is None:
        return half_outer_sum(rows, before), None
    outer = half_outer_sum(rows[:, : rows.shape[1] // 3 * 2], before)
    # (rows, columns), (rows,)
    inner, total = half_outer_sums(grad_inner.flatten(0, 1), before, sums=sums)
    return torch.cat([outer, inner]), total  # (gates * D, D)


def _of_biases(
    total: Tensor | None, total_inner: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of both biases, from sums over the logits and over what is inside of the last."""
    if total is None:
        return None, None
    if total_inner is None:
        return total, total.clone()
    return total, torch.cat([total[: len(total) // 3 * 2], total_inner])  # (outputs,), (outputs,)
