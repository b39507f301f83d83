"""Every op described once: small calls, and what a single step of each call means.

All laws of `linrnn.testing` about ops, and the tests of operators, derivatives and graphs, run on
these; nothing else lists the ops.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.cells import Cell
from linrnn.compute.backend import BACKENDS
from linrnn.ops import (
    causal_conv,
    cell_scan,
    fft_conv,
    fft_scan,
    gated_scan,
    linear_scan,
    log_linear_scan,
    selective_scan,
)
from linrnn.testing import (
    _dense_examples,
    _inner_examples,
    _level_examples,
    _matrix_examples,
    _memory_examples,
    _reading_examples,
    _system_examples,
)
from linrnn.testing._calls import Call, Draw
from linrnn.testing._cell_widths import leaf_widths

_MODES = 3


class Example(NamedTuple):
    """A call: ``function(**arguments)`` returns a tensor or a tuple of tensors."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]


def calls(op: "str | Cell", batch: int = 2, time: int = 6, channels: int = 2) -> Iterator[Call]:
    """Calls of an op of `linrnn.ops`, by its name, that differ in what they compute; or of a cell.

    Example:
        >>> next(calls("linear_scan")).kind
        'varying'
    """
    draw = Draw(batch, time, channels)
    yield from _CALLS[op](draw) if isinstance(op, str) else _cell(op, draw)


def examples(op: "str | Cell") -> Iterator[Example]:
    """Small calls of an op with a state and resets; and of sequences in one row, read backward.

    Example:
        >>> next(examples("linear_scan")).name
        'linear_scan varying'
    """
    draw = Draw(2, 6, 2, seed=1)
    for i, call in enumerate(calls(op)):
        # steps that a state counts are fixed: where that varies, they would vary as well
        count = {} if call.counter is None else {"read": torch.zeros(2, dtype=torch.long)}
        yield Example(f"{op} {call.kind}", call.function, {**call.arguments, **count})
        more = {"initial_state": draw.state(2, call), "reset": draw.reset(2)}
        supported = {n: x for n, x in more.items() if n not in call.lacks}
        if call.counter is not None:
            supported["read"] = call.counter(more["initial_state"])
        yield Example(f"{op} {call.kind} reset", call.function, {**call.arguments, **supported})
        if i == 0 and not call.lacks:
            yield _packed(op, draw)


def _packed(op: "str | Cell", draw: Draw) -> Example:
    """Offsets are not mapped by vmap."""
    call = next(calls(op, batch=1))
    layout = {"cu_seqlens": torch.tensor([0, 0, 4, 6]), "reverse": True}

    def run(**arguments: Any) -> Any:
        return call.function(**arguments, **layout)

    state = draw.state(3, call)
    count = {} if call.counter is None else {"read": call.counter(state)}
    return Example(f"{op} packed reverse", run, {**call.arguments, "initial_state": state, **count})


def ops() -> list[str]:
    """The names of all ops that are described."""
    return list(_CALLS)


def _linear(draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        h = x["a"] * h + x["b"]
        return h, h

    for constant, is_complex in itertools.product((False, True), repeat=2):
        kind = f"{'constant' if constant else 'varying'}{' complex' if is_complex else ''}"
        decay = draw if constant else draw.steps
        arguments = {
            "a": decay(draw.channels, is_complex=is_complex) / 2,
            "b": draw.steps(draw.channels, is_complex=is_complex),
        }
        steps = ("b",) if constant else ("a", "b")
        state = (draw.channels,)
        yield Call(kind, linear_scan, arguments, steps, state, step, half=not is_complex)


def _log_linear(draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.logaddexp(x["log_a"] + h, x["log_b"])
        return h, h

    for constant in (True, False):
        decay = draw if constant else draw.steps
        arguments = {"log_a": decay(draw.channels), "log_b": draw.steps(draw.channels)}
        steps = ("log_b",) if constant else ("log_a", "log_b")
        kind, state = "constant" if constant else "varying", (draw.channels,)
        call = Call(kind, log_linear_scan, arguments, steps, state, step, float("-inf"), 32)
        yield call._replace(reads_back=True)


def _gated(draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        value, *gates = x["x"].unbind(1)
        if x["positive"]:
            value = torch.where(value >= 0, value + 0.5, value.sigmoid())
        take = gates[-1].sigmoid()
        keep = gates[0].sigmoid() if len(gates) == 2 else 1 - take
        if len(gates) == 2 and x["normalise"]:
            keep, take = keep / (keep + take), take / (keep + take)
        h = keep * h + take * value
        return h, h

    for parts, positive, normalise in (
        (2, False, True),
        (2, True, True),
        (3, False, False),
        (3, True, True),
    ):
        start = 0.5 if positive else 0.0
        arguments = {
            "x": draw.steps(parts, draw.channels),
            "positive": positive,
            "normalise": normalise,
            "start": start,
        }
        kind = f"{parts} parts positive={positive} normalise={normalise}"
        yield Call(kind, gated_scan, arguments, ("x",), (draw.channels,), step, start)


def _selective(draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        dt = x["dt"] + x.get("dt_bias", 0)
        dt = (F.softplus(dt) if x.get("dt_softplus") else dt)[..., None]
        zoh = x.get("b_disc") == "zoh"
        weight = torch.expm1(dt * x["A"]) / x["A"] if zoh else dt
        h = torch.exp(dt * x["A"]) * h + weight * x["B"][:, None] * x["x"][..., None]
        y = (h * x["C"][:, None]).sum(-1) + x.get("D", 0) * x["x"]
        return y * F.silu(x["z"]) if "z" in x else y, h

    channels = draw.channels
    bare = {
        "x": draw.steps(channels),
        "dt": draw.steps(channels).exp() / 4,
        "A": -draw(channels, _MODES).exp(),
        "B": draw.steps(_MODES),
        "C": draw.steps(_MODES),
    }
    complete = {
        **bare,
        "D": draw(channels),
        "z": draw.steps(channels),
        "dt_bias": draw(channels),
        "dt_softplus": True,
        "b_disc": "zoh",
    }
    steps, state = ("x", "dt", "B", "C", "z"), (channels, _MODES)
    yield Call("bare", selective_scan, bare, steps[:4], state, step, roundings=32)
    yield Call("complete", selective_scan, complete, steps, state, step, roundings=32)


def _fft(draw: Draw) -> Iterator[Call]:
    for call in _linear(draw):
        if "constant" in call.kind:  # accurate in absolute terms only
            yield call._replace(function=fft_scan, roundings=64.0, half=False)


def _conv(draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], past: Tensor) -> tuple[Tensor, Tensor]:
        window = torch.cat([past, x["x"][:, None]], 1)
        y = (window * x["weight"].T).sum(1) + x["bias"]
        return F.silu(y) if x["silu"] else y, window[:, 1:]

    width = 4
    for silu in (False, True):
        arguments = {
            "x": draw.steps(draw.channels),
            "weight": draw(draw.channels, width),
            "bias": draw(draw.channels),
            "silu": silu,
        }
        state = (width - 1, draw.channels)
        yield Call(f"silu={silu}", causal_conv, arguments, ("x",), state, step)


def _long_conv(draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], past: Tensor) -> tuple[Tensor, Tensor]:
        window = torch.cat([past, x["x"][:, None]], 1)
        return (window * x["kernel"].T.flip(0)).sum(1), window[:, 1:]

    for width in (4, 9, 1):
        arguments = {"x": draw.steps(draw.channels), "kernel": draw(draw.channels, width)}
        state = (width - 1, draw.channels)  # accurate in absolute terms only
        yield Call(f"width={width}", fft_conv, arguments, ("x",), state, step, roundings=64)
        if width > 1:
            strict = {**arguments, "strict": True}
            what = f"width={width}, strict"
            yield Call(what, fft_conv, strict, ("x",), state, step, roundings=64)


def _turned(h: Any, m: Any, x: Any, rate: Any, w: Any) -> tuple[Any, Any]:
    m = m + rate * torch.sin(x)
    h = torch.tanh(x + h @ w) * m
    return h + x, (h, m)


def _leaky(h: Any, x: Any, rate: Any) -> tuple[Any, Any]:
    h = torch.sigmoid(rate) * h + x
    return h, h


_CELLS = (
    Cell(_turned, state="h m", constant="rate", matrix="w", start={"m": 0.5}, name="turned"),
    Cell(_leaky, state="h", constant="rate", name="leaky"),
)


def _cells(draw: Draw) -> Iterator[Call]:
    for each in _CELLS:
        yield from _cell(each, draw)


def _cell(cell: Cell, draw: Draw) -> Iterator[Call]:
    """A cell; its states and its outputs as real parts of one tensor."""
    widths = leaf_widths(cell, draw.channels)
    n = widths[cell.states[0]]
    # what is divided by is kept away from zero: next to a pole no two ways agree
    poles = any(node.op in ("div", "reciprocal") for node in cell.program.nodes)

    def drawn(name: str, *shape: int) -> Tensor:
        like = draw.steps if name in cell.inputs else draw
        value = like(*shape, is_complex=name in cell.is_complex) / 2
        above = poles and (name in cell.constants or name == "dt") and not value.is_complex()
        return value.abs() + 0.25 if above else value

    arguments = {name: drawn(name, widths[name]) for name in (*cell.inputs, *cell.constants)}
    arguments |= {name: drawn(name, *_matrix(cell, name, n)) for name in cell.matrices}
    starts = torch.tensor(cell.starts(), dtype=torch.float64)[:, None]

    def run(initial_state: Any = None, backend: Any = None, **inputs: Any) -> Any:
        state = None if initial_state is None else tuple(cell.joined(0, initial_state.unbind(1)))
        form: dict[str, Any] = {"backend" if backend in BACKENDS else "form": backend}
        form = {} if backend == "auto" else form
        y, last = cell_scan(cell, state=state, **inputs, **form)
        last = last if isinstance(last, tuple) else (last,)
        none = inputs[cell.inputs[0]][..., :0]
        return _real(y, none=none), torch.stack(cell.parts(0, last), 1)

    def step(now: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        now = {**now, **dict(zip(cell.states, cell.joined(0, h.unbind(1)), strict=True))}
        y, updated = cell(*(now[name] for name in cell.arguments))
        updated = updated if isinstance(updated, tuple) else (updated,)
        like = h[:, 0]
        parts = [x.expand_as(like) for x in cell.parts(0, updated)]
        return _real(y, like, like[:, :0]), torch.stack(parts, 1).to(h.dtype)

    call = Call(str(cell.name), run, arguments, cell.inputs, (len(starts), n), step, starts, 32)
    yield call._replace(outputs=len(cell.program.outputs), real_state=True)


def _real(y: Any, like: Tensor | None = None, none: Tensor | None = None) -> Tensor:
    """All outputs as real parts side by side; ``none`` where a cell has no output."""
    outputs = y if isinstance(y, tuple) else (y,)
    parts = [part for x in outputs for part in ((x.real, x.imag) if x.is_complex() else (x,))]
    parts = parts if like is None else [x.expand_as(like) for x in parts]
    if not parts and none is not None:
        return none
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _matrix(cell: Cell, name: str, n: int) -> tuple[int, ...]:
    """The shape of a matrix: (heads, rows, columns) where a product is of heads."""
    program = cell.program
    part = f"{name}.real" if name in cell.is_complex else name
    place = program.leaves["matrix"].get(program.matrices.index(part))
    of_heads = any(x.op == "block_linear" and x.args[0] == place for x in program.nodes)
    return (1, n, n) if of_heads else (n, n)


_CALLS: dict[str, Callable[[Draw], Iterator[Call]]] = {
    "linear_scan": _linear,
    "log_linear_scan": _log_linear,
    "gated_scan": _gated,
    "selective_scan": _selective,
    "fft_scan": _fft,
    "fft_conv": _long_conv,
    "causal_conv": _conv,
    **_memory_examples.CALLS,
    **_level_examples.CALLS,
    **_matrix_examples.CALLS,
    **_system_examples.CALLS,
    **_dense_examples.CALLS,
    **_reading_examples.CALLS,
    **_inner_examples.CALLS,
    "cell_scan": _cells,
}
