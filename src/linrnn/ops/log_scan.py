"""`log_linear_scan`: the diagonal recurrence of positive quantities kept as logarithms."""

from typing import Any

import torch
from torch import Tensor

from linrnn.ops import _log_scan_cpu
from linrnn.ops._arguments import check_flags, check_numbers
from linrnn.ops._layout import (
    at_steps,
    clear_first,
    empty_results,
    ends,
    live_steps,
)
from linrnn.ops._modes import eager, transformed
from linrnn.ops._scan_transforms import shares, transformed_log_scan
from linrnn.ops._tree import LOG, products, solve
from linrnn.ops.scan import check_arguments, flat_channels, unflat_channels
from linrnn.typing import CuSeqlens, Float, ResetMask

_ZERO = float("-inf")  # the logarithm of nothing


def log_linear_scan(
    log_a: Float[Tensor, "..."],
    log_b: Float[Tensor, "batch time *channels"],
    initial_state: Float[Tensor, "seqs *channels"] | None = None,
    *,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
) -> tuple[Float[Tensor, "batch time *channels"], Float[Tensor, "seqs *channels"]]:
    r"""Solve ``h_t = a_t h_{t-1} + b_t`` for positive a, b and h given and returned as logarithms.

    Equation::

        log h_t = logaddexp(log a_t + log h_{t-1}, log b_t)    log h_{-1} = initial_state

    for quantities that span more orders of magnitude than a float holds (exponential weights,
    as in RWKV). Where ``a`` and ``b`` themselves fit, `linear_scan` is faster and more accurate:
    a recurrence of positive terms cancels nothing, so it needs no logarithms to be stable, while
    a logarithm of size L is only known to ``eps * L``, which is the relative error of ``h``.

    Args:
        log_a: logarithm of the decay; of the shape of ``log_b`` (axes of size 1 broadcast) or,
            constant in time, its channel axes. -inf is a decay of 0.
        log_b: logarithm of the input, (batch, time, *channels), real. -inf is an input of 0.
        initial_state: logarithm of the state before the first step, (batch, *channels), one row
            for each packed sequence; None is a state of 0.
        reset, cu_seqlens, reverse: as in `linear_scan`.

    Returns:
        ``(log_h, final_state)``, as `linear_scan` does; half precision is accumulated, and the
        final state returned, in float32. Gradients flow to all three arguments, to any order. The
        gradient with respect to a term that is exactly 0 (a logarithm of -inf) is 0.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: as `linear_scan`; also for complex
            arguments.

    Example:
        >>> import torch
        >>> log_h, _ = log_linear_scan(torch.tensor([0.5]).log(), torch.zeros(1, 3, 1))
        >>> log_h.exp().flatten()
        tensor([1.0000, 1.5000, 1.7500])

    Reference:
        F. A. Heinsen, "Efficient Parallelization of a Ubiquitous Sequential Computation", 2023,
        arXiv:2311.06281. There the sum is taken over ``log b_s - cumsum(log a)``, whose size grows
        with time; here neighbouring steps are combined in a tree, which never subtracts.
    """
    where = "log_linear_scan"
    check_flags(where, reverse=reverse)
    named = {"log_a": log_a, "log_b": log_b}
    check_numbers(where, named, real=True, initial_state=initial_state)
    log_a, log_b, initial_state = check_arguments(
        where, log_a, log_b, initial_state, reset, cu_seqlens
    )
    a, b, state = flat_channels(log_a, log_b, initial_state)
    arguments = (a, b, state, reset, cu_seqlens, reverse)
    if eager(a, b) and transformed():
        log_h, final = transformed_log_scan(_log_scan, *arguments)
    else:
        log_h, final = torch.ops.linrnn.log_scan(*arguments)
    return unflat_channels(log_h, final, log_b.shape)


_library = torch.library.Library("linrnn", "FRAGMENT")
_library.define(
    "log_scan(Tensor log_a, Tensor log_b, Tensor? initial_state, Tensor? reset, "
    "Tensor? cu_seqlens, bool reverse) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _log_scan(
    log_a: Tensor,
    log_b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    if _log_scan_cpu.available(log_b):
        return _log_scan_cpu.log_scan(log_a, log_b, initial_state, reset, cu_seqlens, reverse)
    log_h, final = _shapes(log_a, log_b, initial_state, reset, cu_seqlens, reverse)
    final = final.fill_(_ZERO) if initial_state is None else final.copy_(initial_state)
    if log_b.numel() == 0:
        return log_h, final
    edge = ends(log_b, cu_seqlens, reverse)
    a, b = log_a.to(final.dtype), log_b.to(final.dtype)
    if initial_state is not None:
        entering = at_steps(a, edge.row, edge.first) + initial_state[edge.kept]
        entering = clear_first(entering, reset, edge, _ZERO)
        entering = torch.logaddexp(entering, b[edge.row, edge.first])
        b = b.index_put((edge.row, edge.first), entering)
    live = live_steps(b, reset, cu_seqlens, edge)
    if reverse:
        a, b = a if a.ndim == 1 else a.flip(1), b.flip(1)
        live = None if live is None else live.flip(1)
    log_h = solve(LOG, _doubles(a) if a.ndim == 1 else products(LOG, a), b, live)
    log_h = log_h.flip(1) if reverse else log_h
    final[edge.kept] = log_h[edge.row, edge.last]
    return log_h.to(log_b.dtype), final


def _doubles(log_a: Tensor) -> Any:
    while True:
        yield log_a
        log_a = 2 * log_a  # exact: no error to keep small


def _shapes(log_a: Tensor, log_b: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return empty_results(log_b, rest[2])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    log_a, log_b, initial_state, reset, cu_seqlens, ctx.reverse = inputs
    ctx.save_for_backward(log_a, log_b, initial_state, reset, cu_seqlens, output[0])


def _backward(ctx: Any, grad_h: Tensor, grad_final: Tensor) -> tuple[Tensor | None, ...]:
    """Shares of the two terms weigh the gradient: ``a_t h_{t-1} / h_t`` and ``b_t / h_t``.

    The share of the old state is the decay of a linear recurrence backward in time, so the
    adjoint of this scan is that of `linear_scan`; composed of differentiable operations, it can be
    differentiated again.
    """
    log_a, log_b, initial_state, reset, cu_seqlens, log_h = ctx.saved_tensors
    if log_b.numel() == 0:  # no step: the final state is the initial one
        grad_initial = None if initial_state is None else grad_final
        return torch.zeros_like(log_a), torch.zeros_like(log_b), grad_initial, None, None, None
    layout = (reset, cu_seqlens, ctx.reverse)
    kept, added = shares(log_a, log_b, log_h, initial_state, *layout)
    _, delta, grad_initial = torch.ops.linrnn.scan_backward(
        kept, kept.detach(), None, reset, cu_seqlens, grad_h, grad_final, ctx.reverse, None
    )
    grad_a = delta * kept
    grad_a = grad_a.sum((0, 1)) if log_a.ndim == 1 else grad_a
    return (
        grad_a.to(log_a.dtype),
        (delta * added).to(log_b.dtype),
        None if initial_state is None else grad_initial,
        None,
        None,
        None,
    )


_library.impl("log_scan", _log_scan, "CompositeExplicitAutograd")
torch.library.register_fake("linrnn::log_scan", _shapes, lib=_library)
torch.library.register_autograd("linrnn::log_scan", _backward, setup_context=_keep, lib=_library)
