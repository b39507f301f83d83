"""Memories of levels by age: calls of `fenwick_scan`, and their steps."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.ops.matrix.fenwick_scan import fenwick_scan
from linrnn.testing._calls import Call, Draw, Shapes, apart, joined, numbers
from linrnn.testing._reading_examples import counted, read_so_far

_HEADS, _KEYS = 2, 4


def _merged(S: list[Tensor], read: int) -> list[Tensor]:
    """The levels (H, K, V) of one row as its step finds them after ``read - 1`` others."""
    top, last = len(S) - 1, read - 1
    if read == 0:
        return [torch.zeros_like(x) for x in S]
    filled = [n == 0 or last >> (n - 1) & 1 for n in range(top)] + [top == 0 or last >> (top - 1)]
    S = [torch.where(torch.tensor(bool(f)), x, 0) for f, x in zip(filled, S, strict=True)]
    zeros = (read & -read).bit_length() - 1
    lower = [n for n in range(top) if n <= zeros]
    into = min(zeros + 1, top)
    if lower:
        S[into] = torch.stack([S[n] for n in (*lower, into)]).sum(0)
    return [torch.zeros_like(x) if n in lower else x for n, x in enumerate(S)]


def _step(shapes: Shapes, x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
    levels, counter = apart(h, *shapes)
    read = read_so_far(counter)
    rows = [
        torch.stack(_merged(list(row.unbind(1)), int(n)), 1)
        for row, n in zip(levels, read, strict=True)
    ]
    S = torch.stack(rows) if rows else levels  # (B, H, L, K, V)
    q, k = (x[n].repeat_interleave(_HEADS // x[n].shape[1], 1) for n in "qk")
    v = x["v"]
    if x.get("g") is not None:
        g = x["g"] if x["g"].ndim == 3 else x["g"][..., None]
        S = g.exp()[:, :, None, :, None] * S
    if "beta" in x:
        short = torch.einsum("bhlkv,bhk->bhlv", S, k)
        S = S - torch.einsum("bhk,bhlv->bhlkv", x["beta"][..., None] * k, short)
        v = x["beta"][..., None] * v
    now = torch.einsum("bhk,bhv->bhkv", k, v)
    S = torch.cat([(S[:, :, 0] + now)[:, :, None], S[:, :, 1:]], 2)
    read_levels = torch.einsum("bhlkv,bhk->bhlv", S, q)
    o = x.get("scale", 1.0) * torch.einsum("bhlv,bhl->bhv", read_levels, x["level_scales"])
    return o.flatten(1), joined(S, counted(read, h))


def _run(
    shapes: Shapes, initial_state: Any = None, read: Any = None, backend: Any = None, **inputs: Any
) -> tuple[Tensor, Tensor]:
    if initial_state is None:
        o, S, position = fenwick_scan(**inputs)
    else:
        state, counter = apart(initial_state, *shapes)
        position = read_so_far(counter) if read is None else read
        o, S, position = fenwick_scan(**inputs, initial_state=state, position=position)
        unread = torch.full_like(position, o.shape[1]) == 0
        if (cu_seqlens := inputs.get("cu_seqlens")) is not None:
            unread = cu_seqlens.diff() == 0
        return o.flatten(2), joined(
            S, torch.where(unread[:, None], counter, counted(position - 1, S))
        )
    return o.flatten(2), joined(S, counted(position - 1, S))


def _levels(draw: Draw) -> Iterator[Call]:
    def decay(*shape: int) -> Tensor:
        # next to none, and all but everything
        return -(4 * draw.steps(*shape)).exp()

    v = draw.steps(_HEADS, draw.channels)
    shared = {"q": draw.steps(1, _KEYS), "k": draw.steps(1, _KEYS), "v": v}
    by_head = {"q": draw.steps(_HEADS, _KEYS), "v": v}
    by_head["k"] = F.normalize(draw.steps(_HEADS, _KEYS), dim=-1)
    beta = {"beta": 2 * draw.steps(_HEADS).sigmoid()}
    kinds: dict[str, tuple[int, dict[str, Any]]] = {
        "by head": (4, shared | {"g": decay(_HEADS)}),
        "undecayed": (2, by_head | {"g": None}),
        "by channel": (3, by_head | {"g": decay(_HEADS, _KEYS), "scale": 0.5}),
        "delta": (3, by_head | {"g": decay(_HEADS)} | beta),
        "one level": (1, by_head | {"g": decay(_HEADS)}),
        "delta by channel": (5, by_head | {"g": decay(_HEADS, _KEYS)} | beta),
    }
    for kind, (levels, arguments) in kinds.items():
        arguments["level_scales"] = draw.steps(_HEADS, levels)
        shapes: Shapes = [(_HEADS, levels, _KEYS, draw.channels), (1,)]
        steps = tuple(n for n, x in arguments.items() if isinstance(x, Tensor))
        run, step = partial(_run, shapes), partial(_step, shapes)
        call = Call(kind, run, arguments, steps, numbers(*shapes), step, roundings=64)
        call = call._replace(outputs=_HEADS)
        yield call._replace(counter=lambda state: read_so_far(state[:, -1:]))


CALLS: dict[str, Callable[[Draw], Iterator[Call]]] = {"fenwick_scan": _levels}
