"""`linear_scan` on checked arguments with one channel axis: its description as an `Op`.

The adjoint of a scan is a scan that runs backward in time. So gradients of any order exist, and
each costs the kernels and a few elementwise operations.
"""

from typing import Any

from torch import Tensor

from linrnn.compute.derivatives import Gradients
from linrnn.compute.layout import accumulator_dtype, empty_results
from linrnn.compute.op import Op
from linrnn.ops.linear.linear_scan.transforms import scan_adjoint, transformed_scan
from linrnn.ops.linear.loop import LINEAR, loop


def _shapes(a: Tensor, b: Tensor, *remaining: Any) -> tuple[Tensor, Tensor]:
    return empty_results(b, remaining[2])


def _definition(*arguments: Any, backend: str | None = None) -> tuple[Tensor, Tensor]:
    return loop(LINEAR, *arguments)


def _adjoint(
    a: Tensor,
    b: None,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
) -> Gradients:
    # sums over time of half precision would lose their end
    compute_dtype = accumulator_dtype(h.dtype)
    grad_a, grad_b, grad_initial = scan_adjoint(
        linear,
        a.to(compute_dtype),
        h.to(compute_dtype),
        initial_state,
        reset,
        cu_seqlens,
        reverse,
        grad_h.to(compute_dtype),
        grad_final,
    )
    return [grad_a.to(a.dtype), grad_b.to(h.dtype), grad_initial]


#: ``(a, b, initial_state, reset, cu_seqlens, reverse)`` to ``(h, final_state)``.
linear: Op = Op(
    "linear_scan",
    "Tensor a, Tensor b, Tensor? initial_state, Tensor? reset, Tensor? cu_seqlens, bool reverse",
    gradients=3,
    results=2,
    definition=_definition,
    shapes=_shapes,
    kernels={
        name: f"linrnn.ops.linear.linear_scan._{name}"
        for name in ("triton", "cpu", "tree", "reference")
    },
    saved=(0,),
    unread={1: 0},
    adjoint=_adjoint,
    transform=lambda *arguments, backend: transformed_scan(linear.plain, *arguments, backend),
    lead=1,
)
