"""`gated_scan`: gates and recurrence of minGRU and minLSTM in one pass."""

from typing import Any

from torch import Tensor

from linrnn.compute.arguments import (
    check_device,
    check_flags,
    check_numbers,
    check_packed,
    check_reset,
)
from linrnn.compute.layout import accumulator_dtype, n_sequences
from linrnn.compute.op import Op
from linrnn.errors import ArgumentError, ShapeError, check_shape
from linrnn.ops.linear.gated_scan.composite import gated_scan as composite
from linrnn.typing import CuSeqlens, Float, ResetMask


def gated_scan(
    x: Float[Tensor, "batch time parts channels"],
    initial_state: Float[Tensor, "seqs channels"] | None = None,
    *,
    positive: bool = False,
    normalise: bool = True,
    start: float = 0.0,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "seqs channels"]]:
    r"""Gate a diagonal recurrence by its input, from pre-activations that lie side by side.

    Equation::

        h_t = f_t * h_{t-1} + i_t * v_t
        two parts (a, z):     i = sigmoid(z),  f = 1 - i
        three parts (a, u, w): f = sigmoid(u),  i = sigmoid(w), both divided by f + i if normalise
        v = a, or g(a) if positive, with g(a) = a + 1/2 for a >= 0 and sigmoid(a) below

    `linear_scan` with its decay and input computed on the way: a kernel reads every
    pre-activation once, writes ``h`` once, and keeps nothing for the gradient but these two. The
    gradient has the layout of ``x``, so one product takes it through the projection that made
    ``x``. Elsewhere the same is composed of PyTorch's operators.

    Args:
        x: pre-activations (batch, time, 2 or 3, channels), in the order above.
        initial_state: state before the first step, (batch, channels), one row for each packed
            sequence; None is ``start``.
        positive: make the values positive by g.
        normalise: of three parts only: let the two gates sum to one. Computed from the
            logarithm of their ratio, so both may underflow.
        start: the state before a sequence begins, in every channel.
        reset: boolean (batch, time); True begins a new sequence at that step, from ``start``.
        cu_seqlens, reverse: as in `linear_scan`.
        backend: ``cpu`` or ``triton`` for the kernel; ``tree`` or ``reference`` for the composition
            with `linear_scan` on that backend; None takes what `use_backend` or ``LINRNN_BACKEND``
            asks for, else the fastest that supports the call.

    Returns:
        ``(h, final_state)``: every state in the dtype of ``x``, and the last one, float32 for half
        precision, which is computed in float32 throughout. Gradients flow to ``x`` and
        ``initial_state`` from both, to any order.

    Raises:
        ShapeError: shapes that do not fit together, or other than two or three parts.
        DTypeError: integers or complex numbers, or a reset that is not boolean.
        DeviceError: tensors on different devices.
        ArgumentError: an option that is no truth value, a ``start`` that is no number, or
            ``cu_seqlens`` that do not rise from 0 to ``time``.
        BackendError: the requested backend cannot compute this call.

    Example:
        >>> import torch
        >>> from linrnn.ops import gated_scan
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])[None, :, :, None]  # value 1, gate 1/2
        >>> gated_scan(x)[0].flatten()
        tensor([0.5000, 0.7500])

    Reference:
        Feng et al., "Were RNNs All We Needed?", 2024, arXiv:2410.01201.
    """
    _check(x, initial_state, reset, cu_seqlens)
    check_flags("gated_scan", positive=positive, normalise=normalise, reverse=reverse)
    if isinstance(start, bool) or not isinstance(start, (int, float)):
        raise ArgumentError(f"gated_scan: start must be a number, got {start!r:.60}.")
    if initial_state is not None:
        initial_state = initial_state.to(accumulator_dtype(x.dtype))
    options = (positive, normalise, start, reverse)
    h, final = _OP(x, initial_state, reset, cu_seqlens, *options, backend=backend)
    return h, final


def _check(
    x: Tensor, initial_state: Tensor | None, reset: Tensor | None, cu_seqlens: Tensor | None
) -> None:
    where = "gated_scan"
    check_numbers(where, {"x": x}, real=True, initial_state=initial_state)
    if x.ndim != 4 or x.shape[2] not in (2, 3):
        raise ShapeError(
            f"{where}: x must have shape (batch, time, 2 or 3, channels), got {tuple(x.shape)}. "
            "Split the projection with .unflatten(-1, (2, -1))."
        )
    batch, time, _, channels = x.shape
    seqs = check_packed(where, "x", x, cu_seqlens)
    if initial_state is not None:
        axes = {"batch" if cu_seqlens is None else "sequences": seqs, "channels": channels}
        check_shape(where, "initial_state", initial_state.shape, axes)
    check_reset(where, reset, batch, time)
    check_device(where, "x", x.device, initial_state=initial_state, reset=reset)


def _shapes(x: Tensor, *remaining: Any) -> tuple[Tensor, Tensor]:
    batch, time, _, channels = x.shape
    seqs = n_sequences(x, remaining[2])
    final = x.new_empty((seqs, channels), dtype=accumulator_dtype(x.dtype))
    return x.new_empty((batch, time, channels)), final


_OP = Op(
    "gated_scan",
    "Tensor x, Tensor? initial_state, Tensor? reset, Tensor? cu_seqlens, bool positive, "
    "bool normalise, float start, bool reverse",
    gradients=2,
    results=2,
    definition=composite,
    shapes=_shapes,
    kernels={
        "triton": "linrnn.ops.linear.gated_scan._triton",
        "cpu": "linrnn.ops.linear.gated_scan._cpu",
    },
    saved=(0,),
)
