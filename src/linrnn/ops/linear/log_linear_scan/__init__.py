"""`log_linear_scan`: the diagonal recurrence of positive quantities kept as logarithms."""

import functools
from typing import Any

from torch import Tensor

from linrnn.compute.arguments import check_flags, check_numbers
from linrnn.compute.layout import empty_results
from linrnn.compute.op import Op
from linrnn.ops.linear.linear_scan import check_arguments, flat_channels, unflat_channels
from linrnn.ops.linear.linear_scan.op import linear
from linrnn.ops.linear.linear_scan.transforms import backward_in_time
from linrnn.ops.linear.log_linear_scan._transforms import log_scan_adjoint, transformed_log_scan
from linrnn.ops.linear.loop import LOG, loop
from linrnn.typing import CuSeqlens, Float, ResetMask


def log_linear_scan(
    log_a: Float[Tensor, "..."],
    log_b: Float[Tensor, "batch time *channels"],
    initial_state: Float[Tensor, "seqs *channels"] | None = None,
    *,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    backend: str | None = None,
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
        backend: ``cpu``, ``triton``, ``tree`` or ``reference``; None takes what `use_backend` or
            ``LINRNN_BACKEND`` asks for, else the fastest that supports the call.

    Returns:
        ``(log_h, final_state)``, as `linear_scan` does; half precision is accumulated, and the
        final state returned, in float32. Gradients flow to all three arguments, to any order. The
        gradient with respect to a term that is exactly 0 (a logarithm of -inf) is 0.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: as `linear_scan`; also for complex
            arguments.
        BackendError: the requested backend cannot compute this call.

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
    log_h, final = _OP(a, b, state, reset, cu_seqlens, reverse, backend=backend)
    return unflat_channels(log_h, final, log_b.shape)


def _shapes(log_a: Tensor, log_b: Tensor, *remaining: Any) -> tuple[Tensor, Tensor]:
    return empty_results(log_b, remaining[2])


def _definition(*arguments: Any, backend: str | None = None) -> tuple[Tensor, Tensor]:
    return loop(LOG, *arguments)


_OP: Op = Op(
    "log_linear_scan",
    "Tensor log_a, Tensor log_b, Tensor? initial_state, Tensor? reset, Tensor? cu_seqlens, "
    "bool reverse",
    gradients=3,
    results=2,
    definition=_definition,
    shapes=_shapes,
    kernels={
        name: f"linrnn.ops.linear.log_linear_scan._{name}" for name in ("triton", "cpu", "tree")
    },
    saved=(0,),
    adjoint=functools.partial(log_scan_adjoint, functools.partial(backward_in_time, linear)),
    transform=lambda *arguments, backend: transformed_log_scan(_OP.plain, *arguments, backend),
    lead=1,
)
