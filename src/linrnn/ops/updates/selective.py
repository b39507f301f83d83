"""`selective_update`: one step of Mamba's recurrence, whose state is written in place."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.arguments import check_flags
from linrnn.compute.in_place import Update, operand, operand_fields, widened
from linrnn.errors import check_shape
from linrnn.typing import Float

_WHERE = "selective_update"


def selective_update(
    state: Float[Tensor, "batch channels d_state"],
    x: Float[Tensor, "batch channels"],
    dt: Float[Tensor, "batch channels"],
    A: Float[Tensor, "channels d_state"],
    B: Float[Tensor, "batch d_state"],
    C: Float[Tensor, "batch d_state"],
    D: Float[Tensor, " channels"] | None = None,
    z: Float[Tensor, "batch channels"] | None = None,
    dt_bias: Float[Tensor, " channels"] | None = None,
    dt_softplus: bool = False,
    *,
    backend: str | None = None,
) -> Float[Tensor, "batch channels"]:
    r"""Read one step of `selective_scan` and write its state in place.

    Equation::

        state[c, n] <- exp(dt[c] A[c, n]) state[c, n] + dt[c] B[n] x[c]
        y[c] = (sum_n C[n] state[c, n] + D[c] x[c]) silu(z[c])

    Args:
        state: written in place. Any strides.
        x: input.
        dt: step size, before ``dt_bias`` and ``dt_softplus``.
        A, B, C, D, z, dt_bias, dt_softplus: as in `selective_scan`, of one step.
        backend: as in `conv_update`.

    Returns:
        ``y``, in the dtype of ``x``; computed in float32 or float64. It has no gradient, and no
        argument may share memory with the state.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError, BackendError: as `conv_update`.

    Example:
        >>> import torch
        >>> from linrnn.ops import selective_update
        >>> one, state = torch.ones(1, 1), torch.ones(1, 1, 1)
        >>> selective_update(state, one, one, torch.tensor([[-0.6931472]]), one, one)
        tensor([[1.5000]])
        >>> state.flatten()
        tensor([1.5000])
    """
    tensors = (state, x, dt, A, B, C, D, z, dt_bias)
    return _UPDATE(*tensors, dt_softplus, backend=backend)


def _check(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
) -> None:
    check_flags(_WHERE, dt_softplus=dt_softplus)
    check_shape(_WHERE, "state", state.shape, {"batch": None, "channels": None, "d_state": None})
    sizes = dict(zip(("batch", "channels", "d_state"), state.shape, strict=True))
    axes: dict[str, dict[str, Tensor | None]] = {
        "batch channels": {"x": x, "dt": dt, "z": z},
        "channels d_state": {"A": A},
        "batch d_state": {"B": B, "C": C},
        "channels": {"D": D, "dt_bias": dt_bias},
    }
    for words, tensors in axes.items():
        for name, t in tensors.items():
            if t is not None:
                check_shape(_WHERE, name, t.shape, {axis: sizes[axis] for axis in words.split()})


def _definition(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
) -> tuple[Tensor, Tensor]:
    state, x, dt, A, B, C, D, z, dt_bias = widened(state, x, dt, A, B, C, D, z, dt_bias)
    dt = dt if dt_bias is None else dt + dt_bias
    dt = F.softplus(dt) if dt_softplus else dt
    updated = torch.exp(dt[..., None] * A) * state + (dt * x)[..., None] * B[:, None]  # (B, C, N)
    y = (updated * C[:, None]).sum(-1)
    y = y if D is None else y + D * x
    return y if z is None else y * F.silu(z), updated


def _record(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    y: Tensor,
) -> tuple[Any, ...] | None:
    if state.stride(2) != 1 and state.shape[2] > 1:
        return None
    return (
        dt_softplus,
        *state.shape,
        *(state.data_ptr(), *state.stride()[:2]),
        *operand(x, row=0, lane=1),
        *operand(dt, row=0, lane=1),
        *operand(A, head=0, lane=1),
        *operand(B, row=0, lane=1),
        *operand(C, row=0, lane=1),
        *operand(D, lane=0),
        *operand(z, row=0, lane=1),
        *operand(dt_bias, lane=0),
        *operand(y)[:2],
    )


_UPDATE = Update(
    _WHERE,
    "Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
    "Tensor? dt_bias, bool dt_softplus",
    check=_check,
    definition=_definition,
    fields="softplus rows channels modes state state_row state_channel "
    + operand_fields("x dt A B C D z bias")
    + " y y_dtype",
    record=_record,
)
