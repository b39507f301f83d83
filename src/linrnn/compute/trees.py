"""Plain trees of tensors: their leaves, and what makes one a state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from linrnn.compute.arguments import check_device, check_tensor
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    ShapeError,
    check_kind,
    show,
)
from linrnn.typing import State

_PAIRS = (torch.float16, torch.float32, torch.float64)


def leaves_of(tree: Any) -> list[Tensor]:
    """Every tensor of a tree, in the order of the sorted keys of its dicts.

    Raises:
        ArgumentTypeError: something in it is no tensor, nor a tuple, list or dict with texts as
            keys.
    """
    if isinstance(tree, Tensor):
        return [tree]
    in_order = isinstance(tree, dict)
    parts = [tree[key] for key in sorted_keys(tree)] if in_order else branch(tree)
    return [h for part in parts for h in leaves_of(part)]


def sorted_keys(tree: dict[Any, Any]) -> list[str]:
    """The keys of a dict in order.

    Raises:
        ArgumentTypeError: one of them is no text.
    """
    for key in tree:
        if not isinstance(key, str):
            raise ArgumentTypeError(f"state: keys of a dict must be texts, got {show(key)}.")
    return sorted(tree)


def branch(tree: object) -> tuple[Any, ...] | list[Any]:
    """A tree that is a tuple or list.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not isinstance(tree, (tuple, list)):
        raise ArgumentTypeError(
            f"state: every part must be a tensor, or a tuple, list or dict of parts, got "
            f"{show(tree)}."
        )
    return tree


def branch_of(tree: Any, parts: list[Any]) -> State:
    """A tuple, named or not, or a list, of other parts."""
    made = type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return cast(State, made)


def dense_leaves(where: str, name: str, tree: Any) -> list[Tensor]:
    """The leaves of a tree whose numbers lie in memory or on the device meta.

    Raises:
        ArgumentTypeError: as `leaves_of`.
        DTypeError: a tensor is sparse, nested or quantized.
    """
    tensors = leaves_of(tree)
    for h in tensors:
        check_tensor(where, name, h)
        if h.is_quantized:
            raise DTypeError(
                f"{where}: {name} must hold plain tensors, got a quantized one. "
                "Convert it with .dequantize()."
            )
    return tensors


def batched_leaves(where: str, name: str, tree: Any) -> tuple[list[Tensor], int]:
    """The leaves of a state, and its number of rows, 0 without leaves.

    Raises:
        ArgumentTypeError, DTypeError: as `dense_leaves`.
        ShapeError: a tensor has no axes, or they have different numbers of rows.
    """
    tensors = dense_leaves(where, name, tree)
    shapes = [tuple(h.shape) for h in tensors]
    if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        raise ShapeError(
            f"{where}: all parts of {name} must have the same number of rows on their first axis, "
            f"got parts of shapes {show(shapes)}."
        )
    return tensors, shapes[0][0] if shapes else 0


def check_fits(where: str, places: list[Tensor], parts: list[Tensor], rows: int) -> None:
    """Raise unless ``parts``, of ``rows`` rows, can be written into the tensors ``places``.

    Raises:
        ShapeError: another number of tensors or rows, or another shape or dtype.
        DeviceError: another device.
    """
    shapes = [(h.dtype, (rows, *h.shape[1:])) for h in places]
    ours = [(h.dtype, tuple(h.shape)) for h in parts]
    if ours != shapes:
        expected, got = (
            ", ".join(f"{dtype} {shape}" for dtype, shape in pairs) or "none"
            for pairs in (shapes, ours)
        )
        raise ShapeError(f"{where}: part must have tensors of {expected}, got {got}.")
    for h, new in zip(places, parts, strict=True):
        check_device(where, "state", h.device, part=new)


def from_pairs(where: str, name: str, stored: Tensor) -> Tensor:
    """Complex numbers of pairs of real ones on the last axis.

    In a file pairs of float64 lie at multiples of 8 bytes, where PyTorch's complex128 crashes: so
    they are copied.

    Raises:
        ShapeError: they are no pairs.
    """
    if stored.shape[-1:] != (2,) or stored.dtype not in _PAIRS:
        raise ShapeError(
            f"{where}: {name} must hold pairs of real numbers, got {stored.dtype} of shape "
            f"{tuple(stored.shape)}. Is it the state of another model?"
        )
    return torch.complex(stored[..., 0], stored[..., 1])


def check_in_memory(where: str, name: str, tensors: list[Tensor]) -> None:
    """Raise `DeviceError` where a tensor has no numbers, on the device meta."""
    if any(h.is_meta for h in tensors):
        raise DeviceError(
            f"{where}: {name} must hold numbers, got tensors on the device meta, which have none."
        )


def row_numbers(where: str, rows: Any, size: int) -> Tensor:
    """Numbers from 0 to ``size - 1``, of rows that may be counted from the end.

    Raises:
        ArgumentError: there is no such row.
        ArgumentTypeError: something else than a number or a list of numbers.
        DTypeError: they are no integers.
        ShapeError: they have more than one axis.
    """
    index = _as_index(where, rows)
    if not index.numel():
        return index.long().reshape(-1)
    least, most = int(index.min()), int(index.max())
    if not -size <= least <= most < size:
        raise ArgumentError(
            f"{where}: rows must be between 0 and {size - 1}, got {least} to {most}."
        )
    return index.where(index >= 0, index + size).long()


def _as_index(where: str, rows: Any) -> Tensor:
    try:
        index = rows if isinstance(rows, Tensor) else torch.as_tensor(rows, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentTypeError(
            f"{where}: rows must be an integer or a list of integers, got {show(rows)}."
        ) from error
    if index.numel() and (
        index.dtype == torch.bool or index.is_floating_point() or index.is_complex()
    ):
        fix = " Use mask.nonzero()[:, 0]." if index.dtype == torch.bool else ""
        raise DTypeError(f"{where}: rows must be integers, got {index.dtype}.{fix}")
    dense_leaves(where, "rows", index)
    check_in_memory(where, "rows", [index])
    if index.ndim > 1:
        raise ShapeError(f"{where}: rows must have shape (rows,), got {tuple(index.shape)}.")
    return index.reshape(-1)


def check_flat(path: Path, flat: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Raise `ArgumentError` or `ShapeError` unless a flat state is one of several rows like that.

    An axis of length 0 in ``like`` may have any length.
    """
    for name, tensors in (("flat", flat), ("like", like)):
        check_kind(str(path), name, tensors, Mapping)
        dense_leaves(str(path), name, list(tensors.values()))
    if flat.keys() != like.keys():
        raise ArgumentError(
            f"{path}: the state must have {len(like)} parts, got {len(flat)}. "
            "Is it the state of another model?"
        )
    rows = {len(h) if h.ndim else None for h in flat.values()}
    for name, expected in like.items():
        h, want = flat[name], expected.shape[1:]
        fits = len(rows) == 1 and h.ndim == expected.ndim and h.dtype == expected.dtype
        if not fits or any(n not in (0, m) for m, n in zip(h.shape[1:], want, strict=True)):
            raise ShapeError(
                f"{path}: part {name} of the state must have shape (rows, *{tuple(want)}) and be "
                f"{expected.dtype}, got {tuple(h.shape)} and {h.dtype}. "
                "Is it the state of another model?"
            )
