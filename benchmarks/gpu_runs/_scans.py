"""Scans of the package with a plan of one's own: kernels alone, without the op around them."""

from collections.abc import Callable
from unittest import mock

import torch
from _measure import TINY
from torch import Tensor

from linrnn.compute.launch import layout
from linrnn.ops.linear.linear_scan import triton_plan, triton_scan
from linrnn.ops.linear.linear_scan.triton_plan import Plan

#: Rows of a warp and channels that a block begins with: small where Triton's interpreter runs.
ROW, NARROWEST = (128, 8) if TINY else (triton_plan.ROW, 32)


def plan_of(b: Tensor, block: int, warps: int, chained: bool = False, group: int = 1) -> Plan:
    """The plan of a block of channels and warps; a warp's row may be stretches of several."""
    block = min(block, max(NARROWEST, 1 << max(b.shape[2] - 1, 0).bit_length()))
    wide = max(ROW // b.dtype.itemsize // block, 1)
    stretches = warps * wide if warps > 1 or chained else 1
    return Plan(block, -(-b.shape[2] // block), stretches, warps, chained, group)


def forward(a: Tensor, b: Tensor, plan: Plan, steps: int) -> Callable[[], Tensor]:
    """A function that returns the states."""
    layouts = (layout(a), layout(b), None, None, None)
    scan = _kernels(layouts, b, plan, steps, adjoint=False)[0]
    h, final = torch.empty_like(b), torch.empty_like(b[:, 0])

    def run() -> Tensor:
        scan.run(a, b, None, None, None, h, final, *scan.handed(b.device))
        return h

    return run


def backward(a: Tensor, h: Tensor, grad: Tensor, plan: Plan, steps: int) -> Callable[[], Tensor]:
    """A function that returns the gradient of ``b``, and computes that of ``a``, too."""
    layouts = (layout(a), None, layout(h), None, layout(grad))
    scan, rows, add = _kernels(layouts, h, plan, steps, adjoint=True)
    grad_a, grad_b, grad_initial = (torch.empty_like(x) for x in (a, h, h[:, 0]))
    sums = None if rows is None else torch.empty(rows, dtype=torch.float64, device=h.device)

    def run() -> Tensor:
        into = grad_a if sums is None else sums
        handed = scan.handed(h.device)
        scan.run(a, grad, h, None, None, None, None, into, grad_b, grad_initial, *handed)
        if add is not None:
            add(sums, grad_a)
        elif sums is not None:
            sums.sum(0)
        return grad_b

    return run


def _kernels(
    layouts: tuple[object, ...], b: Tensor, plan: Plan, steps: int, *, adjoint: bool
) -> triton_scan._Kernels:
    with (
        mock.patch.object(triton_scan, "make_plan", return_value=plan),
        mock.patch.object(triton_plan, "MOST_STEPS", steps),
        mock.patch.object(triton_plan, "REGISTERS", 255),  # the compiler is to say what fits
    ):
        return triton_scan._kernels.__wrapped__(layouts, len(b), b.device, adjoint, False)
