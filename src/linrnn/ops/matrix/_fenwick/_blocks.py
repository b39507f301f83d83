"""Levels by blocks: all rows at one position, a decay a head, no resets.

A stretch of time is cut into the largest blocks whose length is a power of two that divides their
position. In such a block every step reads what lies before the block at the same levels, and
inside it the second half of each smaller block reads the first half at one level. So each level
is one batched product. Decays are sums over the steps between, never differences of sums. With
the delta rule, `_delta`, a block has a matrix for its decay.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from linrnn.ops.matrix._fenwick import _delta
from linrnn.ops.matrix._fenwick._parts import Steps, Within, halves, pair_decays, pair_weights

#: Steps whose pairs are one matrix with all their levels. At (1, 16384, 8, 64, 64) 16 and 64 take
#: 1.1 and 1.3 times as long; a training step of log-linear Mamba-2 (64 channels, 1 row of 2,048
#: steps) 1.02 and 1.09
#: (2026-11-29, EPYC with AVX-512, one core of a shared machine, in turn).
PAIRS = 32
#: Numbers of queries or values of the rows computed together, which stay in a core's cache. The
#: same layer with 16 rows of 1,024 steps takes 0.96 times as long with 2^18 and 0.92 with 2^22
#: (2026-11-29, EPYC with AVX-512, one core of a shared machine, in turn).
ROWS = 1 << 20


def read_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None,
    scales: Tensor,
    state: Tensor | None,
    position: int,
    *,
    sure: bool = False,
) -> tuple[Tensor, Tensor]:
    """Outputs and last levels of rows that are all at one position.

    Args:
        q, k: (B, T, G, K), of at least one step.
        v: (B, T, H, V).
        g: logarithms of decays (B, T, H).
        beta: rates of the delta rule (B, T, H), whose heads have their own keys; or None.
        scales: (B, T, H, L).
        state: levels before the first step, (B, H, L, K, V); None only at position 0.
        position: of the first step.
        sure: of the delta rule, that no number overflows, or else that nobody reads the results.
    """
    batch, time, groups = q.shape[:3]
    heads = (groups, v.shape[2] // groups)
    # (B, T, G, E, ...) each
    of_heads = [x.unflatten(2, heads) for x in (v, g, scales, beta) if x is not None]
    levels = None if state is None else state.unflatten(1, heads)  # (B, G, E, L, K, V)
    count = max(1, ROWS // (time * max(q.shape[3], heads[1] * v.shape[3])))
    if not q.is_cpu:  # a launch costs more than a cache saves
        count = batch * groups
    by_group, by_row = min(groups, count), max(1, count // groups)
    outputs, finals = [], []
    for i in range(0, batch, by_row):
        parts = []
        for j in range(0, groups, by_group):
            row, group = slice(i, i + by_row), slice(j, j + by_group)
            rows = (x[row, :, group].transpose(1, 2).flatten(0, 1) for x in (q, k, *of_heads))
            first = None if levels is None else levels[row, group].flatten(0, 1)  # (R, L, E, K, V)
            o, final = _read_rows(Steps(*rows), first, position, sure)
            shape = (-1, min(by_group, groups - j))
            parts.append((o.unflatten(0, shape).transpose(1, 2), final.unflatten(0, shape)))
        of_rows = list(zip(*parts, strict=True))
        outputs.append(_joined(of_rows[0], 2).flatten(2, 3))  # (rows, T, H, V)
        finals.append(_joined(of_rows[1], 1).flatten(1, 2))
    return _joined(outputs, 0), _joined(finals, 0)


def _read_rows(
    steps: Steps, state: Tensor | None, position: int, sure: bool
) -> tuple[Tensor, Tensor]:
    """Outputs (R, T, E, V) and levels (R, E, L, K, V)."""
    time, top = steps.q.shape[1], steps.scales.shape[3] - 1
    levels = _levels_of(state, position)
    outputs: list[Tensor] = []
    begin = 0
    while begin < time:
        size = _block_size(position + begin, time - begin)
        block = steps.cut(begin, begin + size)
        begin += size
        _merge(levels, position + begin - size, top)
        here: tuple[Steps, bool, bool] = (block, begin == time, bool(levels))
        within = _read_within(*here) if block.beta is None else _delta.read_within(*here, sure)
        outputs.append(_read_before(block, levels, within))
        levels = {level: within.keep(S) for level, S in levels.items()}
        if begin < time:
            levels[-1] = within.written  # joins a level before the next step
        for level, S in within.levels.items():
            _add(levels, min(level, top), S)
    return _joined(outputs, 1), _stacked(levels, top + 1)


def _joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """One after the other along an axis; one alone as it is, which a copy of all would cost."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), axis)  # (R, T, ...)


def _block_size(position: int, steps: int) -> int:
    """The largest power of two that divides a position and is at most ``steps``."""
    largest: int = 1 << (steps.bit_length() - 1)
    return largest if position == 0 else min(largest, position & -position)


def _levels_of(state: Tensor | None, position: int) -> dict[int, Tensor]:
    """The levels that hold something after ``position`` steps, each (R, K, E, V)."""
    if state is None or position == 0:
        return {}
    top, newest = state.shape[2] - 1, position - 1
    filled = [level for level in range(top) if level == 0 or newest >> (level - 1) & 1]
    if top == 0 or newest >> (top - 1):
        filled.append(top)
    return {level: state[:, :, level].transpose(1, 2) for level in filled}


def _merge(levels: dict[int, Tensor], position: int, top: int) -> None:
    """Let the levels of what a step at this position no longer tells apart be one."""
    if position == 0:
        return
    zeros = (position & -position).bit_length() - 1
    for level in [n for n in levels if n <= zeros and n < top]:
        _add(levels, min(zeros + 1, top), levels.pop(level))


def _add(levels: dict[int, Tensor], level: int, S: Tensor) -> None:
    levels[level] = levels[level] + S if level in levels else S


def _stacked(levels: dict[int, Tensor], count: int) -> Tensor:
    """All levels (R, E, L, K, V), zeros where one holds nothing."""
    empty = torch.zeros_like(next(iter(levels.values())))
    S = torch.stack([levels.get(n, empty) for n in range(count)], 1)  # (R, L, K, E, V)
    return S.movedim(3, 1)  # (R, E, L, K, V)


def _read_before(block: Steps, levels: dict[int, Tensor], within: Within) -> Tensor:
    """Add to its own reads what every step of a block reads of the levels before it."""
    o = within.outputs
    for level, S in levels.items():
        assert within.queries is not None
        read = (within.queries @ S.flatten(2)).view_as(o)  # (R, C, E, V)
        scale = block.scales[..., level]  # (R, T, E)
        weight = scale if within.since is None else within.since * scale
        o = torch.addcmul(o, weight[..., None], read)
    return o


def _read_within(block: Steps, last: bool, joins: bool) -> Within:
    """Read what a block has written itself; ``joins`` where there are levels before it."""
    time, top = block.q.shape[1], block.scales.shape[3] - 1
    size = min(time, PAIRS)
    rows = block.blocks(size)
    o = _read_pairs(rows).reshape(block.v.shape)  # (R, C, E, V)
    states, S, inner = _steps_of_a_state(block), None, {}
    since, until = rows.g.cumsum(1), _later(rows.g)  # (R blocks, size, E)
    while size < time:
        if last and size == states:
            inner = _short_levels(block, until)
        if size == states:
            S = _written(block.blocks(size), until)  # (R blocks, K, E, V)
        pairs = block.blocks(2 * size)  # (R pairs, 2 size, ...)
        first, second = pairs.cut(0, size), pairs.cut(size, 2 * size)
        since_first, since_second = halves(since)  # (R pairs, size, E)
        until_first, until_second = halves(until)
        written = None if S is None else halves(S)
        if written is None:
            values = until_first.exp()[..., None] * first.v
            read = second.q @ first.k.mT @ values.flatten(2)  # (R pairs, size, E V)
        else:
            read = second.q @ written[0].flatten(2)  # (R, C, E V)
        level = min(size.bit_length(), top)
        weight = since_second.exp() * second.scales[..., level]
        outputs_of_half = o.view(-1, 2 * size, *o.shape[2:])[:, size:]  # (R, C, E, V)
        outputs_of_half.addcmul_(weight[..., None], read.view_as(outputs_of_half))
        across = since_second[:, -1:]  # (R pairs, 1, E)
        if written is not None:
            decay = across.exp()[..., None]
            if last:
                ends = slice(time // (2 * size) - 1, None, time // (2 * size))
                inner[size.bit_length()] = decay[ends] * written[0][ends]
            S = torch.addcmul(written[1], decay, written[0])
        since = torch.cat([since_first, since_second + since_first[:, -1:]], 1)  # (R, C)
        until = torch.cat([until_first + across, until_second], 1)  # (R, C)
        size *= 2
    if last and time <= states:
        inner = _short_levels(block, until)
    S = _written(block, until) if S is None else S
    if not joins:
        return Within(o, S, inner)
    since = since.exp()
    return Within(o, S, inner, block.q, since, since[:, -1, None, :, None])


def _later(g: Tensor) -> Tensor:
    """Sums over the later steps of each row, (R, C, E)."""
    later = torch.cat([g[:, 1:], torch.zeros_like(g[:, :1])], 1)  # (R, C, E)
    return later.flip(1).cumsum(1).flip(1)


def _steps_of_a_state(block: Steps) -> int:
    """From how many steps on a state is read with fewer products than they are, at least 64."""
    keys, values = block.k.shape[2], block.v.shape[2] * block.v.shape[3]
    break_even_steps = keys * values // (keys + values)
    return 64 if break_even_steps <= 64 else 1 << (break_even_steps - 1).bit_length()


def _read_pairs(block: Steps) -> Tensor:
    """Read inside of short blocks: pairs of steps, weighed by level and decay."""
    q, k, v, g, scales, _ = block
    g, scales = g.transpose(1, 2), scales.transpose(1, 2)  # (R, E, C), (R, E, C, L)
    weight = pair_weights(scales) * pair_decays(g)
    pairs = ((q @ k.mT)[:, None] * weight).tril()  # (R, E, C, C)
    o: Tensor = pairs @ v.transpose(1, 2)  # (R, E, C, V)
    return o.transpose(1, 2)  # (R, C, E, V)


def _written(rows: Steps, until: Tensor) -> Tensor:
    """The writes of each row, at its end, (R, K, E, V)."""
    values = until.exp()[..., None] * rows.v  # (R, C, E, V)
    S: Tensor = rows.k.mT @ values.flatten(2)  # (R, K, E V)
    heads: Tensor = S.unflatten(2, rows.v.shape[2:])  # (R, K, E, V)
    return heads


def _short_levels(block: Steps, until: Tensor) -> dict[int, Tensor]:
    """The levels of the last steps of a block, those of the rows of ``until``, at its end."""
    steps, begin = until.shape[1], block.q.shape[1] - until.shape[1]
    of_last = until.view(block.q.shape[0], -1, *until.shape[1:])[:, -1]  # (R, steps, E)
    values = (of_last.exp()[..., None] * block.v[:, begin:]).flatten(2)  # (R, steps, E V)
    count = steps.bit_length()
    sizes = [1 << max(level - 1, 0) for level in reversed(range(count))]
    each = zip(block.k[:, begin:].split(sizes, 1), values.split(sizes, 1), strict=True)
    S = [(k.mT @ v).unflatten(2, block.v.shape[2:]) for k, v in each]  # (R, K, E, V) each
    return dict(zip(reversed(range(count)), S, strict=True))
