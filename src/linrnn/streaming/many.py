"""Inputs of many streams at once: one array, or one of each stream, checked row by row."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn.backbone import Model
from linrnn.compute.finite import all_finite
from linrnn.errors import DTypeError, LinrnnError, ShapeError, check_shape, show
from linrnn.mixers import check_timed
from linrnn.streaming.input import (
    Streamable,
    as_input,
    as_tensor,
    as_times,
    check_token_type,
    is_strided,
    vocabulary,
)


class Group(NamedTuple):
    """Streams whose inputs are of one length, read in one call."""

    places: np.ndarray
    """In the call, (streams,)."""
    x: Tensor
    """(streams, time, ...), on the model's device."""
    dt: Tensor | None
    """(streams, time), or None."""

    def only(self, fits: np.ndarray) -> "Group":
        """The streams among them for which ``fits``, by their places in the call, is true."""
        mask = fits[self.places]
        if mask.all():
            return self
        return self._at(mask.nonzero()[0])

    def by(self, rows: np.ndarray) -> "Group":
        """The same streams in the order of their rows, which are given by place in the call."""
        ours = rows[self.places]
        return self if (ours[1:] > ours[:-1]).all() else self._at(ours.argsort())

    def halves(self) -> tuple["Group", "Group"]:
        """The first and the last half of them."""
        n = len(self.places) // 2
        first, last = slice(n), slice(n, None)
        return self._part(first), self._part(last)

    def _at(self, members: np.ndarray) -> "Group":
        index = torch.from_numpy(members).to(self.x.device)
        dt = None if self.dt is None else self.dt[index]
        return Group(self.places[members], self.x[index], dt)

    def _part(self, part: slice) -> "Group":
        return Group(self.places[part], self.x[part], None if self.dt is None else self.dt[part])


class Inputs(NamedTuple):
    """Inputs of the streams of a call."""

    groups: list[Group]
    single: np.ndarray
    """Whether the input of a stream is one step, (streams,)."""
    errors: dict[int, LinrnnError]
    """The place of a stream whose input does not fit, to what is wrong with it."""


def as_inputs(
    where: str, model: Streamable, names: Sequence[Hashable], x: Any, dt: Any, *, finite: bool
) -> Inputs:
    """The inputs of many streams, stacked where they are of one length.

    Args:
        where: who asks, for the message.
        model: of the streams.
        names: of the streams.
        x: an array (streams, ...), or a list with what `as_input` takes for each.
        dt: as ``x``, or None.
        finite: refuse what is not finite in the model's dtype.

    Raises:
        ShapeError, DTypeError, ArgumentError: an array that fits no stream.
    """
    is_array = isinstance(x, (Tensor, np.ndarray))
    if dt is None or isinstance(dt, (Tensor, np.ndarray)):
        stacked = as_tensor(where, x) if is_array else _stack(model, x)
        try:
            if stacked is not None:
                return _of_array(where, model, names, stacked, dt, finite)
        except LinrnnError:
            if is_array:
                raise
    inputs = _listed(where, "x", names, x)
    times = None if dt is None else _listed(where, "dt", names, dt)
    return _one_by_one(where, model, names, inputs, times, finite)


def _listed(where: str, what: str, names: Sequence[Hashable], values: Any) -> list[Any]:
    """An entry for each stream."""
    if isinstance(values, (Tensor, np.ndarray)):
        numbers = as_tensor(where, values, what)
        values = list(numbers.unbind(0)) if numbers.ndim else None
    if not isinstance(values, (list, tuple)):
        raise DTypeError(
            f"{where}: {what} must be an array, or a list with an entry for each stream, got "
            f"{show(values)}."
        )
    if len(values) != len(names):
        raise ShapeError(
            f"{where}: {what} must hold an entry for each of {len(names)} streams, got "
            f"{len(values)}."
        )
    return list(values)


def _stack(model: Streamable, inputs: Any) -> Tensor | None:
    """Inputs of one kind and shape as one tensor, or None where they differ."""
    kinds = {type(x) for x in inputs} if isinstance(inputs, (list, tuple)) else set()
    try:
        if kinds == {Tensor}:
            alike = len({(x.shape, x.dtype, x.device, is_strided(x)) for x in inputs}) == 1
            alike = alike and is_strided(inputs[0])
            return torch.stack(list(inputs)) if alike else None
        if kinds == {np.ndarray}:
            return torch.from_numpy(np.stack(inputs))
        # among lists of ids a truth value would become a number
        if kinds <= {list, tuple} and vocabulary(model) is None:
            numbers = np.array(inputs)
            return torch.from_numpy(numbers) if numbers.dtype.kind in "fiu" else None
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass  # then each is looked at alone, and the one at fault is named
    return None


def _of_array(
    where: str, model: Streamable, names: Sequence[Hashable], x: Tensor, dt: Any, finite: bool
) -> Inputs:
    """All streams as one group, without a look at each."""
    weight, size = next(model.parameters()), vocabulary(model)
    axes: dict[str, int | None] = {"streams": len(names), "time": None}
    if size is None:
        width = model.d_input if isinstance(model, Model) else model.d_model
        axes["channels"] = width
    single = x.ndim == len(axes) - 1
    if single:
        del axes["time"]
    check_shape(where, "x", x.shape, axes, "Pass a step, or a chunk of steps, of each stream.")
    if size is not None:
        check_token_type(where, x)
        read = x.to(weight.device, torch.long)
        bad = (
            (read < 0) | (read >= size)
            if read.numel()
            else torch.zeros_like(read, dtype=torch.bool)
        )
    elif x.is_complex():
        raise DTypeError(f"{where}: x must be real, got {x.dtype}.")
    else:
        read = x.to(weight.device, weight.dtype)
        fits = not finite or all_finite([read])
        bad = torch.zeros(len(x), 1, dtype=torch.bool, device="cpu") if fits else ~read.isfinite()
    errors = {}
    for place in bad.reshape(len(x), -1).any(1).nonzero().flatten().tolist() if len(x) else ():
        _, error = _attempt(f"{where}: stream {names[place]!r}", model, x[place], None, finite)
        if error is not None:
            errors[place] = error
    read = read[:, None] if single else read  # (streams, time, ...)
    times = None if dt is None else _times(where, model, dt, read, single)
    places = np.arange(len(names))
    return Inputs([Group(places, read, times)], np.full(len(names), single), errors)


def _times(where: str, model: Streamable, dt: Any, x: Tensor, single: bool) -> Tensor:
    """Times of all streams, (streams, time)."""
    check_timed(where, dt, [model])
    times, weight = as_tensor(where, dt, "dt"), next(model.parameters())
    axes = {"streams": len(x)} if single else {"streams": len(x), "time": x.shape[1]}
    check_shape(where, "dt", times.shape, axes, "Pass one number for each step.")
    if times.is_complex() or times.dtype == torch.bool:
        raise DTypeError(f"{where}: dt must be real, got {times.dtype}.")
    times = times.to(weight.device, torch.promote_types(weight.dtype, torch.float32))
    return times.view(len(x), -1)


Parsed = tuple[Tensor, bool, Tensor | None]


def _attempt(
    where: str, model: Streamable, x: Any, dt: Any, finite: bool
) -> tuple[Parsed | None, LinrnnError | None]:
    """The input of one stream, or what is wrong with it."""
    try:
        chunk, single = as_input(where, model, x, finite=finite)
        return (chunk, single, as_times(where, model, dt, len(chunk), single)), None
    except LinrnnError as error:
        return None, error


def _one_by_one(
    where: str, model: Streamable, names: Sequence[Hashable], x: Any, dt: Any, finite: bool
) -> Inputs:
    """Inputs that differ in length or kind, or of which some do not fit."""
    single, errors = np.ones(len(names), bool), {}
    by_length: dict[tuple[int, bool], list[tuple[int, Tensor, Tensor | None]]] = {}
    for place, name in enumerate(names):
        times = None if dt is None else dt[place]
        parsed, error = _attempt(f"{where}: stream {name!r}", model, x[place], times, finite)
        if error is not None:
            errors[place] = error
        if parsed is not None:
            chunk, single[place], times = parsed
            key = len(chunk), times is None
            by_length.setdefault(key, []).append((place, chunk, times))
    groups = []
    for (_, untimed), members in by_length.items():
        places, chunks, all_times = zip(*members, strict=True)
        stacked = None if untimed else torch.stack(all_times)
        groups.append(Group(np.array(places), torch.stack(chunks), stacked))
    return Inputs(groups, single, errors)
