"""The arguments of `linrnn.ops.outer_scan` and `linrnn.ops.delta_scan`, checked."""

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
    reset: Tensor | None
    cu_seqlens: Tensor | None
    delta: bool
    normalizer: bool
    scale: float
    reverse: bool

    @property
    def seqs(self) -> int:
        """How many sequences there are."""
        return n_sequences(self.q, self.cu_seqlens)

    @property
    def columns(self) -> int:
        """Columns of the memory: channels of a value, and one of the normalizer."""
        return self.v.shape[3] + self.normalizer

    @property
    def wide(self) -> torch.dtype:
        """The dtype to compute in."""
        return accumulator_dtype(self.v.dtype)

    @property
    def memory(self) -> tuple[int, int, int, int]:
        """The shape of all memories."""
        return (self.seqs, self.v.shape[2], self.q.shape[3], self.columns)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Those through which gradients flow."""
        return self[:10]


#: Of `linrnn.compute.op.Op`: the fields above.
SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? value_decay, Tensor? bonus, Tensor? beta, "
    "Tensor? a, Tensor? b, Tensor? initial_state, Tensor? reset, Tensor? cu_seqlens, bool delta, "
    "bool normalizer, float scale, bool reverse"
)


def checked(
    where: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    optional: dict[str, Tensor | None],
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    *,
    delta: bool,
    normalizer: bool = False,
    scale: float,
    reverse: bool,
) -> Problem:
    """All arguments, of one dtype for storage and one to compute in.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: as the public ops say.
    """
    check_flags(where, normalizer=normalizer, reverse=reverse)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise ArgumentError(f"{where}: scale must be a number, got {scale!r:.60}.")
    required = {"q": q, "k": k, "v": v}
    check_numbers(where, required, real=True, **optional)
    tensors = required | {name: x for name, x in optional.items() if x is not None}
    _check_shapes(where, tensors, reset, cu_seqlens, normalizer)
    stored = q.dtype
    for name in ("k", "v", "a", "b"):
        if name in tensors:
            stored = torch.promote_types(stored, tensors[name].dtype)
    compute_dtype = accumulator_dtype(stored)
    in_storage = ("q", "k", "v", "a", "b")
    cast = {n: x.to(stored if n in in_storage else compute_dtype) for n, x in tensors.items()}
    fields: list[Any] = [cast.get(name) for name in Problem._fields[:10]]
    fields += [reset, cu_seqlens, delta, normalizer, float(scale), reverse]
    return Problem(*fields)


def _check_shapes(
    where: str,
    tensors: dict[str, Tensor],
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    normalizer: bool,
) -> None:
    q, v = tensors["q"], tensors["v"]
    check_shape(where, "q", q.shape, dict.fromkeys(("batch", "time", "key_heads", "d_key")))
    batch, time, key_heads, d_key = q.shape
    steps = {"batch": batch, "time": time}
    check_shape(where, "v", v.shape, {**steps, "heads": None, "d_value": None})
    heads, d_value = v.shape[2:]
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise ShapeError(
            f"{where}: the heads of v must be a multiple of those of q and k, which they share, "
            f"got {heads} and {key_heads}."
        )
    rows = "batch" if cu_seqlens is None else "sequences"
    sizes = {**steps, "key_heads": key_heads, "heads": heads, "d_key": d_key, "d_value": d_value}
    sizes |= {rows: check_packed(where, "q", q, cu_seqlens), "columns": d_value + normalizer}
    keys, decays = ("batch", "time", "key_heads", "d_key"), ("batch", "time", "heads")
    of_g = {1: ("heads",), 2: ("heads", "d_key"), 3: decays}
    axes = {
        **dict.fromkeys(("k", "a", "b"), keys),
        "g": of_g.get(tensors["g"].ndim if "g" in tensors else 0, (*decays, "d_key")),
        "value_decay": (*decays, "d_value"),
        "bonus": ("heads", "d_key"),
        "beta": decays,
        "initial_state": (rows, "heads", "d_key", "columns"),
    }
    for name in tensors.keys() & axes.keys():
        check_shape(where, name, tensors[name].shape, {axis: sizes[axis] for axis in axes[name]})
    check_reset(where, reset, batch, time)
    check_device(where, "q", q.device, reset=reset, **tensors)
