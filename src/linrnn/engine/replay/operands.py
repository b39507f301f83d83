"""Instructions of a program, and the memory that they read and write."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

AXES = 4
REDUCTIONS = ("total", "largest")
"""Over the last axis, which the result does not have."""
ALONG = (*REDUCTIONS, "standardise")
"""Operations that read all of the last axis at once."""
PRODUCTS = ("product", "quantized")


class RefusedError(Exception):
    """Why a step cannot be recorded."""


def tensors_in(args: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments or results of an operator, and in lists of them."""
    tensors: list[Tensor] = []
    for x in args:
        if isinstance(x, Tensor):
            tensors.append(x)
        elif isinstance(x, (list, tuple)):
            tensors += tensors_in(x)
    return tensors


class Slot(NamedTuple):
    """Memory that a program reads or writes.

    Kinds: ``given`` (the input and the states), ``weight``, ``constant``, ``derived`` (what PyTorch
    computes from weights alone), ``scratch``, ``result``.
    """

    kind: str
    number: int


class View(NamedTuple):
    """Real numbers in memory; offset and strides count them."""

    slot: Slot
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def over(self, shape: Sequence[int]) -> "View":
        """Broadcast to a shape."""
        missing = len(shape) - len(self.shape)
        strides = [0 if n == 1 else s for n, s in zip(self.shape, self.strides, strict=True)]
        return View(self.slot, self.offset, tuple(shape), (*[0] * missing, *strides))

    def narrowed(self, axis: int, first: int, n: int, by: int = 1) -> "View":
        """The ``n`` numbers from ``first`` on along an axis, ``by`` apart."""
        shape = (*self.shape[:axis], n, *self.shape[axis + 1 :])
        strides = (*self.strides[:axis], by * self.strides[axis], *self.strides[axis + 1 :])
        return View(self.slot, self.offset + first * self.strides[axis], shape, strides)

    def moved(self, axes: Sequence[int]) -> "View":
        """Axes in another order."""
        shape, strides = ([extents[i] for i in axes] for extents in (self.shape, self.strides))
        return self._replace(shape=tuple(shape), strides=tuple(strides))

    def wider(self, axis: int = -1) -> "View":
        """With one more axis of one number; the last by default."""
        at = axis % (len(self.shape) + 1)
        shape = (*self.shape[:at], 1, *self.shape[at:])
        return self._replace(shape=shape, strides=(*self.strides[:at], 0, *self.strides[at:]))

    def renamed(self, names: Mapping[Slot, Slot]) -> "View":
        """The same place of other memory, where that has a new name."""
        return self._replace(slot=names[self.slot]) if self.slot in names else self

    @property
    def end(self) -> int:
        """The place behind the last number."""
        end = self.offset + 1
        for n, s in zip(self.shape, self.strides, strict=True):
            if not n:
                return 0
            end += (n - 1) * s
        return end


Real: TypeAlias = View | float
"""An operand of an instruction: numbers in memory, or one."""


class Number(NamedTuple):
    """An operand of the recording: its real part, and its imaginary part if it is complex."""

    re: Real
    im: Real | None = None

    @property
    def only(self) -> Real:
        """The only part of real numbers."""
        if self.im is not None:
            raise RefusedError("of complex numbers")
        return self.re

    def seen(self, change: Callable[[View], View]) -> "Number":
        """The same memory, seen in another way."""
        parts: list[Any] = [change(x) if isinstance(x, View) else x for x in self]
        return Number(*parts)


@dataclass
class Instruction:
    """An operation of the machine, or one of `REDUCTIONS`, `PRODUCTS` or ``take``."""

    op: str
    size: tuple[int, ...]
    to: View
    read: list[Real]
    value: float
    dtype: torch.dtype
    """The dtype of the computation."""

    @property
    def views(self) -> list[View]:
        """Everything in memory that it writes or reads."""
        return [x for x in (self.to, *self.read) if isinstance(x, View)]

    def rename(self, names: Mapping[Slot, Slot]) -> None:
        """Let it read and write other memory."""
        self.to = self.to.renamed(names)
        self.read = [x.renamed(names) if isinstance(x, View) else x for x in self.read]


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of numbers that lie one behind another."""
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= size
    return tuple(reversed(strides))


def collapsed(step: Instruction) -> tuple[list[int], list[list[int]]]:
    """The sizes of at most `AXES` axes, and the strides of each operand, the written one first.

    Axes that all operands walk as one are made one; those of a reduction and a product stay.
    """
    operands: list[Real] = [step.to, *step.read]
    rows = [list(x.strides) if isinstance(x, View) else [0] * len(step.size) for x in operands]
    sizes = list(step.size)
    if step.op in PRODUCTS:
        return sizes, rows
    last = 1 if step.op in ALONG else 0
    # in the order in which the result lies in memory
    order = sorted(range(len(sizes) - last), key=lambda axis: -rows[0][axis])
    order += range(len(order), len(sizes))
    sizes, rows = [sizes[x] for x in order], [[row[x] for x in order] for row in rows]
    i = 0
    while i < len(sizes) - last:
        if sizes[i] == 1:
            del sizes[i]
            for row in rows:
                del row[i]
        elif i and all(row[i - 1] == sizes[i] * row[i] for row in rows):
            sizes[i - 1] *= sizes.pop(i)
            for row in rows:
                row[i - 1] = row.pop(i)
        else:
            i += 1
    if len(sizes) > AXES:
        raise RefusedError(f"it computes along {len(sizes)} axes at once")
    missing = AXES - len(sizes)
    return [1] * missing + sizes, [[0] * missing + row for row in rows]
