"""`fenwick_scan` as an op, and which form computes a call."""

import itertools

import torch
from torch import Tensor

from linrnn.compute.composed import composed
from linrnn.compute.modes import eager, may_look, seen_finite
from linrnn.ops.attention import positions
from linrnn.ops.matrix._fenwick._blocks import PAIRS, read_blocks
from linrnn.ops.matrix._fenwick._levels import Rule, filled, read_levels
from linrnn.ops.matrix._fenwick._steps import read_step


def _shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    level_scales: Tensor,
    initial_state: Tensor | None,
    position: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    seqs = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    memory = (seqs, v.shape[2], level_scales.shape[3], q.shape[3], v.shape[3])
    count = q.new_empty(seqs, dtype=torch.long)
    return v.new_empty(v.shape), v.new_empty(memory), count


@composed(
    "fenwick_scan",
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor level_scales, "
    "Tensor? initial_state, Tensor? position, Tensor? reset, Tensor? cu_seqlens",
    _shapes,
)
def fenwick(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    level_scales: Tensor,
    initial_state: Tensor | None,
    position: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``(o, final_state, position)`` of checked arguments, all in the dtype to compute in."""
    rule = Rule(q, k, v, g, beta)
    if position is not None and initial_state is None:
        initial_state = _unread(rule, level_scales, None, position.shape[0])
    if cu_seqlens is None:
        return _rows(rule, level_scales, initial_state, position, reset)
    offsets = cu_seqlens.tolist()
    lengths = [end - begin for begin, end in itertools.pairwise(offsets)]
    in_blocks = beta is None and reset is None and (g is None or g.ndim == 3)
    short = max(lengths, default=0) <= _most(level_scales)
    # a sequence in blocks costs what its operators do, the same for up to some hundred steps
    if (
        q.numel() * v.numel()
        and short
        and not (in_blocks and q.shape[1] >= 8 * PAIRS * len(lengths))
    ):
        return _packed(rule, level_scales, initial_state, position, reset, cu_seqlens)
    return _one_by_one(rule, level_scales, initial_state, position, reset, offsets)


def _most(level_scales: Tensor) -> int:
    """Steps between two times at which something joins the oldest level."""
    levels = level_scales.shape[3]
    return 1 << (levels - 2) if levels > 1 else 1 << 62


def _rows(
    rule: Rule,
    scales: Tensor,
    state: Tensor | None,
    position: Tensor | None,
    reset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One sequence a row."""
    batch, time = rule.v.shape[:2]
    start = position
    if start is None:
        start = torch.zeros(batch, dtype=torch.long, device=rule.v.device)
    if time == 0:
        return rule.v.clone(), _unread(rule, scales, state, batch), start.clone()
    now = positions(start, time, reset)
    if rule.v.numel() * rule.k.numel() == 0:
        o = torch.zeros_like(rule.v) * rule.v.sum()
        return o, _unread(rule, scales, state, batch), now[:, -1] + 1
    if time == 1:
        if reset is not None:
            now = torch.where(reset, 0, now)
            state = None if state is None else filled(state, now[:, 0])  # what was may be no number
        o, final = read_step(rule, scales, state, now[:, 0])
    elif (common := _common(rule, position, state, reset)) is not None:
        o, final = _in_blocks(rule, scales, state, common)
    else:
        o, final = read_levels(rule, scales, state, start, now, None)
    return o, final, now[:, -1] + 1


def _unread(rule: Rule, scales: Tensor, state: Tensor | None, seqs: int) -> Tensor:
    """The state of sequences without a step."""
    if state is not None:
        return state.clone()
    heads, values = rule.v.shape[2:]
    return rule.v.new_zeros(seqs, heads, scales.shape[3], rule.q.shape[3], values)


def _common(
    rule: Rule, position: Tensor | None, state: Tensor | None, reset: Tensor | None
) -> int | None:
    """The position of all rows, where blocks can compute the call."""
    tensors = [x for x in (*rule, state) if x is not None]
    decays_by_channel = rule.g is not None and rule.g.ndim == 4
    if decays_by_channel or reset is not None or not eager(*tensors):
        return None
    if position is None:
        return 0
    if not may_look(position):
        return None
    distinct = set(position.tolist())
    return distinct.pop() if len(distinct) == 1 else None


def _in_blocks(
    rule: Rule, scales: Tensor, state: Tensor | None, position: int
) -> tuple[Tensor, Tensor]:
    q, k, v, g, beta = rule.of_heads()
    g = torch.zeros_like(v[..., 0]) if g is None else g
    arguments = (q, k, v, g, beta, scales, state, position)
    if beta is not None:
        # its matrices are of many steps, so one that overflows would spoil those before
        o, final = read_blocks(*arguments, sure=may_look(q))
        return (o, final) if not may_look(q) or seen_finite(o) else read_blocks(*arguments)
    if all(map(seen_finite, (q, k, v, g, scales))):
        return read_blocks(*arguments)
    # zero times NaN, of a step that another does not see, would be NaN: marked, and kept out
    numbers = (q, k, v, g, scales)
    row = torch.cat([x.flatten(2) for x in numbers], 2)  # (B, T, all numbers of a step)
    bad = ~row.isfinite().all(2)  # (B, T)
    # (B, T, numbers) each
    parts = torch.where(bad[..., None], 0, row).split([x[0, 0].numel() for x in numbers], 2)
    clean = [part.view(x.shape) for part, x in zip(parts, numbers, strict=True)]  # (B, T, ...) each
    q, k, v, g, scales = clean
    o, final = read_blocks(q, k, v, g, None, scales, state, position)
    spoilt = bad.cumsum(1) > 0
    o = torch.where(spoilt[..., None, None], float("nan"), o)
    return o, torch.where(spoilt[:, -1, None, None, None, None], float("nan"), final)


def _packed(
    rule: Rule,
    scales: Tensor,
    state: Tensor | None,
    position: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """All sequences of a row together, none longer than `_most`."""
    time, device = rule.v.shape[1], rule.v.device
    offsets = cu_seqlens.to(device, torch.long)
    lengths = offsets.diff()
    start = position
    if start is None:
        start = torch.zeros(lengths.shape[0], dtype=torch.long, device=device)
    step = torch.arange(time, device=device)
    first = (start - offsets[:-1]).repeat_interleave(lengths, output_size=time)  # (T,)
    now = (step + first)[None]  # (1, T)
    if reset is not None:
        begun = offsets[:-1].repeat_interleave(lengths, output_size=time)  # (T,)
        latest = torch.where(reset[0], step, -1).cummax(0).values
        now = torch.where(latest >= begun, step - latest, now[0])[None]
    o, final = read_levels(rule, scales, state, start, now, cu_seqlens)
    last = now[0, (offsets[1:] - 1).clamp(min=0)] + 1
    return o, final, torch.where(lengths == 0, start, last)


def _one_by_one(
    rule: Rule,
    scales: Tensor,
    state: Tensor | None,
    position: Tensor | None,
    reset: Tensor | None,
    offsets: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Every packed sequence as a separate row."""
    results = []
    for s, (begin, end) in enumerate(itertools.pairwise(offsets)):
        initial = None if state is None else state[s : s + 1]
        start = None if position is None else position[s : s + 1]
        cut = None if reset is None else reset[:, begin:end]
        results.append(_rows(rule.cut(begin, end), scales[:, begin:end], initial, start, cut))
    if not results:
        count = torch.zeros(0, dtype=torch.long, device=rule.v.device)
        return rule.v.clone(), _unread(rule, scales, state, 0), count
    o, final, last = zip(*results, strict=True)
    # (1, T, H, V), (seqs, H, L, K, V), (seqs,)
    return torch.cat(o, 1), torch.cat(final), torch.cat(last)
