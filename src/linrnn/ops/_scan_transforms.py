"""`linear_scan` under `torch.func`: vmap, grad, jvp and any composition of them.

Everything is expressed by the scan itself and elementwise operations, so each transform can be
applied to the result of another; the fused adjoint of `_scan_op` serves the common case.
"""

from typing import Any

import torch
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.ops._layout import at_steps, clear_first, ends, previous_state, shift_time


class TransformableScan(torch.autograd.Function):
    """``(h, final_state)`` of flattened arguments; `compute` does the work on plain tensors."""

    @staticmethod
    def forward(compute: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Run the scan."""
        result: tuple[Tensor, ...] = compute(*inputs)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the derivatives need."""
        ctx.compute, a, _, initial_state, reset, cu_seqlens, ctx.reverse, ctx.backend = inputs
        saved = (a, output[0], initial_state, reset, cu_seqlens)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor, grad_final: Tensor) -> tuple[Tensor | None, ...]:
        """``delta_t = grad_h_t + conj(a_{t+1}) delta_{t+1}`` as a scan in the other direction."""
        a, h, initial_state, reset, cu_seqlens = ctx.saved_tensors
        edge = ends(h, cu_seqlens, ctx.reverse)
        into = grad_h.index_put(
            (edge.row, edge.last), grad_final[edge.kept].to(grad_h.dtype), accumulate=True
        )
        earlier = 1 if ctx.reverse else -1
        decay = a.conj() if a.ndim == 1 else shift_time(a.conj(), earlier)
        cut = None if reset is None else shift_time(reset, earlier)
        arguments = (decay, into, None, cut, cu_seqlens, not ctx.reverse, ctx.backend)
        delta, _ = TransformableScan.apply(ctx.compute, *arguments)
        layout = (reset, cu_seqlens, ctx.reverse)
        grad_a = delta * previous_state(h, initial_state, *layout).conj()
        grad_a = grad_a.sum((0, 1)) if a.ndim == 1 else grad_a
        grad_initial = None
        if initial_state is not None:
            first = at_steps(a, edge.row, edge.first).conj() * delta[edge.row, edge.first]
            first = clear_first(first, reset, edge)
            grad_initial = grad_final.index_put((edge.kept,), first.to(grad_final.dtype))
        return None, grad_a, delta, grad_initial, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        """``dh_t = a_t dh_{t-1} + da_t h_{t-1} + db_t``: the same recurrence."""
        _, into_a, into_b, into_initial, *_ = tangents
        a, h, initial_state, reset, cu_seqlens = ctx.saved_tensors
        layout = (reset, cu_seqlens, ctx.reverse)
        into = torch.zeros_like(h) if into_b is None else into_b
        if into_a is not None:
            into = into + into_a * previous_state(h, initial_state, *layout)
        dh, dfinal = TransformableScan.apply(
            ctx.compute, a, into, into_initial, *layout, ctx.backend
        )
        return dh, dfinal

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], compute: Any, *inputs: Any) -> Any:
        """Fold the mapped axis into the batch."""
        a, b, initial_state, reset, cu_seqlens, reverse, backend = inputs
        if cu_seqlens is not None:
            raise ArgumentError(
                "linear_scan: cu_seqlens must be None under vmap, got offsets. "
                "Map over separate sequences, or call it in a loop."
            )
        size, (a_dim, b_dim, h_dim, r_dim) = info.batch_size, in_dims[1:5]

        def fold(x: Tensor, dim: int | None) -> Tensor:
            x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        b = fold(b, b_dim)
        if a_dim is not None and a.ndim == 2:  # one constant decay for each mapped call
            a = a.movedim(a_dim, 0)[:, None, None]
            a = a.expand(size, len(b) // size, *b.shape[1:]).flatten(0, 1)
        elif a.ndim > 1:
            a = fold(a, a_dim)
        initial_state = None if initial_state is None else fold(initial_state, h_dim)
        reset = None if reset is None else fold(reset, r_dim)
        folded = (a, b, initial_state, reset, None)
        outputs = TransformableScan.apply(compute, *folded, reverse, backend)
        return tuple(x.unflatten(0, (size, -1)) for x in outputs), (0, 0)
