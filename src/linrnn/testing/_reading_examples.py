"""Recurrences that read the entries of earlier steps: calls, and their steps.

Their state is entries, the newest last, and how many steps of its sequence a row has read: a
number beside them, which has no gradient.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import pi
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.layout import gathered, like
from linrnn.ops.attention import attend, in_sight, positions
from linrnn.ops.attention.attentive_recurrence import attentive_recurrence
from linrnn.ops.attention.eviction import attend_evicting
from linrnn.ops.attention.path import carried_keys
from linrnn.ops.attention.segments import RULES, read_segments
from linrnn.ops.attention.sinks import attend_with_sinks, first_entries
from linrnn.testing._calls import ONE_WAY, Call, Draw, Shapes, apart, joined, numbers, started
from linrnn.testing._dense_examples import LAYERS, drawn, stepped

_HEADS, _KEYS, _ROOM = 2, 3, 4
_MANY = 96  # entries, more than any call has steps
_UNIT = 0.25  # of the number that counts steps: random ones of a state count some


def read_so_far(counter: Tensor) -> Tensor:
    """How many steps of its sequence each row has read, by the last number (B, 1) of a state."""
    return (counter.detach().abs() / _UNIT).round().long()[:, 0]


def counted(position: Tensor, state: Tensor) -> Tensor:
    """The counter of `read_so_far` after a step at ``position`` (B,) of its sequence."""
    return (position + 1).to(state.dtype)[:, None] * _UNIT


def counted_call(
    kind: str,
    run: Callable[..., Any],
    arguments: dict[str, Any],
    steps: tuple[str, ...],
    shapes: Shapes,
    step: Any,
    outputs: int,
) -> Call:
    """A call whose state is joined of such parts."""

    def counting(
        initial_state: Any = None,
        reset: Any = None,
        read: Any = None,
        backend: Any = None,
        **inputs: Any,
    ) -> tuple[Tensor, Tensor]:
        first = inputs[steps[0]]
        parts = started(initial_state, first, shapes)
        steps_read = read_so_far(parts[-1]) if read is None else read
        position = positions(steps_read, first.shape[1], reset)
        y, *last = run(inputs, position, reset, *parts[:-1])
        if first.shape[1] == 0:
            return y, joined(*parts)
        return y, joined(*last, counted(position[:, -1], first))

    call = Call(kind, counting, arguments, steps, numbers(*shapes), step, roundings=64)
    call = call._replace(half=False, outputs=outputs, lacks=ONE_WAY)
    return call._replace(counter=lambda state: read_so_far(state[:, -1:]))


def _newest(entries: Tensor, room: int, position: Tensor) -> Tensor:
    """The newest entries after steps at these positions, zero where the next one sees none."""
    if position.shape[1] == 0:
        return entries
    return in_sight(entries[:, entries.shape[1] - room :], position[:, -1])


def _ages(entries: Tensor) -> Tensor:
    return torch.arange(entries.shape[1] - 1, -1, -1, device=entries.device)


def _weights(kind: str, x: dict[str, Any], k: Tensor, visible: Tensor) -> Tensor:
    """Weights of entries (B, S, ...) for one query: (B, H, S), or (B, S, C) of "per_channel"."""
    q, size = x["q"], x["q"].shape[-1] ** -0.5
    hidden = torch.where(visible, 0.0, float("-inf"))
    if kind == "per_channel":
        shared, per_channel = k.split([q.shape[-1], k.shape[-1] - q.shape[-1]], -1)
        scores = torch.einsum("bk,bsk->bs", q, shared)[..., None] + per_channel
        w: Tensor = (scores + hidden[..., None]).softmax(1)
        return w
    if kind in ("relu_squared", "laplace"):
        s = torch.einsum("bk,bsk->bs", q, k)
        if "far" in x:
            s = s + x["far"][_ages(k).clamp(max=len(x["far"]) - 1)]
        w = s.relu() ** 2 if kind == "relu_squared" else torch.erf((s - 0.5**0.5) * (2 * pi) ** 0.5)
        w = w if kind == "relu_squared" else (1 + w) / 2
        return torch.where(visible, w, 0.0)[:, None]
    if kind == "relative":
        near, p = q.chunk(2, -1)
        far = x["far"].flip(1)  # of the oldest entry first
        scores = torch.einsum("bhk,bshk->bhs", near, k) + torch.einsum("bhk,hsk->bhs", p, far)
        w = (scores * near.shape[-1] ** -0.5 + hidden[:, None]).softmax(-1)
        return w
    k, g = k[..., : q.shape[-1]], k[..., q.shape[-1] :].flatten(2)
    k = k.repeat_interleave(q.shape[1] // k.shape[2], 2)
    scores = torch.einsum("bhk,bshk->bhs", q, k) * size
    if kind == "forgetting":
        scores = scores + (g.flip(1).cumsum(1).flip(1) - g).mT
    if kind.startswith("stick_breaking"):
        return _sticks(scores, visible, kind.endswith("current"))
    if kind == "capped":
        scores = x["far"] * torch.tanh(scores / x["far"])
    if kind == "relu":
        return torch.where(visible[:, None], scores.relu(), 0.0)
    w = (scores + hidden[:, None]).softmax(-1)
    return w


def _sticks(scores: Tensor, visible: Tensor, current: bool) -> Tensor:
    """Shares of a stick that each entry breaks off what later ones left, (B, H, S)."""
    last, left, shares = scores.shape[-1] - 1, torch.ones_like(scores[..., 0]), []
    for s in range(last, -1, -1):
        seen = visible[:, None, s] & (current or s < last)
        part = torch.where(seen, scores[..., s].sigmoid(), 0)
        shares.append(left * part)
        left = left * (1 - part)
    return torch.stack(shares[::-1], -1)


def _attend(draw: Draw) -> Iterator[Call]:
    c = draw.channels
    shapes_of: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
        "softmax": ((_HEADS, _KEYS), (_HEADS, _KEYS), (_HEADS, c)),
        "softmax of groups": ((2 * _HEADS, _KEYS), (_HEADS, _KEYS), (_HEADS, c)),
        "relu": ((_HEADS, _KEYS), (_HEADS, _KEYS), (_HEADS, c)),
        "relative": ((_HEADS, 2 * _KEYS), (_HEADS, _KEYS), (_HEADS, c)),
        "capped of groups": ((2 * _HEADS, _KEYS), (_HEADS, _KEYS), (_HEADS, c)),
        "forgetting of groups": ((2 * _HEADS, _KEYS), (_HEADS, _KEYS + 2), (_HEADS, c)),
        "stick_breaking of groups": ((2 * _HEADS, _KEYS), (_HEADS, _KEYS), (_HEADS, c)),
        "stick_breaking_current": ((_HEADS, _KEYS), (_HEADS, _KEYS), (_HEADS, c)),
        "relu_squared": ((_KEYS,), (_KEYS,), (c,)),
        "laplace": ((_KEYS,), (_KEYS,), (c,)),
        "laplace of distances": ((_KEYS,), (_KEYS,), (c,)),
        "per_channel": ((_KEYS,), (_KEYS + c,), (c,)),
    }
    for i, (name, (q, k, v)) in enumerate(shapes_of.items()):
        shapes: Shapes = [(_ROOM - 1, *k), (_ROOM - 1, *v), (1,)]
        kind, heads = name.split()[0], q[0] if len(q) == 2 else 1
        window = None if i % 3 == 1 else _ROOM

        step, run = partial(_attend_step, shapes, kind), partial(_attend_run, kind, window)
        arguments = {"q": draw.steps(*q), "k": draw.steps(*k), "v": draw.steps(*v)}
        if kind == "relative":
            arguments["far"] = draw(_HEADS, _ROOM, _KEYS)
        if name == "laplace of distances":
            arguments["far"] = draw(_ROOM - 1)
        if kind == "capped":
            arguments["far"] = 1 + draw(1).abs()
        yield counted_call(name, run, arguments, ("q", "k", "v"), shapes, step, heads)


def _attend_step(shapes: Shapes, kind: str, x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
    """A step whose state is the entries in sight, the oldest first, and their count."""
    *past, counter = apart(h, *shapes)
    position = read_so_far(counter)
    k, v = (torch.cat([z, x[n][:, None]], 1) for z, n in zip(past, "kv", strict=True))
    visible = _ages(k) <= position[:, None]
    weights = _weights(kind, x, k, visible)
    if kind == "per_channel":
        y = (weights * v).sum(1)
    elif v.ndim == 3:
        y = torch.einsum("bhs,bsv->bv", weights, v)
    else:
        v_of = v.repeat_interleave(weights.shape[1] // v.shape[2], 2)
        y = torch.einsum("bhs,bshv->bhv", weights, v_of).flatten(1)
    recent = [in_sight(z[:, 1:], position) for z in (k, v)]
    return y, joined(*recent, counted(position, h))


def _attend_run(
    kind: str,
    window: int | None,
    inputs: dict[str, Any],
    position: Tensor,
    reset: Any,
    k: Tensor,
    v: Tensor,
) -> list[Tensor]:
    """A call of `attend`, and the entries that later calls see."""
    k, v = torch.cat([k, inputs["k"]], 1), torch.cat([v, inputs["v"]], 1)
    sight = position.clamp(max=_ROOM - 1)
    far = inputs.get("far")
    y = attend(kind, inputs["q"], k, v, sight, window=window, whole=False, far=far)
    recent = (
        [in_sight(z[:, z.shape[1] - _ROOM + 1 :], position[:, -1]) for z in (k, v)]
        if position.shape[1]
        else [k, v]
    )
    return [y.flatten(2), *recent]


def _sinks(draw: Draw) -> Iterator[Call]:
    entry, value = (_HEADS, _KEYS), (_HEADS, draw.channels)
    for sinks, recent in ((2, 3), (2, 1)):
        firsts: Shapes = [(sinks, *entry), (sinks, *value)]
        shapes: Shapes = [*firsts, (recent - 1, *entry), (recent - 1, *value), (1,)]

        step = partial(_sinks_step, shapes, sinks, recent)
        run = partial(_sinks_run, recent)
        arguments = {"q": draw.steps(*entry), "k": draw.steps(*entry), "v": draw.steps(*value)}
        kind = f"{sinks} first and {recent} last"
        yield counted_call(kind, run, arguments, ("q", "k", "v"), shapes, step, _HEADS)


def _sinks_step(
    shapes: Shapes, sinks: int, recent: int, x: dict[str, Any], h: Tensor
) -> tuple[Tensor, Tensor]:
    """A step that sees the first ``sinks`` entries and the last ``recent`` ones."""
    *parts, counter = apart(h, *shapes)
    position = read_so_far(counter)[:, None]
    number = torch.arange(sinks, device=h.device)
    first, near = [], []
    for f, past, name in zip(parts[:2], parts[2:], "kv", strict=True):
        now = x[name][:, None]
        f = _agreeing(f, past, position[:, 0])
        f = torch.where(like(number == position, f), now, f)
        first.append(torch.where(like(number <= position, f), f, 0))
        near.append(torch.cat([past, now], 1))
    k, v = (torch.cat(z, 1) for z in zip(first, near, strict=True))
    visible = torch.cat([number <= position - recent, _ages(near[0]) <= position], 1)
    y = torch.einsum("bhs,bshv->bhv", _weights("softmax", x, k, visible), v)
    position = position[:, 0]
    remembered = [in_sight(z[:, 1:], position) for z in near]
    return y.flatten(1), joined(*first, *remembered, counted(position, h))


def _sinks_run(
    recent: int, inputs: dict[str, Any], position: Tensor, reset: Any, *parts: Tensor
) -> list[Tensor]:
    """A call of `attend_with_sinks`, and the entries that later calls see."""
    time = position.shape[1]
    pairs = zip(parts[2:], "kv", strict=True)
    k, v = (torch.cat([past, inputs[n]], 1) for past, n in pairs)
    previous = position[:, 0] if time else position.sum(1)
    parts = tuple(
        _agreeing(f, past, previous) for f, past in zip(parts[:2], parts[2:], strict=True)
    )
    y = attend_with_sinks(inputs["q"], k, v, parts[0], parts[1], position, recent)
    if time == 0:
        return [y.flatten(2)]
    last = position[:, -1]
    at = torch.full_like(last, time - 1)
    first = [first_entries(f, z, time, at, last) for f, z in zip(parts, (k, v), strict=False)]
    return [y.flatten(2), *first, *(_newest(z, recent - 1, position) for z in (k, v))]


def _agreeing(first: Tensor, past: Tensor, position: Tensor) -> Tensor:
    """The first entries, those that are among the last ones too as they are there."""
    number = torch.arange(first.shape[1], device=first.device)
    place = past.shape[1] - position[:, None] + number
    near = (place >= 0) & (number < position[:, None])
    if past.shape[1] == 0:
        return first
    return torch.where(like(near, first), gathered(past, place.clamp(0, past.shape[1] - 1)), first)


def _evicting(policy: str, draw: Draw) -> Iterator[Call]:
    heads, groups, room = draw.channels, 2, 3
    entry = (room, heads, _KEYS)
    shapes: Shapes = [entry, entry, (room if policy == "h2o" else 0, heads), (1,)]

    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        past_k, past_v, weight, counter = apart(h, *shapes)
        position = read_so_far(counter)
        k, v = torch.cat([past_k, x["k"][:, None]], 1), torch.cat([past_v, x["v"][:, None]], 1)
        visible = _ages(k) <= position[:, None]
        k, v = torch.where(like(visible, k), k, 0), torch.where(like(visible, v), v, 0)
        scores = torch.einsum("bghk,bshk->bghs", x["q"], k) * _KEYS**-0.5
        share = (scores + torch.where(visible, 0.0, float("-inf"))[:, None, None]).softmax(-1)
        y = torch.einsum("bghs,bshk->bghk", share, v)
        total = share.detach().sum(1)  # (B, H, S + 1)
        if policy == "h2o":
            previous = torch.cat([weight, torch.zeros_like(weight[:, :1])], 1)
            total = total + torch.where(visible[..., None], previous, 0).mT
        remaining = [
            _without(policy, total[b], int(position[b]) >= room, k[b], v[b])
            for b in range(k.shape[0])
        ]
        parts = (
            [torch.stack(z) for z in zip(*remaining, strict=True)]
            if remaining
            else [k[:, 1:], v[:, 1:]]
        )
        if policy == "tova" or not remaining:
            parts = [*parts[:2], weight]
        return y.flatten(1), joined(*parts, counted(position, h))

    def run(
        inputs: dict[str, Any], position: Tensor, reset: Any, *remaining: Tensor
    ) -> list[Tensor]:
        q, k, v = (inputs[n] for n in "qkv")
        y, *last = attend_evicting(policy, q, k, v, *remaining, position)
        return [y.flatten(2), *last]

    arguments = {"q": draw.steps(groups, heads, _KEYS), "k": draw.steps(heads, _KEYS)}
    arguments["v"] = draw.steps(heads, _KEYS)
    yield counted_call(policy, run, arguments, ("q", "k", "v"), shapes, step, groups * _KEYS)


def _without(
    policy: str, total: Tensor, full: bool, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Entries (S + 1, H, K) of one row but the worst of each head, and what they have had."""
    heads, size = total.shape
    every: list[list[Tensor]] = [[], [], []]
    for head in range(heads):
        score = total.sum(0) if policy == "tova" else total[head, : size - size // 2]
        worst = int(score.argmin()) if full else 0
        survivors = [s for s in range(size) if s != worst]
        for into, x in zip(every, (k[:, head], v[:, head], total[head]), strict=True):
            into.append(x[survivors])
    if not heads:
        return k[1:], v[1:], total.mT[1:]
    k, v, total = (torch.stack(x, 1) for x in every)
    return k, v, total


def _attentive(draw: Draw) -> Iterator[Call]:
    d, entry = draw.channels, (_HEADS, _KEYS)
    for kind in ("tanh", "gru", "lstm"):
        states = 2 if kind == "lstm" else 1
        shapes: Shapes = [(_MANY, *entry), (_MANY, *entry), *[(d,)] * states, (1,)]

        def step(
            x: dict[str, Any], h: Tensor, shapes: Shapes = shapes, kind: str = kind
        ) -> tuple[Tensor, Tensor]:
            past_k, past_v, *state, counter = apart(h, *shapes)
            position = read_so_far(counter)
            state = [torch.where((position == 0)[:, None], 0, z) for z in state]
            k, v = torch.cat([past_k, x["k"][:, None]], 1), torch.cat([past_v, x["v"][:, None]], 1)
            q = (state[0] @ x["query"].mT).unflatten(-1, entry)
            visible = _ages(k) <= position[:, None]
            read = torch.einsum("bhs,bshk->bhk", _weights("softmax", {"q": q}, k, visible), v)
            state = stepped(kind, read.flatten(1), state, x)
            recent = [in_sight(z[:, 1:], position) for z in (k, v)]
            return state[0], joined(*recent, *state, counted(position, h))

        def run(
            inputs: dict[str, Any],
            position: Tensor,
            reset: Any,
            past_k: Tensor,
            past_v: Tensor,
            *state: Tensor,
            kind: str = kind,
        ) -> list[Tensor]:
            k, v = torch.cat([past_k, inputs["k"]], 1), torch.cat([past_v, inputs["v"]], 1)
            weights = [inputs[n] for n in LAYERS]
            y, *last = attentive_recurrence(
                kind, k, v, position, list(state), inputs["query"], weights
            )
            return [y, *(_newest(z, _MANY, position) for z in (k, v)), *last]

        arguments = {"k": draw.steps(*entry), "v": draw.steps(*entry)}
        arguments |= {"query": draw(_HEADS * _KEYS, d)}
        arguments |= drawn(draw, kind, _HEADS * _KEYS, d)
        yield counted_call(kind, run, arguments, ("k", "v"), shapes, step, 1)


class _Averages:
    """A rule of `linrnn.ops.attention.segments`: a memory takes a segment's mean, by a weight."""

    independent = False

    @staticmethod
    def attend(
        mode: str, q: Any, entries: Any, age: Tensor | None, memory: Any, weights: Any
    ) -> Tensor:
        """``q (sum of what is seen + memory weight)``."""
        every = entries[0]
        visible = every.sum(1, keepdim=True) if age is None else (age >= 0).to(every.dtype) @ every
        y: Tensor = q[0] * (visible + memory[0][:, None] * weights[0])
        return y

    @staticmethod
    def write(mode: str, entries: Any, memory: Any, weights: Any, number: Tensor) -> list[Tensor]:
        """``tanh(memory + mean weight)``."""
        return [torch.tanh(memory[0] + entries[0].mean(1) * weights[0])]

    @staticmethod
    def start(mode: str, memory: Any, weights: Any) -> list[Tensor]:
        """The weight."""
        return [weights[0].expand_as(memory[0])]


_AVERAGES = f"{__name__}._Averages"
RULES[_AVERAGES] = _Averages


def _segments(draw: Draw) -> Iterator[Call]:
    c, size = draw.channels, 3
    shapes: Shapes = [(size - 1, c), (c,), (1,)]

    def begun_of(begun: Tensor, position: Tensor) -> Tensor:
        return torch.where(like(_ages(begun) < (position % size)[:, None], begun), begun, 0)

    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        begun, memory, counter = apart(h, *shapes)
        position = read_so_far(counter)
        place = (position % size)[:, None]
        entries = torch.cat([begun_of(begun, position), x["entry"][:, None]], 1)
        memory = torch.where(position[:, None] == 0, x["weight"], memory)
        y = x["q"] * (entries.sum(1) + memory * x["weight"])
        written = torch.tanh(memory + entries.mean(1) * x["weight"])
        memory = torch.where(place == size - 1, written, memory)
        begun = torch.where(place[..., None] == size - 1, 0, entries[:, 1:])
        return y, joined(begun, memory, counted(position, h))

    for replay in (False, True):

        def run(
            inputs: dict[str, Any],
            position: Tensor,
            reset: Any,
            begun: Tensor,
            memory: Tensor,
            replay: bool = replay,
        ) -> list[Tensor]:
            q, entry, weight = (inputs[n] for n in ("q", "entry", "weight"))
            if position.shape[1]:
                begun = begun_of(begun, position[:, 0])
            return list(
                read_segments(
                    *(_AVERAGES, "", [q], [entry], [begun], [memory], [weight]),
                    *(position, size, -1, replay),
                )
            )

        arguments = {"q": draw.steps(c), "entry": draw.steps(c), "weight": draw(c)}
        kind = "replayed" if replay else "in one"
        yield counted_call(kind, run, arguments, ("q", "entry"), shapes, step, 1)


def _reflected(draw: Draw) -> Iterator[Call]:
    """PaTH: what steps read, and the keys after the last; u is 0 in entries of an earlier call.

    As in the layer u is bounded, whatever it is made of.
    """
    shapes: Shapes = [(_ROOM - 1, _HEADS, _KEYS), (_ROOM - 1, _HEADS, draw.channels), (1,)]

    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        keys, values, counter = apart(h, *shapes)
        position, u = read_so_far(counter), x["u"][:, None].tanh()
        keys = torch.cat([keys - (keys * u).sum(-1, keepdim=True) * u, x["k"][:, None]], 1)
        values = torch.cat([values, x["v"][:, None]], 1)
        weights = _weights("softmax", x, keys, _ages(keys) <= position[:, None])
        y = torch.einsum("bhs,bshv->bhv", weights, values).flatten(1)
        recent = [in_sight(z[:, 1:], position) for z in (keys, values)]
        return y, joined(*recent, counted(position, h))

    def run(
        inputs: dict[str, Any], position: Tensor, reset: Any, keys: Tensor, values: Tensor
    ) -> list[Tensor]:
        u = torch.cat([torch.zeros_like(keys), inputs["u"].tanh()], 1)
        k, v = torch.cat([keys, inputs["k"]], 1), torch.cat([values, inputs["v"]], 1)
        recent = [_newest(z, _ROOM - 1, position) for z in (carried_keys(k, u), v)]
        sight, both = position.clamp(max=_ROOM - 1), torch.cat([k, u], -1)
        y = attend("path", inputs["q"], both, v, sight, window=_ROOM, whole=False)
        return [y.flatten(2), *(recent if position.shape[1] else (keys, values))]

    entry = (_HEADS, _KEYS)
    arguments = {name: draw.steps(*entry) for name in "qku"}
    arguments["v"] = draw.steps(_HEADS, draw.channels)
    yield counted_call("path", run, arguments, ("q", "k", "u", "v"), shapes, step, _HEADS)


CALLS: dict[str, Callable[[Draw], Iterator[Call]]] = {
    "carry_keys": _reflected,
    "attend": _attend,
    "attend_sinks": _sinks,
    "attend_evicting": lambda draw: iter([*_evicting("tova", draw), *_evicting("h2o", draw)]),
    "attentive_recurrence": _attentive,
    "segments": _segments,
}
