"""Recurrence made of segments: a memory is written when a segment ends, and read in the next.

The entries of a segment that has only begun are part of the state, so one call, any split and
single steps give the same numbers.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from linrnn.compute.composed import composed
from linrnn.compute.layout import like
from linrnn.compute.links import linked_sources, tied, without_inputs
from linrnn.compute.modes import eager, mapped, may_look, seen_finite, transformed
from linrnn.engine.replay.recorder import assumed
from linrnn.ops.attention._segment_plan import Plan, Rows, rows_of

Tensors = Sequence[Tensor]
Age: TypeAlias = Tensor | None
"""How many steps each entry is before each query: see `Rule`."""


@runtime_checkable  # as the shape checker of the test run needs it to be
class Rule(Protocol):
    """How one system reads and writes; functions of tensors, for any number of rows.

    Queries and entries are (B, Q, ...) and (B, S, ...), ``age`` (B or 1, Q, S) is how many steps an
    entry is before a query, or -1 where it is not to be seen; None of a single query that sees all,
    the last at the query's step. What is not to be seen is finite.
    """

    independent: bool
    """Whether `write` makes nothing of the memory that it is given: all segments of a call are then
    read at once."""

    def attend(
        self, mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
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


def seen(age: Age, rows: int = 0) -> Tensor | None:
    """The mask of ``rows`` rows of a memory and of entries of an age, by query; None: all.

    Example:
        >>> seen(torch.tensor([[[0, -1], [1, 0]]]), 1)[0]
        tensor([[ True,  True, False],
                [ True,  True,  True]])
    """
    if age is None:
        return None
    return F.pad(age >= 0, (rows, 0), value=True) if rows else age >= 0  # (..., T, S)


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
        position: how many steps of the same sequence come before each step, (B, T).
        segment: steps of a segment, counted from the start of a sequence.
        cut: gradients pass through at most this many memories: they end before every segment whose
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
    sources = (*q, *entries, *begun, *memory, *weights)
    linked = torch.is_grad_enabled() and eager(*sources)
    if linked:
        q, entries, begun, memory, weights = linked_sources(q, entries, begun, memory, weights)
    reader = _Reader(RULES[rule], mode, weights, segment, cut)
    reader.replay = replay and torch.is_grad_enabled() and not transformed()
    read = reader.step if position.shape[1] == 1 else reader.sequence
    results = without_inputs(read(q, entries, begun, memory, position), begun, memory)
    return tuple(tied(results, sources, linked))


_operator = composed(
    "segments",
    "str rule, str mode, Tensor[] q, Tensor[] entries, Tensor[] begun, Tensor[] memory, "
    "Tensor[] weights, Tensor position, int segment, int cut, bool replay",
    _shapes,
    lead=7,
)(_read)


def _chosen(where: Rows, new: Tensors, old: Tensors) -> list[Tensor]:
    if isinstance(where, bool):
        return list(new if where else old)
    return [torch.where(like(where, o), n, o) for n, o in zip(new, old, strict=True)]


def _spoilt(where: Tensor, x: Tensor) -> Tensor:
    """``x`` (B, ...), NaN there."""
    return torch.where(like(where, x), float("nan"), x)


def _bad(parts: Tensors) -> Tensor:
    """A mask (B, S) of the entries that hold a number that is not finite."""
    return ~torch.stack([z.isfinite().flatten(2).all(-1) for z in parts]).all(0)  # (B, S)


def _hidden(bad: Tensor, parts: Tensors) -> list[Tensor]:
    # what is not finite must not reach what does not see it, as a product with zero would let it
    return [torch.where(like(bad, z), 0, z) for z in parts]


def _left(begun: Tensor, entries: Tensor, place: Tensor | int, n: int) -> Tensor:
    """Those of the segment that a call leaves begun, zeros before them.

    ``place`` is that of its last step, (B,) or one for all rows.
    """
    time = entries.shape[1]
    if isinstance(place, Tensor):
        tail = torch.cat([begun, entries], 1)[:, time:]  # (B, n - 1, ...)
        age = torch.arange(n - 2, -1, -1, device=tail.device)
        return torch.where(like(age < ((place + 1) % n)[:, None], tail), tail, 0)
    count = (place + 1) % n
    parts = [entries.new_zeros(entries.shape[0], n - 1 - count, *entries.shape[2:])]
    if count > time:
        parts.append(begun[:, n - 1 - (count - time) :])
    return torch.cat([*parts, entries[:, time - min(count, time) :]], 1)  # (B, n - 1, ...)


class _Reader:
    """A rule, and what stays the same over a call."""

    replay = False

    def __init__(self, rule: Rule, mode: str, weights: Tensors, n: int, cut: int) -> None:
        self.rule, self.mode, self.weights, self.n, self.cut = rule, mode, weights, n, cut

    def step(
        self,
        q: Tensors,
        entries: Tensors,
        begun: Tensors,
        memory: Tensors,
        position: Tensor,
    ) -> list[Tensor]:
        """One step, whose segment is the last ``place + 1`` entries; only rows at an end write."""
        every = [torch.cat(z, 1) for z in zip(begun, entries, strict=True)]  # (B, n, ...) each
        shared = self._shared(position)
        if shared is not None:  # what is of an earlier segment is zero
            mine = [z[:, self.n - 1 - shared :] for z in every]
            if all(map(seen_finite, mine)):
                return self._step_at_one_place(q, every, mine, memory, position[:, 0], shared)
        position = position[:, 0]
        place, number = position % self.n, position // self.n
        if assumed((place > 0) & (place < self.n - 1)):
            return self._step_inside(q, entries, begun, memory, place[:, None])
        last = [_left(b, e, place, self.n) for b, e in zip(begun, entries, strict=True)]
        bad = _bad(every)
        every = _hidden(bad, every)
        # a graph has no branches, and rows that vmap maps may take different ones
        looks = not torch.compiler.is_compiling() and not mapped(position)
        fresh = position == 0
        fresh_rows: Rows = fresh if not looks or bool(fresh.any()) else False
        entered = self._entered(memory, fresh_rows, number)
        age = torch.arange(self.n - 1, -1, -1, device=place.device)
        visible = age <= place[:, None]
        ages = torch.where(visible, age, -1)[:, None]
        y = self.rule.attend(self.mode, q, every, ages, entered, self.weights)
        spoilt = (bad & visible).any(1)
        y = _spoilt(spoilt, y)
        if not looks:
            written = self._written(every, entered, spoilt, number)
            return [y, *last, *_chosen(place == self.n - 1, written, entered)]
        rows = (place == self.n - 1).nonzero()[:, 0]
        if len(rows) == 0:
            return [y, *last, *entered]
        ending, previous = ([z[rows] for z in x] for x in (every, entered))
        written = self._written(ending, previous, spoilt[rows], number[rows])
        if len(rows) < len(place):
            written = [h.index_copy(0, rows, w) for h, w in zip(entered, written, strict=True)]
        return [y, *last, *written]

    def _step_inside(
        self, q: Tensors, entries: Tensors, begun: Tensors, memory: Tensors, place: Tensor
    ) -> list[Tensor]:
        """One step that begins and ends no segment: all such steps are of the same operators."""
        # (B, n - 1, ...)
        every = [torch.cat([b[:, 1:], e], 1) for b, e in zip(begun, entries, strict=True)]
        age = torch.arange(self.n - 2, -1, -1, device=place.device)
        ages = torch.where(age <= place, age, -1)[:, None]
        y = self.rule.attend(self.mode, q, every, ages, memory, self.weights)
        # what is of an earlier segment is zero, so what is not finite is seen: zero times it is NaN
        zeros = [z @ z.new_zeros(z.shape[1]) for z in (x.flatten(1) for x in every)]  # (B,) each
        return [y + like(torch.stack(zeros).sum(0), y), *every, *memory]  # (B, T, ...)

    def _shared(self, position: Tensor) -> int | None:
        """The place of all rows in their segments, if they share one and one may look."""
        places = position.flatten().tolist() if may_look(position) else []
        distinct = {place % self.n for place in places}
        return distinct.pop() if len(distinct) == 1 else None

    def _step_at_one_place(
        self,
        q: Tensors,
        every: list[Tensor],
        mine: list[Tensor],
        memory: Tensors,
        position: Tensor,
        place: int,
    ) -> list[Tensor]:
        """One step of rows at one place of their segments, all of whose entries are finite."""
        fresh = rows_of((position == 0)[:, None])[0] if place == 0 else False
        number = position // self.n
        entered = self._entered(memory, fresh, number)
        y = self.rule.attend(self.mode, q, mine, None, entered, self.weights)
        if place < self.n - 1:  # what is of an earlier segment is zero already
            return [y, *(z[:, 1:] for z in every), *entered]
        return [
            y,
            *(torch.zeros_like(z[:, 1:]) for z in every),
            *self._written(mine, entered, None, number),
        ]

    def sequence(
        self,
        q: Tensors,
        entries: Tensors,
        begun: Tensors,
        memory: Tensors,
        position: Tensor,
    ) -> list[Tensor]:
        """All steps, cut into segments that begin where each row begins one."""
        if position.numel() == 0:
            return [q[0], *begun, *memory]
        if mapped(position):  # rows of which none may be looked at
            return self._by_steps(q, entries, begun, memory, position)
        plan = Plan(position, self.n)
        last = [_left(b, e, plan.left, self.n) for b, e in zip(begun, entries, strict=True)]
        bad: list[Tensor] = []
        if not all(map(seen_finite, (*begun, *entries))):
            bad = [_bad(begun), _bad(entries)]
            begun, entries = (_hidden(b, z) for b, z in zip(bad, (begun, entries), strict=True))
        if self.rule.independent:
            every = list(zip(begun, entries, strict=True))
            y, carried = self._together(plan, q, every, bad, memory)
            return [y, *last, *carried]
        parts = [plan.entries(b, e) for b, e in zip(begun, entries, strict=True)]
        queries, spoilt = [plan.queries(z) for z in q], plan.entries(*bad) if bad else None
        carried, ys = list(memory), []
        for i in range(plan.count):
            args = plan, i, queries, parts, spoilt, carried
            if self.replay:
                y, carried = checkpoint(
                    self._segment, *args, use_reentrant=False, preserve_rng_state=False
                )
            else:
                y, carried = self._segment(*args)
            ys.append(y)
        return [plan.outputs(ys), *last, *carried]

    def _by_steps(
        self, q: Tensors, entries: Tensors, begun: Tensors, memory: Tensors, position: Tensor
    ) -> list[Tensor]:
        """All steps, one after the other."""
        ys, held = [], [*begun, *memory]
        for t in range(position.shape[1]):
            at = slice(t, t + 1)
            now, new = [z[:, at] for z in q], [z[:, at] for z in entries]
            y, *held = self.step(now, new, held[: len(begun)], held[len(begun) :], position[:, at])
            ys.append(y)
        return [torch.cat(ys, 1), *held]  # (B, T, ...)

    def _together(
        self, plan: Plan, q: Tensors, parts: list[Any], bad: Any, memory: Tensors
    ) -> tuple[Tensor, list[Tensor]]:
        """All segments at once, as rows: what each writes follows from its entries alone."""
        rows, count, n = plan.begin.shape[0], plan.count, self.n
        mine, queries = [plan.whole(*z) for z in parts], [plan.whole(None, z) for z in q]
        spoilt, number = plan.whole(*bad) if bad else None, plan.number.flatten()  # number: (B n,)
        initial = [h.repeat_interleave(count, 0) for h in memory]  # (B * count, ...) each
        written = self._written(mine, initial, None if spoilt is None else spoilt.any(1), number)
        # where no segment of the call comes before it, a segment reads what was held
        follows = F.pad(plan.length[:, :-1] > 0, (1, 0)).flatten()  # (B * count,)
        carried = _chosen(follows, [h.roll(1, 0) for h in written], initial)
        # (B n, ...) each
        carried = self._entered(carried, rows_of(plan.fresh.view(-1, 1))[0], number)
        age = plan.age(n, n, number.device)
        y = self.rule.attend(self.mode, queries, mine, age, carried, self.weights)
        y = y if spoilt is None else _spoilt(spoilt.cumsum(1) > 0, y)
        last = _chosen((plan.length == n).flatten(), written, carried)  # (B * count, ...) each
        end = plan.where[:, -1] // n + torch.arange(rows, device=number.device) * count
        # (B, T, ...)
        return plan.taken(y.view(rows, count * n, *y.shape[2:])), [h[end] for h in last]

    def _segment(
        self, plan: Plan, i: int, q: list[Any], parts: list[Any], bad: Any, carried: Tensors
    ) -> tuple[Tensor, list[Tensor]]:
        """One of them: its outputs, and the memory after it."""
        number = plan.number[:, i]
        now = self._entered(carried, plan.fresh_rows[i], number)
        mine, queries = [plan.entries_of(z, i) for z in parts], [plan.queries_of(z, i) for z in q]
        first, size = mine[0].shape[1] - queries[0].shape[1], mine[0].shape[1]
        age = plan.age(size - first, size, number.device)
        y = self.rule.attend(self.mode, queries, mine, age, now, self.weights)
        spoilt = None if bad is None else plan.entries_of(bad, i)
        y = y if spoilt is None else _spoilt(spoilt.cumsum(1)[:, first:] > 0, y)
        full = plan.full_rows[i]
        if full is not False:
            bad = None if spoilt is None else spoilt.any(1)
            now = _chosen(full, self._written(mine, now, bad, number), now)
        return y, _chosen(plan.read_rows[i], now, carried)

    def _entered(self, memory: Tensors, fresh: Rows, number: Tensor) -> list[Tensor]:
        """The memory that a segment reads: the first one, and no history where it is cut off."""
        entered = list(memory)
        if fresh is not False:
            entered = _chosen(fresh, self.rule.start(self.mode, memory, self.weights), entered)
        if self.cut < 0:
            return entered
        cut = (number > 0) & (number % (self.cut + 1) == 0)
        return _chosen(cut, [h.detach() for h in entered], entered)

    def _written(
        self, entries: Tensors, memory: Tensors, spoilt: Tensor | None, number: Tensor
    ) -> list[Tensor]:
        written = self.rule.write(self.mode, entries, memory, self.weights, number)
        return list(written) if spoilt is None else [_spoilt(spoilt, h) for h in written]
