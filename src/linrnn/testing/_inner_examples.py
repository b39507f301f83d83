"""Functions that learn while a sequence is read: calls, and their steps."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute.layout import like
from linrnn.ops.inner import RULES, inner_scan
from linrnn.testing._calls import Call, Draw, Shapes, apart, joined
from linrnn.testing._reading_examples import counted, counted_call, read_so_far

_HEADS = 2


class _Scaled:
    """A rule that is no perceptron: ``f(x) = tanh(w x) W``, and the loss is of fourth order."""

    @staticmethod
    def loss(mode: str, weights: Any, k: Tensor, v: Tensor, constants: Any) -> Tensor:
        """See `linrnn.ops.inner.Rule`."""
        gap = _Scaled.read(mode, weights, k, constants) - v
        return (gap * gap + gap**4 / 8).sum(-1)

    @staticmethod
    def read(mode: str, weights: Any, q: Tensor, constants: Any) -> Tensor:
        """See `linrnn.ops.inner.Rule`."""
        scale, matrix = weights
        y: Tensor = (torch.tanh(scale * q)[..., None, :] @ matrix).squeeze(-2)
        return y


_SCALED = f"{__name__}._Scaled"
RULES[_SCALED] = _Scaled()


class _Kind(NamedTuple):
    rule: str
    mode: str
    weights: list[tuple[int, ...]]
    batch: int
    numbers: tuple[str, ...] = ()
    constants: int = 0
    size: int = 1
    """Channels of a head, times those of the call: a norm of two would make them 1 and -1."""


def _kinds(d: int) -> dict[str, _Kind]:
    perceptron = [(2 * d, 3), (3,), (3, 2 * d), (2 * d,)]
    numbers = ("momentum", "decay")
    return {
        "matrix": _Kind("regression", "gelu", [(d, d)], 3, numbers),
        "matrix, each step": _Kind("regression", "gelu", [(d, d)], 1, ("momentum",)),
        "perceptron": _Kind("residual_regression", "gelu_tanh", perceptron, 3, ("gain",), 2, 2),
        "decaying perceptron": _Kind("regression", "silu", [(d, 3), (3, d)], 4, ("decay",)),
        "any function": _Kind(_SCALED, "", [(d,), (d, d)], 3, (*numbers, "gain")),
    }


def _part(of: str, x: dict[str, Any]) -> list[Tensor]:
    return [z for name, z in x.items() if name.startswith(of + " ")]


def _step(kind: _Kind, shapes: Shapes, x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
    """Move weights of their own for each row, and read with them."""
    *parts, counter = apart(h, *shapes)
    count, position = len(kind.weights), read_so_far(counter)
    change, rest = parts[:count], parts[count:]
    pending, velocity = (rest[:count], rest[count:]) if kind.batch > 1 else ([], rest)
    change, velocity = (
        [torch.where(like(position == 0, z), 0, z) for z in part] for part in (change, velocity)
    )
    place = position % kind.batch
    zeros = [torch.zeros_like(z) for z in change]
    pending = [torch.where(like(place == 0, z), 0, z) for z in pending or zeros]
    start = [w + z for w, z in zip(_part("w", x), change, strict=True)]
    constants, rule = _part("c", x), RULES[kind.rule]

    def losses(weights: Any) -> Tensor:
        return rule.loss(kind.mode, weights, x["k"], x["v"], constants).sum()

    gradients = torch.func.grad(losses)(start)
    speeds = [-like(x["rate"], g) * g for g in gradients]
    if "momentum" in x:
        pairs = zip(speeds, velocity, strict=True)
        speeds = [s + like(x["momentum"], z) * z for s, z in pairs]
    decay = x.get("decay", torch.zeros_like(x["rate"]))
    pending = [
        p + s - like(decay, p) * (p + w) for p, s, w in zip(pending, speeds, start, strict=True)
    ]
    gain = x["gain"][place] if "gain" in x else torch.ones_like(position, dtype=h.dtype)
    moved = [like(gain, p) * p for p in pending]
    now = [w + m for w, m in zip(start, moved, strict=True)]
    o = rule.read(kind.mode, now, x["q"], constants)
    ends = place == kind.batch - 1
    change = [torch.where(like(ends, z), z + m, z) for z, m in zip(change, moved, strict=True)]
    pending = [torch.where(like(ends, z), 0, z) for z in pending]
    last = [*change, *(pending if kind.batch > 1 else []), *(speeds if velocity else [])]
    return o.flatten(1), joined(*last, counted(position, h))


def _arguments(kind: _Kind, draw: Draw) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Small rates and weights, and the names of those that each step has."""
    size = kind.size * draw.channels
    arguments = {n: draw.steps(_HEADS, size) / 2 for n in "qkv"}
    arguments["rate"] = draw.steps(_HEADS).sigmoid() / 8
    for number in kind.numbers:
        if number != "gain":
            arguments[number] = draw.steps(_HEADS).sigmoid() / 2
    steps = tuple(arguments)
    if "gain" in kind.numbers:
        arguments["gain"] = draw(kind.batch).sigmoid()
    for i, shape in enumerate(kind.weights):
        arguments[f"w {i}"] = draw(_HEADS, *shape) / 2
    for i in range(kind.constants):
        arguments[f"c {i}"] = 1 - i + draw(_HEADS, size) / 4
    return arguments, steps


def _inner(draw: Draw) -> Iterator[Call]:
    d = draw.channels
    for name, kind in _kinds(d).items():
        each: Shapes = [(_HEADS, *shape) for shape in kind.weights]
        copies = 1 + (kind.batch > 1) + ("momentum" in kind.numbers)
        shapes: Shapes = [*each * copies, (1,)]

        def step(
            x: dict[str, Any], h: Tensor, kind: _Kind = kind, shapes: Shapes = shapes
        ) -> tuple[Tensor, Tensor]:
            return _step(kind, shapes, x, h)

        def run(
            inputs: dict[str, Any],
            position: Tensor,
            reset: Any,
            *parts: Tensor,
            kind: _Kind = kind,
        ) -> list[Tensor]:
            count = len(kind.weights)
            change, rest = parts[:count], parts[count:]
            pending, velocity = (rest[:count], rest[count:]) if kind.batch > 1 else ([], rest)
            o, *last = inner_scan(
                kind.rule,
                kind.mode,
                inputs["q"],
                inputs["k"],
                inputs["v"],
                inputs["rate"],
                _part("w", inputs),
                (list(change), list(pending), list(velocity)),
                position,
                kind.batch,
                constants=_part("c", inputs),
                **{n: inputs[n] for n in kind.numbers},
            )
            return [o.flatten(2), *last]

        arguments, steps = _arguments(kind, draw)
        yield counted_call(name, run, arguments, steps, shapes, step, _HEADS * kind.size)


CALLS: dict[str, Callable[[Draw], Iterator[Call]]] = {"inner_scan": _inner}
