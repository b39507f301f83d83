"""`log_linear_scan` under `torch.func`: its derivatives are linear recurrences of shares."""

import functools
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.derivatives import Gradients
from linrnn.compute.layout import previous_state
from linrnn.ops.linear.linear_scan.op import linear
from linrnn.ops.linear.linear_scan.transforms import backward_in_time, fold, operators_alone, unfold
from linrnn.ops.linear.loop import LOG, loop

_ZERO = float("-inf")  # the logarithm of nothing


def transformed_log_scan(compute: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
    """``(log_h, final_state)`` of the arguments of its operator; ``compute`` does the work."""
    if operators_alone():
        return loop(LOG, *arguments[:-1])
    h, final = TransformableLogScan.apply(compute, *arguments)
    return h, final


class TransformableLogScan(torch.autograd.Function):
    """``(log_h, final_state)``; its derivatives are linear recurrences of shares."""

    @staticmethod
    def forward(compute: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Run the scan."""
        result: tuple[Tensor, ...] = compute(*inputs)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the derivatives need."""
        ctx.compute, *tensors, ctx.reverse, _ = inputs
        ctx.save_for_backward(*tensors, output[0])
        ctx.save_for_forward(*tensors, output[0])

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor, grad_final: Tensor) -> tuple[Tensor | None, ...]:
        """The adjoint of ``dh_t = keep_t (dh_{t-1} + da_t) + added_t db_t``."""
        *arguments, log_h = ctx.saved_tensors
        operands = (*arguments, ctx.reverse, log_h, grad_h, grad_final)
        grads = log_scan_adjoint(functools.partial(backward_in_time, _linear), *operands)
        return None, *grads, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        """``dh_t = keep_t (dh_{t-1} + da_t) + added_t db_t``."""
        _, into_a, into_b, into_initial, *_ = tangents
        log_a, log_b, initial_state, reset, cu_seqlens, log_h = ctx.saved_tensors
        layout = (reset, cu_seqlens, ctx.reverse)
        keep, added = shares(log_a, log_b, log_h, initial_state, *layout)
        into = torch.zeros_like(log_h) if into_b is None else added * into_b
        if into_a is not None:
            into = into + keep * into_a
        return _linear(keep, into, into_initial, *layout)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], compute: Any, *inputs: Any) -> Any:
        """Fold the mapped axis into the batch."""
        folded = fold(info.batch_size, in_dims[1:5], inputs)
        outputs = transformed_log_scan(compute, *folded, *inputs[5:])
        return unfold(outputs, info.batch_size, inputs[4] is not None), (0, 0)  # (size, B, T, C)


def shares(
    log_a: Tensor,
    log_b: Tensor,
    log_h: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``a_t h_{t-1} / h_t`` and ``b_t / h_t``, what a step keeps and what it adds, in [0, 1]."""
    previous = previous_state(log_h, initial_state, reset, cu_seqlens, reverse, _ZERO)
    return _share(log_a + previous, log_h), _share(log_b, log_h)


def _share(log_part: Tensor, log_whole: Tensor) -> Tensor:
    """``part / whole``; a part of 0 has no share, even of nothing."""
    is_zero = log_part == _ZERO
    # both sides masked first: a NaN that is only masked afterwards comes back in the gradient
    log_share = torch.where(is_zero, 0, log_part) - torch.where(is_zero, 0, log_whole)
    # by rounding a part may be more than the whole, and in half precision far more
    return torch.where(is_zero, 0, log_share.clamp_max(0).exp())


def log_scan_adjoint(
    run: Any,
    log_a: Tensor,
    log_b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    log_h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
) -> Gradients:
    """The adjoint of ``dh_t = keep_t (dh_{t-1} + da_t) + added_t db_t``."""
    layout = (reset, cu_seqlens, reverse)
    keep, added = shares(log_a, log_b, log_h, initial_state, *layout)
    delta, into_initial = run(keep, grad_h, grad_final, *layout)
    grad_a = delta * keep
    grad_a = grad_a.sum((0, 1)) if log_a.ndim == 1 else grad_a
    grads = (grad_a.to(log_a.dtype), (delta * added).to(log_b.dtype))
    return [*grads, None if initial_state is None else into_initial]


def _linear(*arguments: Any) -> tuple[Tensor, Tensor]:
    h, final = linear(*arguments)
    return h, final
