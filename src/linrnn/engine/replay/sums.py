"""Reductions, norms, attention and products as instructions of a recorded step: see `rules`."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.engine.replay.operands import Number, Real, RefusedError, View
from linrnn.engine.replay.rules import COMPOSED, RULES, rule, target
from linrnn.engine.replay.tape import Tape

__all__ = ["COMPOSED", "RULES"]


def _reduce(tape: Tape, op: str, x: Real, shape: Sequence[int], dim: Any, to: View) -> None:
    """Reduce numbers of a shape over axes, which the result may have as axes of one number."""
    rank, dims = len(shape), _dims(dim) or range(len(shape))
    gone = sorted({d % rank for d in dims})
    remaining = [i for i in range(rank) if i not in gone]
    rows = tape.like(tape.view(x, shape).moved([*remaining, *gone]))
    place = to.moved(remaining) if len(to.shape) == rank else to
    dtype = tape.dtypes[rows.slot]
    for left in reversed(range(len(gone))):
        direct = not left and tape.dtypes[to.slot] is dtype
        rows = tape.reduce(op, rows, place if direct else tape.fresh(rows.shape[:-1], dtype))
    if rows is not place:
        tape.put("move", place, rows)


def _dims(dim: Any) -> Sequence[int]:
    return [dim] if isinstance(dim, int) else list(dim or ())


@rule("sum")
def _sum(tape: Tape, to: Number, x: Tensor, dim: Any = None, *_: Any, **options: Any) -> None:
    for place, part in zip(to, tape.number(x), strict=True):
        if isinstance(place, View) and part is not None:
            _reduce(tape, "total", part, x.shape, dim, place)


@rule("amax")
def _amax(tape: Tape, to: Number, x: Tensor, dim: Any = (), keepdim: bool = False) -> None:
    _reduce(tape, "largest", tape.real(x), x.shape, dim, target(to))


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    total = x.sum(dim, keepdim)
    return total * (total.numel() / x.numel())


def _var(
    x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    dims = list(_dims(dim) or range(x.ndim))
    if len(dims) != 1:
        raise RefusedError("of several axes")
    n = x.shape[dims[0]]
    left = n - (1 if correction is None else correction)
    if left <= 0:
        raise RefusedError("of too few numbers")
    squares = (x - x.sum(dims, True) * (1 / n)).square()
    return squares.sum(dims, keepdim) * (1 / left)


def _softmax(x: Tensor, dim: int, half: bool = False) -> Tensor:
    weights = (x - x.amax(dim, True)).exp()
    return weights / weights.sum(dim, True)


def _safe_softmax(x: Tensor, dim: int, **_: Any) -> Tensor:
    """A row of minus infinities has no weights."""
    y = torch.softmax(x, dim)
    return torch.where(y == y, y, 0.0)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Heads (B, H, 1, K) of queries; those that share keys are rows of one product."""
    if dropout or causal:
        raise RefusedError("with dropout, or of several steps")
    rows = math.prod(k.shape[:2])
    queries, keys, values = (x.reshape(rows, -1, x.shape[-1]) for x in (q, k, v))
    odds = torch.bmm(queries, keys.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        by_head = odds.view(*q.shape[:3], -1)
        is_truth = attn_mask.dtype is torch.bool
        by_head = torch.where(attn_mask, by_head, -math.inf) if is_truth else by_head + attn_mask
        odds = by_head.view(odds.shape)
    weights = torch.softmax(odds, -1).to(v.dtype)
    return torch.bmm(weights, values).view(*q.shape[:3], -1)


@rule("native_layer_norm")
def _layer_norm(
    tape: Tape, to: Number, x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> None:
    if len(shape) != 1:
        raise RefusedError("of several axes")
    tape.standardise(target(to), tape.view(tape.real(x), x.shape), eps)
    for op, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            tape.put(op, target(to), target(to), tape.real(parameter))


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Weight and bias of each channel, which is the second axis."""
    shape = (-1, *[1] * (x.ndim - 2))
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def _group_norm(
    x: Tensor, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int, eps: float
) -> Tensor:
    size = c * hw // groups
    y = F.layer_norm(x.reshape(n, groups, size), (size,), None, None, eps)
    return _scaled(y.view(x.shape), weight, bias)


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, *options: Any
) -> Tensor:
    if len(options) == 3 and options[0]:
        raise RefusedError("in training, when the statistics are of the batch")
    scale = (variance + options[-1]).sqrt().reciprocal()
    shape = (-1, *[1] * (x.ndim - 2))
    return _scaled((x - mean.view(shape)) * scale.view(shape), weight, bias)


COMPOSED |= {
    "mean": _mean,
    "var": _var,
    "_softmax": _softmax,
    "_safe_softmax": _safe_softmax,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "native_group_norm": _group_norm,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
}


@rule("mm", "bmm")
def _product(tape: Tape, to: Number, x: Any, y: Any, c: Real | None = None) -> None:
    a, b = tape.number(x), tape.number(y)
    if to.im is None:
        _real_matrices(tape, target(to), (a.only, x), (b.only, y), c)
        return
    if a.im is None or b.im is None:
        raise RefusedError("of real and complex numbers")
    assert isinstance(to.re, View)
    assert isinstance(to.im, View)
    minus = tape.new("neg", tape.view(a.im, x.shape))
    _real_matrices(tape, to.re, (a.re, x), (b.re, y), c)
    _real_matrices(tape, to.re, (minus, x), (b.im, y), to.re)
    _real_matrices(tape, to.im, (a.re, x), (b.im, y), None)
    _real_matrices(tape, to.im, (a.im, x), (b.re, y), to.im)


def _real_matrices(
    tape: Tape, output: View, x: tuple[Real, Tensor], y: tuple[Real, Tensor], c: Real | None
) -> None:
    a, b = (tape.view(part, tensor.shape) for part, tensor in (x, y))
    if len(output.shape) == 2:
        output, a, b = output.wider(0), a.wider(0), b.wider(0)
        c = c.wider(0) if isinstance(c, View) else c
    tape.product(output, a, b.moved((0, 2, 1)), c)


@rule("addmm", "baddbmm")
def _addmm(
    tape: Tape, to: Number, c: Any, x: Any, y: Any, beta: float = 1, alpha: float = 1
) -> None:
    if (beta, alpha) != (1, 1):
        raise RefusedError("with factors")
    added = tape.real(c)
    if isinstance(added, View):
        added = added.over(target(to).shape)
    _product(tape, to, x, y, added)


@rule("mv")
def _mv(tape: Tape, to: Number, x: Any, y: Any) -> None:
    a, b, output = (tape.view(z) for z in (tape.real(x), tape.real(y), target(to)))
    tape.product(output.wider(0).wider(0), b.wider(0).wider(0), a.wider(0), None)


@rule("quantized_linear")
def _quantized(
    tape: Tape,
    to: Number,
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    *sizes: int,
) -> None:
    """Write a product with weights that lie as `linrnn.ops.quantized_linear` lays them."""
    bytes_at, scales_at = tape.slot(packed), tape.slot(scales)
    if bytes_at is None or scales_at is None or {bytes_at.kind, scales_at.kind} != {"weight"}:
        raise RefusedError("it reads a tensor that is no parameter or buffer")
    _, _, bits, group, digits = sizes
    form = bits + 16 * ((scales.shape[2] > 1) + 2 * (digits + 4 * group))
    rows, output = tape.view(tape.real(x), x.shape), target(to)
    tape.quantized(output, rows, bytes_at, scales_at, form)
    if bias is not None:
        tape.put("add", output, output, tape.real(bias))
