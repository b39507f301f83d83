"""`outer_scan` and `delta_scan` of PyTorch's operators: any device, derivatives of any order.

Time is cut into chunks. Inside of each, everything that does not depend on the memory is computed
for all chunks at once; from chunk to chunk the memory ``S`` goes by ``S <- P S + X``, and what is
read of it is ``R S + O``. Decays between two steps are sums of logarithms over the steps between:
no differences of sums, which would lose what is small beside what is large.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.layout import mirrored, previous_state
from linrnn.compute.modes import seen_finite
from linrnn.ops.linear.linear_scan import linear_scan
from linrnn.ops.matrix._memory._problem import Problem
from linrnn.ops.matrix._memory._unrolled import by_columns, each_head, rolled, unrolled

#: Steps of a chunk: of decays by channel, whose pairs are (steps, steps, d_key), and of others.
#: With 8 instead of 16 a training step takes 0.59 to 0.72 times as long, with 4 instead of 16 0.53
#: to 1.42 (medians of 9 in turn of GLA, RWKV-6 and RWKV-7, 64 and 128 channels, 1 to 8 rows of 256
#: to 2,048 steps, float32, float64 and bfloat16, processor time). Of Gated DeltaNet (64 channels, 4
#: rows of 1,024) it takes 1.20 with 16 instead of 64, 1.03 with 32 and 1.38 with 128 (2026-11-29,
#: EPYC with AVX-512, one core of a shared machine).
CHANNEL_CHUNK, HEAD_CHUNK = 8, 64
#: What sees other steps: reads, and what a write corrects.
QUERY, WRITE = "query", "write"


class Terms(NamedTuple):
    """``S_t = exp(g) S_{t-1} exp(e) + b (a^T S_{t-1}) + k v^T`` of every head, in wide numbers."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None  # (B, T, H) or (B, T, H, K)
    e: Tensor | None
    bonus: Tensor | None
    a: Tensor | None
    b: Tensor | None
    sign: Tensor | None


class Reads(NamedTuple):
    """When steps read, and what of their own writes a bonus weighs."""

    early: bool  # the memory before the step has decayed
    strict: bool  # none of the step's own writes
    group: int  # steps that read one memory, that behind the last of them
    corrections: bool  # what corrects the memory is a part of the step's write


def definition(*fields: object, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """``(o, final_state)`` of the fields of a `Problem`."""
    p = Problem(*fields)  # type: ignore[arg-type]
    by_channel = p.beta_by_channel or (p.delta and p.value_decay is not None)
    if by_channel and p.v.numel() * p.k.numel():
        alone, join = by_columns(p)
        return join(*definition(*alone, backend=backend))
    if p.k.ndim == 5:
        o, last = _sequences_of(unrolled(p), p.reads, backend)
        return rolled(p, o), last
    return _sequences_of(p, 1, backend)


def _sequences_of(p: Problem, group: int, backend: str | None) -> tuple[Tensor, Tensor]:
    """``(o, final_state)`` of steps of one write; ``group`` of them read one memory."""
    terms = _terms(p)
    state = p.initial_state
    if state is None:
        state = terms.v.new_zeros(p.memory)
    if p.q.shape[1] == 0 or terms.v.numel() * terms.k.numel() == 0:
        return _empty_results(p, terms, state)
    early = p.bonus is not None
    reads = Reads(early, early or p.before, group, p.delta and p.a is None)
    if p.q.shape[1] == 1 and p.cu_seqlens is None:
        o, last = _one_step(terms, state, p.reset, reads)
        return o.to(p.v.dtype), last
    reset, cuts = p.reset, p.cu_seqlens
    if p.reverse:
        _, state, reset, cuts = mirrored(p.q, state, reset, cuts)
        terms = _of_steps(terms, lambda x: x.flip(1))
    o, last = _sequences(terms, state, reset, cuts, reads, backend)
    if p.reverse:
        o, last = o.flip(1), last if cuts is None else last.flip(0)
    return o.to(p.v.dtype), last


def _terms(p: Problem) -> Terms:
    """Prepare the operands of every head, in the dtype to compute in."""
    heads = p.heads
    q, k, v, a, b = (
        None if x is None else each_head(x.to(p.wide), heads) for x in (p.q, p.k, p.v, p.a, p.b)
    )
    assert q is not None  # (B, T, H, K)
    assert k is not None
    assert v is not None  # (B, T, H, V)
    g, e, beta, sign = (
        x if x is None or x.ndim < 3 else each_head(x.to(p.wide), heads)
        for x in (p.g, p.value_decay, p.beta, p.sign)
    )
    bonus = None if p.bonus is None else p.bonus.to(p.wide)
    if beta is not None and p.beta_by_channel:  # of nothing: see `definition`
        v, beta = v * beta, None
    if p.scale != 1:
        q = q * p.scale
    if p.normalizer:
        # joined and not padded, which no recorded step knows
        v = torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1)  # (B, T, H, V + 1)
        # (B, T, H, V + 1)
        e = None if e is None else torch.cat([e, e.new_zeros(*e.shape[:-1], 1)], -1)
    g, sign = (
        x if x is None or x.ndim > 2 else x.to(p.wide).expand(*v.shape[:2], *x.shape)
        for x in (g, sign)
    )
    if p.delta and a is None:
        a = k if g is None else k * _kept(g, sign)
        b = -k if beta is None else -k * beta[..., None]  # (B, T, H, K)
    if beta is not None:
        v = v * beta[..., None]  # (B, T, H, V)
    return Terms(q, k, v, g, e, bonus, a, b, sign)


def _kept(g: Tensor, sign: Tensor | None) -> Tensor:
    """The share that a step keeps of every key, (.., K or 1)."""
    factor = g.exp() if sign is None else g.exp() * sign
    return factor if g.ndim == 4 else factor[..., None]


def _empty_results(p: Problem, terms: Terms, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return empty results, without a step, head or channel, that stay in the autograd graph."""
    if p.q.shape[1] == 0:
        return p.v.new_zeros(p.outputs), state.clone()
    o = terms.v.new_zeros(p.outputs) * terms.v.sum()
    return o.to(p.v.dtype), state.clone()


def _one_step(
    terms: Terms, state: Tensor, reset: Tensor | None, reads: Reads
) -> tuple[Tensor, Tensor]:
    q, k, v = (x[:, 0] for x in terms[:3])
    e, a, b = (None if x is None else x[:, 0] for x in (terms.e, terms.a, terms.b))
    if reset is not None:
        state = torch.where(reset[:, :, None, None], 0, state)
    write = product = k[..., None] * v[..., None, :]  # (B, H, K, V)
    if a is not None:
        assert b is not None
        write = write + b[..., None] * (state.mT @ a[..., None]).mT  # (B, H, K, V)
        product = write if reads.corrections else product
    read = state if terms.bonus is None else state + terms.bonus[..., None] * product
    if terms.g is not None:
        state = _kept(terms.g, terms.sign)[:, 0, ..., None] * state
    if e is not None:
        state = state * e[..., None, :].exp()
    read = read if reads.early else state if reads.strict else state + write
    o = (read.mT @ q[..., None]).squeeze(-1)  # (B, H, V)
    return o[:, None], state + write


def _of_steps(terms: Terms, change: Callable[[Tensor], Tensor]) -> Terms:
    """Everything that has an axis of time changed."""
    q, k, v = (change(x) for x in terms[:3])
    g, e, a, b, sign = (None if x is None else change(x) for x in (*terms[3:5], *terms[6:]))
    return Terms(q, k, v, g, e, terms.bonus, a, b, sign)


def _longer(x: Tensor, steps: int) -> Tensor:
    """More steps behind the last, of zeros."""
    return torch.cat([x, x.new_zeros(x.shape[0], steps, *x.shape[2:])], 1)  # (B, T + steps, ...)


def _sequences(
    terms: Terms,
    state: Tensor,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reads: Reads,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    """Every sequence is filled up to whole chunks by steps that do nothing."""
    time = terms.v.shape[1]
    size = CHANNEL_CHUNK if any(x is not None and x.ndim == 4 for x in terms[3:5]) else HEAD_CHUNK
    size = max(1, size // reads.group) * reads.group
    if cu_seqlens is None:
        size = min(size, time)
        count, chunks = -(-time // size), None
        padding = count * size - time
        if padding:
            terms = _of_steps(terms, lambda x: _longer(x, padding))
            reset = None if reset is None else _longer(reset, padding)
        o, last = _chunks(terms, state, reset, chunks, size, reads, backend)
        return o[:, :time], last
    return _packed(terms, state, reset, cu_seqlens, size, reads, backend)


def _packed(
    terms: Terms,
    state: Tensor,
    reset: Tensor | None,
    cu_seqlens: Tensor,
    size: int,
    reads: Reads,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    """Sequences one behind the other: each begins a chunk."""
    time = terms.v.shape[1]
    offsets = cu_seqlens.tolist()
    lengths = [end - begin for begin, end in itertools.pairwise(offsets)]
    counts = [-(-length // size) for length in lengths]
    places, step_places = [], []
    at = 0
    for begin, length, count in zip(offsets, lengths, counts, strict=False):
        places += [*range(begin, begin + length), *[time] * (count * size - length)]
        step_places += list(range(at, at + length))
        at += count * size
    device = terms.v.device
    index, back = (torch.tensor(x, device=device) for x in (places, step_places))

    def spread(x: Tensor) -> Tensor:
        return _longer(x, 1).index_select(1, index)

    terms, reset = _of_steps(terms, spread), None if reset is None else spread(reset)
    chunks = torch.tensor([0, *itertools.accumulate(counts)], device=device)
    o, last = _chunks(terms, state, reset, chunks, size, reads, backend)
    return o.index_select(1, back), last


def _chunks(
    terms: Terms,
    state: Tensor,
    reset: Tensor | None,
    cu_chunks: Tensor | None,
    size: int,
    reads: Reads,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    """A whole number of chunks in every sequence."""
    # The memory S enters a chunk. A step i of it reads three things: S, decayed since the chunk
    # began (R S); what steps j <= i of the chunk wrote, a (C, C) matrix of products q_i k_j with
    # the decays between (O); and, under the delta rule, what those steps corrected. A correction
    # reads the memory before its step, which holds earlier corrections: u_i = a_i S + sum_{j<i}
    # (a_i k_j) v_j + sum_{j<i} (a_i b_j) u_j. That is a unit lower triangular system over the
    # chunk, solved once for both its right sides: u = W S + U, the WY form of the product of
    # (I + b a^T). So S leaves the chunk as across * S + P S + X, and only this runs in time.
    q, k, v = (chunked(x, size) for x in terms[:3])  # (B, n, H, C, channels)
    g, e, a, b, sign = (None if x is None else chunked(x, size) for x in (*terms[3:5], *terms[6:]))
    # the logarithm of a decay may be minus infinity
    bad = _not_finite(k, v, a, b, *(None if x is None else x.clamp(min=-1) for x in (g, e)))
    if bad is not None:
        # zero times NaN is not zero: what is not finite is kept out of the products, and marked
        k, v = (torch.where(bad[..., None], 0, x) for x in (k, v))
        g, e, a, b = (
            None if x is None else torch.where(bad[..., None] if x.ndim == 5 else bad, 0, x)
            for x in (g, e, a, b)
        )
    # how many resets a step has seen in its chunk, (B, n, 1, C)
    begun = None if reset is None else reset.unflatten(1, (-1, size)).cumsum(-1)[:, :, None]
    same = None if begun is None else begun[..., :, None] == begun[..., None, :]  # (B, n, 1, C, C)
    keys, values = _Decay(g, size, same, q, reads, sign), _Decay(e, size, same, q, reads)
    R = keys.since(q, reads.early)  # (B, n, H, C, K)
    O = values.mix(keys.pairs(q, k, QUERY), v)  # noqa: E741
    bonus_query = None if terms.bonus is None else q * terms.bonus[:, None]
    if bonus_query is not None:
        O = O + (bonus_query * k).sum(-1, keepdim=True) * v  # noqa: E741
    X = keys.to_end(k).mT @ values.to_end(v, masked=False)  # (B, n, H, K, V)
    P = None
    if a is not None and b is not None:
        W, U, grown = _corrections(keys, a, b, k, v)
        if grown is not None:
            bad = grown if bad is None else bad | grown
        mixed, writes = keys.pairs(q, b, QUERY), keys.to_end(b)  # (B, n, H, C, C), (B, n, H, C, K)
        if bonus_query is not None and reads.corrections:
            mixed = mixed + torch.diag_embed((bonus_query * b).sum(-1))  # (B, n, H, C, C)
        R, O = R + mixed @ W, O + mixed @ U  # noqa: E741
        P, X = writes.mT @ W, X + writes.mT @ U  # (B, n, H, K, K), (B, n, H, K, V)
    if bad is not None:
        last = bad if same is None else bad & same[..., -1, :]
        X = torch.where(last.any(-1)[..., None, None], float("nan"), X)
    across = keys.across(k)[..., None] * values.across(v)[..., None, :]  # (B, n, H, K, V)
    cleared = None if begun is None else begun[..., 0, -1] > 0
    entering, final = _carry(across, P, X, state, cleared, cu_chunks, backend)
    past = values.since(R @ entering, reads.early)  # (B, n, H, C, V)
    if begun is not None:
        past = torch.where((begun > 0)[..., None], 0, past)  # (B, n, H, C, V)
    o = O + past
    if bad is not None:
        reached = (keys.reached & bad[..., None, :]).any(-1)
        o = torch.where(reached[..., None], float("nan"), o)
    return o.transpose(2, 3).flatten(1, 2), final  # (B, T, H, V), (seqs, H, K, V)


def _corrections(
    keys: "_Decay", a: Tensor, b: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``W S + U``, as the steps of a chunk read before they write, and where that is infinite."""
    both = torch.cat([keys.since(a, True), keys.pairs(a, k, WRITE) @ v], -1)  # (B, n, H, C, K + V)
    pairs = keys.pairs(a, b, WRITE)  # (B, n, H, C, C)
    grown = _not_finite(both, pairs)
    if grown is not None:  # zero times infinity, of a step that does not see it, would be NaN
        both, pairs = (torch.where(grown[..., None], 0, x) for x in (both, pairs))
    unit = torch.eye(a.shape[-2], dtype=v.dtype, device=v.device) - pairs
    solved = torch.linalg.solve_triangular(unit, both, upper=False, unitriangular=True)
    more = _not_finite(solved)
    if more is not None:
        solved = torch.where(more[..., None], 0, solved)
        grown = more if grown is None else grown | more
    W, U = solved.split([k.shape[-1], v.shape[-1]], -1)  # (B, n, H, C, K), (B, n, H, C, V)
    return W, U, grown


def chunked(x: Tensor, size: int) -> Tensor:
    """(B, T, H, ...) as (B, n, H, C, ...), in memory as `torch.where` returns it: the same bits."""
    parts: Tensor = x.unflatten(1, (-1, size))  # (B, n, C, H, ...)
    return parts.transpose(2, 3).contiguous()  # (B, n, H, C, ...)


def _not_finite(*optional: Tensor | None) -> Tensor | None:
    """Mark the steps (B, n, H, C) at which something is NaN or infinite; None where nothing is."""
    tensors = [x for x in optional if x is not None]
    if all(seen_finite(x) for x in tensors):
        return None
    mask = tensors[0].new_zeros(tensors[0].shape[:4], dtype=torch.bool)
    for x in tensors:
        wrong = ~x.isfinite()
        mask = mask | (wrong.any(-1) if x.ndim == 5 else wrong)
    return mask


class _Decay:
    """Log decays between the steps of a chunk, and which of them see which.

    Args:
        g: logarithms (B, n, H, C) or (B, n, H, C, channels), or None for nothing.
        size: steps of a chunk.
        same: pairs of steps in one sequence, or None for all.
        like: of the device.
        reads: what q sees.
        sign: of the decays, like ``g``.
    """

    def __init__(
        self,
        g: Tensor | None,
        size: int,
        same: Tensor | None,
        like: Tensor,
        reads: Reads,
        sign: Tensor | None = None,
    ) -> None:
        steps = torch.arange(size, device=like.device)
        later, group = steps[:, None] > steps, steps // reads.group  # (C, C), (C,)
        seen = group[:, None] > group if reads.strict else group[:, None] >= group  # (C, C)
        reached = group[:, None] >= group  # (C, C)
        if same is not None:
            seen, reached = seen & same, reached & same
        self.reached = reached
        self.seen = {QUERY: seen, WRITE: later if same is None else later & same}
        self.early = {QUERY: reads.early, WRITE: True}
        self.in_last = None if same is None else same[..., -1, :]
        self.log = self.from_start = self.flips = None
        if g is not None:
            g = g if g.ndim == 5 else g[..., None]
            # sums over the steps after j up to i, never a difference of sums
            # (B, n, H, C, C, channels)
            self.log = torch.where(later[..., None], g.unsqueeze(4), 0).cumsum(3)
            self.from_start = g.cumsum(3)  # (B, n, H, C, channels)
        if sign is not None:
            # signs are their own inverses: between two steps is the product of those from the
            # start; steps that fill up a chunk have none
            sign = torch.where(sign == 0, 1, sign)
            self.flips = (sign if sign.ndim == 5 else sign[..., None]).cumprod(3)

    def _between(self, kind: str) -> Tensor | None:
        """From j to i, or to the step before i: (.., C, C, channels), 0 where i does not see j."""
        if self.log is None:
            return None
        log = _earlier(self.log) if self.early[kind] else self.log
        return torch.where(self.seen[kind][..., None], log, float("-inf")).exp()

    def _flipped(self, x: Tensor, early: bool = False) -> Tensor:
        """``x`` times the signs from the chunk's start to each step, or to the one before."""
        if self.flips is None:
            return x
        ones = torch.ones_like(self.flips[:, :, :, :1])
        # (B, n, H, C, channels)
        return x * (torch.cat([ones, self.flips[:, :, :, :-1]], 3) if early else self.flips)

    def pairs(self, x: Tensor, y: Tensor, kind: str) -> Tensor:
        """``sum_c x_ic y_jc decay_ijc``, (.., C, C), where i sees j as a QUERY or as a WRITE."""
        decay, visible = self._between(kind), self.seen[kind]
        x, y = self._flipped(x, self.early[kind]), self._flipped(y)
        if decay is not None and decay.shape[-1] > 1:
            return torch.einsum("bnhic,bnhjc,bnhijc->bnhij", x, y, decay)  # (B, n, H, C, C)
        products = x @ y.mT  # (B, n, H, C, C)
        products = products if decay is None else products * decay.squeeze(-1)  # (B, n, H, C, C)
        return torch.where(visible, products, 0)

    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        """``sum_j weight_ij v_jc decay_ijc`` of what q sees."""
        decay = self._between(QUERY)
        if decay is None:
            return weight @ v
        return torch.einsum("bnhij,bnhjc,bnhijc->bnhic", weight, v, decay)  # (B, n, H, C, channels)

    def since(self, x: Tensor, early: bool) -> Tensor:
        """``x`` times what the memory before the chunk keeps until a step, or until before it."""
        if self.from_start is None:
            return x
        x = self._flipped(x, early)
        return x * (_earlier(self.from_start) if early else self.from_start).exp()

    def to_end(self, x: Tensor, masked: bool = True) -> Tensor:
        """``x`` times what is kept of a step's write at the end; 0 where a reset comes between."""
        weighted = x if self.log is None else x * self.log[:, :, :, -1].exp()
        if self.flips is not None:
            weighted = weighted * (self.flips * self.flips[:, :, :, -1:])
        if self.in_last is None or not masked:
            return weighted
        return weighted * self.in_last[..., None]

    def across(self, x: Tensor) -> Tensor:
        """Return the decay across a full chunk, (.., channels of ``x``)."""
        if self.from_start is None:
            return x.new_ones(x.shape[:3] + x.shape[4:])
        decay = self.from_start[:, :, :, -1].exp()
        if self.flips is not None:
            decay = decay * self.flips[:, :, :, -1]
        return decay.expand(x.shape[:3] + x.shape[4:])  # (B, n, H, ...)


def _earlier(log: Tensor) -> Tensor:
    # (B, n, H, C, ...)
    return torch.cat([torch.zeros_like(log[:, :, :, :1]), log[:, :, :, :-1]], 3)


def _carry(
    across: Tensor,
    P: Tensor | None,
    X: Tensor,
    state: Tensor,
    cleared: Tensor | None,
    cu_chunks: Tensor | None,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    """The memory before each chunk, and behind the last of each sequence."""
    if P is None:
        # (B, n, H K V), (seqs, H K V)
        decay, start = across.expand_as(X).flatten(2), state.flatten(1)
        h, last = linear_scan(
            decay, X.flatten(2), start, reset=cleared, cu_seqlens=cu_chunks, backend=backend
        )  # (B, n, H K V), (seqs, H K V)
        # a chunk's own resets say which of its steps read what was before
        entering = previous_state(h, start, cu_seqlens=cu_chunks)
        # (B, n, H, K, V), (seqs, H, K, V)
        return entering.unflatten(-1, state.shape[1:]), last.view(state.shape)
    P = P + torch.diag_embed(across[..., 0])  # (B, n, H, K, K)
    chunks, befores, finals = X.shape[1], [], []
    offsets = [0, chunks] if cu_chunks is None else cu_chunks.tolist()
    for s, (begin, end) in enumerate(itertools.pairwise(offsets)):
        S = state if cu_chunks is None else state[s : s + 1]
        for n in range(begin, end):
            befores.append(S)
            next_state = X[:, n] + P[:, n] @ S  # (B, H, K, V)
            S = (
                next_state
                if cleared is None
                else torch.where(cleared[:, n, None, None, None], X[:, n], next_state)
            )
        finals.append(S)
    return torch.stack(befores, 1), torch.cat(finals)  # (B, chunks, H, K, V), (seqs, H, K, V)
