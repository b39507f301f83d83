"""The instructions of a recorded step, being written: see `linrnn.engine.replay.step`.

A tensor of the recording is known by its storage, offset and strides, so views cost nothing and
need no code: memory of the program is laid out as the storages that were seen.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linrnn.engine.replay.operands import (
    AXES,
    Instruction,
    Number,
    Real,
    RefusedError,
    Slot,
    View,
    dense,
)

_ENDLESS = 1 << 62
# Numbers that must be computed for each that is compared. 64 steps of 4 LRU layers (64 channels)
# take 0.94 times as long with 0, and 1.07 where nothing is compared (2026-11-28, EPYC with AVX-512,
# one core, in turn).
_WORTH = 2.5
_DOUBLE = (torch.float64, torch.complex128, torch.int64, torch.int32)


class Tape:
    """Instructions, and where the tensors of the recording lie.

    Args:
        compute_dtype: what is computed in, float32 or float64.
    """

    def __init__(self, compute_dtype: torch.dtype) -> None:
        self.wide = compute_dtype
        self.instructions: list[Instruction] = []
        self.sizes: dict[Slot, int] = {}
        self.dtypes: dict[Slot, torch.dtype] = {}
        """Dtypes in memory: float32, float64, int64 or, of weights, bfloat16 or uint8."""
        self.truths: set[Slot] = set()
        """Memory that holds truth values, as the numbers 0 and 1."""
        self._extents: dict[Slot, int] = {}  # how many numbers lie there
        self.constants: list[Tensor] = []
        self._alive: list[Tensor] = []  # no storage may come again
        self._slots: dict[int, Slot] = {}
        self._fixed: dict[int, Slot] = {}  # constants that have been copied here

    def know(self, x: Tensor, slot: Slot, dtype: torch.dtype | None = None) -> None:
        """The storage of a tensor lies there, its numbers of that dtype."""
        self._alive.append(x)
        self._slots[_memory(x)] = slot
        if slot.kind != "constant":  # each view of one is copied
            self._extents[slot] = _numbers(x)
        if dtype is not None:
            self.dtypes[slot] = dtype

    def computed_in(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in scratch memory; whole numbers are exact to 2 ** 53."""
        return torch.float64 if dtype in _DOUBLE else self.wide

    def slot(self, x: Tensor) -> Slot | None:
        """Where the storage of a tensor lies, None if it is not known."""
        return self._slots.get(_memory(x))

    def forget(self, x: Tensor) -> None:
        """A tensor whose numbers are nowhere: whoever reads it is refused."""
        self._slots.pop(_memory(x), None)

    def hold(self, x: Tensor) -> None:
        """A tensor whose numbers are always the same."""
        self.know(x, Slot("constant", -1))

    def room(self, numbers: int, dtype: torch.dtype) -> Slot:
        """Memory for the time of the step."""
        slot = Slot("scratch", len(self.sizes))
        self.sizes[slot], self.dtypes[slot] = numbers, self.computed_in(dtype)
        self._extents[slot] = numbers
        return slot

    def fresh(self, shape: Sequence[int], dtype: torch.dtype) -> View:
        """Memory for numbers that are computed in a dtype."""
        return View(self.room(prod(shape), dtype), 0, tuple(shape), dense(shape))

    def dtype_of(self, *operands: Real) -> torch.dtype:
        """Return the dtype to compute in: double where an operand is double or integer."""
        dtypes = [self.dtypes[x.slot] for x in operands if isinstance(x, View)]
        return torch.float64 if any(x in _DOUBLE for x in dtypes) else self.wide

    def result(self, x: Tensor) -> Number:
        """Return where a new tensor of the recording is written to."""
        if x.is_neg() or x.is_conj():
            raise RefusedError("it changes a part of a conjugate")
        if self.slot(x) is None:
            self.know(x, self.room(_numbers(x), x.dtype))
        slot = self.written(x)
        if x.dtype is torch.bool:
            self.truths.add(slot)
        return _parts(x, slot)

    def is_truth(self, x: Real) -> bool:
        """Whether an operand is truth values."""
        return isinstance(x, View) and x.slot in self.truths

    def written(self, x: Tensor) -> Slot:
        """Return where a tensor lies that is changed in place."""
        slot = self.slot(x)
        if slot is not None and slot.kind == "constant":
            numbers = x.untyped_storage().nbytes() // x.element_size()
            storage = x.as_strided((numbers,), (1,), 0)
            fixed = self.number(storage)
            self.know(x, self.room(_numbers(x), x.dtype))
            destination = _parts(storage, self._slots[_memory(x)])
            self.move(destination, fixed)
            slot = self.slot(x)
        if slot is None or slot.kind != "scratch":
            raise RefusedError("it changes a tensor of the caller's or the model's in place")
        return slot

    def number(self, x: Any) -> Number:
        """An operand: a tensor of the recording or a Python number."""
        if isinstance(x, complex):
            return Number(x.real, x.imag)
        if not isinstance(x, Tensor):
            return Number(float(x))
        slot = self.slot(x)
        if slot is None:
            raise RefusedError("it reads a tensor that is no parameter or buffer")
        if slot.kind == "constant":
            return self._constant(x)
        if self.dtypes.get(slot) is torch.uint8:
            raise RefusedError("it reads bytes")
        operand = _parts(x, slot)
        if x.is_neg():  # a part of a conjugate
            re, im = operand
            operand = Number(self.new("neg", re), None if im is None else self.new("neg", im))
        if x.is_conj() and operand.im is not None:
            return Number(operand.re, self.new("neg", operand.im))
        return operand

    def _constant(self, x: Tensor) -> Number:
        if x.numel() and not any(s and n > 1 for s, n in zip(x.stride(), x.shape, strict=True)):
            return self.number(x.flatten()[0].item())
        parts = torch.view_as_real(x.resolve_conj()).unbind(-1) if x.is_complex() else (x,)
        views = []
        for part in parts:
            slot = Slot("constant", len(self.constants))
            self.dtypes[slot] = self.computed_in(x.dtype)
            self.truths |= {slot} if x.dtype is torch.bool else set()
            self.constants.append(part.resolve_neg().to(self.dtypes[slot]).contiguous())
            views.append(View(slot, 0, tuple(part.shape), dense(part.shape)))
        return Number(*views)

    def real(self, x: Any) -> Real:
        """An operand of real numbers."""
        return self.number(x).only

    def view(self, x: Real, shape: Sequence[int] = (1,)) -> View:
        """An operand in memory."""
        return x if isinstance(x, View) else self.new("move", x, shape=shape)

    def put(self, op: str, to: View, *read: Real, value: float = 0.0) -> View:
        """Write an elementwise operation of the machine."""
        if prod(to.shape):
            operands = [x.over(to.shape) if isinstance(x, View) else x for x in read]
            self._add(op, to.shape, to, operands, value)
        return to

    def _add(
        self, op: str, size: Sequence[int], to: View, read: list[Real], value: float = 0.0
    ) -> None:
        for x in (to, *read):
            # a rule that is wrong about a shape must not let the machine read what is not there
            if isinstance(x, View) and x.end > self._extents.get(x.slot, _ENDLESS):
                raise RefusedError(f"{op} would leave a tensor")
        dtype = self.dtype_of(to, *read)
        self.instructions.append(Instruction(op, tuple(size), to, read, value, dtype))

    def new(
        self, op: str, *read: Real, value: float = 0.0, shape: Sequence[int] | None = None
    ) -> View:
        """The result of an elementwise operation, in new memory."""
        shapes = [x.shape for x in read if isinstance(x, View)]
        shape = np.broadcast_shapes(*shapes) if shape is None else shape
        return self.put(op, self.fresh(shape, self.dtype_of(*read)), *read, value=value)

    def move(self, to: Number, x: Number) -> None:
        """Write numbers, real or complex, somewhere else."""
        for place, part in zip(to, x, strict=True):
            if isinstance(place, View):
                self.put("move", place, 0.0 if part is None else part)

    def deliver(self, start: int, to: Number, result: Number) -> None:
        """Let numbers that have been computed lie where they belong.

        Args:
            start: how many instructions there were before those that computed them.
            to: where they belong.
            result: as they were written.
        """
        if to.im is None and result.im is not None:
            raise RefusedError("of complex numbers")
        for place, part in zip(to, result, strict=True):
            if isinstance(place, View) and not self._redirect(start, place, part):
                self.put("move", place, 0.0 if part is None else part)

    def _redirect(self, start: int, place: View, part: Real | None) -> bool:
        """Have the one instruction that wrote some numbers write them elsewhere, if that may be."""
        if not isinstance(part, View) or part.shape != place.shape or part.slot.kind != "scratch":
            return False
        new = self.instructions[start:]
        writers = [i for i, step in enumerate(new) if step.to.slot == part.slot]
        if len(writers) != 1 or new[writers[0]].to != part:
            return False
        for step in new[writers[0] + 1 :]:
            if any(x.slot in (part.slot, place.slot) for x in step.views):
                return False
        step = new[writers[0]]
        step.to = place
        step.dtype = self.dtype_of(place, *step.read)
        return True

    def standardise(self, to: View, x: View, eps: float) -> None:
        """Mean 0 and variance 1 along the last axis, ``eps`` added to the variance."""
        x = self.like(x, to)
        dtype = self.dtype_of(x, to)
        rows = to if self.dtypes[to.slot] is dtype else self.fresh(to.shape, dtype)
        self._add("standardise", x.shape, rows, [x, 0.0, 1.0], float(eps))
        if rows is not to:
            self.put("move", to, rows)

    def reduce(self, op: str, x: View, to: View) -> View:
        """``total`` or ``largest`` over the last axis of x, which the result does not have."""
        self._add(op, x.shape, to.wider(), [x])
        return to

    def like(self, x: View, *operands: View) -> View:
        """Numbers as they are computed with beside others: themselves or a copy."""
        dtype = self.dtype_of(x, *operands)
        if self.dtypes[x.slot] is dtype:
            return x
        return self.put("move", self.fresh(x.shape, dtype), x)

    def product(self, to: View, a: Real, b: Real, c: Real | None) -> None:
        """``to[q, i, j] = sum_k a[q, i, k] b[q, j, k] + c[q, i, j]``."""
        a, b = self.view(a), self.view(b)
        # the second is the matrix, read as it lies; the first is a few rows
        matrix = a.slot.kind == "weight" or (a.strides[-1] != 1 and a.shape[1] > b.shape[1])
        if matrix and b.slot.kind != "weight" and b.strides[-1] == 1:
            turn = (0, 2, 1)
            self.product(to.moved(turn), b, a, c.moved(turn) if isinstance(c, View) else c)
            return
        a = self.like(a, b, to)
        if a.strides[-1] != 1:
            a = self.new("move", a)
        if self.dtypes[b.slot] is not torch.bfloat16 or self.dtypes[a.slot] is torch.float64:
            b = self.like(b, a, to)
        if b.strides[-1] != 1 and to.strides[-1] != 1:
            b = self.new("move", b)
        q, i, j, k = *to.shape, a.shape[-1]
        read: list[Real] = [
            a._replace(shape=(q, i, 1, k), strides=(*a.strides[:2], 0, a.strides[2])),
            b._replace(shape=(q, 1, j, k), strides=(b.strides[0], 0, *b.strides[1:])),
        ]
        if c is not None:
            added = self.view(c, to.shape)
            if self.dtypes[added.slot] is not torch.bfloat16:
                added = self.like(added, a, to)
            read.append(added.over(to.shape).wider())
        self._add("product", (q, i, j, k), to.wider(), read)

    def quantized(self, to: View, a: View, packed: Slot, scales: Slot, form: int) -> None:
        """Write the product of rows with weights of few bits; ``form`` as the kernel reads it."""
        if self.wide is torch.float64:
            raise RefusedError("it computes in double precision")
        numbers = [View(x, 0, (1,) * AXES, (0,) * AXES) for x in (packed, scales)]
        a = self.new("move", a) if self.dtypes[a.slot] is not self.wide else a
        a = a if a.strides == dense(a.shape) else self.new("move", a)
        (*rows, k), n = a.shape, to.shape[-1]
        m = prod(rows)
        read: list[Real] = [a._replace(shape=(1, m, 1, k), strides=(0, k, 0, 1)), *numbers]
        to = to._replace(shape=(1, m, n, 1), strides=(0, n, 1, 0))
        self._add("quantized", (1, m, n, k), to, read, float(form))

    def finish(self, results: Sequence[Number], dtypes: Sequence[torch.dtype]) -> None:
        """Let the results lie in memory of their own, and drop what nobody reads."""
        for i, dtype in enumerate(dtypes):
            self.dtypes[Slot("result", i)] = dtype
        renames: dict[Slot, Slot] = {}
        for i, part in enumerate(results):
            slot, source = Slot("result", i), _scratch_of(part, self.sizes)
            if source is not None and source not in renames and self.dtypes[source] is dtypes[i]:
                renames[source] = slot
            else:
                self.move(_result(slot, part), part)
        needed = {Slot("result", i) for i in range(len(results))}
        live = []
        for step in reversed(self.instructions):
            step.rename(renames)
            if step.to.slot in needed:
                needed |= {x.slot for x in step.read if isinstance(x, View)}
                live.append(step)
        self.instructions = live[::-1]

    def fixed(self, max_watched: int) -> tuple[list[Instruction], list[Instruction], list[Slot]]:
        """Split off what is computed from weights alone, and the memory between it and the rest.

        Nothing is split off unless that saves more than it takes to see that no weight has changed.

        Args:
            max_watched: most numbers of a weight that is compared before each call.
        """
        early = set(self.sizes)
        while True:
            n_early = len(early)
            for step in self.instructions:
                if not all(_is_early(x.slot, early) for x in step.read if isinstance(x, View)):
                    early.discard(step.to.slot)
                if any(x.slot.kind == "weight" and prod(x.shape) > max_watched for x in step.views):
                    early.discard(step.to.slot)
            if len(early) == n_early:
                break
        first = [step for step in self.instructions if step.to.slot in early]
        late = [step for step in self.instructions if step.to.slot not in early]
        weights = {x.slot: x for step in first for x in step.views if x.slot.kind == "weight"}
        work = sum(prod(step.size) for step in first)
        if work < _WORTH * sum(prod(x.shape) for x in weights.values()) or not weights:
            return [], self.instructions, []
        read = {x.slot for step in late for x in step.views}
        return first, late, sorted(read & early)

    def places(
        self, instructions: Sequence[Instruction], align: int, lasting: Sequence[Slot] = ()
    ) -> tuple[dict[Slot, int], int]:
        """Place each scratch slot, and count the bytes: memory is used again.

        Args:
            instructions: that use them.
            align: bytes that each begins at a multiple of.
            lasting: slots that lie elsewhere.
        """
        last: dict[Slot, int] = {}
        for i, step in enumerate(instructions):
            for x in step.views:
                if x.slot.kind == "scratch" and x.slot not in lasting:
                    last[x.slot] = i
        free: dict[int, list[int]] = {}
        offsets: dict[Slot, int] = {}
        end = 0
        for i, step in enumerate(instructions):
            used = {x.slot: self.bytes_of(x.slot, align) for x in step.views if x.slot in last}
            for slot, size in used.items():
                if slot not in offsets:
                    room = free.get(size)
                    offsets[slot] = room.pop() if room else end
                    end += 0 if offsets[slot] < end else size
            for slot, size in used.items():
                if last[slot] == i:
                    free.setdefault(size, []).append(offsets[slot])
        return offsets, end

    def bytes_of(self, slot: Slot, align: int) -> int:
        """How many bytes a scratch slot takes."""
        return -(-self.sizes[slot] * self.dtypes[slot].itemsize // align) * align


def _numbers(x: Tensor) -> int:
    """How many real numbers the storage of a tensor holds."""
    return x.untyped_storage().nbytes() // x.element_size() * (2 if x.is_complex() else 1)


def _is_early(slot: Slot, early: set[Slot]) -> bool:
    return slot in early or slot.kind in ("weight", "constant", "derived")


def _scratch_of(x: Number, sizes: Mapping[Slot, int]) -> Slot | None:
    """The scratch memory that a result fills as it is to lie, None if there is none."""
    if not isinstance(x.re, View) or x.re.slot not in sizes or x != _result(x.re.slot, x):
        return None
    numbers = prod(x.re.shape) * (1 if x.im is None else 2)
    return x.re.slot if sizes[x.re.slot] == numbers else None


def _result(slot: Slot, like: Number) -> Number:
    """A dense result of the shape of ``like``."""
    shape = like.re.shape if isinstance(like.re, View) else ()
    return _placed(slot, 0, shape, dense(shape), like.im is not None)


def _parts(x: Tensor, slot: Slot) -> Number:
    """A tensor whose storage lies there."""
    return _placed(slot, int(x.storage_offset()), tuple(x.shape), x.stride(), x.is_complex())


def _placed(
    slot: Slot, first: int, shape: tuple[int, ...], strides: Sequence[int], is_complex: bool
) -> Number:
    """Numbers in memory, from one on; the two parts of a complex number lie side by side."""
    if not is_complex:
        return Number(View(slot, first, shape, tuple(strides)))
    strides, first = tuple([2 * s for s in strides]), 2 * first
    return Number(View(slot, first, shape, strides), View(slot, first + 1, shape, strides))


def _memory(x: Tensor) -> int:
    identity: int = x.untyped_storage()._cdata
    return identity
