"""Steps of several writes as several steps of one, and heads that share tensors as heads with one.

What a step does once, decaying and beginning anew, its first write does; what it reads, its last
does, or the first, where reads come before the writes. `definition` and the Triton kernels see
such steps; the native kernel walks over them without a copy.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from linrnn.ops.matrix._memory._problem import Problem


def unrolled(p: Problem) -> Problem:
    """A problem of one write a step; where ``reads`` is 1, q is zero at steps that do not read."""
    if p.k.ndim < 5:
        return p
    rank, first = p.rank, p.rank - 1 if p.reverse else 0

    def once(x: Tensor | None, fill: float, at: int = first) -> Tensor | None:
        if x is None:
            return None
        if x.ndim < 3 and x is not p.reset:  # of every step
            x = x.expand(*p.q.shape[:2], *x.shape)  # (B, T, ...)
        parts = [torch.full_like(x, fill)] * rank
        parts[at] = x
        return torch.stack(parts, 2).flatten(1, 2)  # (B, T rank, ...)

    k, v, beta, a, b = (None if x is None else joined(p, x) for x in (p.k, p.v, p.beta, p.a, p.b))
    read_at = rank - 1 if p.before == p.reverse else 0
    q = joined(p, p.q) if p.q.ndim == 5 else once(p.q, 0.0, read_at)
    assert q is not None
    assert k is not None
    assert v is not None
    return p._replace(
        q=q, k=k, v=v, beta=beta, a=a, b=b,
        g=once(p.g, 0.0), value_decay=once(p.value_decay, 0.0), sign=once(p.sign, 1.0),
        reset=once(p.reset, 0), cu_seqlens=None if p.cu_seqlens is None else p.cu_seqlens * rank,
    )  # fmt: skip


def rolled(p: Problem, o: Tensor) -> Tensor:
    """The outputs of ``p`` from those of `unrolled`, (batch, time * rank, ...)."""
    if p.k.ndim < 5:
        return o
    # the only read of a step lies beside the write it follows, or goes before
    return parted(p, o) if p.q.ndim == 5 else parted(p, o)[:, :, 0 if p.before else p.rank - 1]


def spread_reads(p: Problem, grad_o: Tensor) -> Tensor:
    """The gradient of `rolled`."""
    if p.k.ndim < 5 or p.q.ndim == 5:
        return grad_o if p.k.ndim < 5 else joined(p, grad_o)
    parts = [torch.zeros_like(grad_o)] * p.rank
    parts[0 if p.before else -1] = grad_o
    return joined(p, torch.stack(parts, 2))  # (B, T rank, ...)


def joined(p: Problem, x: Tensor) -> Tensor:
    """(batch, time, rank, ...) as (batch, time * rank, ...), in the order in which time is read."""
    return (x.flip(2) if p.reverse else x).flatten(1, 2)  # (B, T rank, ...)


def parted(p: Problem, x: Tensor) -> Tensor:
    """The other way about."""
    x = x.unflatten(1, (p.q.shape[1], p.rank))  # (B, T, rank, ...)
    return x.flip(2) if p.reverse else x


def each_head(x: Tensor, heads: int, axis: int = 2) -> Tensor:
    """Repeat for every head what heads share."""
    count = x.shape[axis]
    # (..., heads, ...)
    return x if count == heads or count == 0 else x.repeat_interleave(heads // count, axis)


def by_columns(p: Problem) -> tuple[Problem, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    """A memory of one column for every channel of a value, and the way back for its results.

    For what corrects itself at rates, or with decays, that differ from channel to channel: one
    system of a chunk's writes then has to be solved for each.
    """
    heads, columns = p.heads, p.v.shape[-1]
    place = p.v.ndim - 2
    v = each_head(p.v, heads, place)
    if p.normalizer:
        # (B, T, H, V + 1)
        v, columns = torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1), columns + 1

    def spread(x: Tensor | None, axis: int) -> Tensor | None:
        """For every column of every head what a head has."""
        # (..., heads columns, ...)
        return None if x is None else each_head(x, heads, axis).repeat_interleave(columns, axis)

    beta, g, bonus = p.beta, p.g, spread(p.bonus, 0)
    if p.beta_by_channel and beta is not None:
        beta = each_head(beta, heads, place).flatten(place)  # (B, T, H columns)
    else:
        beta = spread(beta, place)
    constant = 0 if g is not None and g.ndim < 3 else 2
    g, sign = spread(g, constant), spread(p.sign, constant)
    if p.value_decay is not None:
        e = each_head(p.value_decay, heads)
        # (B, T, H, ...)
        e = torch.cat([e, e.new_zeros(*e.shape[:-1], 1)], -1) if p.normalizer else e
        e = e.flatten(2)  # (B, T, H V)
        g = e if g is None else g + (e if g.ndim in (1, 3) else e[..., None])
        if sign is not None and constant == 0:
            sign = sign.expand(g.shape)  # (B, T, ...)
    state = p.initial_state
    if state is not None:
        state = state.transpose(2, 3).flatten(1, 2)[..., None]  # (seqs, H V, K, 1)
    alone = p._replace(
        v=v.flatten(place)[..., None],
        beta=beta,
        g=g,
        sign=sign,
        value_decay=None,
        bonus=bonus,
        initial_state=state,
        normalizer=False,
    )  # v: (B, T, H columns, 1)

    def whole(o: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        shape = (last.shape[0], heads, columns, last.shape[2])
        # (B, T, H, V), (seqs, H, K, V)
        return o.reshape(p.outputs), last.reshape(shape).transpose(2, 3)

    return alone, whole
