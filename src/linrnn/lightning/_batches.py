"""Converts batches of any loader to linrnn's: by place, by dtype or by name."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, show
from linrnn.learn import Batch, unpack
from linrnn.nn.lengths import as_lengths
from linrnn.tasks import IGNORE

PrepareBatch = Callable[[Any], Any]

_NAMES = {
    "x": ("x", "input", "inputs", "input_ids"),
    "target": ("target", "targets", "y", "label", "labels"),
    "lengths": ("lengths", "length"),
    "reset": ("reset",),
    "dt": ("dt",),
}
_NEEDED = ("x", "target")
_FIX = "Say what is what with prepare_batch=lambda batch: (x, y), or (x, y, lengths)."


def as_batch(
    where: str, raw: Any, prepare: PrepareBatch | None = None, *, pooled: bool = False
) -> Batch:
    """A batch by names.

    Args:
        where: who asks, for messages.
        raw: ``(x, y)`` and perhaps lengths (integers), resets (boolean) and times (real), told
            apart by their dtype; or a mapping of them, with the names that people use.
        prepare: makes such a batch of whatever a loader gives.
        pooled: the model is known to answer once for each row, whatever the shapes say.

    Returns:
        Tensors; where there is an integer target for each step, those of padding are `IGNORE`.

    Raises:
        ArgumentTypeError, ArgumentError: it is no such batch, or has a part nobody would read.
    """
    prepared = raw if prepare is None else prepare(raw)
    if isinstance(prepared, Batch):
        batch = _by_name(where, {n: p for n, p in prepared._asdict().items() if p is not None})
    elif isinstance(prepared, Mapping):
        batch = _by_name(where, prepared)
    elif isinstance(prepared, (tuple, list)) and 2 <= len(prepared) <= 5:
        parts = [_tensor(where, f"part {i + 1}", part) for i, part in enumerate(prepared)]
        batch = unpack(parts)
        _check_extras(where, batch)
        if sum(part is not None for part in batch) < len(parts):
            kinds = ", ".join(str(part.dtype) for part in parts[2:])
            raise ArgumentError(
                f"{where}: after x and y a batch must have at most one part of each of integers "
                f"(lengths), booleans (resets) and real numbers (times), got {kinds}. {_FIX}"
            )
    else:
        kind = type(prepared).__name__
        size = f" of {len(prepared)}" if isinstance(prepared, (tuple, list)) else ""
        raise ArgumentTypeError(
            f"{where}: a batch must be (x, y), perhaps with lengths, or a mapping of them, got a "
            f"{kind}{size}. {_FIX}"
        )
    batch = _checked(where, batch)
    return batch._replace(target=_without_padding(batch, pooled))


def _check_extras(where: str, batch: Batch) -> None:
    """Raise for parts that are told apart by their dtype and are clearly meant as something else.

    Masks of padding are boolean like resets, but true, or false, from some step to the end of each
    row. As resets they would cut sequences into single steps, and a model would learn nothing.

    Raises:
        ArgumentError: a mask of padding.
        ShapeError: real numbers for each row alone, which are no times.
    """
    if batch.dt is not None and batch.dt.ndim == 1 and batch.x.ndim > 1:
        raise ShapeError(
            f"{where}: real numbers after x and y must be times between steps (batch, time), got "
            f"shape {tuple(batch.dt.shape)}. Lengths are integers: lengths.long()."
        )
    mask = batch.reset
    if mask is None or mask.ndim != 2 or mask.numel() == 0:
        return
    for padded, valid in ((mask, "mask"), (~mask, "(~mask)")):
        rises = padded[:, 1:] > padded[:, :-1]  # nowhere from False to True again
        several = mask.sum(1).max() > 1
        if several and bool(padded[:, 0].all()) and not bool(rises.any()):
            raise ArgumentError(
                f"{where}: a boolean part of a batch must be the steps at which new sequences "
                f"begin, got what looks like a mask of padding. Give lengths, {valid}.sum(1); or "
                "name the part, {'x': x, 'y': y, 'reset': mask}."
            )


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""
    x, target, *more = batch
    optional = (None if part is None else part.to(device) for part in more)
    return Batch(x.to(device), target.to(device), *optional)


def parts(batch: Batch) -> list[Tensor]:
    """The batch as `linrnn.learn` unpacks it: without what is not there."""
    return [part for part in batch if part is not None]


def per_step(batch: Batch, pooled: bool = False) -> bool:
    """Whether there is a target for each step, by shapes where the model may answer at each.

    A target of as many channels as a row has steps looks like one, but for a model that pools.
    """
    x, target = batch.x, batch.target
    if pooled:
        return False
    return target.ndim > 1 and x.ndim > 1 and target.shape[:2] == x.shape[:2] and x.shape[1] > 1


def has_integers(target: Tensor) -> bool:
    """Whether a target is of integers, which may be classes."""
    return not (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool)


def _by_name(where: str, raw: Mapping[str, Any]) -> Batch:
    tensors: dict[str, Tensor] = {}
    for part, names in _NAMES.items():
        present = [name for name in names if name in raw]
        if len(present) > 1:
            raise ArgumentError(
                f"{where}: a batch must have one {part}, got {' and '.join(present)}. {_FIX}"
            )
        if present:
            tensors[part] = _tensor(where, present[0], raw[present[0]])
    all_names = {name for names in _NAMES.values() for name in names}
    unknown = [str(name) for name in raw if name not in all_names]
    missing = [part for part in _NEEDED if part not in tensors]
    if missing or unknown:
        wrong = f"no {missing[0]} in" if missing else f"{unknown[0]!r} too in"
        raise ArgumentError(
            f"{where}: a batch must hold x and target, under such names as x, input_ids, y or "
            f"labels, and of the rest lengths, reset and dt, got {wrong} "
            f"{', '.join(map(str, raw))}. {_FIX}"
        )
    return Batch(
        tensors["x"],
        tensors["target"],
        tensors.get("lengths"),
        tensors.get("reset"),
        tensors.get("dt"),
    )


def _tensor(where: str, name: str, part: Any) -> Tensor:
    """A part of a batch, whose numbers can be read.

    Raises:
        ArgumentTypeError, ArgumentError, DTypeError: they cannot, or some are masked.
    """
    if _masked(part):
        raise ArgumentError(
            f"{where}: {name} of a batch must have no masked values, which nothing would leave "
            f"out, got a {type(part).__name__} with such. Fill them, {name}.filled(0), or leave "
            "steps out by lengths or resets."
        )
    try:
        numbers = part if isinstance(part, Tensor) else torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentTypeError(
            f"{where}: {name} of a batch must be a tensor, got a {type(part).__name__}. {_FIX}"
        ) from error
    if numbers.is_meta or numbers.is_quantized or numbers.layout != torch.strided:
        kind = "quantized" if numbers.is_quantized else str(numbers.layout)
        raise DTypeError(
            f"{where}: {name} of a batch must be a dense tensor of numbers, got "
            f"{'one without, on the device meta' if numbers.is_meta else f'a {kind} one'}."
        )
    return numbers


def _masked(part: Any) -> bool:
    if isinstance(part, (list, tuple)):
        return any(_masked(one) for one in part)
    return isinstance(part, np.ma.MaskedArray) and bool(np.ma.is_masked(part))


def _checked(where: str, batch: Batch) -> Batch:
    """The batch, with lengths as integers of 64 bits.

    Raises:
        ArgumentError, DTypeError: its parts do not go together, or there is nothing to read.
    """
    x, target, lengths, *_ = batch
    if x.ndim < 1 or target.ndim < 1 or len(x) != len(target):
        raise ArgumentError(
            f"{where}: x and y of a batch must have as many rows, got {tuple(x.shape)} and "
            f"{tuple(target.shape)}. {_FIX}"
        )
    if len(x) == 0:
        raise ArgumentError(
            f"{where}: a batch must have at least one row, got x of shape {tuple(x.shape)}."
        )
    if x.numel() == 0 or target.numel() == 0:
        raise ArgumentError(
            f"{where}: rows of x must have at least one step and channel, and y a target for each "
            f"row, got {tuple(x.shape)} and {tuple(target.shape)}. Leave empty rows out of the "
            "data."
        )
    if lengths is None:
        return batch
    lengths = as_lengths(where, lengths)
    _check_lengths(where, lengths, x)
    return batch._replace(lengths=lengths)


def _check_lengths(where: str, lengths: Tensor, x: Tensor) -> None:
    one_each = lengths.ndim == 1 or (lengths.ndim == 2 and lengths.shape[1] == 2)  # or of pairs
    if not one_each or x.ndim <= lengths.ndim or lengths.shape[0] != len(x):
        raise ArgumentError(
            f"{where}: lengths must have one number for each of the {len(x)} rows of x "
            f"{tuple(x.shape)}, got {tuple(lengths.shape)}. Of a mask of padding they are "
            "mask.sum(1)."
        )
    steps = x.shape[lengths.ndim]
    shortest = int(lengths.ndim == 1)  # of two documents one may be empty
    low, high = (int(end) for end in lengths.aminmax()) if lengths.numel() else (steps, steps)
    if low < shortest or high > steps:
        raise ArgumentError(
            f"{where}: lengths must be in {shortest}..{steps}, the steps of x, got "
            f"{show(low if low < shortest else high)}. Leave empty rows out of the data."
        )


def _without_padding(batch: Batch, pooled: bool) -> Tensor:
    """Targets, those beyond the end of a row left out where they are classes of steps."""
    target, lengths = batch.target, batch.lengths
    if (
        lengths is None
        or lengths.ndim != 1
        or not has_integers(target)
        or not per_step(batch, pooled)
    ):
        return target
    steps = torch.arange(target.shape[1], device=target.device)
    padding = steps >= lengths.to(target.device)[:, None]  # (batch, time)
    return target.masked_fill(padding.reshape(*padding.shape, *(1,) * (target.ndim - 2)), IGNORE)
