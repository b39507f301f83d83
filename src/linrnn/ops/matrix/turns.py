"""Memories whose rows turn in pairs: a complex decay is a real one in a frame that turns along.

In that frame nothing turns: queries and keys are turned back by the sum of all angles so far, and
the last memory is turned forward by it. So a state is always in the frame of its own step, and
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
    turn = torch.remainder(angle.double() + pi, 2 * pi) - pi
    rows = turn.flatten(2) if turn.ndim > 2 else turn.unsqueeze(-1)
    if STOPPED.get():  # nothing is to be computed, and what is explained is another scan
        return turn, turn.sum(1)
    layout: Any = {"reset": reset, "cu_seqlens": cu_seqlens, "reverse": reverse}
    sums, last = linear_scan(rows.new_ones(rows.shape[2]), rows, **layout)
    return sums.view(turn.shape), last.view(-1, *turn.shape[2:])


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first pairs (2i, 2i + 1) of the last axis of ``x``, as many as there are cosines.

    Example:
        >>> turned(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        tensor([0., 1., 5.])
    """
    count = 2 * cos.shape[-1]
    even, odd = x[..., 0:count:2], x[..., 1:count:2]
    pairs = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
    return pairs if count == x.shape[-1] else torch.cat([pairs, x[..., count:]], -1)


class Turning(NamedTuple):
    """The way back from the frame of the start: what the last memories turn by."""

    phase: Tensor  # (seqs, heads, pairs or 1)
    pairs: int
    dtype: torch.dtype  # of outputs

    def back(self, results: Results) -> Results:
        """Outputs and last memories, these in the frame of their own step."""
        o, final = results
        phase = each_head(self.phase, final.shape[1], 1).unsqueeze(2)  # (seqs, H, 1, pairs or 1)
        return o.to(self.dtype), _turned_by(final.mT, phase, self.pairs).mT.contiguous()


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
    wide, steps = accumulator_dtype(dtype), x["q"].shape[:2]
    turns = angle if angle.ndim % 2 == 0 else angle.unsqueeze(-1)  # (.., heads, pairs or 1)
    turns = turns if turns.ndim == 4 else turns.expand(*steps, *turns.shape)
    sums, last = phases(turns, reset, cu_seqlens, reverse)
    for name in ("q", "k", "a", "b"):
        if x[name] is not None:
            phase = sums if x[name].ndim < 5 else sums.unsqueeze(2)  # (B, T, 1, heads, pairs or 1)
            if name == "a":
                phase = _before_first(phase, turns, x["a"])
            x[name] = _turned_back(x[name].to(wide), phase, pairs)
    for name in ("g", "sign"):
        if x[name] is not None and x[name].ndim % 2 == 0:
            x[name] = _of_channels(x[name], pairs)
    return tuple(x.values()), Turning(last, pairs, dtype)


def _before_first(phase: Tensor, turns: Tensor, a: Tensor) -> Tensor:
    """Phases of what is read before a write: of a step's first one those before it turns."""
    if a.ndim < 5:
        return phase - turns
    later = phase.expand(-1, -1, a.shape[2] - 1, -1, -1)  # (B, T, rank - 1, heads, pairs or 1)
    return torch.cat([phase - turns.unsqueeze(2), later], 2)


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
    count, most = angle.shape[-2 if by_pair else -1], max(q.shape[-2], k.shape[-2])
    if count == 0 or max(count, most) % min(count, most or 1):
        raise ShapeError(
            f"{where}: the heads of angle must divide those of what has the most, which share "
            f"them, got {count} and {most}."
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


def _turned_back(x: Tensor, phase: Tensor, pairs: int) -> Tensor:
    """``x`` (B, T, ..., heads, d_key) of all heads that either has, in the frame of the start."""
    ours, turning = x.shape[-2], phase.shape[-2]
    heads = ours if ours % turning == 0 else turning if turning % ours == 0 else ours * turning
    x = each_head(x, heads, x.ndim - 2)
    phase = phase if phase.shape[-2] == 1 else each_head(phase, heads, phase.ndim - 2)
    return _turned_by(x, -phase, pairs)


def _turned_by(x: Tensor, phase: Tensor, pairs: int) -> Tensor:
    cos, sin = (z.to(x.dtype) for z in (phase.cos(), phase.sin()))
    return turned(x, *(z.expand(*z.shape[:-1], pairs) for z in (cos, sin)))


def _of_channels(g: Tensor, pairs: int) -> Tensor:
    """Decays of pairs that turn, and of the channels behind, as those of all channels."""
    return torch.cat([g[..., :pairs].repeat_interleave(2, -1), g[..., pairs:]], -1)
