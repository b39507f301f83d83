"""Recurrences whose state is a matrix, or is multiplied with one: calls, and their steps."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.ops import outer_scan
from linrnn.ops.conv import dense_ssm
from linrnn.ops.linear.block_scan import block_scan
from linrnn.ops.matrix.fast_weights import asked_by_itself, fed_back_delta, self_referential
from linrnn.ops.matrix.ridge_solve import ridge_solve
from linrnn.testing._calls import (
    ONE_WAY,
    UNCUT,
    Call,
    Draw,
    Shapes,
    apart,
    joined,
    numbers,
    started,
)

_HEADS, _KEYS = 2, 3


def _written(S: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """The delta rule: ``S + beta k (v - S^T k)^T``."""
    short = v - torch.einsum("bhkv,bhk->bhv", S, k)
    return S + torch.einsum("bhk,bhv->bhkv", k, beta * short)


def _fed_back(draw: Draw) -> Iterator[Call]:
    for keys in (_KEYS, draw.channels):
        shapes: Shapes = [(_HEADS, keys, draw.channels), (_HEADS, draw.channels)]
        width = 2 * keys + draw.channels + 1
        sizes = [keys, keys, draw.channels, 1]

        def step(
            x: dict[str, Any], h: Tensor, shapes: Shapes = shapes, sizes: list[int] = sizes
        ) -> tuple[Tensor, Tensor]:
            S, y = apart(h, *shapes)
            mixed = x["z"] + torch.einsum("bhv,hvn->bhn", y.tanh(), x["R"])
            q, k, v, b = mixed.split(sizes, -1)
            S = _written(S, k.softmax(-1), v, b.sigmoid())
            y = torch.einsum("bhkv,bhk->bhv", S, q.softmax(-1))
            return y.flatten(1), joined(S, y)

        def run(
            z: Tensor,
            R: Tensor,
            initial_state: Any = None,
            reset: Any = None,
            backend: Any = None,
            shapes: Shapes = shapes,
        ) -> tuple[Tensor, Tensor]:
            S, y = started(initial_state, z, shapes)
            y, *last = fed_back_delta(z, R, S, y, reset)
            return y.flatten(2), joined(*last)

        arguments = {"z": draw.steps(_HEADS, width), "R": draw(_HEADS, draw.channels, width) / 2}
        kind = "keys of values" if keys == draw.channels else "narrow keys"
        yield _heads(kind, run, arguments, ("z",), shapes, step)


def _self_queried(draw: Draw) -> Iterator[Call]:
    d = draw.channels
    shapes: Shapes = [(_HEADS, d, d), (_HEADS, d)]

    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        S, y = apart(h, *shapes)
        S = _written(S, x["k"], x["v"], x["beta"])
        y = x["o"] + torch.einsum("bhkv,bhk->bhv", S, y.softmax(-1))
        return y.flatten(1), joined(S, y)

    def run(
        initial_state: Any = None, reset: Any = None, backend: Any = None, **inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        o, k, v, beta = (inputs[n] for n in ("o", "k", "v", "beta"))
        S, y = started(initial_state, o, shapes)
        y, *last = asked_by_itself(o, k, v, beta, S, y, reset)
        return y.flatten(2), joined(*last)

    arguments = {n: draw.steps(_HEADS, d) for n in "ov"}
    arguments["k"] = F.normalize(draw.steps(_HEADS, d), dim=-1)
    arguments["beta"] = draw.steps(_HEADS, 1).sigmoid()
    yield _heads("delta", run, arguments, tuple(arguments), shapes, step)


def _self_referential(draw: Draw) -> Iterator[Call]:
    d = draw.channels
    shapes: Shapes = [(_HEADS, d, 3 * d + 4)]

    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        (shift,) = apart(h, *shapes)
        W = x["W"] + shift
        y, q, k, b = torch.einsum("bhkv,bhk->bhv", W, x["x"]).split([d, d, d, 4], -1)
        q, k, rates = q.softmax(-1), k.softmax(-1), b.sigmoid()
        columns = torch.tensor([d, d, d, 4], device=h.device)  # of y, of q, of k and of b
        short = torch.einsum("bhkv,bhk->bhv", W, q - k)
        change = rates.repeat_interleave(columns, -1) * short
        return y.flatten(1), joined(shift + torch.einsum("bhk,bhv->bhkv", k, change))

    def run(
        x: Tensor, W: Tensor, initial_state: Any = None, reset: Any = None, backend: Any = None
    ) -> tuple[Tensor, Tensor]:
        (shift,) = started(initial_state, x, shapes)
        y, shift = self_referential(x, W, shift, reset)
        return y.flatten(2), joined(shift)

    arguments = {"x": draw.steps(_HEADS, d) / 2, "W": draw(_HEADS, d, 3 * d + 4) / 2}
    yield _heads("self", run, arguments, ("x",), shapes, step)


def _ridge(draw: Draw) -> Iterator[Call]:
    d = draw.channels
    shapes: Shapes = [(_HEADS, d, d)]

    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        (previous,) = apart(h, *shapes)
        H = x["g"].exp()[..., None, None] * previous
        H = H + x["beta"][..., None, None] * torch.einsum("bhi,bhj->bhij", x["k"], x["k"])
        A = (H + H.mT) / 2 + torch.diag_embed(x["ridge"])
        return torch.linalg.solve(A, x["q"][..., None]).flatten(1), joined(H)

    def run(
        initial_state: Any = None, reset: Any = None, backend: Any = None, **inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, k, beta, g, ridge = (inputs[n] for n in ("q", "k", "beta", "g", "ridge"))
        (H,) = started(initial_state, q, shapes)
        x, *_ = ridge_solve(q, k, beta, g, ridge, H, reset, 2 * d + 2)
        written = beta[..., None] * k
        return x.flatten(2), joined(outer_scan(q, k, written, g, H, reset=reset)[1])

    arguments = {"q": draw.steps(_HEADS, d), "k": draw.steps(_HEADS, d)}
    arguments |= {"beta": draw.steps(_HEADS).sigmoid(), "g": -draw.steps(_HEADS).abs()}
    # large enough for any state that a law draws
    arguments["ridge"] = 20 + draw(_HEADS, d).abs()
    yield _heads("ridge", run, arguments, ("q", "k", "beta", "g"), shapes, step)


def _heads(
    kind: str,
    run: Callable[..., Any],
    arguments: dict[str, Any],
    steps: tuple[str, ...],
    shapes: Shapes,
    step: Any,
) -> Call:
    call = Call(kind, run, arguments, steps, numbers(*shapes), step, roundings=64)
    return call._replace(half=False, outputs=_HEADS, lacks=ONE_WAY)


def _block(draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        h = (x["A"] @ h.unsqueeze(-1)).squeeze(-1) + x["b"]
        return h.flatten(1), h

    def run(A: Tensor, b: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        h, final = block_scan(A, b, **more)
        return h.flatten(2), final

    c = draw.channels
    for kind, side, constant, is_complex in (
        ("pairs", 2, False, False),
        ("constant pairs", 2, True, False),
        ("complex pairs", 2, False, True),
        ("constant complex", 3, True, True),
        ("blocks", 5, False, False),
    ):
        drawn = draw if constant else draw.steps
        A = 0.7 * drawn(c, side, side, is_complex=is_complex) / side**0.5
        arguments = {"A": A, "b": draw.steps(c, side, is_complex=is_complex)}
        steps = ("b",) if constant else ("A", "b")
        call = Call(kind, run, arguments, steps, (c, side), step)
        yield call._replace(half=not is_complex, outputs=side, roundings=64)
    yield from _permuted(draw)
    yield from _dense(draw)


def _permuted(draw: Draw) -> Iterator[Call]:
    side = _KEYS

    def place(b: Tensor) -> Tensor:
        """A place of every number, by itself and its neighbour: most differ from step to step."""
        signs = b.real > 0 if b.is_complex() else b > 0
        return signs.long() + signs.roll(1, -1).long()

    def step(gather: bool, x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        one = F.one_hot(place(x["b"]), side).to(h.dtype)  # (B, C, n, n): of each column, or row
        moves = x["A"].unsqueeze(-1) * one
        moves = moves if gather else moves.mT
        h = (moves @ h.unsqueeze(-1)).squeeze(-1) + x["b"]
        return h.flatten(1), h

    def run(gather: bool, A: Tensor, b: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        more["columns" if gather else "rows"] = place(b.detach())
        h, final = block_scan(A, b, **more)
        return h.flatten(2), final

    for gather, constant, is_complex in (
        (False, False, True),
        (True, False, False),
        (False, True, False),
    ):
        drawn = draw if constant else draw.steps
        arguments = {"A": drawn(draw.channels, side, is_complex=is_complex) / 2}
        arguments["b"] = draw.steps(draw.channels, side, is_complex=is_complex)
        steps = ("b",) if constant else ("A", "b")
        kind = f"{'constant ' if constant else ''}{'gather' if gather else 'scatter'}"
        call = Call(
            kind,
            partial(run, gather),
            arguments,
            steps,
            (draw.channels, side),
            partial(step, gather),
        )
        yield call._replace(half=not is_complex, outputs=side, roundings=64)


def _dense(draw: Draw) -> Iterator[Call]:
    """A constant matrix without an axis of blocks, of whatever side."""

    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.einsum("ij,bj->bi", x["A"], h) + x["b"]
        return h, h

    d = draw.channels
    for kind, size in (("contracting", 0.4), ("growing", 1.5)):
        arguments = {"A": size * draw(d, d), "b": draw.steps(d)}
        call = Call(kind, block_scan, arguments, ("b",), (d,), step, roundings=64)
        yield call._replace(half=kind == "contracting")  # float16 ends at 65504


def _dense_ssm(draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.einsum("cij,bcj->bci", x["a"], h) + x["b"] * x["u"][..., None]
        y = torch.einsum("cmi,bci->bcm", x["c"], h) + x["d"] * x["u"][..., None]
        return y.flatten(1), h

    def run(
        u: Tensor, initial_state: Any = None, backend: Any = None, **inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        a, b = inputs["a"].double(), inputs["b"].double()
        h = initial_state
        h = u.new_zeros(u.shape[0], *b.shape) if h is None else h
        y, last = dense_ssm.convolve([a, b, inputs["c"], inputs["d"]], u, h)
        return y.flatten(2), last

    c, n, outputs = draw.channels, _KEYS, 2
    arguments = {"a": 0.4 * draw(c, n, n), "b": draw(c, n), "c": draw(c, outputs, n)}
    arguments |= {"d": draw(c, outputs), "u": draw.steps(c)}
    call = Call("convolution", run, arguments, ("u",), (c, n), step, roundings=256)
    yield call._replace(half=False, outputs=outputs, lacks=UNCUT)


CALLS: dict[str, Callable[[Draw], Iterator[Call]]] = {
    "fed_back_delta": _fed_back,
    "asked_by_itself": _self_queried,
    "self_referential": _self_referential,
    "ridge_solve": _ridge,
    "block_scan": _block,
    "dense_ssm_convolve": _dense_ssm,
}
