"""`delta_update`: one step of the delta rule, whose memories are written in place."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.in_place import Update, operand, operand_fields, widened
from linrnn.errors import ArgumentError, ShapeError, check_shape
from linrnn.typing import Float

_WHERE = "delta_update"


def delta_update(
    state: Float[Tensor, "batch heads d_key d_value"],
    q: Float[Tensor, "batch key_heads d_key"],
    k: Float[Tensor, "batch key_heads d_key"],
    v: Float[Tensor, "batch heads d_value"],
    g: Float[Tensor, "batch heads *per_channel"] | None = None,
    beta: Float[Tensor, "batch heads"] | None = None,
    *,
    qk_norm: float | None = None,
    scale: float = 1.0,
    backend: str | None = None,
) -> Float[Tensor, "batch heads d_value"]:
    r"""Read one step of `delta_scan` and write its memories in place.

    Equation, in every head::

        S' = exp(g) S      S <- S' + k (beta (v - S'^T k))^T      y = scale S^T q

    Args:
        state: the memories S, written in place. Any strides.
        q, k: query and key. Head h takes those of head ``h // (heads / key_heads)``.
        v: value.
        g: logarithm of the decay, of a head or of every channel of its keys; None is 0.
        beta: how much of the difference is written; None is 1.
        qk_norm: where given, ``q`` and ``k`` are divided by ``sqrt(sum of squares + qk_norm)``.
        scale: of the output.
        backend: as in `conv_update`.

    Returns:
        ``y``, in the dtype of ``v``; computed in float32 or float64. It has no gradient, and no
        argument may share memory with the state.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError, BackendError: as `conv_update`.

    Example:
        >>> import torch
        >>> from linrnn.ops import delta_update
        >>> one, half, state = torch.ones(1, 1, 1), torch.full((1, 1), 0.5), torch.zeros(1, 1, 1, 1)
        >>> [delta_update(state, one, one, one, beta=half).item() for _ in range(3)]
        [0.5, 0.75, 0.875]
    """
    options = (0.0 if qk_norm is None else qk_norm, qk_norm is not None, scale)
    return _UPDATE(state, q, k, v, g, beta, *options, backend=backend)


def _check(*arguments: Any) -> None:
    state, q, k, v, g, beta, eps, _, _ = arguments
    if not eps >= 0:
        raise ArgumentError(f"{_WHERE}: qk_norm must be at least 0 or None, got {eps}. Use 1e-6.")
    axes = dict.fromkeys(("batch", "heads", "d_key", "d_value"))
    check_shape(_WHERE, "state", state.shape, axes)
    batch, heads, d_key, d_value = state.shape
    check_shape(_WHERE, "v", v.shape, {"batch": batch, "heads": heads, "d_value": d_value})
    check_shape(_WHERE, "k", k.shape, {"batch": batch, "key_heads": None, "d_key": d_key})
    key_heads = k.shape[1]
    check_shape(_WHERE, "q", q.shape, {"batch": batch, "key_heads": key_heads, "d_key": d_key})
    one = {"batch": batch, "heads": heads}
    if g is not None:
        check_shape(_WHERE, "g", g.shape, {**one, "d_key": d_key} if g.ndim == k.ndim else one)
    if beta is not None:
        check_shape(_WHERE, "beta", beta.shape, one)
    if heads and (key_heads == 0 or heads % key_heads):
        raise ShapeError(
            f"{_WHERE}: heads of q and k must divide heads={heads}, got {key_heads}. "
            f"Repeat them, or change the number of heads."
        )


def _definition(*arguments: Any) -> tuple[Tensor, Tensor]:
    *tensors, eps, norm, scale = arguments
    state, q, k, v, g, beta = widened(*tensors)
    if norm:
        q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + eps) for t in (q, k))
    shared = state.shape[1] // max(k.shape[1], 1)
    q, k = (t.repeat_interleave(shared, 1) for t in (q, k))  # (B, H, D)
    if g is not None:
        state = state * (g if g.ndim == k.ndim else g[..., None]).exp()[..., None]
    short = v - (state * k[..., None]).sum(-2)  # (B, H, P)
    short = short if beta is None else beta[..., None] * short
    updated = state + k[..., None] * short[..., None, :]
    return scale * (updated * q[..., None]).sum(-2), updated


def _record(*arguments: Any) -> tuple[Any, ...] | None:
    state, q, k, v, g, beta, eps, norm, scale, y = arguments
    batch, heads, d_key, d_value = state.shape
    row, head, of_key, of_value = state.stride()
    if of_value != 1 and d_value > 1:
        return None
    of_channels = g is not None and g.ndim == k.ndim
    return (
        *(norm, eps, scale, batch, heads, k.shape[1], d_key, d_value),
        *(state.data_ptr(), row, head, of_key),
        *operand(q, row=0, head=1, lane=2),
        *operand(k, row=0, head=1, lane=2),
        *operand(v, row=0, head=1, lane=2),
        *operand(g, row=0, head=1, lane=2 if of_channels else -1),
        of_channels,
        *operand(beta, row=0, head=1),
        *operand(y)[:2],
    )


_UPDATE = Update(
    _WHERE,
    "Tensor(a!) state, Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, float eps, "
    "bool norm, float scale",
    check=_check,
    definition=_definition,
    fields="norm eps scale rows heads key_heads keys values state state_row state_head state_key "
    + operand_fields("q k v g")
    + " key_decays "
    + operand_fields("beta")
    + " y y_dtype",
    record=_record,
)
