"""Attention over the entries of earlier steps: masks, positions, what to keep."""

from collections.abc import Callable, Sequence
from functools import partial
from math import pi
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from linrnn.compute.composed import composed
from linrnn.compute.derivatives import fused, through_definition
from linrnn.compute.layout import like
from linrnn.compute.modes import eager, mapped, seen_finite
from linrnn.compute.precision import autocast_again
from linrnn.ops.attention.forgetting import forgotten
from linrnn.ops.attention.path import path_read
from linrnn.ops.attention.relative import relative
from linrnn.ops.attention.stick_breaking import stick_breaking_read

# A training step of windowed attention (64 to 256 channels, windows of 128 to 2,048) takes 0.62 to
# 1.06 of the time with 256 that it takes with 1,024, with 128 the same, and up to 1.3 with 64
# (2026-11-28, EPYC with AVX-512, one and two cores, in turn). No other device was measured: four
# times as many are read there at once, for each chunk is some launches.
QUERIES = 256
"""Steps whose masks are in memory at once on a CPU; fewer if a window is short, for a step's mask
covers the keys of all the others."""

MOST = {
    "per_channel": 16,
    **dict.fromkeys(("relative", "capped", "forgetting", "path"), QUERIES),
    **dict.fromkeys(("stick_breaking", "stick_breaking_current"), QUERIES),
}
"""The same where each channel of a value has its own weights, and where scores are in memory."""


Read = Callable[..., Tensor]
"""Queries (B, T, ...), keys and values (B, S, ...), and which are visible, (B, T, S), or None for
causal attention of a sequence to itself, or of its last step to all: outputs (B, T, ...). One that
weighs distances gets their keys besides, or for a single query what they add to its scores."""


def softmax_read(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, more: Tensor | None = None
) -> Tensor:
    """Weights that add up to 1, of each of several heads.

    Keys and values may have fewer heads, each for as many neighbouring heads of queries. ``more``
    (B, H, T, S) is added to the scores, ``q . k / sqrt(K)``; of one axis it is of distances, see
    `attend`.
    """
    mask = None if visible is None else visible[:, None]
    if more is not None and more.ndim == 1:
        more = more[_distances(q.shape[1], k.shape[1], len(more), q.device)]  # (T, S)
    if more is not None:
        mask = more if mask is None else torch.where(mask, more, float("-inf"))
    causal = mask is None
    if causal and q.shape[1] == 1:  # a plain bool also where the time of a graph is open
        causal = False
    return _softmax_read(q, k, v, mask, causal)


def forgetting_read(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """`softmax_read` of scores to which the decays of all steps between the two are added.

    Args:
        q, v, visible: as in `softmax_read`; the last query is of the same step as the last key.
        k: keys and the logarithms of each step's decay, one for each head of queries that reads
            them, side by side, (B, S, heads of keys, K + heads / heads of keys).
    """
    # (B, S, H', K), (B, S, H', H / H')
    keys, g = k.split([q.shape[-1], k.shape[-1] - q.shape[-1]], -1)
    return softmax_read(q, keys, v, visible, forgotten(g.flatten(2), q.shape[1]))  # g: (B, S, H)


def softmax_over(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax_read` where every query sees every key."""
    return _softmax_read(q, k, v, None, False)


def _softmax_read(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    q, k, v = (z.transpose(1, 2) for z in (q, k, v))  # (B, H, T, K)
    return fused(_fused_softmax, _softmax, q, k, v, mask, causal).transpose(1, 2)  # (B, T, H, V)


def _fused_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped
    )


def _softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    if q.shape[1] != k.shape[1]:
        # (B, H, S, K or V)
        k, v = (z.repeat_interleave(q.shape[1] // k.shape[1], 1) for z in (k, v))
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5  # (B, H, T, S)
    if mask is not None and mask.dtype is not torch.bool:
        scores = scores + mask
    elif mask is not None:
        scores = torch.where(mask, scores, float("-inf"))
    y: Tensor = scores.softmax(-1) @ v  # (B, H, T, V)
    return y


def relu_squared_read(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, far: Tensor | None = None
) -> Tensor:
    """Weights of one head that are not normalised; of ``far`` see `attend`."""
    weight = F.relu(_with_distances(q @ k.mT, far)).square()  # (B, T, S)
    return (weight if visible is None else torch.where(visible, weight, 0)) @ v  # (B, T, V)


def laplace_read(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, far: Tensor | None = None
) -> Tensor:
    """Weights of one head between 0 and 1, not normalised: a smooth step that mimics relu^2.

    For ``far`` see `attend`.
    """
    scores = _with_distances(q @ k.mT, far)  # (B, T, S)
    weight = (1 + torch.erf((scores - 0.5**0.5) * (2 * pi) ** 0.5)) / 2
    return (weight if visible is None else torch.where(visible, weight, 0)) @ v  # (B, T, V)


def _with_distances(scores: Tensor, far: Tensor | None) -> Tensor:
    """Scores (B, T, S), the last query of the same step as the last key, and what distances add."""
    if far is None:
        return scores
    time, entries = scores.shape[1:]
    return scores + far[_distances(time, entries, len(far), scores.device)]


def _distances(time: int, entries: int, count: int, device: torch.device) -> Tensor:
    """How long ago each key is, at most ``count - 1``, (T, S)."""
    step = torch.arange(entries, device=device)
    return (step[entries - time :, None] - step).clamp(min=0, max=count - 1)


def per_channel_read(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """Weights that add up to 1 in each channel: of ``q . k'`` and its own, which follow k'."""
    shared, per_channel = k.split([q.shape[-1], v.shape[-1]], -1)  # (B, S, K), (B, S, channels)
    scores = (q @ shared.mT)[..., None] + per_channel[:, None]  # (B, T, S, channels)
    if visible is not None:
        scores = torch.where(visible[..., None], scores, float("-inf"))
    return torch.einsum("btsc,bsc->btc", scores.softmax(2), v)  # (B, T, channels)


def relu_read(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """Weights of each of several heads that are not normalised; products as in `softmax_read`."""
    q, k, v = (z.transpose(1, 2) for z in (q, k, v))  # (B, H, T, K)
    weight = F.relu(q @ k.mT * q.shape[3] ** -0.5)  # (B, H, T, S)
    weight = weight if visible is None else torch.where(visible[:, None], weight, 0)
    return (weight @ v).transpose(1, 2)  # (B, T, H, V)


def capped_read(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, cap: Tensor) -> Tensor:
    """Weights that add up to 1, of scores between -cap and cap: ``cap tanh(s / cap)``.

    Args:
        q, k, v, visible: as in `softmax_read`.
        cap: one positive number (1,).
    """
    q, k, v = (z.transpose(1, 2) for z in (q, k, v))  # (B, H, T, K)
    if q.shape[1] != k.shape[1]:
        # (B, H, S, K or V)
        k, v = (z.repeat_interleave(q.shape[1] // k.shape[1], 1) for z in (k, v))
    scores = cap * torch.tanh(q @ k.mT * q.shape[3] ** -0.5 / cap)  # (B, H, T, S)
    scores = torch.where(visible[:, None], scores, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)  # (B, T, H, V)


def relative_read(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, far: Tensor) -> Tensor:
    """Weights that add up to 1, by keys and by distances: ``q_t . k_s + p_t . far_{t-s}``.

    Args:
        q: a query q_t and one of distances, p_t, side by side, (B, T, H, 2 K).
        k, v, visible: as in `softmax_read`; the last query is of the same step as the last key.
        far: keys of the distances from 0 on, (H, D, K); longer ones are never visible.
    """
    q, k, v = (z.transpose(1, 2) for z in (q, k, v))  # (B, H, T, K)
    near, p = q.chunk(2, -1)  # (B, H, T, K) each
    return relative(near, p, k, v, far[:, : k.shape[2]], visible).transpose(1, 2)  # (B, T, H, V)


READS: dict[str, Read] = {
    "softmax": softmax_read,
    "forgetting": forgetting_read,
    "path": path_read,
    "stick_breaking": stick_breaking_read,
    "stick_breaking_current": partial(stick_breaking_read, current=True),
    "relative": relative_read,
    "capped": capped_read,
    "relu": relu_read,
    "relu_squared": relu_squared_read,
    "laplace": laplace_read,
    "per_channel": per_channel_read,
}


def positions(start: Tensor, time: int, reset: Tensor | None) -> Tensor:
    """How many steps of the same sequence come before each step, (B, T).

    Example:
        >>> positions(torch.tensor([7]), 3, torch.tensor([[False, True, False]]))
        tensor([[7, 0, 1]])
    """
    if time == 1 and reset is None:  # a step feels what counting to one costs
        return start[:, None]
    step = torch.arange(time, device=start.device)
    position = start[:, None] + step
    if reset is None:
        return position
    begin = torch.where(reset, step, -1).cummax(1).values
    return torch.where(begin >= 0, step - begin, position)


def remember(entries: Tensor, position: Tensor, reset: Tensor | None, window: int | None) -> Tensor:
    """The entries to keep for later steps: all, or ``window - 1``; zero where out of sight.

    Args:
        entries: (B, S, ...), those of the call's steps last.
        position: of the last step, (B,).
        reset: the call's mask.
        window: how many steps can be seen, the current one included.
    """
    if window is not None:
        entries = entries[:, entries.shape[1] - (window - 1) :]
    return entries if reset is None else in_sight(entries, position)


def in_sight(entries: Tensor, position: Tensor) -> Tensor:
    """Entries (B, S, ...), of the last step last; zero but for it and ``position`` before it.

    Example:
        >>> in_sight(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1]))
        tensor([[0., 2., 3.]])
    """
    age = torch.arange(entries.shape[1], device=entries.device).flip(0)
    return torch.where(like(age <= position[:, None], entries), entries, 0)


def attend(
    kind: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sight: Tensor,
    *,
    window: int | None,
    whole: bool,
    far: Tensor | None = None,
) -> Tensor:
    """Attention of each step to itself and the ``sight`` entries before it.

    What is out of sight cannot reach a result, not even as NaN: a weight of zero would let it
    through, so entries that are not finite are zeroed, and the steps that see one are NaN.

    Args:
        kind: the attention itself, of `READS`.
        q, k, v: queries (B, T, ...); keys and values (B, S, ...), the last T of the same steps.
        sight: how far back each step sees, (B, T).
        window: a bound on all ``sight + 1``, or None.
        whole: every step sees all before it, and the keys are those of the queries.
        far: keys of distances, for "relative"; what they add to the scores of a single step
            (B, H, 1, S), for "softmax"; the bound of scores (1,), for "capped"; what distances from
            0 on add to scores (D,), the last for longer ones too, for "softmax", "relu_squared" and
            "laplace".
    """
    time, past = q.shape[1], k.shape[1] - q.shape[1]
    if time == 1:  # an earlier call has zeroed what is out of sight
        return _chunk(READS[kind], q, k, v, sight, far)
    bad = None
    if not (seen_finite(k) and seen_finite(v)):
        bad = ~(k.isfinite().flatten(2).all(-1) & v.isfinite().flatten(2).all(-1))  # (B, S)
        k, v = torch.where(like(bad, k), 0, k), torch.where(like(bad, v), 0, v)
    y = READS[kind](q, k, v, None) if whole else _chunks(kind, q, k, v, sight, window, far)[0]
    if bad is None:
        return y
    count = F.pad(bad.cumsum(1), (1, 0))  # (B, S + 1)
    step = torch.arange(past, past + time, device=q.device)
    in_view = count[:, past + 1 :] - count.gather(1, (step - sight).clamp(min=0))
    return torch.where(like(in_view > 0, y), float("nan"), y)


def _shapes(
    kind: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sight: Tensor,
    window: int | None,
    far: Tensor | None,
) -> tuple[Tensor]:
    return (v.new_empty(*q.shape[:-1], v.shape[-1]),)


@composed(
    "attend",
    "str kind, Tensor q, Tensor k, Tensor v, Tensor sight, int? window, Tensor? far",
    _shapes,
    lead=1,
)
def _chunks(
    kind: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sight: Tensor,
    window: int | None,
    far: Tensor | None,
) -> tuple[Tensor]:
    """The queries a few at a time, each with the keys it may see."""
    if q.shape[1] == 0:
        return _shapes(kind, q, k, v, sight, window, far)
    parts = _parts(kind, q, k, sight, window)
    tensors = [x for x in (q, k, v, far) if x is not None]
    alone = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if len(parts) == 1 or not alone or not eager(*tensors, sight):
        return (_in_parts(kind, parts, q, k, v, sight, far),)
    return (_Chunks.apply(kind, parts, q, k, v, sight, far),)


def queries(x: Tensor) -> int:
    """Steps whose masks are in memory at once, on the device of ``x``."""
    return QUERIES if x.device.type == "cpu" else 4 * QUERIES


def _parts(
    kind: str, q: Tensor, k: Tensor, sight: Tensor, window: int | None
) -> list[tuple[slice, slice]]:
    """Queries and the keys of each chunk."""
    time, largest = q.shape[1], MOST.get(kind, queries(q))
    past, size = (
        k.shape[1] - time,
        largest if window is None else min(largest, max(window, queries(q) // 4)),
    )
    bounds = [(begin, min(begin + size, time)) for begin in range(0, time, size)]
    firsts = [0] * len(bounds) if window is None else _firsts(sight, past, window, bounds)
    return [
        (slice(begin, end), slice(first, past + end))
        for first, (begin, end) in zip(firsts, bounds, strict=True)
    ]


def _in_parts(
    kind: str,
    parts: Sequence[tuple[slice, slice]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sight: Tensor,
    far: Tensor | None,
) -> Tensor:
    ys = []
    for of, keys in parts:
        args = READS[kind], q[:, of], k[:, keys], v[:, keys], sight[:, of], far
        if len(parts) > 1 and torch.is_grad_enabled():  # no masks are kept for the backward
            ys.append(checkpoint(_chunk, *args, use_reentrant=False, preserve_rng_state=False))
        else:
            ys.append(_chunk(*args))
    return torch.cat(ys, 1)  # (B, T, ...)


class _Chunks(torch.autograd.Function):
    """Chunks that are computed once more for their gradients, which are added up in place."""

    @staticmethod
    def forward(ctx: Any, kind: str, parts: Any, *arguments: Any) -> Tensor:
        ctx.kind, ctx.parts = kind, parts
        ctx.autocast = autocast_again(arguments[0].device)
        ctx.save_for_backward(*arguments)
        return _in_parts(kind, parts, *arguments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, needs_grad = ctx.saved_tensors, ctx.needs_input_grad[2:]
        if torch.is_grad_enabled() or not eager(grad):

            def definition(*x: Any) -> Tensor:
                with ctx.autocast():
                    return _in_parts(ctx.kind, ctx.parts, *x)

            return None, None, *through_definition(definition, saved, needs_grad, (grad,))
        sums = [torch.zeros_like(x) for x, want in zip(saved, needs_grad, strict=True) if want]
        for of, keys in ctx.parts:
            q, k, v, sight, far = saved
            inputs = [q[:, of], k[:, keys], v[:, keys], sight[:, of], far]
            inputs = [
                x.detach().requires_grad_() if want else x
                for x, want in zip(inputs, needs_grad, strict=True)
            ]
            with torch.enable_grad(), ctx.autocast():
                y = _chunk(READS[ctx.kind], *inputs)
            sources = [x for x, want in zip(inputs, needs_grad, strict=True) if want]
            queries, entries = (slice(None), of), (slice(None), keys)
            every: tuple[Any, ...] = (queries, entries, entries, queries, ...)
            places = [x for x, want in zip(every, needs_grad, strict=True) if want]
            grads = torch.autograd.grad(y, sources, grad[:, of], materialize_grads=True)
            for total, place, part in zip(sums, places, grads, strict=True):
                total[place] += part
        into = iter(sums)
        return None, None, *(next(into) if want else None for want in needs_grad)


def _firsts(sight: Tensor, past: int, window: int, bounds: Sequence[tuple[int, int]]) -> list[int]:
    """The first entry that any query of each chunk sees."""
    if len(sight) == 0 or mapped(sight):  # no numbers, or none to see
        return [max(0, past + begin - window + 1) for begin, _ in bounds]
    first = torch.arange(sight.shape[1], device=sight.device) - sight + past
    # (chunks,)
    firsts = torch.stack([first[:, begin:end].min() for begin, end in bounds]).clamp(min=0)
    lowest: list[int] = firsts.tolist()
    return lowest


def _chunk(
    read: Read, q: Tensor, k: Tensor, v: Tensor, sight: Tensor, far: Tensor | None
) -> Tensor:
    entry = torch.arange(k.shape[1], device=q.device)
    age = entry[k.shape[1] - q.shape[1] :, None] - entry
    visible = (age >= 0) & (age <= sight[..., None])
    return read(q, k, v, visible) if far is None else read(q, k, v, visible, far)
