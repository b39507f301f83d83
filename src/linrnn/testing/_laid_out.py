"""Layouts in which the laws call an op, and the dtypes of each call."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.cells import Cell
from linrnn.testing._calls import Call
from linrnn.testing._examples import calls

Layout = dict[str, Any]
Laid = tuple[Call, Layout, int]  # a call, its layout, and a number that differs between them

TIME = 11
FLAGS = ("initial_state", "reset", "cu_seqlens", "reverse")
_TURNS = 4  # layouts of which a kind of call has one, in turns
_OFFSETS = (0, 0, 4, 5)  # and the end, twice


def layouts(op: str | Cell, time: int = TIME, *, in_turns: bool = False) -> Iterator[Laid]:
    """Every combination of initial state, resets, packing and direction; the kinds take turns.

    For an op that lacks some of them every kind has every other one, unless it is ``in_turns``.
    """
    flags = itertools.product((False, True), repeat=4)
    tried = 0
    for i, (initial, resets, packed, reverse) in enumerate(flags):
        kinds = list(calls(op, 1 if packed else 2, time, 3))
        turns: Sequence[int] = (i, i + i // len(kinds) + 1)
        turns = range(len(kinds)) if kinds[0].lacks else turns
        chosen = {"reset": resets, "cu_seqlens": packed, "reverse": reverse}
        if in_turns and not kinds[0].lacks:
            turns = (i,)
        elif in_turns and len(kinds) >= _TURNS:
            turns = range(-tried % _TURNS, len(kinds), _TURNS)
        tried += not any(on and name in kinds[0].lacks for name, on in chosen.items())
        for j in turns:
            call = kinds[j % len(kinds)]
            if any(on and name in call.lacks for name, on in chosen.items()):
                continue
            sequences = len(_OFFSETS) + 1 if packed else 2
            is_complex = call.is_complex()
            layout: dict[str, Any] = {} if "reverse" in call.lacks else {"reverse": reverse}
            if initial:
                layout["initial_state"] = random_state(
                    sequences, *call.state, is_complex=is_complex
                )
            if resets:
                mask = torch.Generator().manual_seed(i)
                layout["reset"] = torch.rand(1 if packed else 2, time, generator=mask) < 0.3
            if packed:
                layout["cu_seqlens"] = torch.tensor((*_OFFSETS, time, time))
            yield call, layout, i + j
            if len(kinds) == 1:
                break


def with_both_dtypes(laid: Iterable[Laid]) -> Iterator[tuple[Call, Layout, list[torch.dtype]]]:
    """Each call with float64 and with one lower precision, which take turns."""
    for call, layout, i in laid:
        lower = _lower(call)
        yield call, layout, [torch.float64, lower[i % len(lower)]]


def dtypes_in_turns(laid: Iterable[Laid]) -> Iterator[tuple[Call, Layout, list[torch.dtype]]]:
    """Each call with float64 or a lower precision, or with both where else something met one alone.

    Every kind of call, and any two of an initial state, resets, packing and direction, on or off,
    meet both.
    """
    laid = list(laid)
    features = [_features(call, layout) for call, layout, _ in laid]
    unmet = {(feature, low) for of in features for feature in of for low in (False, True)}
    lows: list[list[bool]] = []
    for of in features:
        news = [len(unmet & {(feature, low) for feature in of}) for low in (False, True)]
        lows.append([news[1] > news[0]])
        unmet -= {(feature, lows[-1][0]) for feature in of}
    used = 0
    for (call, layout, _), of, chosen in zip(laid, features, lows, strict=True):
        other = {(feature, not chosen[0]) for feature in of}
        if unmet & other:
            chosen.append(not chosen[0])
            unmet -= other
        lower = _lower(call)
        yield call, layout, [lower[used % len(lower)] if low else torch.float64 for low in chosen]
        used += any(chosen)


def _features(call: Call, layout: Layout) -> list[object]:
    flags = [(n, n in layout and layout[n] is not False) for n in FLAGS]
    return [call.kind, *itertools.combinations(flags, 2)]


def _lower(call: Call) -> tuple[torch.dtype, ...]:
    halves = (torch.bfloat16, torch.float16)
    return (torch.float32, *halves) if call.half else (torch.float32,)


def random_state(*shape: int, is_complex: bool = False) -> Tensor:
    """Normal numbers, the same for the same shape."""
    generator = torch.Generator().manual_seed(2)
    dtype = torch.complex128 if is_complex else torch.float64
    return torch.randn(shape, dtype=dtype, generator=generator)
