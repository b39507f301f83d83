"""The arguments of `linrnn.ops.outer_scan` and `linrnn.ops.delta_scan`, checked."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute.arguments import (
    check_device,
    check_flags,
    check_numbers,
    check_packed,
    check_reset,
)
from linrnn.compute.layout import accumulator_dtype, n_sequences
from linrnn.errors import ArgumentError, ShapeError, check_shape

#: When a step reads: `Problem.before` covers the second.
READS = ("after", "before")
#: Kept in the dtype of storage; the others are in the one to compute in.
STORED = ("q", "k", "v", "a", "b")


class Problem(NamedTuple):
    """Both ops in the order of their schema; see `linrnn.ops.outer_scan` for shapes."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    value_decay: Tensor | None
    bonus: Tensor | None
    beta: Tensor | None
    a: Tensor | None
    b: Tensor | None
    initial_state: Tensor | None
    sign: Tensor | None
    reset: Tensor | None
    cu_seqlens: Tensor | None
    delta: bool
    normalizer: bool
    before: bool
    scale: float
    reverse: bool

    @property
    def seqs(self) -> int:
        """How many sequences there are."""
        return n_sequences(self.q, self.cu_seqlens)

    @property
    def heads(self) -> int:
        """How many memories a sequence has."""
        q, k, v, g, e, _, beta, a, b = self[:9]
        count = max(q.shape[-2], k.shape[-2], v.shape[-2])
        if g is not None and g.ndim > 2:
            count = max(count, g.shape[2])
        if e is not None:
            count = max(count, e.shape[2])
        if beta is not None:
            count = max(count, beta.shape[v.ndim - 2])
        return count if a is None or b is None else max(count, a.shape[-2], b.shape[-2])

    @property
    def rank(self) -> int:
        """How many writes a step makes, one after the other."""
        return self.k.shape[2] if self.k.ndim == 5 else 1

    @property
    def reads(self) -> int:
        """How many reads a step makes, all of one memory."""
        return self.q.shape[2] if self.q.ndim == 5 else 1

    @property
    def columns(self) -> int:
        """Columns of the memory: channels of a value, and one of the normalizer."""
        return self.v.shape[-1] + self.normalizer

    @property
    def beta_by_channel(self) -> bool:
        """Whether each channel of a value has its own rate."""
        return self.beta is not None and self.beta.ndim == self.v.ndim

    @property
    def wide(self) -> torch.dtype:
        """The dtype to compute in."""
        return accumulator_dtype(self.v.dtype)

    @property
    def memory(self) -> tuple[int, int, int, int]:
        """The shape of all memories."""
        return (self.seqs, self.heads, self.q.shape[-1], self.columns)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of what is read."""
        return (*self.q.shape[:-2], self.heads, self.columns)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Those through which gradients flow."""
        return self[:10]


#: For `linrnn.compute.op.Op`: the fields above.
SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? value_decay, Tensor? bonus, Tensor? beta, "
    "Tensor? a, Tensor? b, Tensor? initial_state, Tensor? sign, Tensor? reset, "
    "Tensor? cu_seqlens, bool delta, bool normalizer, bool before, float scale, bool reverse"
)


def _heads(tensors: Mapping[str, Any]) -> dict[str, int]:
    """How many heads everything has that may share them."""
    counts = {n: tensors[n].shape[-2] for n in STORED if n in tensors and tensors[n].ndim > 2}
    places = {"g": 2, "sign": 2, "value_decay": 2, "beta": tensors["v"].ndim - 2}
    for name, place in places.items():
        if name in tensors and tensors[name].ndim > place > 1:
            counts[name] = tensors[name].shape[place]
    return counts


def checked(
    where: str,
    arguments: Sequence[Tensor | None],
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    delta: bool,
    normalizer: bool,
    read: str,
    scale: float,
    reverse: bool,
) -> Problem:
    """All arguments, of one dtype for storage and one to compute in.

    Args:
        where: the op.
        arguments: the tensors of a `Problem` before its reset.
        reset, cu_seqlens, delta, normalizer, read, scale, reverse: of the call.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: as the public ops say.
    """
    check_flags(where, normalizer=normalizer, reverse=reverse)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise ArgumentError(f"{where}: scale must be a number, got {scale!r:.60}.")
    if read not in READS:
        raise ArgumentError(f"{where}: read must be 'after' or 'before', got {read!r:.60}.")
    named = dict(zip(Problem._fields, arguments, strict=False))
    required = {name: named.pop(name) for name in ("q", "k", "v")}
    check_numbers(where, required, real=True, **named)
    tensors: dict[str, Any] = required | {n: x for n, x in named.items() if x is not None}
    _check_shapes(where, tensors, reset, cu_seqlens, normalizer)
    _check_options(where, tensors, normalizer, read)
    stored = tensors["q"].dtype
    for name in ("k", "v", "a", "b"):
        if name in tensors and tensors[name].dtype != stored:
            stored = torch.promote_types(stored, tensors[name].dtype)
    compute_dtype = accumulator_dtype(stored)
    cast = dict(tensors)
    for name, x in tensors.items():
        dtype = stored if name in STORED else compute_dtype
        if x.dtype != dtype:  # a call that changes nothing costs a microsecond
            cast[name] = x.to(dtype)
    if "sign" in cast and "g" not in cast:
        cast["g"] = torch.zeros_like(cast["sign"])
    fields: list[Any] = [cast.get(name) for name in Problem._fields[:11]]
    fields += [reset, cu_seqlens, delta, normalizer, read == "before", float(scale), reverse]
    return Problem(*fields)


def _check_options(where: str, tensors: dict[str, Tensor], normalizer: bool, read: str) -> None:
    """Raise `ArgumentError` for options that say different things of one number."""
    if "bonus" in tensors and read == "before":
        raise ArgumentError(
            f"{where}: read must be 'after' where there is a bonus, got 'before'. "
            f"A bonus reads what was before the step already; one of zeros reads that alone."
        )
    if "bonus" in tensors and tensors["k"].ndim == 5:
        raise ArgumentError(
            f"{where}: bonus must be None where a step has several writes, got one. "
            f"Read with read='before' and add what the current writes are to weigh."
        )
    by_channel = "beta" in tensors and tensors["beta"].ndim == tensors["v"].ndim
    if by_channel and normalizer:
        raise ArgumentError(
            f"{where}: normalizer must be False where beta is of every channel, got True. "
            f"Then no two channels weigh values alike."
        )


def _check_shapes(
    where: str,
    tensors: dict[str, Tensor],
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    normalizer: bool,
) -> None:
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    writes = ("rank",) if k.ndim == 5 else ()
    reads = writes if q.ndim == 5 else ()
    check_shape(where, "q", q.shape, dict.fromkeys(("batch", "time", *reads, "heads", "d_key")))
    sizes = {"batch": q.shape[0], "time": q.shape[1], "d_key": q.shape[-1]}
    sizes |= {"rank": k.shape[2]} if writes else {}
    if sizes.get("rank") == 0:
        raise ShapeError(f"{where}: rank must be at least 1, got 0. A step makes a write.")
    values = ("batch", "time", *writes, "heads", "d_value")
    check_shape(where, "v", v.shape, {axis: sizes.get(axis) for axis in values})
    counts = _heads(tensors)
    heads = max(counts.values())
    for name, count in counts.items():
        if count != heads and (count == 0 or heads % count):
            raise ShapeError(
                f"{where}: the heads of {name} must divide those of what has the most, which "
                f"share them, got {count} and {heads}."
            )
    rows = "batch" if cu_seqlens is None else "sequences"
    sizes |= {rows: check_packed(where, "q", q, cu_seqlens)}
    sizes |= {"d_value": v.shape[-1], "columns": v.shape[-1] + normalizer}
    for name, axes in _axes(tensors, writes, rows).items():
        if name in tensors:
            sizes["heads"] = heads if axes[0] == "heads" else counts.get(name, heads)
            check_shape(where, name, tensors[name].shape, {axis: sizes[axis] for axis in axes})
    check_reset(where, reset, *q.shape[:2])
    check_device(where, "q", q.device, reset=reset, **tensors)


#: The axes of decays by how many they are; of more, those of every channel.
_OF_DECAYS: dict[int, tuple[str, ...]] = {
    1: ("heads",),
    2: ("heads", "d_key"),
    3: ("batch", "time", "heads"),
}


def _axes(
    tensors: dict[str, Tensor], writes: tuple[str, ...], rows: str
) -> dict[str, tuple[str, ...]]:
    """The axes of every tensor there may be but q and v."""
    steps = ("batch", "time")
    rates: tuple[str, ...] = (*steps, *writes, "heads")
    decays: tuple[str, ...] = (*steps, "heads", "d_key")
    keys = (*rates, "d_key")
    for name in ("sign", "g"):  # signs are those of g, where there is one
        if name in tensors:
            decays = _OF_DECAYS.get(tensors[name].ndim, (*steps, "heads", "d_key"))
    if "beta" in tensors and tensors["beta"].ndim > len(rates):
        rates = (*rates, "d_value")
    return {
        **dict.fromkeys(("k", "a", "b"), keys),
        **dict.fromkeys(("g", "sign"), decays),
        "value_decay": (*steps, "heads", "d_value"),
        "bonus": ("heads", "d_key"),
        "beta": rates,
        "initial_state": (rows, "heads", "d_key", "columns"),
    }
