"""`conv_update`: one step of a short convolution, whose window rolls in place."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.in_place import Update, operand, operand_fields, widened
from linrnn.errors import check_in, check_shape
from linrnn.typing import Float

_WHERE = "conv_update"


def conv_update(
    x: Float[Tensor, "batch channels *one"],
    state: Float[Tensor, "batch channels width"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None = None,
    activation: str | None = None,
    *,
    backend: str | None = None,
) -> Float[Tensor, "batch channels *one"]:
    r"""Read one step with a short convolution along time, and roll its window in place.

    Equation::

        state <- (state without its oldest input, x)
        y = bias + sum_j weight_j * state_j              or its silu

    It is one step of `causal_conv`, whose state has the inputs before this one alone.

    Args:
        x: the input (batch, channels) or (batch, channels, 1).
        state: the last ``width`` inputs, oldest first; written in place. Any strides.
        weight: taps of every channel, the oldest input's first.
        bias: of every channel, or None.
        activation: None or "silu".
        backend: ``cpu`` for the kernel; any other is PyTorch's operators; None takes what
            `use_backend` or ``LINRNN_BACKEND`` asks for, else the fastest that supports the call.

    Returns:
        ``y``, in the shape and dtype of ``x``; computed in float32 or float64. It has no gradient,
        and no argument may share memory with the state.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: a tensor that needs a gradient, outside of ``torch.no_grad()``, or a state
            with numbers that share memory.
        UnknownNameError: another activation or backend.
        BackendError: the requested backend cannot compute this call.

    Example:
        >>> import torch
        >>> from linrnn.ops import conv_update
        >>> state = torch.tensor([[[0.0, 1.0]]])
        >>> conv_update(torch.tensor([[2.0]]), state, torch.ones(1, 2)), state
        (tensor([[3.]]), tensor([[[1., 2.]]]))
    """
    return _UPDATE(x, state, weight, bias, activation, backend=backend)


def _check(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> None:
    if activation is not None:
        check_in(_WHERE, "activation", activation, ("silu",))
    check_shape(_WHERE, "state", state.shape, {"batch": None, "channels": None, "width": None})
    batch, channels, width = state.shape
    one = {"time": 1} if x.ndim == state.ndim else {}
    check_shape(_WHERE, "x", x.shape, {"batch": batch, "channels": channels, **one})
    if width == 0:
        check_shape(
            _WHERE, "state", state.shape, {"batch": batch, "channels": channels, "width": 1}
        )
    check_shape(_WHERE, "weight", weight.shape, {"channels": channels, "width": width})
    if bias is not None:
        check_shape(_WHERE, "bias", bias.shape, {"channels": channels})


def _definition(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor]:
    # (batch, channels, width)
    updated = torch.cat([state[..., 1:], x.reshape(*x.shape[:2], 1).to(state.dtype)], -1)
    _, window, weight, bias = widened(x, updated, weight, bias)
    y = (window * weight).sum(-1)  # (B, C)
    y = y if bias is None else y + bias
    return (F.silu(y) if activation else y).view(x.shape), updated  # (batch, channels, ...)


def _record(
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    y: Tensor,
) -> tuple[Any, ...] | None:
    if state.stride(2) != 1 and state.shape[2] > 1:
        return None
    return (
        activation is not None,
        *state.shape,
        *(state.data_ptr(), *state.stride()[:2]),
        *operand(x, row=0, lane=1),
        *operand(weight, head=0, lane=1),
        *operand(bias, lane=0),
        *operand(y)[:2],
    )


_UPDATE = Update(
    _WHERE,
    "Tensor x, Tensor(a!) state, Tensor weight, Tensor? bias, str? activation",
    check=_check,
    definition=_definition,
    fields="silu rows channels width state state_row state_channel "
    + operand_fields("x weight bias")
    + " y y_dtype",
    record=_record,
)
