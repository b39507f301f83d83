"""Matrix memories: calls of `outer_scan`, `delta_scan` and others, and their steps."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.ops import delta_scan, outer_scan
from linrnn.ops.matrix.momentum_delta import momentum_delta_scan
from linrnn.testing._calls import Call, Draw, Shapes, apart, joined, numbers

_HEADS, _KEYS, _RANK = 2, 3, 2
_OPTIONS = ("scale", "normalizer", "read", "sign")

Arguments = dict[str, Any]


def _step(delta: bool, options: Arguments, x: Arguments, S: Tensor) -> tuple[Tensor, Tensor]:
    """A step of several writes, (batch, rank, heads, ...), or of one, without that axis."""
    several = x["k"].ndim == 4
    writes: Arguments = {
        n: x[n] if several else x[n][:, None] for n in ("k", "v", "a", "b", "beta") if n in x
    }
    beta = writes.get("beta", x["v"].new_ones(()).expand(*writes["v"].shape[:3]))
    writes["beta"] = beta if beta.ndim == 4 else beta[..., None]
    writes = {n: _each(w, 2) for n, w in writes.items()}
    e = _each(x.get("value_decay", torch.zeros_like(writes["v"][:, 0])), 1)
    if options.get("normalizer"):
        writes["v"], e = F.pad(writes["v"], (0, 1), value=1.0), F.pad(e, (0, 1))
    before, S = S, _decayed(options, x, _turned(x, S)) * e.exp()[..., None, :]
    decayed, own = S, torch.zeros_like(S)
    for r in range(writes["k"].shape[1]):
        now = {n: w[:, r] for n, w in writes.items()}
        S, own = _written(delta, now, S, before if r == 0 else S)
    read = S if options.get("read") != "before" else decayed
    read = before + x["bonus"][..., None] * own if "bonus" in x else read
    q = _each(x["q"], x["q"].ndim - 2) * options.get("scale", 1.0)
    # (batch, heads, columns), or (batch, rank, heads, columns)
    o = torch.einsum("bhkv,b...hk->b...hv", read, q)
    return _flat(o, bool(options.get("normalizer")), 1), S


def _each(x: Tensor, axis: int) -> Tensor:
    """Every head's share of what several have one of."""
    return x.repeat_interleave(_HEADS // x.shape[axis], axis)


def _turned(x: Arguments, S: Tensor) -> Tensor:
    """The memory with its first pairs of rows multiplied by ``exp(i angle)``."""
    if "angle" not in x:
        return S
    angle = _each(x["angle"], 1)[..., None]  # (batch, heads, pairs, 1)
    count = 2 * angle.shape[2]
    even, odd = S[:, :, 0:count:2], S[:, :, 1:count:2]
    cos, sin = angle.cos(), angle.sin()
    pairs = torch.stack([even * cos - odd * sin, odd * cos + even * sin], 3).flatten(2, 3)
    return torch.cat([pairs, S[:, :, count:]], 2)


def _decayed(options: Arguments, x: Arguments, S: Tensor) -> Tensor:
    if "g" not in x:
        return S
    g, sign = x["g"], options.get("sign", 1.0)
    if "angle" in x and g.ndim == 3:  # a number for every pair that turns
        pairs = x["angle"].shape[-1]
        g = torch.cat([g[..., :pairs].repeat_interleave(2, -1), g[..., pairs:]], -1)
    by_key = g.ndim == 3 or (g.ndim == 2 and g.shape == S.shape[1:3])
    keep: Tensor = g.exp() * sign
    return S * (keep[..., None] if by_key else keep[..., None, None])


def _written(delta: bool, x: Arguments, S: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """The memory after a write, and what was written."""
    value = x["v"]
    if "a" in x:
        read = torch.einsum("bhkv,bhk->bhv", before, x["a"])
        S = S + x["b"][..., None] * read[..., None, :]
    elif delta:
        value = value - torch.einsum("bhkv,bhk->bhv", S, x["k"])
    own = x["k"][..., None] * (x["beta"] * value)[..., None, :]
    return S + own, own


def _flat(o: Tensor, normalizer: bool, axis: int) -> Tensor:
    """All reads and heads side by side; of a normalizer the sum with every channel."""
    return (o[..., :-1] + o[..., -1:] if normalizer else o).flatten(axis)


def _call(op: Callable[..., Any], draw: Draw, kind: str, arguments: Arguments) -> Call:
    options = {n: arguments[n] for n in _OPTIONS if n in arguments}
    arguments = {n: x for n, x in arguments.items() if n not in _OPTIONS}

    def run(**given: Any) -> Any:
        like = given["q"]
        sign = {"sign": options["sign"].to(like.device)} if "sign" in options else {}
        o, last = op(**given, **{**options, **sign})
        return _flat(o, bool(options.get("normalizer")), 2), last

    constant = ("bonus", "g") if arguments.get("g", draw()).ndim < 3 else ("bonus",)
    steps = tuple(n for n in arguments if n not in constant)
    state = (_HEADS, _KEYS, draw.channels + bool(options.get("normalizer")))
    delta = op is delta_scan
    equation = partial(_step, delta, options)
    reads = _RANK if arguments["q"].ndim == 5 else 1
    roundings, outputs = 64 if delta else 32, _HEADS * reads
    call = Call(kind, run, arguments, steps, state, equation, roundings=roundings, outputs=outputs)
    return call._replace(half_products=True)


def _outer(draw: Draw) -> Iterator[Call]:
    heads, keys = _HEADS, _KEYS

    def decay(*shape: int, steps: bool = True) -> Tensor:
        # next to none, and all but everything
        return -(4 * (draw.steps if steps else draw)(*shape)).exp()

    bare: Arguments = {"q": draw.steps(1, keys), "k": draw.steps(1, keys)}
    bare["v"] = draw.steps(heads, draw.channels)
    ungrouped = bare | {n: draw.steps(heads, keys) for n in "qk"}
    channel = ungrouped | {"normalizer": True}
    columns = {"value_decay": decay(heads, draw.channels)}
    constant = {"g": decay(heads, keys, steps=False)}
    kinds: dict[str, Arguments] = {
        "undecayed": bare | {"normalizer": True},
        "constant by head": ungrouped | {"g": decay(heads, steps=False), "scale": 0.5},
        "by head": bare | {"g": decay(heads)},
        "by channel": channel | {"g": decay(heads, keys)},
        "two-sided": channel | {"g": decay(heads, keys)} | columns,
        "bonus": ungrouped | constant | {"bonus": draw(heads, keys)},
    }
    sign = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])
    several = {n: draw.steps(_RANK, heads, keys) for n in "qk"}
    several["v"] = draw.steps(_RANK, 1, draw.channels)
    kinds |= {
        "signed": ungrouped | constant | {"sign": sign, "read": "before"},
        "several writes and reads": several | {"g": decay(heads)},
        "turning": ungrouped | {"g": decay(heads, keys - 1), "angle": 4 * draw.steps(1, 1)},
    }
    for kind, arguments in kinds.items():
        yield _call(outer_scan, draw, kind, arguments)


def _delta(draw: Draw) -> Iterator[Call]:
    heads, keys = _HEADS, _KEYS

    def unit(*shape: int) -> Tensor:
        return F.normalize(draw.steps(*shape, keys), dim=-1)

    v, beta = draw.steps(heads, draw.channels), 2 * draw.steps(heads).sigmoid()
    g = -(4 * draw.steps(heads, keys)).exp()
    ungrouped = {"q": draw.steps(heads, keys), "k": unit(heads), "v": v}
    columns = {"value_decay": -(4 * draw.steps(1, draw.channels)).exp()}
    rates = {"beta": draw.steps(heads, draw.channels).sigmoid(), "g": g[..., 0]}
    several = {"q": draw.steps(heads, keys), "k": unit(_RANK, 1)}
    several["v"] = draw.steps(_RANK, heads, draw.channels)
    kinds: dict[str, Arguments] = {
        "delta": {"q": draw.steps(1, keys), "k": unit(1), "v": v, "beta": beta},
        "by head": ungrouped | {"beta": beta, "g": g[..., 0]},
        "by channel": ungrouped | {"beta": beta, "g": g},
        "low rank": ungrouped | {"g": g, "a": unit(heads), "b": -0.5 * unit(1)},
        "rates": ungrouped | {"k": unit(1)} | rates | columns,
        "bonus": ungrouped | {"beta": beta, "g": g, "bonus": draw(heads, keys), "normalizer": True},
        "read before": ungrouped | {"beta": beta[..., :1], "g": g[..., 0], "read": "before"},
        "several writes": several | {"beta": draw.steps(_RANK, heads).sigmoid(), "g": g[..., 0]},
        "turning": ungrouped | {"beta": beta, "g": g[..., 0], "angle": 4 * draw.steps(heads, 1)},
    }
    for kind, arguments in kinds.items():
        yield _call(delta_scan, draw, kind, arguments)


def _momentum(draw: Draw) -> Iterator[Call]:
    heads, keys = _HEADS, _KEYS
    shapes: Shapes = [(heads, keys, draw.channels)] * 2

    def step(x: Arguments, h: Tensor) -> tuple[Tensor, Tensor]:
        S, M = apart(h, *shapes)
        alpha, mu = (x[n].exp()[..., None, None] for n in ("g", "log_mu"))
        short = x["v"] - torch.einsum("bhkv,bhk->bhv", S, x.get("p", x["k"]))
        M = mu * M + x["k"][..., None] * (x["eta"][..., None] * short)[..., None, :]
        S = alpha * S + x["beta"][..., None, None] * M
        return torch.einsum("bhkv,bhk->bhv", S, x["q"]).flatten(1), joined(S, M)

    def run(initial_state: Any = None, backend: Any = None, **inputs: Any) -> tuple[Tensor, Tensor]:
        start: Any = None if initial_state is None else tuple(apart(initial_state, *shapes))
        o, last = momentum_delta_scan(**inputs, initial_state=start)
        return o.flatten(2), joined(*last)

    unit = {n: F.normalize(draw.steps(heads, keys), dim=-1) for n in "kp"}
    rates = {n: -draw.steps(heads).exp() for n in ("g", "log_mu")}
    rates |= {n: draw.steps(heads).sigmoid() for n in ("beta", "eta")}
    arguments = {"q": draw.steps(heads, keys), **unit, "v": draw.steps(heads, draw.channels)}
    call = Call(
        "momentum", run, arguments | rates, tuple(arguments | rates), numbers(*shapes), step
    )
    yield call._replace(roundings=64, outputs=heads)


CALLS: dict[str, Callable[[Draw], Iterator[Call]]] = {
    "outer_scan": _outer,
    "delta_scan": _delta,
    "momentum_delta_scan": _momentum,
}
