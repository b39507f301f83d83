"""Memories whose rows turn in pairs: a complex decay is a real one in a frame that turns along.

In that frame nothing turns: queries and keys are turned back by the sum of all angles so far, and
the last memory is turned forward by it. So a state is always in the frame of its step, and
needs no phase beside it.
"""

import functools
from collections.abc import Mapping, Sequence
from math import pi
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute.arguments import check_device, check_numbers
from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.modes import eager
from linrnn.compute.op import STOPPED
from linrnn.errors import ArgumentError, ShapeError, check_shape
from linrnn.ops.linear.linear_scan import linear_scan
from linrnn.ops.matrix._memory._problem import STORED, Problem
from linrnn.ops.matrix._memory._unrolled import each_head

Results = tuple[Tensor, Tensor]


def phases(
    angle: Tensor,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """Sum angles (batch, time, ...) from the beginning of each sequence, or from a reset, on.

    The sums are float64: one of a thousand turns has three digits in float32. Whole turns of a
    step are left out.

    Returns:
        ``(sums, last)``, the last ones (sequences, ...).

    Example:
        >>> phases(torch.full((1, 3), 0.5))[0]
        tensor([[0.5000, 1.0000, 1.5000]], dtype=torch.float64)
    """
    angle = angle.double()
    turn = angle - (angle / (2 * pi)).round() * (2 * pi)  # half the time of a remainder
    rows = turn.flatten(2) if turn.ndim > 2 else turn.unsqueeze(-1)  # (B, T, channels)
    if STOPPED.get():  # nothing is to be computed, and what is explained is another scan
        return turn, turn.sum(1)
    layout: Any = {"reset": reset, "cu_seqlens": cu_seqlens, "reverse": reverse}
    sums, last = linear_scan(rows.new_ones(rows.shape[2]), rows, **layout)
    return sums.view(turn.shape), last.view(-1, *turn.shape[2:])  # (B, T, ...), (seqs, ...)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first pairs (2i, 2i + 1) of the last axis of ``x``, as many as there are cosines.

    Example:
        >>> turned(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        tensor([0., 1., 5.])
    """
    count = 2 * cos.shape[-1]
    first, rest = x, None
    if count < x.shape[-1]:
        # (B, T, H, 2 pairs), (B, T, H, others)
        first, rest = x.split([count, x.shape[-1] - count], -1)
    if eager(x, cos, sin) and in_pairs(first):  # the same in one pass
        # (B, T, H, pairs)
        pairs = torch.view_as_complex(first.unflatten(-1, (-1, 2))) * torch.complex(cos, sin)
        pairs = torch.view_as_real(pairs).flatten(-2)  # (B, T, H, 2 pairs)
    else:
        even, odd = first[..., 0::2], first[..., 1::2]
        # (B, T, H, 2 pairs)
        pairs = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
    # (B, T, H, channels)
    return pairs if rest is None else torch.cat([pairs, rest], -1)


def in_pairs(x: Tensor) -> bool:
    """Whether pairs of channels can be looked at as complex numbers."""
    if x.dtype not in (torch.float32, torch.float64) or x.shape[-1] == 0 or x.stride(-1) != 1:
        return False
    return not any(step % 2 for step in (x.storage_offset(), *x.stride()[:-1]))


class Turning(NamedTuple):
    """The way back from the frame of the start: what the last memories turn by."""

    phase: Tensor  # (seqs, heads, pairs or 1)
    pairs: int
    dtype: torch.dtype  # of outputs

    def back(self, results: Results) -> Results:
        """Outputs and last memories, these in the frame of their own step."""
        o, final = results
        phase = each_head(self.phase, final.shape[1], 1).unsqueeze(2)  # (seqs, H, 1, pairs or 1)
        turns = _wave(phase, self.pairs, final.dtype)
        # (B, T, H, V), (seqs, H, K, V)
        return o.to(self.dtype), turned(final.mT.contiguous(), *turns).mT.contiguous()


def in_frame(
    where: str,
    angle: Tensor,
    tensors: Sequence[Tensor | None],
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[tuple[Tensor | None, ...], Turning]:
    """Tensors in the frame of the start, in which the memory does not turn, and the way back.

    Args:
        where: the op.
        angle: of the call: see `linrnn.ops.outer_scan`.
        tensors: those of a `Problem` before its reset.
        reset, cu_seqlens, reverse: of the call.
    """
    x: dict[str, Any] = dict(zip(Problem._fields, tensors, strict=False))
    pairs = _checked_pairs(where, angle, {n: z for n, z in x.items() if z is not None})
    dtype = functools.reduce(torch.promote_types, (x[n].dtype for n in STORED if x[n] is not None))
    accumulator, steps = accumulator_dtype(dtype), x["q"].shape[:2]
    turns = angle if angle.ndim % 2 == 0 else angle.unsqueeze(-1)  # (.., heads, pairs or 1)
    # (B, T, H or 1, pairs)
    turns = turns if turns.ndim == 4 else turns.expand(*steps, *turns.shape)
    sums, last = phases(turns, reset, cu_seqlens, reverse)
    back = _wave(-sums, pairs, accumulator)  # (B, T, heads, pairs)
    for name in ("q", "k", "b"):
        if x[name] is not None:
            x[name] = _turned_back(x[name].to(accumulator), *back)
    if x["a"] is not None:
        to_previous = _wave(-_before_first(sums, turns, x["a"]), pairs, accumulator)
        x["a"] = _turned_back(x["a"].to(accumulator), *to_previous)
    for name in ("g", "sign"):
        if x[name] is not None and x[name].ndim % 2 == 0:
            x[name] = _of_channels(x[name], pairs)
    return tuple(x.values()), Turning(last, pairs, dtype)


def _wave(phase: Tensor, pairs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of phases (.., pairs or 1), repeated for ``pairs`` pairs."""
    cos, sin = phase.cos().to(dtype), phase.sin().to(dtype)
    shape = (*phase.shape[:-1], pairs)
    return cos.expand(shape), sin.expand(shape)  # (..., H, pairs) each


def _before_first(sums: Tensor, turns: Tensor, a: Tensor) -> Tensor:
    """Phases of what is read before a write: of a step's first one those before it turns."""
    if a.ndim < 5:
        return sums - turns
    later = sums.unsqueeze(2).expand(-1, -1, a.shape[2] - 1, -1, -1)  # (B, T, count, H, pairs)
    return torch.cat([(sums - turns).unsqueeze(2), later], 2)  # (B, T, rank, heads, pairs or 1)


def _checked_pairs(where: str, angle: Tensor, x: Mapping[str, Tensor]) -> int:
    """How many pairs of rows turn."""
    check_numbers(where, {"q": x["q"], "k": x["k"], "v": x["v"]}, real=True, angle=angle)
    q, k = x["q"], x["k"]
    reads = ("rank",) if q.ndim == 5 else ()
    check_shape(where, "q", q.shape, dict.fromkeys(("batch", "time", *reads, "heads", "d_key")))
    check_shape(where, "k", k.shape[-1:], {"d_key": q.shape[-1]})
    check_device(where, "q", q.device, angle=angle)
    if "bonus" in x:
        raise ArgumentError(
            f"{where}: bonus must be None where there are angles, got one. "
            f"Read with read='before' and add what the current write is to weigh."
        )
    heads: dict[str, int | None] = {"heads": None}
    by_pair = {"pairs": None} if angle.ndim % 2 == 0 else {}
    steps = {"batch": q.shape[0], "time": q.shape[1]} if angle.ndim > 2 else {}
    check_shape(where, "angle", angle.shape, {**steps, **heads, **by_pair})
    count, most_heads = angle.shape[-2 if by_pair else -1], max(q.shape[-2], k.shape[-2])
    if count == 0 or max(count, most_heads) % min(count, most_heads or 1):
        raise ShapeError(
            f"{where}: the heads of angle must divide those of what has the most, which share "
            f"them, got {count} and {most_heads}."
        )
    pairs = angle.shape[-1] if by_pair else q.shape[-1] // 2
    if 2 * pairs > q.shape[-1] or not (by_pair or q.shape[-1] % 2 == 0):
        raise ShapeError(
            f"{where}: d_key must be even, or at least twice the pairs of angle, got "
            f"d_key={q.shape[-1]} and angle of shape {tuple(angle.shape)}."
        )
    for name in ("g", "sign"):
        if name in x and x[name].ndim % 2 == 0 and x[name].shape[-1] != q.shape[-1] - pairs:
            raise ShapeError(
                f"{where}: the last axis of {name} must be {q.shape[-1] - pairs}, one for each of "
                f"{pairs} pairs that turn and for each channel behind, got {x[name].shape[-1]}."
            )
    return int(pairs)


def _turned_back(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x`` (B, T, [rank], heads, d_key) of all heads that either has, turned back."""
    if x.ndim > cos.ndim:
        cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)  # (B, T, 1, ...) each
    ours, turning = x.shape[-2], cos.shape[-2]
    heads = ours if ours % turning == 0 else turning if turning % ours == 0 else ours * turning
    x = each_head(x, heads, x.ndim - 2)
    if turning > 1:
        cos, sin = (each_head(z, heads, z.ndim - 2) for z in (cos, sin))
    return turned(x, cos, sin)


def _of_channels(g: Tensor, pairs: int) -> Tensor:
    """Decays of pairs that turn, and of the channels behind, as those of all channels."""
    return torch.cat([g[..., :pairs].repeat_interleave(2, -1), g[..., pairs:]], -1)  # (B, T, H, K)
