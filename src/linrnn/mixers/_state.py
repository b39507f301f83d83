"""Checking a state tree that a caller passes in."""

from typing import Any, cast

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from linrnn.ops._arguments import check_not_traced, check_tensor
from linrnn.typing import State

_PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FIX = "Pass what this layer returned for the same batch, or None."


def check_start(where: str, batch_size: object, device: object, dtype: object) -> None:
    """Raise unless a state can be made for so many rows, there, and of that precision.

    Raises:
        ArgumentError: no number of rows, or nothing that names a device; inside `torch.jit.trace`.
        DTypeError: no real dtype of 16 to 64 bits.
    """
    check_not_traced(where)
    whole = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    # the size of a traced tensor fits, and a comparison would bind the graph to a range
    traced = isinstance(batch_size, torch.SymInt) or torch.compiler.is_compiling()
    if not traced and not (whole and 0 <= batch_size < 2**63):  # type: ignore[operator]
        raise ArgumentError(
            f"{where}: batch_size must be an integer of at least 0, got {batch_size!r:.60}."
        )
    # an array that is compared with a dtype gives no truth value
    known = isinstance(dtype, torch.dtype) and dtype in _PRECISIONS
    if dtype is not None and not known:
        raise DTypeError(f"{where}: dtype must be a real floating-point one, got {dtype!r:.60}.")
    if isinstance(device, str):
        try:
            torch.device(device)
        except RuntimeError as error:
            raise ArgumentError(
                f"{where}: device must be one PyTorch knows, got {device!r:.60}."
            ) from error
    elif device is not None and not isinstance(device, torch.device):
        raise ArgumentError(f"{where}: device must be a device or its name, got {device!r:.60}.")


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
    check_tensor(where, name, state)
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
