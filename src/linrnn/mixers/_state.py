"""Checking a state tree that a caller passes in."""

from typing import Any, cast

from torch import Tensor

from linrnn.errors import DeviceError, DTypeError, ShapeError
from linrnn.typing import State

_FIX = "Pass what this layer returned for the same batch, or None."


def check_state(where: str, state: object, like: State, name: str = "state") -> State:
    """The caller's state, cast to the dtypes of ``like``, a state the layer could start from.

    Args:
        where: the layer, for messages.
        state: what came.
        like: what was expected, on the right device. An axis after the first of length 0 in
            ``like`` grows with what was read and may have any length.
        name: of this part of the tree, for messages.

    Raises:
        DTypeError: another tree, or complex for real or the reverse.
        ShapeError: another shape.
        DeviceError: another device.
    """
    if isinstance(like, Tensor):
        return _check_leaf(where, state, like, name)
    if isinstance(like, dict):
        if not isinstance(state, dict) or state.keys() != like.keys():
            raise DTypeError(f"{where}: {name} must be {_tree(like)}, got {_tree(state)}. {_FIX}")
        return {k: check_state(where, state[k], like[k], f"{name}[{k!r}]") for k in like}
    if not isinstance(state, (tuple, list)) or len(state) != len(like):
        raise DTypeError(f"{where}: {name} must be {_tree(like)}, got {_tree(state)}. {_FIX}")
    parts = [
        check_state(where, s, cast(State, part), f"{name}[{i}]")
        for i, (s, part) in enumerate(zip(state, like, strict=True))
    ]
    return parts if isinstance(like, list) else tuple(parts)


def _check_leaf(where: str, state: object, like: Tensor, name: str) -> Tensor:
    if not isinstance(state, Tensor):
        shape = tuple(like.shape)
        raise DTypeError(
            f"{where}: {name} must be a tensor of shape {shape}, got {_tree(state)}. {_FIX}"
        )
    fits = state.ndim == like.ndim and all(
        got == want or (axis > 0 and want == 0)
        for axis, (got, want) in enumerate(zip(state.shape, like.shape, strict=True))
    )
    if not fits:
        want = ", ".join("any" if axis and n == 0 else str(n) for axis, n in enumerate(like.shape))
        raise ShapeError(
            f"{where}: {name} must have shape ({want}), got {tuple(state.shape)}. {_FIX}"
        )
    if state.is_complex() != like.is_complex():
        raise DTypeError(f"{where}: {name} must be {like.dtype}, got {state.dtype}. {_FIX}")
    if state.device != like.device:
        raise DeviceError(
            f"{where}: {name} must be on {like.device} like x, got {state.device}. "
            f"Move it with .to({str(like.device)!r})."
        )
    return state.to(like.dtype)


def _tree(state: Any) -> str:
    """The outline of a state, short."""
    if isinstance(state, dict):
        return f"a dict with {sorted(state)}"
    if isinstance(state, (tuple, list)):
        return f"a {type(state).__name__} of {len(state)}"
    return type(state).__name__
