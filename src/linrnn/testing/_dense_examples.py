"""The dense recurrences: calls, and their steps as PyTorch documents them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from linrnn.mixers.hippo import legs_rnn, timed_rnn
from linrnn.mixers.lmu import timed_lmu
from linrnn.mixers.lssl import timed_lssl
from linrnn.ops.attention import positions
from linrnn.ops.cell.dense_recurrence import recurrence
from linrnn.testing._calls import ONE_WAY, Call, Draw, Shapes, apart, joined, numbers, started

#: The weights of a layer in PyTorch's order.
LAYERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_GATES = {"gru": 3, "lstm": 4, "tanh": 1, "relu": 1}


def drawn(draw: Draw, kind: str, inputs: int, states: int) -> dict[str, Any]:
    """Weights of a layer."""
    rows = _GATES[kind] * states
    shapes = ((rows, inputs), (rows, states), (rows,), (rows,))
    return {n: draw(*shape) / 2 for n, shape in zip(LAYERS, shapes, strict=True)}


def stepped(kind: str, x: Tensor, state: list[Tensor], parameters: dict[str, Any]) -> list[Tensor]:
    """The state after one step, of which the first part is the output."""
    a = x @ parameters["weight_ih"].mT + parameters.get("bias_ih", 0)
    b = state[0] @ parameters["weight_hh"].mT + parameters.get("bias_hh", 0)
    if kind == "gru":
        (ar, az, an), (br, bz, bn) = a.chunk(3, -1), b.chunk(3, -1)
        z = torch.sigmoid(az + bz)
        n = torch.tanh(an + torch.sigmoid(ar + br) * bn)
        return [(1 - z) * n + z * state[0]]
    if kind == "lstm":
        i, f, g, o = (a + b).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return [o.sigmoid() * c.tanh(), c]
    return [(a + b).tanh() if kind == "tanh" else (a + b).relu()]


def _recurrence(draw: Draw) -> Iterator[Call]:
    d = draw.channels
    for kind, biased in (*((k, True) for k in _GATES), ("gru", False), ("lstm", False)):
        shapes: Shapes = [(d,)] * (2 if kind == "lstm" else 1)

        def step(
            x: dict[str, Any], h: Tensor, shapes: Shapes = shapes, kind: str = kind
        ) -> tuple[Tensor, Tensor]:
            state = stepped(kind, x["x"], apart(h, *shapes), x)
            return state[0], joined(*state)

        def run(
            x: Tensor,
            initial_state: Any = None,
            reset: Any = None,
            backend: Any = None,
            shapes: Shapes = shapes,
            kind: str = kind,
            **parameters: Tensor,
        ) -> tuple[Tensor, Tensor]:
            weights = [parameters[n] for n in LAYERS if n in parameters]
            y, *last = recurrence(x, started(initial_state, x, shapes), weights, reset, kind)
            return y, joined(*last)

        arguments = {"x": draw.steps(5), **drawn(draw, kind, 5, d)}
        if not biased:
            arguments = {n: z for n, z in arguments.items() if "bias" not in n}
        name = f"{kind}{'' if biased else ' without biases'}"
        call = Call(name, run, arguments, ("x",), numbers(*shapes), step, roundings=64)
        yield call._replace(half=False, lacks=ONE_WAY)


def _legs(draw: Draw) -> Iterator[Call]:
    n, memories, order = draw.channels, 2, 3
    shapes: Shapes = [(n,), (memories, order), (1,)]
    for rule in ("bilinear", "zoh"):
        arguments = {"f": draw.steps(memories), "u": draw.steps(2 * n), "rule": rule}
        arguments |= {"W_f": draw(memories, n) / 2, "V": draw(2 * n, memories * order) / 2}
        run, equation = partial(_legs_run, shapes), partial(_legs_step, shapes, rule)
        call = Call(rule, run, arguments, ("f", "u"), numbers(*shapes), equation, roundings=256)
        call = call._replace(counter=lambda state: _legs_count(state[:, -1:]))
        yield call._replace(half=False, lacks=ONE_WAY)


#: How much the counter in a state grows with each step: less than 1, as the other numbers there.
_LEGS_UNIT = 0.25


def _legs_count(counter: Tensor) -> Tensor:
    """How many steps a counter (batch, 1) has seen, (batch,)."""
    return (counter.detach().abs() / _LEGS_UNIT).round().long()[:, 0]


def _legs_step(
    shapes: Shapes, rule: str, x: dict[str, Any], state: Tensor
) -> tuple[Tensor, Tensor]:
    """A step: the memory by the discretised ``c' = A c + B f``, then a gated unit that reads it."""
    h, c, counter = apart(state, *shapes)
    k = _legs_count(counter)
    f = x["f"] + h @ x["W_f"].mT
    A, B = _legs_system(c.shape[-1], state)
    eye = torch.eye(len(A)).to(A)
    dt = (1 / k.clamp(min=1).to(A.dtype))[:, None, None]
    if rule == "bilinear":
        a = torch.linalg.solve(eye - dt / 2 * A, eye + dt / 2 * A)
    else:
        a = torch.linalg.matrix_exp(A * torch.log1p(dt))
    b = torch.linalg.solve(A, (a - eye) @ B[:, None])[..., 0]  # (batch, order)
    updated = torch.einsum("bij,bmj->bmi", a, c) + f[..., None] * b[:, None]
    first = torch.cat([f[..., None], torch.zeros_like(c[..., 1:])], -1)
    c = torch.where((k == 0)[:, None, None], first, updated)  # (batch, memories, order)
    candidate, gate = (x["u"] + c.flatten(1) @ x["V"].mT).chunk(2, -1)
    gate = gate.sigmoid()
    h = (1 - gate) * h + gate * candidate.tanh()
    return h, joined(h, c, (k + 1).to(h.dtype)[:, None] * _LEGS_UNIT)


def _legs_run(
    shapes: Shapes,
    f: Tensor,
    u: Tensor,
    rule: str,
    initial_state: Any = None,
    reset: Any = None,
    read: Any = None,
    backend: Any = None,
    **parameters: Tensor,
) -> tuple[Tensor, Tensor]:
    """A call of `legs_rnn`, whose state counts its steps."""
    h, c, counter = started(initial_state, f, shapes)
    k = positions(_legs_count(counter) if read is None else read, f.shape[1], reset)
    begins, weights = k == 0, [parameters["W_f"], parameters["V"]]
    lengths = torch.where(begins, 0, 1 / k.clamp(min=1).double())  # in parts of all time so far
    y, h, c = legs_rnn(f, u, h, c, lengths, begins, weights, reset, rule, True)
    if f.shape[1]:
        counter = (k[:, -1:] + 1).to(f.dtype) * _LEGS_UNIT
    return y, joined(h, c, counter)


def _legs_system(order: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """``c' = A c + B f``, of Legendre polynomials on all the past."""
    n = torch.arange(order, device=like.device).to(like.dtype)
    root = (2 * n + 1).sqrt()
    return -torch.outer(root, root).tril(-1) - torch.diag(n + 1), root


def _times(x: Tensor) -> Tensor:
    """Positive times between steps, in double precision."""
    return x.double().tanh() + 1.5


def _made(x: dict[str, Any], dt: Tensor, alpha: float = 0.5) -> tuple[Tensor, Tensor]:
    """``(a, b)`` of steps dt (...) by the generalised bilinear rule, (..., N, N) and (..., N)."""
    A, B = _continuous(x)
    eye, dt = torch.eye(len(B), dtype=A.dtype, device=A.device), dt[..., None, None]
    inverse = torch.linalg.inv(eye - alpha * dt * A)
    b: Tensor = (inverse @ (dt * B[:, None])).squeeze(-1)
    return inverse @ (eye + (1 - alpha) * dt * A), b


def _continuous(x: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """A stable system, in double precision."""
    A = x["A"].double() / 2
    return A - A.mT - torch.eye(len(A), dtype=A.dtype, device=A.device), x["B"].double()


def _system(draw: Draw, order: int) -> dict[str, Any]:
    return {"A": draw(order, order), "B": draw(order)}


def _timed_rnn(draw: Draw) -> Iterator[Call]:
    n, memories, order = draw.channels, 2, 3
    shapes: Shapes = [(n,), (memories, order)]

    def step(x: dict[str, Any], state: Tensor) -> tuple[Tensor, Tensor]:
        h, c = apart(state, *shapes)
        a, b = (z.to(c.dtype) for z in _made(x, _times(x["dt"])[:, 0]))
        f = x["f"] + h @ x["W_f"].mT
        c = torch.einsum("bij,bmj->bmi", a, c) + f[..., None] * b[:, None]
        candidate, gate = (x["u"] + c.flatten(1) @ x["V"].mT).chunk(2, -1)
        gate = gate.sigmoid()
        h = (1 - gate) * h + gate * candidate.tanh()
        return h, joined(h, c)

    def run(
        f: Tensor,
        u: Tensor,
        dt: Tensor,
        initial_state: Any = None,
        reset: Any = None,
        backend: Any = None,
        **x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        system = [*_continuous(x), _times(dt)[..., 0]]
        h, c = started(initial_state, f, shapes)
        y, *last = timed_rnn(f, u, h, c, system, [x["W_f"], x["V"]], reset, "bilinear")
        return y, joined(*last)

    arguments = {"f": draw.steps(memories), "u": draw.steps(2 * n), "dt": draw.steps(1)}
    arguments |= {"W_f": draw(memories, n) / 2, "V": draw(2 * n, memories * order) / 2}
    arguments |= _system(draw, order)
    names = ("f", "u", "dt")
    call = Call("timed", run, arguments, names, numbers(*shapes), step, roundings=256)
    yield call._replace(half=False, lacks=ONE_WAY)


def _timed_lmu(draw: Draw) -> Iterator[Call]:
    n, memories, order = draw.channels, 2, 3
    shapes: Shapes = [(n,), (memories, order)]

    def step(x: dict[str, Any], state: Tensor) -> tuple[Tensor, Tensor]:
        h, m = apart(state, *shapes)
        a, b = (z.to(m.dtype) for z in _made(x, _times(x["dt"])[:, 0]))
        w = x["w"] + h @ x["e_h"].mT + m.flatten(1) @ x["e_m"].mT
        m_new = torch.einsum("bij,bmj->bmi", a, m) + w[..., None] * b[:, None]
        h = (x["u"] + h @ x["W_h"].mT + m_new.flatten(1) @ x["W_m"].mT).tanh()
        return h, joined(h, m_new)

    def run(
        w: Tensor,
        u: Tensor,
        dt: Tensor,
        initial_state: Any = None,
        reset: Any = None,
        backend: Any = None,
        **x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        system = [*_continuous(x), _times(dt)[..., 0]]
        weights = [x[name] for name in ("W_m", "W_h", "e_h", "e_m")]
        h, m = started(initial_state, w, shapes)
        y, *last = timed_lmu(w, u, h, m, system, weights, reset, "bilinear")
        return y, joined(*last)

    arguments = {"w": draw.steps(memories), "u": draw.steps(n), "dt": draw.steps(1)}
    arguments |= {"W_m": draw(n, memories * order) / 2, "W_h": draw(n, n) / 2}
    arguments |= {"e_h": draw(memories, n) / 2, "e_m": draw(memories, memories * order) / 2}
    arguments |= _system(draw, order)
    names = ("w", "u", "dt")
    call = Call("timed", run, arguments, names, numbers(*shapes), step, roundings=256)
    yield call._replace(half=False, lacks=ONE_WAY)


def _timed_lssl(draw: Draw) -> Iterator[Call]:
    d, order, alpha = draw.channels, 3, 0.75
    shapes: Shapes = [(d, order)]

    def step(x: dict[str, Any], state: Tensor) -> tuple[Tensor, Tensor]:
        (h,) = apart(state, *shapes)
        a, b = (z.to(h.dtype) for z in _made(x, _times(x["dt"]), alpha))
        h = (a @ h[..., None]).squeeze(-1) + b * x["u"][..., None]
        return h.sum(-1), joined(h)

    def run(
        u: Tensor,
        dt: Tensor,
        initial_state: Any = None,
        reset: Any = None,
        backend: Any = None,
        **x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        (h,) = started(initial_state, u, shapes)
        y, last = timed_lssl(u, h, _times(dt), list(_continuous(x)), reset, alpha)
        return y.sum(-1), joined(last)

    arguments = {"u": draw.steps(d), "dt": draw.steps(d), **_system(draw, order)}
    call = Call("timed", run, arguments, ("u", "dt"), numbers(*shapes), step, roundings=256)
    yield call._replace(half=False, lacks=ONE_WAY)


CALLS: dict[str, Callable[[Draw], Iterator[Call]]] = {
    "recurrence": _recurrence,
    "legs_rnn": _legs,
    "timed_rnn": _timed_rnn,
    "timed_lmu": _timed_lmu,
    "timed_lssl": _timed_lssl,
}
