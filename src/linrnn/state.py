"""Helpers for states: plain trees of tensors whose leading axis is the batch."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_structure

from linrnn import __version__
from linrnn._files.door import open_file
from linrnn._files.reading import as_path, reading
from linrnn._files.storage import WrongChecksumError, open_tensors, read_tensors, write_tensors
from linrnn._options.call import check_flag, check_placement
from linrnn._options.schema import plain_json, record
from linrnn.compute.arguments import check_device, check_tensor
from linrnn.compute.finite import first_bad
from linrnn.compute.trees import (
    batched_leaves,
    branch,
    branch_of,
    check_fits,
    check_in_memory,
    dense_leaves,
    from_pairs,
    leaves_of,
    row_numbers,
    sorted_keys,
)
from linrnn.compute.trees import check_flat as check_flat
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    DeviceError,
    NonFiniteError,
    check_kind,
    show,
)
from linrnn.typing import Integer, State

__all__ = [
    "FORMAT",
    "bad_part",
    "batch_size",
    "check_flat",
    "concat",
    "detach",
    "flatten",
    "leaves",
    "load",
    "map_state",
    "n_floats",
    "ordered",
    "put",
    "read_header",
    "rebuilt",
    "save",
    "select",
    "to",
    "unflatten",
]


def __dir__() -> list[str]:
    return sorted(__all__)


FORMAT = 1
"""Version of the files of `save`; rises when an older linrnn could no longer read them."""

_HEADER = "state"
_HEADER_BYTES = 1 << 20  # that no file of ours comes near
_PART_BYTES = 512  # at most that an entry of a tensor takes in the header of a file


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The header field common to every file of `save`; its writers add their own."""

    format: int


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply ``function`` to every tensor of a state.

    Example:
        >>> import torch
        >>> map_state(lambda h: h[:1], {"h": torch.zeros(2, 3)})
        {'h': tensor([[0., 0., 0.]])}
    """
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, dict):
        return {key: map_state(function, part) for key, part in state.items()}
    return branch_of(state, [map_state(function, part) for part in branch(state)])


def detach(state: State) -> State:
    """Cut a state off from its history, as truncated back-propagation does between chunks."""
    return map_state(Tensor.detach, state)


def concat(states: Sequence[State]) -> State:
    """One batch of several: the rows of the first state, then those of the second, ...

    Raises:
        ArgumentError: none came, or they are not all of the same model.
        DeviceError: they are on several devices.

    Example:
        >>> import torch
        >>> concat([{"h": torch.zeros(1, 3)}, {"h": torch.ones(2, 3)}])["h"].shape
        torch.Size([3, 3])
    """
    check_kind("concat", "states", states, list, tuple)
    if not states:
        raise ArgumentError("concat: states must hold at least one state, got none.")
    columns = [batched_leaves("concat", f"states[{i}]", s)[0] for i, s in enumerate(states)]
    first, shapes = states[0], [h.shape[1:] for h in columns[0]]
    for i, (state, tensors) in enumerate(zip(states, columns, strict=True)):
        same = tree_structure(ordered(state)) == tree_structure(ordered(first))
        if not same or [h.shape[1:] for h in tensors] != shapes:
            raise ArgumentError(
                f"concat: every state must be of the same model, got one with parts of "
                f"{[tuple(s) for s in shapes]} a row and, at place {i}, one with "
                f"{[tuple(h.shape[1:]) for h in tensors]}."
            )
        for h, like in zip(tensors, columns[0], strict=True):
            check_device("concat", "states[0]", like.device, **{f"states[{i}]": h})
    return rebuilt(first, [torch.cat(column) for column in zip(*columns, strict=True)])


def select(state: State, rows: int | slice | Sequence[int] | Integer[Tensor, " rows"]) -> State:
    """Some rows of a batch, as a state of their own.

    Args:
        state: of a batch.
        rows: a row, which gives a batch of one; a slice, which shares memory with ``state``; or
            row numbers in any order, which may repeat.

    Raises:
        ArgumentError: there is no such row.
        DTypeError: the rows are no integers, such as a mask.

    Example:
        >>> import torch
        >>> select({"h": torch.tensor([[1.0], [2.0], [3.0]])}, [2, 0])
        {'h': tensor([[3.],
                [1.]])}
    """
    if isinstance(rows, slice):
        return map_state(lambda h: h[rows], state)
    index = row_numbers("select", rows, batched_leaves("select", "state", state)[1])
    return map_state(lambda h: h.index_select(0, index.to(h.device)), state)


def put(state: State, rows: Sequence[int] | Integer[Tensor, " rows"], part: State) -> None:
    """Write the rows of ``part`` over those rows of ``state``, in place.

    Args:
        state: of a batch, changed.
        rows: row numbers, each once.
        part: as many rows.

    Raises:
        ArgumentError: there is no such row, or one comes twice.
        DTypeError: the rows are no integers, such as a mask.
        ShapeError: ``part`` has other tensors, or another number of rows. Nothing is written.
        DeviceError: ``part`` is on another device. Nothing is written.

    Example:
        >>> import torch
        >>> h = torch.zeros(3, 1)
        >>> put({"h": h}, [1], {"h": torch.ones(1, 1)})
        >>> h.flatten()
        tensor([0., 1., 0.])
    """
    (places, size), (parts, _) = (
        batched_leaves("put", name, tree) for name, tree in (("state", state), ("part", part))
    )
    index = row_numbers("put", rows, size)
    if index.unique().numel() < index.numel():
        raise ArgumentError(f"put: rows must each come once, got {show(index.tolist())}.")
    check_fits("put", places, parts, len(index))
    for h, new in zip(places, parts, strict=True):
        h.index_copy_(0, index.to(h.device), new)


def batch_size(state: State) -> int:
    """Rows of a state; 0 where it holds no tensor."""
    return batched_leaves("batch_size", "state", state)[1]


def to(
    state: State, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> State:
    """A state on another device, or of another precision.

    Args:
        state: what to move.
        device: where to; None leaves it there.
        dtype: a real dtype, of which complex tensors take the complex counterpart; integers, such
            as positions, stay as they are.

    Raises:
        DTypeError: another dtype.
        DeviceError: no such device here, or a move from the device meta, which has no numbers.

    Example:
        >>> import torch
        >>> to(torch.zeros(1, 2, dtype=torch.cfloat), dtype=torch.float64).dtype
        torch.complex128
    """
    check_placement("to", {"device": device, "dtype": dtype})

    def move(h: Tensor) -> Tensor:
        kind = dtype
        if dtype is not None and h.is_complex():
            kind = torch.complex128 if dtype == torch.float64 else torch.complex64
        if not (h.is_floating_point() or h.is_complex()):
            kind = None
        try:
            return h.to(device=device, dtype=kind)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, AssertionError) as error:  # the latter without CUDA
            why = str(error).partition("\n")[0]
            raise DeviceError(
                f"to: device must be one that a state on {h.device} can move to, got "
                f"{show(device)} ({why})."
            ) from error

    return map_state(move, state)


def leaves(state: State) -> list[Tensor]:
    """Every tensor of a state, in an order that does not depend on that of the keys of its dicts.

    Example:
        >>> import torch
        >>> [h.shape for h in leaves((torch.zeros(2, 3), torch.zeros(2)))]
        [torch.Size([2, 3]), torch.Size([2])]
    """
    return leaves_of(state)


def ordered(state: State) -> State:
    """The same tree with the keys of every dict sorted, so that equal states lie in one order.

    Example:
        >>> import torch
        >>> ordered({"b": torch.ones(1), "a": []})
        {'a': [], 'b': tensor([1.])}
    """
    if isinstance(state, Tensor):
        return state
    if isinstance(state, dict):
        return {key: ordered(state[key]) for key in sorted_keys(state)}
    return branch_of(state, [ordered(part) for part in branch(state)])


def bad_part(state: State) -> str | None:
    """Describe the first part of a state that holds NaN or infinity, or None.

    Example:
        >>> import torch
        >>> bad_part({"h": torch.tensor([[0.0, torch.inf]])})
        'part 0 of shape (1, 2) has inf at (0, 1), the only such value'
    """
    parts = dense_leaves("bad_part", "state", state)
    check_in_memory("bad_part", "state", parts)
    return first_bad((f"part {i}", h) for i, h in enumerate(parts))


def n_floats(state: State) -> int:
    """Real numbers held for each sequence of the batch; a complex one counts twice.

    Example:
        >>> import torch
        >>> n_floats(torch.zeros(5, 8, dtype=torch.complex64))
        16
    """
    parts, _ = batched_leaves("n_floats", "state", state)
    return sum(h.shape[1:].numel() * (2 if h.is_complex() else 1) for h in parts)


def flatten(state: State) -> dict[str, Tensor]:
    """Every tensor by its number in the tree, complex ones as pairs of real numbers.

    The result is what `safetensors` stores; `unflatten` is the inverse.

    Example:
        >>> import torch
        >>> {n: tuple(h.shape) for n, h in flatten([torch.zeros(2, 3, dtype=torch.cfloat)]).items()}
        {'0': (2, 3, 2)}
    """
    return {
        str(i): (torch.view_as_real(h) if h.is_complex() else h).detach().contiguous()
        for i, h in enumerate(dense_leaves("flatten", "state", state))
    }


def unflatten(flat: Mapping[str, Tensor], like: State) -> State:
    """The state that `flatten` took apart.

    Args:
        flat: what `flatten` returned, perhaps read from a file.
        like: a state of the same structure, such as ``init_state(1)``.

    Raises:
        ArgumentError: ``flat`` has other tensors than a state like ``like``.
        ShapeError: what should be pairs of real numbers are none.
    """
    check_kind("unflatten", "flat", flat, Mapping)
    expected = [str(i) for i in range(len(leaves(like)))]
    if set(flat) != set(expected):
        raise ArgumentError(
            f"unflatten: flat must hold the tensors {show(expected)}, got {show(list(flat))}. "
            "Is it the state of another model?"
        )
    remaining = iter(expected)

    def restore(h: Tensor) -> Tensor:
        name = next(remaining)
        stored = flat[name]
        check_tensor("unflatten", f"flat[{name!r}]", stored)
        return from_pairs("unflatten", f"flat[{name!r}]", stored) if h.is_complex() else stored

    return map_state(restore, ordered(like))


def rebuilt(like: State, tensors: Iterable[Tensor]) -> State:
    """The tree of ``like`` with other tensors, in the order of `leaves`.

    Example:
        >>> import torch
        >>> rebuilt({"b": torch.ones(1), "a": torch.zeros(1)}, [torch.ones(1), torch.zeros(1)])
        {'a': tensor([1.]), 'b': tensor([0.])}
    """
    try:
        tensors = list(tensors)
    except TypeError as error:
        raise ArgumentTypeError(f"rebuilt: tensors must be a list, got {show(tensors)}.") from error
    if len(tensors) != len(leaves(like)):
        raise ArgumentError(
            f"rebuilt: tensors must be one for each of {len(leaves(like))} parts of like, got "
            f"{len(tensors)}."
        )
    remaining = iter(tensors)
    return map_state(lambda _: next(remaining), ordered(like))


def save(
    state: State,
    path: Path | str,
    header: Mapping[str, Any] | None = None,
    *,
    allow_nonfinite: bool = False,
) -> None:
    """Write a state to a safetensors file, all of it or nothing.

    Args:
        state: a batch of any size, on any device.
        path: the file, replaced if it exists.
        header: plain values that say what it is, which `read_header` gives back: texts, finite
            numbers, booleans, None, and lists and dicts of them.
        allow_nonfinite: write NaN and infinity as well.

    Raises:
        ArgumentError: a header that no file can give back; the file is as it was.
        NonFiniteError: the state holds NaN or infinity; the file is as it was.
        StorageError: the file cannot be written; it is as it was.
    """
    path = as_path("save", path)
    check_flag("save", "allow_nonfinite", allow_nonfinite)
    parts, _ = batched_leaves("save", "state", state)
    check_in_memory("save", "state", parts)
    if not allow_nonfinite and (bad := bad_part(state)):
        raise NonFiniteError(
            f"{path}: a saved state must be finite, got {bad}. "
            "The file is unchanged; allow_nonfinite=True would write it."
        )
    text = _header_text({} if header is None else header, len(parts))
    # tensors that share memory are stored apart
    flat = {n: h.cpu().clone() for n, h in flatten(state).items()}
    write_tensors(path, flat, {_HEADER: text})


def _header_text(header: Mapping[str, Any], n_parts: int) -> str:
    """The header of a file as JSON.

    Raises:
        ArgumentError: `read_header` would give back something else, or nothing.
    """
    check_kind("save", "header", header, Mapping)
    if "format" in header:
        raise ArgumentError(
            "save: header must leave the name 'format' to this library, got "
            f"{show(header['format'])} under it. Choose another name."
        )
    text = plain_json("save", "header", {"format": FORMAT, **header})
    size = len(json.dumps(text)) + (n_parts + 2) * _PART_BYTES
    if size > _HEADER_BYTES:
        raise ArgumentError(
            f"save: header must take at most {_HEADER_BYTES:,} bytes with the names of the parts, "
            f"got {size:,}. Keep large things in a file beside the state."
        )
    return text


def read_header(path: Path | str) -> dict[str, Any]:
    """Load the details that `save` stored with a state, without reading the state.

    Raises:
        DataError: no such file, not one of `save`, or one of a newer linrnn.
    """
    path = as_path("read_header", path)
    with reading(path, DataError, "be a state that linrnn saved", got="got another ({})"):
        there = path.exists()
    if not there:
        raise DataError(f"{path}: the state file must exist, got no such file.")
    with reading(path, DataError, "be a state that linrnn saved", got="got another ({})"):
        with open_file(path, inside=None) as file:
            size = int.from_bytes(file.read(8), "little")
        if size > _HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes")
        with open_tensors(path, inside=None) as stored:
            header = json.loads((stored.metadata() or {})[_HEADER])
        version = _Header(**record("state", _Header, header, more=True)).format
    if version > FORMAT:
        writer = show(header.get("linrnn", __version__), 40).strip("'")
        raise DataError(
            f"{path}: the format of the state must be at most {FORMAT}, got {version}. Install "
            f"the version that wrote it: pip install 'linrnn>={writer}'"
        )
    return cast(dict[str, Any], header)


def load(
    path: Path | str, like: State, *, limit: int | None = None, allow_nonfinite: bool = False
) -> State:
    """Read what `save` wrote, on the CPU.

    Args:
        path: the file.
        like: a state of the same structure with any number of rows, such as ``init_state(1)``. An
            axis after the first of length 0 in it may have any length in the file.
        limit: the largest size of the file that is read, in bytes. Default: none where an axis of
            ``like`` may have any length, else what a file of as many rows as ``like`` has can take.
        allow_nonfinite: take NaN and infinity as well.

    Raises:
        DataError: no such file, damaged, larger than ``limit``, not finite, or of a newer linrnn.
        ArgumentError, ShapeError: it holds a state of another structure or other sizes.
    """
    path = as_path("load", path)
    check_flag("load", "allow_nonfinite", allow_nonfinite)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise ArgumentTypeError(
            f"load: limit must be a number of bytes or None, got {show(limit)}."
        )
    batched_leaves("load", "like", like)
    read_header(path)
    _check_size(path, like, limit)
    with reading(path, DataError, "be as it was saved", got="got damage ({})"):
        try:
            flat, _ = read_tensors(path, inside=None)
        except WrongChecksumError as error:
            raise DataError(
                f"{path}: the state must be as it was saved, got other bytes than the checksum is "
                "of. Restore it from a copy, or start from a fresh state."
            ) from error
    check_flat(path, flat, flatten(like))
    if not allow_nonfinite and (bad := first_bad((f"part {n}", h) for n, h in flat.items())):
        raise DataError(
            f"{path}: the state must be finite, or every answer after it would be NaN, got {bad}. "
            "Restore it from a copy, or start from a fresh state."
        )
    return unflatten(flat, like)


def _check_size(path: Path, like: State, limit: int | None) -> None:
    """Refuse a file that cannot hold such a state before its content is read."""
    if limit is None:
        if any(0 in h.shape[1:] for h in leaves(like)):
            return
        limit = _HEADER_BYTES + sum(h.numel() * h.element_size() for h in leaves(like))
    size = os.path.getsize(path)
    if size > limit:
        raise DataError(
            f"{path}: the file of this state must hold at most {limit:,} bytes, got {size:,}. "
            "Is it the state of another model?"
        )
