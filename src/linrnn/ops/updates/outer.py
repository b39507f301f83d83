"""`outer_update`: one step of Mamba-2's recurrence, whose state is written in place."""

from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.arguments import check_flags
from linrnn.compute.in_place import Update, operand, operand_fields, widened
from linrnn.errors import ArgumentError, ShapeError, check_shape
from linrnn.typing import Float

_WHERE = "outer_update"


def outer_update(
    state: Float[Tensor, "batch heads width d_state"],
    x: Float[Tensor, "batch heads width"],
    dt: Float[Tensor, "batch heads *per_channel"],
    A: Float[Tensor, "heads ..."],
    B: Float[Tensor, "batch groups d_state"],
    C: Float[Tensor, "batch groups d_state"],
    D: Float[Tensor, "heads ..."] | None = None,
    z: Float[Tensor, "batch heads width"] | None = None,
    dt_bias: Float[Tensor, "heads ..."] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, inf),
    *,
    backend: str | None = None,
) -> Float[Tensor, "batch heads width"]:
    r"""Read one step of Mamba-2's recurrence and write its state in place.

    Equation, in every head::

        state[p, n] <- exp(dt A) state[p, n] + dt x[p] B[n]
        y[p] = (sum_n C[n] state[p, n] + D x[p]) silu(z[p])

    It is one step of `outer_scan` with ``q = C``, ``k = B``, ``v = dt x`` and ``g = dt A``, whose
    state lies transposed.

    Args:
        state: written in place. Any strides; those of a transposed state cost nothing.
        x: input.
        dt: step size of a head, (batch, heads), before ``dt_bias``, ``dt_softplus`` and
            ``dt_limit``, in this order.
        A: decay rate of a head, (heads,), at most 0.
        B, C: how an input enters the state and how the state is read; head h takes those of group
            ``h // (heads / groups)``.
        D: weight of the input in the output, (heads,), or None.
        z: where given, the output is ``y * silu(z)``.
        dt_bias: added to ``dt`` first, (heads,), or None.
        dt_softplus: use ``softplus(dt + dt_bias)``.
        dt_limit: the least and the largest step size.
        backend: as in `conv_update`. The kernel takes ``dt`` (batch, heads, width), ``A`` (heads,
            width, d_state), ``D`` and ``dt_bias`` (heads, width) as well if they are expanded, as
            some callers have them.

    Returns:
        ``y``, in the dtype of ``x``; computed in float32 or float64. It has no gradient, and no
        argument may share memory with the state.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError, BackendError: as `conv_update`.

    Example:
        >>> import torch
        >>> from linrnn.ops import outer_update
        >>> one, state = torch.ones(1, 1, 1), torch.ones(1, 1, 1, 1)
        >>> outer_update(state, one, one[0], torch.tensor([-0.6931472]), one, one)
        tensor([[[1.5000]]])
        >>> state.flatten()
        tensor([1.5000])
    """
    tensors = (state, x, dt, A, B, C, D, z, dt_bias)
    return _UPDATE(*tensors, dt_softplus, *dt_limit, backend=backend)


def _check(*arguments: Any) -> None:
    state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_min, dt_max = arguments
    check_flags(_WHERE, dt_softplus=dt_softplus)
    if not dt_min <= dt_max:
        raise ArgumentError(
            f"{_WHERE}: dt_limit must rise, got ({dt_min}, {dt_max}). Swap them, or leave it out."
        )
    axes = dict.fromkeys(("batch", "heads", "width", "d_state"))
    check_shape(_WHERE, "state", state.shape, axes)
    batch, heads, width, d_state = state.shape
    inputs = {"batch": batch, "heads": heads, "width": width}
    check_shape(_WHERE, "x", x.shape, inputs)
    if z is not None:
        check_shape(_WHERE, "z", z.shape, inputs)
    check_shape(_WHERE, "dt", dt.shape, inputs if dt.ndim == x.ndim else _without(inputs, "width"))
    full = {"heads": heads, "width": width, "d_state": d_state}
    check_shape(_WHERE, "A", A.shape, full if A.ndim == len(full) else {"heads": heads})
    full.pop("d_state")
    for name, t in {"D": D, "dt_bias": dt_bias}.items():
        if t is not None:
            check_shape(_WHERE, name, t.shape, full if t.ndim == len(full) else {"heads": heads})
    check_shape(_WHERE, "B", B.shape, {"batch": batch, "groups": None, "d_state": d_state})
    groups = B.shape[1]
    check_shape(_WHERE, "C", C.shape, {"batch": batch, "groups": groups, "d_state": d_state})
    if heads and (groups == 0 or heads % groups):
        raise ShapeError(
            f"{_WHERE}: groups of B and C must divide heads={heads}, got {groups}. "
            f"Repeat them, or change the number of heads."
        )


def _without(axes: dict[str, int], name: str) -> dict[str, int]:
    return {axis: size for axis, size in axes.items() if axis != name}


def _definition(*arguments: Any) -> tuple[Tensor, Tensor]:
    *tensors, dt_softplus, dt_min, dt_max = arguments
    state, x, dt, A, B, C, D, z, dt_bias = widened(*tensors)
    heads = state.shape[1]
    dt = dt if dt.ndim == x.ndim else dt[..., None]  # (B, H, P or 1)
    if dt_bias is not None:
        dt = dt + (dt_bias if dt_bias.ndim > 1 else dt_bias[:, None])
    dt = F.softplus(dt) if dt_softplus else dt
    dt = dt.clamp(dt_min, dt_max)
    A = A if A.ndim > 1 else A[:, None, None]  # (H, P or 1, N or 1)
    B, C = (t.repeat_interleave(heads // max(t.shape[1], 1), 1) for t in (B, C))  # (B, H, N)
    written = (dt * x)[..., None] * B[:, :, None]  # (B, H, P, N)
    updated = torch.exp(dt[..., None] * A) * state + written
    y = (updated * C[:, :, None]).sum(-1)
    if D is not None:
        y = y + (D if D.ndim > 1 else D[:, None]) * x
    return y if z is None else y * F.silu(z), updated


def _one_a_head(x: Tensor | None, axes: int) -> bool:
    """Whether a tensor is the same along every axis behind its first ``axes``."""
    if x is None:
        return True
    sizes = zip(x.stride()[axes:], x.shape[axes:], strict=True)
    return all(stride == 0 or size == 1 for stride, size in sizes)


def _record(*arguments: Any) -> tuple[Any, ...] | None:
    state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_min, dt_max, y = arguments
    batch, heads, width, d_state = state.shape
    row, head, of_width, of_mode = state.stride()
    if d_state == 1:
        of_mode = 1
    elif of_mode != 1 and (of_width != 1 or width == 1):
        return None
    if not (_one_a_head(dt, 2) and all(_one_a_head(t, 1) for t in (A, D, dt_bias))):
        return None
    largest = torch.finfo(torch.float32).max
    return (
        *(dt_softplus, max(dt_min, -largest), min(dt_max, largest)),
        *(batch, heads, B.shape[1], width, d_state),
        *(state.data_ptr(), row, head, of_width, of_mode),
        *operand(x, row=0, head=1, lane=2),
        *operand(dt, row=0, head=1),
        *operand(A, head=0),
        *operand(B, row=0, head=1, lane=2),
        *operand(C, row=0, head=1, lane=2),
        *operand(D, head=0),
        *operand(z, row=0, head=1, lane=2),
        *operand(dt_bias, head=0),
        *operand(y)[:2],
    )


_UPDATE = Update(
    _WHERE,
    "Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
    "Tensor? dt_bias, bool dt_softplus, float least, float most",
    check=_check,
    definition=_definition,
    fields="softplus least most rows heads groups width modes "
    "state state_row state_head state_width state_mode "
    + operand_fields("x dt A B C D z bias")
    + " y y_dtype",
    record=_record,
)
