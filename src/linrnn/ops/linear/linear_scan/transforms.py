"""`linear_scan` under `torch.func`: vmap, grad, jvp and compositions of them.

Everything is expressed by `linear_scan` itself and elementwise operations, so each transform can be
applied to the result of another; the fused adjoints of kernels serve the common case. PyTorch
loses the inner tangents of what a custom function saved when forward mode is nested in forward
mode, so there the recurrence is a loop of its operators.
"""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.layout import at_steps, clear_first, ends, previous_state, shift_time
from linrnn.compute.modes import nested_forward_mode, older_vmap
from linrnn.ops.linear.loop import LINEAR, loop


def transformed_scan(compute: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
    """``(h, final_state)`` of `linear_scan`; ``compute`` does the work on plain tensors.

    Args:
        compute: called with ``arguments``.
        arguments: those of `op.linear`, and the backend.
    """
    if operators_alone():
        return loop(LINEAR, *arguments[:-1])
    h, final = TransformableScan.apply(compute, *arguments)
    return h, final


def operators_alone() -> bool:
    """Whether what is around knows nothing of functions with derivatives of their own."""
    return nested_forward_mode() or older_vmap()


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

        def run(*arguments: Any) -> tuple[Tensor, Tensor]:
            return transformed_scan(ctx.compute, *arguments, ctx.backend)

        layout = (reset, cu_seqlens, ctx.reverse)
        grads = scan_adjoint(run, a, h, initial_state, *layout, grad_h, grad_final)
        return None, *grads, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        """``dh_t = a_t dh_{t-1} + da_t h_{t-1} + db_t``: the same recurrence."""
        _, into_a, into_b, into_initial, *_ = tangents
        a, h, initial_state, reset, cu_seqlens = ctx.saved_tensors
        layout = (reset, cu_seqlens, ctx.reverse)
        into = torch.zeros_like(h) if into_b is None else into_b
        if into_a is not None:
            into = into + into_a * previous_state(h, initial_state, *layout)
        return transformed_scan(ctx.compute, a, into, into_initial, *layout, ctx.backend)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], compute: Any, *inputs: Any) -> Any:
        """Fold the mapped axis into the batch."""
        folded = fold(info.batch_size, in_dims[1:5], inputs)
        outputs = transformed_scan(compute, *folded, *inputs[5:])
        return unfold(outputs, info.batch_size, inputs[4] is not None), (0, 0)  # (size, B, T, C)


def scan_adjoint(
    run: Any,
    a: Tensor,
    h: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    grad_h: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of ``(a, b, initial_state)``, where ``run`` computes a scan of any arguments."""
    layout = (reset, cu_seqlens, reverse)
    delta, into_initial = backward_in_time(run, a, grad_h, grad_final, *layout)
    grad_a = delta * previous_state(h, initial_state, *layout).conj()
    grad_a = grad_a.sum((0, 1)) if a.ndim == 1 else grad_a
    return grad_a, delta, None if initial_state is None else into_initial


def backward_in_time(
    run: Any,
    a: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``delta_t = grad_h_t + conj(a_{t+1}) delta_{t+1}``, and the cotangent of the state."""
    edge = ends(grad_h, cu_seqlens, reverse)
    into = grad_h.index_put(
        (edge.row, edge.last), grad_final[edge.kept].to(grad_h.dtype), accumulate=True
    )
    earlier = 1 if reverse else -1
    decay = a.conj() if a.ndim == 1 else shift_time(a.conj(), earlier)
    cut = None if reset is None else shift_time(reset, earlier)
    delta, _ = run(decay, into, None, cut, cu_seqlens, not reverse)
    first = at_steps(a, edge.row, edge.first).conj() * delta[edge.row, edge.first]
    first = clear_first(first, reset, edge)
    return delta, grad_final.index_put((edge.kept,), first.to(grad_final.dtype))


def fold(size: int, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """``(a, b, initial_state, reset, cu_seqlens)`` of all mapped calls as those of one.

    Their rows become rows of one batch, or, where sequences are packed, pieces of one row.
    """
    a, b, initial_state, reset, cu_seqlens, *_ = inputs
    a_dim, b_dim, h_dim, r_dim = in_dims

    def mapped_first(x: Tensor, dim: int | None) -> Tensor:
        return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)  # (size, *x.shape)

    def rows(x: Tensor, dim: int | None) -> Tensor:
        x = mapped_first(x, dim).flatten(0, 1)  # (size * batch, time, ...)
        return x if cu_seqlens is None else x.flatten(0, 1)[None]  # (1, size * time, ...)

    batch, time = mapped_first(b, b_dim).shape[1:3]
    b = rows(b, b_dim)
    if a_dim is not None and a.ndim == 2:  # one constant decay for each mapped call
        # (size, B, T, C)
        a = a.movedim(a_dim, 0)[:, None, None].expand(size, batch, time, b.shape[-1])
        a = rows(a, 0)
    elif a.ndim > 1:
        a = rows(a, a_dim)
    initial_state = (
        # (size * S, C)
        None if initial_state is None else mapped_first(initial_state, h_dim).flatten(0, 1)
    )  # (size S, C)
    reset = None if reset is None else rows(reset, r_dim)
    if cu_seqlens is not None:
        later = time * torch.arange(size, device=cu_seqlens.device)[:, None] + cu_seqlens[1:]
        # (size * S + 1,)
        cu_seqlens = torch.cat([cu_seqlens[:1], later.flatten().to(cu_seqlens.dtype)])
    return a, b, initial_state, reset, cu_seqlens


def unfold(outputs: tuple[Tensor, Tensor], size: int, packed: bool) -> tuple[Tensor, Tensor]:
    """The results of each mapped call, along a new first axis."""
    h, final = outputs
    if packed:
        # (size, 1, T, C), (size, C)
        return h[0].unflatten(0, (size, 1, -1)), final.unflatten(0, (size, -1))
    # (size, B, T, C), (size, B, C)
    return h.unflatten(0, (size, -1)), final.unflatten(0, (size, -1))
