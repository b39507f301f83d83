"""Reductions, norms and attention as instructions of a recorded step: see `_recorded_ops`."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.engine.replay.instructions import real, rule, target
from linrnn.engine.replay.operands import Number, Real, RefusedError, View
from linrnn.engine.replay.products import RULES
from linrnn.engine.replay.tape import Tape

__all__ = ["RULES"]


def _last(x: View, dims: Sequence[int]) -> tuple[View, list[int]]:
    """The axes to be reduced behind the others, and which those are."""
    gone = sorted({d % len(x.shape) for d in dims} if dims else range(len(x.shape)))
    remaining = [i for i in range(len(x.shape)) if i not in gone]
    return x.moved([*remaining, *gone]), gone


def _reduced(tape: Tape, op: str, x: Real, dims: Sequence[int], shape: Sequence[int]) -> View:
    """A reduction over axes of numbers of that shape, in new memory that does not have them."""
    moved, gone = _last(tape.view(x, shape), dims)
    moved = tape.like(moved)
    for _ in gone:
        moved = tape.reduce(op, moved, tape.fresh(moved.shape[:-1], moved))
    return moved


def _dims(dim: Any) -> Sequence[int]:
    return [dim] if isinstance(dim, int) else list(dim or ())


@rule("sum")
def _sum(tape: Tape, to: Number, x: Tensor, dim: Any = None, *_: Any, **options: Any) -> None:
    for place, part in zip(to, tape.number(x), strict=True):
        if place is None or part is None:
            continue
        assert isinstance(place, View)
        total = _reduced(tape, "total", part, _dims(dim), x.shape)
        tape.put("move", place, total.shaped(place.shape))


@rule("mean")
def _mean(tape: Tape, to: Number, x: Tensor, dim: Any = None, *_: Any, **options: Any) -> None:
    _sum(tape, to, x, dim)
    place = target(to)
    tape.put("mul", place, place, math.prod(place.shape) / x.numel())


@rule("var")
def _var(
    tape: Tape, to: Number, x: Tensor, dim: Any = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> None:  # fmt: skip
    dims = _dims(dim) or range(x.ndim)
    if len(dims) != 1:
        raise RefusedError("of several axes")
    axis, n = dims[0] % x.ndim, x.shape[dims[0]]
    left = n - (1 if correction is None else correction)
    if left <= 0:
        raise RefusedError("of too few numbers")
    z = tape.view(real(tape.number(x)), x.shape)
    mean = tape.new("mul", _reduced(tape, "total", z, [axis], x.shape).wider(axis), 1 / n)
    squares = tape.new("square", tape.new("sub", z, mean))
    total = _reduced(tape, "total", squares, [axis], x.shape)
    place = target(to)
    tape.put("mul", place, total.shaped(place.shape), 1 / left)


@rule("amax")
def _amax(tape: Tape, to: Number, x: Tensor, dim: Any = (), keepdim: bool = False) -> None:
    largest = _reduced(tape, "largest", real(tape.number(x)), _dims(dim), x.shape)
    place = target(to)
    tape.put("move", place, largest.shaped(place.shape))


@rule("_softmax")
def _softmax(tape: Tape, to: Number, x: Tensor, dim: int, half: bool = False) -> None:
    axis = dim % x.ndim
    logits = tape.view(real(tape.number(x)), x.shape)
    largest = _reduced(tape, "largest", logits, [axis], x.shape).wider(axis)
    weights = tape.new("exp", tape.new("sub", logits, largest))
    total = _reduced(tape, "total", weights, [axis], x.shape).wider(axis)
    tape.put("div", target(to), weights, total)


@rule("_safe_softmax")
def _safe_softmax(tape: Tape, to: Number, x: Tensor, dim: int, **_: Any) -> None:
    """A row of minus infinities has no weights."""
    _softmax(tape, to, x, dim)
    place = target(to)
    tape.put("where", place, tape.new("eq", place, place), place, 0.0)


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _attention(
    tape: Tape, to: Number, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0,
    causal: bool = False, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> None:  # fmt: skip
    if dropout or causal:
        raise RefusedError("with dropout, or of several steps")
    place = target(to)
    rows = math.prod(k.shape[:2])  # heads of queries that share keys are rows of one product
    queries = tape.new("move", real(tape.number(q)), shape=q.shape)
    shape = (rows, math.prod(q.shape[:3]) // rows, q.shape[3])
    queries = queries.shaped(shape)
    keys, values = (_heads(tape, tape.view(real(tape.number(x)), x.shape)) for x in (k, v))
    odds = tape.fresh((*queries.shape[:2], k.shape[-2]), queries)
    tape.product(odds, queries, keys, None)
    tape.put("mul", odds, odds, q.shape[-1] ** -0.5 if scale is None else scale)
    odds_by_head = odds.shaped((*q.shape[:3], k.shape[-2]))
    if attn_mask is not None:
        mask = real(tape.number(attn_mask))
        if attn_mask.dtype is torch.bool:
            tape.put("where", odds_by_head, mask, odds_by_head, -math.inf)
        else:
            tape.put("add", odds_by_head, odds_by_head, mask)
    largest = tape.reduce("largest", odds, tape.fresh(odds.shape[:-1], odds)).wider()
    weights = tape.new("exp", tape.new("sub", odds, largest))
    total = tape.reduce("total", weights, tape.fresh(odds.shape[:-1], odds)).wider()
    weights = tape.new("div", weights, total)
    outputs = tape.fresh((*queries.shape[:2], place.shape[-1]), queries)
    tape.product(outputs, weights, values.moved((0, 2, 1)), None)
    tape.put("move", place, outputs.shaped(place.shape))


def _heads(tape: Tape, x: View) -> View:
    """Keys or values (B, H, S, K) as (B H, S, K): where they lie if strides can say it."""
    rows, heads = x.shape[:2]
    if rows > 1 and heads > 1 and x.strides[0] != heads * x.strides[1]:
        x = tape.new("move", x)
    row_stride = x.strides[0 if heads == 1 else 1]
    return x._replace(shape=(rows * heads, *x.shape[2:]), strides=(row_stride, *x.strides[2:]))


@rule("native_layer_norm")
def _layer_norm(
    tape: Tape, to: Number, x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> None:
    if len(shape) != 1:
        raise RefusedError("of several axes")
    tape.standardise(target(to), tape.view(real(tape.number(x)), x.shape), eps)
    _scaled(tape, target(to), weight, bias)


def _scaled(tape: Tape, to: View, weight: Any, bias: Any, behind: int = 0) -> None:
    for op, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            x = real(tape.number(parameter))
            for _ in range(behind if isinstance(x, View) else 0):
                x = x.wider()  # type: ignore[union-attr]
            tape.put(op, to, to, x)


@rule("native_group_norm")
def _group_norm(
    tape: Tape, to: Number, x: Tensor, weight: Any, bias: Any, n: int, c: int, hw: int,
    groups: int, eps: float,
) -> None:  # fmt: skip
    shape = (n, groups, c * hw // groups)
    source = tape.new("move", real(tape.number(x)), shape=x.shape)
    place = target(to)
    tape.standardise(place.shaped(shape), source.shaped(shape), eps)
    _scaled(tape, place, weight, bias, x.ndim - 2)


@rule("native_batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(
    tape: Tape,
    to: Number,
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    *options: Any,
) -> None:
    eps = options[-1]
    if len(options) == 3 and options[0]:
        raise RefusedError("in training, when the statistics are of the batch")
    place, behind = target(to), x.ndim - 2
    at, spread = (tape.view(real(tape.number(z))) for z in (mean, variance))
    scale = tape.new("reciprocal", tape.new("sqrt", tape.new("add", spread, float(eps))))
    for _ in range(behind):
        at, scale = at.wider(), scale.wider()
    tape.put("mul", place, tape.new("sub", real(tape.number(x)), at), scale)
    _scaled(tape, place, weight, bias, behind)
