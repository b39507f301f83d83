"""Levels by scans: any positions, resets and packed rows, the outer rule and the delta rule.

A level takes what is written in the first half of every 2^level steps and is read in the second,
so one scan that begins anew there is a level. The oldest level never begins anew: it is read as it
came, and so is what joins it, once within a call of at most half of its length.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute.layout import like
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.ops.matrix.outer_scan import outer_scan


class Rule(NamedTuple):
    """The tensors that write and read a memory, every step."""

    q: Tensor  # (B, T, G, K)
    k: Tensor  # (B, T, G, K)
    v: Tensor  # (B, T, H, V)
    g: Tensor | None  # (B, T, H) or (B, T, H, K)
    beta: Tensor | None  # (B, T, H): the delta rule

    def of_heads(self) -> "Rule":
        """The delta rule with keys of every head, which its erasing needs."""
        each = self.v.shape[2] // max(1, self.q.shape[2])
        if self.beta is None or each == 1:
            return self
        q, k = (x.repeat_interleave(each, 2) for x in (self.q, self.k))  # (B, T, H, K) each
        return self._replace(q=q, k=k)

    def scan(
        self, writes: Tensor, state: Tensor | None, reset: Tensor, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Read a memory that is written at some steps and decays, or is erased, at all."""
        v = torch.where(like(writes, self.v), self.v, 0)
        if self.beta is None:
            k = torch.where(like(writes, self.k), self.k, 0)
            return outer_scan(self.q, k, v, self.g, state, reset=reset, cu_seqlens=cu_seqlens)
        a = self.k
        if self.g is not None:
            a = a * (self.g if self.g.ndim == 4 else self.g[..., None]).exp()
        b = -self.beta[..., None] * self.k
        more: Any = {"a": a, "b": b, "reset": reset, "cu_seqlens": cu_seqlens}
        return delta_scan(self.q, self.k, v, self.beta, self.g, state, **more)

    def cut(self, begin: int, end: int) -> "Rule":
        """The steps from ``begin`` to before ``end``."""
        parts: Any = (None if x is None else x[:, begin:end] for x in self)
        return Rule(*parts)


def read_levels(
    rule: Rule,
    scales: Tensor,
    state: Tensor | None,
    start: Tensor,
    position: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Outputs and last levels, in pieces that end no more than one block of the oldest level.

    Args:
        rule: of the steps, at least one.
        scales: (B, T, H, L).
        state: levels before the first step, (seqs, H, L, K, V), or None.
        start: position of the first step of each sequence, (seqs,).
        position: of every step, (B, T).
        cu_seqlens: offsets of packed sequences, of which none is longer than such a block.
    """
    rule, levels, time = rule.of_heads(), scales.shape[3], position.shape[1]
    block = 1 << max(levels - 2, 0)
    if levels == 1:
        block = time
    if cu_seqlens is not None or time <= block:
        return _piece(rule, scales, state, start, position, cu_seqlens)
    outputs = []
    for begin in range(0, time, block):
        end = min(begin + block, time)
        now = position[:, begin:end]
        first_position = start if begin == 0 else position[:, begin - 1] + 1
        # a reset at the cut is one of the piece: its first position is 0
        o, state = _piece(
            rule.cut(begin, end), scales[:, begin:end], state, first_position, now, None
        )
        outputs.append(o)
    assert state is not None
    return torch.cat(outputs, 1), state  # (B, T, H, V)


def _piece(
    rule: Rule,
    scales: Tensor,
    state: Tensor | None,
    start: Tensor,
    position: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    top, begun = scales.shape[3] - 1, position == 0
    entering_levels = None if state is None else filled(state, start)
    if top == 0:
        first = None if entering_levels is None else entering_levels[:, :, 0]
        o, last = rule.scan(torch.ones_like(begun), first, begun, cu_seqlens)
        return scales * o, _or_unread(last[:, :, None], state, cu_seqlens)
    ending = _last_steps(position, cu_seqlens)
    newest = position[ending.row, ending.step]  # (seqs,)
    o, write = _read_now(rule, scales, ending)
    finals = [write]
    younger = None if entering_levels is None else entering_levels[:, :, 0]
    moments = _moments(position, start, newest, top)
    for level, (reads, writes, restarts, inside, ends) in enumerate(moments, 1):
        entering = younger
        if entering_levels is not None and younger is not None:
            # at the half itself, what was written in the first half is still in lower levels
            entering = torch.where(like(inside, younger), entering_levels[:, :, level], younger)
            younger = younger + entering_levels[:, :, level]
        read, last = rule.scan(writes, entering, restarts, cu_seqlens)
        o = o + torch.where(like(reads, read), scales[..., level, None] * read, 0)
        finals.append(torch.where(like(ends, last), last, 0))
    oldest = None if entering_levels is None else entering_levels[:, :, top]
    oldest_read, last = _read_oldest(
        rule, oldest, younger, start, position, ending, cu_seqlens, top
    )
    if oldest_read is not None:
        o = o + scales[..., top, None] * oldest_read
    final = torch.stack([*finals, last], 2)  # (seqs, H, L, K, V)
    return o, _or_unread(final, state, cu_seqlens)


def _moments(
    position: Tensor, start: Tensor, newest: Tensor, top: int
) -> Iterator[tuple[Tensor, ...]]:
    """Steps that read levels 1 to ``top - 1``, write them and begin them anew; then sequences.

    The last two are (seqs,): whether the second half has begun before the first step, and whether
    the last step is in it.
    """
    half = 1 << torch.arange(top - 1, device=position.device)
    of_step, of_sequence = half[:, None, None], half[:, None]
    reads = position & of_step != 0  # (levels, B, T)
    restarts = position & (2 * of_step - 1) == 0
    inside = (start & of_sequence != 0) & (start & (of_sequence - 1) != 0)  # (levels, seqs)
    ends = newest & of_sequence != 0
    # (seqs,) or (B, T) each
    return zip(*(x.unbind(0) for x in (reads, ~reads, restarts, inside, ends)), strict=True)


def _or_unread(final: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """Last levels, of a sequence without a step its first ones, whatever its position is."""
    if cu_seqlens is None:
        return final
    empty = cu_seqlens.to(final.device).diff() == 0
    return torch.where(like(empty, final), 0 if state is None else state, final)


class _Ending(NamedTuple):
    """Where sequences end, (seqs,) each; of one without a step any step."""

    row: Tensor
    step: Tensor


def _last_steps(position: Tensor, cu_seqlens: Tensor | None) -> _Ending:
    if cu_seqlens is None:
        row = torch.arange(position.shape[0], device=position.device)
        return _Ending(row, torch.full_like(row, position.shape[1] - 1))
    last = (cu_seqlens.to(position.device, torch.long)[1:] - 1).clamp(min=0)
    return _Ending(torch.zeros_like(last), last)


def filled(state: Tensor, start: Tensor) -> Tensor:
    """Levels (seqs, H, L, K, V), zeros where a level holds nothing before this position."""
    mask = occupied(start, state.shape[2])[:, None, :, None, None]
    return torch.where(mask, state, 0)


def occupied(start: Tensor, levels: int) -> Tensor:
    """Which levels hold something before a step at these positions, (seqs, L)."""
    newest, level = (start - 1)[:, None], torch.arange(levels, device=start.device)
    # divisions, not shifts, which a recorded step does not know
    below = torch.div(newest, 1 << (level - 1).clamp(min=0), rounding_mode="floor")
    bit_set = (torch.remainder(below, 2) == 1) | (level == 0)
    oldest = (level == levels - 1) & ((below > 0) | (level == 0))
    return (start > 0)[:, None] & (bit_set | oldest)


def _read_now(rule: Rule, scales: Tensor, ending: _Ending) -> tuple[Tensor, Tensor]:
    """The read of each step's latest write, level 0, and the last writes."""
    each = rule.v.shape[2] // max(1, rule.q.shape[2])
    v = rule.v if rule.beta is None else rule.beta[..., None] * rule.v
    product = (rule.q * rule.k).sum(-1).repeat_interleave(each, 2)  # (B, T, H)
    k, last = rule.k[ending.row, ending.step], v[ending.row, ending.step]
    write = k.repeat_interleave(each, 1)[..., None] * last[..., None, :]  # (seqs, H, K, V)
    return (product * scales[..., 0])[..., None] * v, write


def _read_oldest(
    rule: Rule,
    oldest: Tensor | None,
    younger: Tensor | None,
    start: Tensor,
    position: Tensor,
    ending: _Ending,
    cu_seqlens: Tensor | None,
    top: int,
) -> tuple[Tensor | None, Tensor]:
    """Read the oldest level, and what joins it: all that was written up to a block's end."""
    if oldest is None or younger is None:  # from position 0 on nothing is that old in one piece
        seqs = ending.row.shape[0]
        return None, rule.v.new_zeros(seqs, rule.v.shape[2], rule.q.shape[3], rule.v.shape[3])
    first = (start - 1).clamp(min=0) >> (top - 1)
    of_step = first[:, None]
    if cu_seqlens is not None:
        lengths = cu_seqlens.to(first.device, torch.long).diff()
        of_step = first.repeat_interleave(lengths, output_size=position.shape[1])[None]  # (1, T)
    joined, begun = position >> (top - 1) > of_step, position == 0
    read, last = rule.scan(torch.zeros_like(begun), oldest, begun, cu_seqlens)
    read_joined, last_joined = rule.scan(~joined, younger, begun, cu_seqlens)
    read = read + torch.where(like(joined, read), read_joined, 0)
    ends_joined = joined[ending.row, ending.step]
    return read, last + torch.where(like(ends_joined, last), last_joined, 0)
