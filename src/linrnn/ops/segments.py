"""Recurrence made of segments: a memory is written when a segment ends, and read in the next.

The entries of a segment that has only begun are part of the state, so one call, any split and
single steps give the same numbers.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from linrnn.ops._modes import transformed
from linrnn.ops._opaque import opaque

Tensors = Sequence[Tensor]


@runtime_checkable  # as the shape checker of the test run needs it to be
class Rule(Protocol):
    """What one system reads and writes; functions of tensors, for any number of rows.

    Queries and entries are (B, Q, ...) and (B, S, ...), ``age`` (B or 1, Q, S) is how many steps an
    entry is before a query, or -1 where it is not to be seen. What is not to be seen is finite.
    """

    def attend(
        self,
        mode: str,
        q: Tensors,
        entries: Tensors,
        age: Tensor,
        memory: Tensors,
        weights: Tensors,
    ) -> Tensor:
        """Outputs (B, Q, ...), shaped as the first of the queries."""

    def write(
        self, mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """The memory after a segment of these entries, the ``number``-th (B,) from 0."""

    def start(self, mode: str, memory: Tensors, weights: Tensors) -> Tensors:
        """The memory before the first segment, shaped as ``memory``."""


RULES: dict[str, Rule] = {}
"""By name: an operator of a compiler's graph takes no functions."""


def _shapes(
    rule: str,
    mode: str,
    q: Tensors,
    entries: Tensors,
    begun: Tensors,
    memory: Tensors,
    weights: Tensors,
    position: Tensor,
    segment: int,
    cut: int,
    replay: bool,
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (q[0], *begun, *memory))


def read_segments(
    rule: str,
    mode: str,
    q: Tensors,
    entries: Tensors,
    begun: Tensors,
    memory: Tensors,
    weights: Tensors,
    position: Tensor,
    segment: int,
    cut: int,
    replay: bool,
) -> tuple[Tensor, ...]:
    """Read a sequence segment by segment, rows wherever each is in its own.

    Args:
        rule: of `RULES`.
        mode: handed to the rule.
        q: what each step asks with, (B, T, ...) each.
        entries: what its segment keeps of each step, (B, T, ...) each.
        begun: entries of the steps before, (B, segment - 1, ...) each, the newest last; zero where
            they are of an earlier segment.
        memory: (B, ...) each.
        weights: handed to the rule.
        position: how many steps of its own sequence each step has before it, (B, T).
        segment: steps of a segment, counted from the start of a sequence.
        cut: gradients pass through so many memories at most: they end before every segment whose
            number, from 0, divides by ``cut + 1``. Below 0 they never end.
        replay: keep the memory before each segment for the backward pass, and nothing of what is
            computed in it: that is computed once more, from the last segment to the first.

    Returns:
        ``(y, *begun, *memory)``.
    """
    args = rule, mode, q, entries, begun, memory, weights, position, segment, cut, replay
    if position.shape[1] == 1 and torch.compiler.is_compiling():  # a step is written down
        return _read(*args)
    return _operator(*args)


def _read(
    rule: str,
    mode: str,
    q: Tensors,
    entries: Tensors,
    begun: Tensors,
    memory: Tensors,
    weights: Tensors,
    position: Tensor,
    segment: int,
    cut: int,
    replay: bool,
) -> tuple[Tensor, ...]:
    system, n = RULES[rule], segment
    every = [torch.cat(z, 1) for z in zip(begun, entries, strict=True)]
    place = position % n
    last = [_newest(z, place[:, -1], n) for z in every]
    # what is not finite must not reach what does not see it, as a product with zero would let it
    bad = ~torch.stack([z.isfinite().flatten(2).all(-1) for z in every]).all(0)
    every = [torch.where(_like(bad, z), 0, z) for z in every]
    reader = _Reader(system, mode, weights, n, cut)
    reader.replay = replay and torch.is_grad_enabled() and not transformed()
    if position.shape[1] == 1:
        y, memory = reader.step(q, every, bad, memory, position)
    else:
        y, memory = reader.sequence(q, every, bad, memory, position)
    y, *memory = _tied((y, *memory), (*q, *entries, *begun, *memory, *weights))
    return (y, *last, *memory)


_operator = opaque(
    "segments",
    "str rule, str mode, Tensor[] q, Tensor[] entries, Tensor[] begun, Tensor[] memory, "
    "Tensor[] weights, Tensor position, int segment, int cut, bool replay",
    _shapes,
)(_read)


def _newest(entries: Tensor, place: Tensor, n: int) -> Tensor:
    """Those of the segment that the last step leaves begun, zeros before."""
    kept = entries[:, entries.shape[1] - (n - 1) :]
    age = torch.arange(n - 2, -1, -1, device=kept.device)
    return torch.where(_like(age < ((place + 1) % n)[:, None], kept), kept, 0)


def _tied(results: Tensors, sources: Tensors) -> list[Tensor]:
    """The results as functions of all sources: where one has no part yet its gradient is zero.

    Whether a segment ended in a call must not decide which gradients there are.
    """
    found = [x for x in sources if x.requires_grad]
    if not torch.is_grad_enabled() or not found:
        return list(results)
    nothing = torch.zeros((), dtype=torch.bool, device=results[0].device)
    some = sum((x[(slice(0, 1),) * x.ndim].sum() for x in found), results[0].new_zeros(()))
    return [torch.where(nothing, some.to(y.dtype), y) for y in results]


def _like(mask: Tensor, x: Tensor) -> Tensor:
    """``mask`` (B, ...) with as many axes as ``x``."""
    return mask.view(*mask.shape, *[1] * (x.ndim - mask.ndim))


class _Reader:
    """A rule, and what stays the same over a call."""

    replay = False

    def __init__(self, rule: Rule, mode: str, weights: Tensors, n: int, cut: int) -> None:
        self.rule, self.mode, self.weights, self.n, self.cut = rule, mode, weights, n, cut

    def step(
        self, q: Tensors, every: Tensors, bad: Tensor, memory: Tensors, position: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """One step, whose segment is the last ``place + 1`` entries; only rows at an end write."""
        position = position[:, 0]
        place, number = position % self.n, position // self.n
        held = self._entered(memory, position == 0, number)
        age = torch.arange(self.n - 1, -1, -1, device=place.device)
        seen = age <= place[:, None]
        ages = torch.where(seen, age, -1)[:, None]
        y = self.rule.attend(self.mode, q, every, ages, held, self.weights)
        spoilt = (bad & seen).any(1)
        y = torch.where(_like(spoilt, y), float("nan"), y)
        if torch.compiler.is_compiling():  # a graph has no branches
            written = self._written(every, held, spoilt, number)
            return y, _chosen(place == self.n - 1, written, held)
        rows = (place == self.n - 1).nonzero()[:, 0]
        if len(rows) == 0:
            return y, held
        ending, before = ([z[rows] for z in x] for x in (every, held))
        written = self._written(ending, before, spoilt[rows], number[rows])
        if len(rows) == len(place):
            return y, written
        return y, [h.index_copy(0, rows, w) for h, w in zip(held, written, strict=True)]

    def sequence(
        self, q: Tensors, every: Tensors, bad: Tensor, memory: Tensors, position: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """All steps, cut into segments that begin where each row begins one."""
        if position.shape[0] == 0:
            return q[0], list(memory)
        plan = _Plan(position, self.n)
        if getattr(self.rule, "independent", False):
            return self._together(plan, q, every, bad, memory)
        held, ys = list(memory), []
        for i in range(plan.count):
            args = plan, i, q, every, bad, held
            if self.replay:
                y, held = checkpoint(
                    self._segment, *args, use_reentrant=False, preserve_rng_state=False
                )
            else:
                y, held = self._segment(*args)
            ys.append(y)
        return plan.outputs(ys), held

    def _together(
        self, plan: "_Plan", q: Tensors, every: Tensors, bad: Tensor, memory: Tensors
    ) -> tuple[Tensor, list[Tensor]]:
        """All segments at once, as rows: what each writes follows from its entries alone."""
        rows, count, n = bad.shape[0], plan.count, self.n
        place = plan.begin[..., None] + torch.arange(n, device=bad.device)  # (B, count, n)

        def apart(x: Tensor, place: Tensor) -> Tensor:
            return _gather(x, place.clamp(0, x.shape[1] - 1).flatten(1)).view(-1, n, *x.shape[2:])

        mine, asked = [apart(z, place) for z in every], [apart(z, place - (n - 1)) for z in q]
        spoilt, number = apart(bad, place), plan.number.flatten()
        before = [h.repeat_interleave(count, 0) for h in memory]
        written = self._written(mine, before, spoilt.any(1), number)
        # where no segment of the call comes before it, a segment reads what was held
        follows = F.pad(plan.length[:, :-1] > 0, (1, 0)).flatten()
        held = _chosen(follows, [h.roll(1, 0) for h in written], before)
        held = self._entered(held, plan.fresh.flatten(), number)
        step = torch.arange(n, device=bad.device)
        age = (step[:, None] - step)[None]
        y = self.rule.attend(self.mode, asked, mine, age.clamp(min=-1), held, self.weights)
        y = torch.where(_like(spoilt.cumsum(1) > 0, y), float("nan"), y)
        last = _chosen((plan.length == n).flatten(), written, held)
        end = plan.where[:, -1] // n + torch.arange(rows, device=bad.device) * count
        return _gather(y.view(rows, count * n, *y.shape[2:]), plan.where), [h[end] for h in last]

    def _segment(
        self, plan: "_Plan", i: int, q: Tensors, every: Tensors, bad: Tensor, held: Tensors
    ) -> tuple[Tensor, list[Tensor]]:
        """One of them: its outputs, and the memory after it."""
        fresh, number, full, read = plan.at(i)
        now = self._entered(held, fresh, number)
        mine = [plan.entries(z, i) for z in every]
        spoilt = plan.entries(bad, i)
        asked = [plan.queries(z, i) for z in q]
        step = torch.arange(mine[0].shape[1], device=bad.device)
        age = (step[step.shape[0] - asked[0].shape[1] :, None] - step)[None]
        y = self.rule.attend(self.mode, asked, mine, age.clamp(min=-1), now, self.weights)
        seen = spoilt.cumsum(1)[:, step.shape[0] - asked[0].shape[1] :] > 0
        y = torch.where(_like(seen, y), float("nan"), y)
        if bool(full.any()):
            written = self._written(mine, now, spoilt.any(1), number)
            now = _chosen(full, written, now)
        return y, _chosen(read, now, held)

    def _entered(self, memory: Tensors, fresh: Tensor, number: Tensor) -> list[Tensor]:
        """The memory that a segment reads: the first one, and no history where it is cut off."""
        held = list(memory)
        if torch.compiler.is_compiling() or bool(fresh.any()):
            first = self.rule.start(self.mode, memory, self.weights)
            held = _chosen(fresh, first, held)
        if self.cut < 0:
            return held
        cut = (number > 0) & (number % (self.cut + 1) == 0)
        return _chosen(cut, [h.detach() for h in held], held)

    def _written(
        self, entries: Tensors, memory: Tensors, spoilt: Tensor, number: Tensor
    ) -> list[Tensor]:
        written = self.rule.write(self.mode, entries, memory, self.weights, number)
        return [torch.where(_like(spoilt, h), float("nan"), h) for h in written]


def _chosen(where: Tensor, new: Tensors, old: Tensors) -> list[Tensor]:
    return [torch.where(_like(where, o), n, o) for n, o in zip(new, old, strict=True)]


class _Plan:
    """Which steps of a call belong to which segment of their row.

    Segments are cut out where all rows begin them together; elsewhere they are gathered.
    """

    def __init__(self, position: Tensor, n: int) -> None:
        (rows, time), self.n = position.shape, n
        place = position % n
        number = (place == 0).cumsum(1)
        number = number - number.min()  # of the segments of the call, those begun before it first
        self.count = int(number.max()) + 1
        step = torch.arange(time, device=position.device)
        table = position.new_zeros(rows, self.count)
        self.begin = table.scatter(1, number, n - 1 + step - place)  # among begun and new entries
        self.length = table.scatter_reduce(1, number, place + 1, "amax")
        self.number = table.scatter(1, number, position // n)
        self.fresh = table.scatter_reduce(1, number, (position == 0).long(), "amax") > 0
        self.where, self.last = number * n + place, n - 2 + time
        together = (number == number[:1]).all() & (place == place[:1]).all()
        self.slices = self._slices() if bool(together) else None

    def _slices(self) -> list[tuple[int, int, int]]:
        """Begin and end of each segment, and its first step of the call."""
        begin, length = self.begin[0].tolist(), self.length[0].tolist()
        return [(b, b + s, max(b, self.n - 1)) for b, s in zip(begin, length, strict=True)]

    def at(self, i: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of every row: is it the first of a sequence, which one, whole, and there at all."""
        length = self.length[:, i]
        return self.fresh[:, i], self.number[:, i], length == self.n, length > 0

    def entries(self, x: Tensor, i: int) -> Tensor:
        """Those of a segment, of ``x`` (B, n - 1 + T, ...)."""
        if self.slices is not None:
            return x[:, self.slices[i][0] : self.slices[i][1]]
        return self._gathered(x, self.begin[:, i], self.last)

    def queries(self, x: Tensor, i: int) -> Tensor:
        """Those of a segment, of ``x`` (B, T, ...); where gathered, some that nobody asks for."""
        if self.slices is not None:
            _, end, first = self.slices[i]
            return x[:, first - self.n + 1 : end - self.n + 1]
        return self._gathered(x, self.begin[:, i] - self.n + 1, x.shape[1] - 1)

    def _gathered(self, x: Tensor, begin: Tensor, last: int) -> Tensor:
        place = begin[:, None] + torch.arange(self.n, device=begin.device)
        return _gather(x, place.clamp(0, last))

    def outputs(self, ys: list[Tensor]) -> Tensor:
        """The outputs of all segments as those of the steps of the call."""
        y = torch.cat(ys, 1)
        return y if self.slices is not None else _gather(y, self.where)


def _gather(x: Tensor, place: Tensor) -> Tensor:
    """Steps of ``x`` (B, S, ...) by number, (B, T)."""
    return x.gather(1, _like(place, x).expand(*place.shape, *x.shape[2:]))
