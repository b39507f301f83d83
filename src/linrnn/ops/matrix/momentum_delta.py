"""The delta rule with momentum: a second memory of corrections that the first one takes up."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.arguments import (
    check_device,
    check_flags,
    check_numbers,
    check_packed,
    check_reset,
)
from linrnn.compute.composed import composed
from linrnn.compute.layout import accumulator_dtype, mirrored
from linrnn.errors import check_shape
from linrnn.ops.linear.linear_scan import linear_scan
from linrnn.typing import CuSeqlens, Float, ResetMask

# Steps that are solved at once. A training step (64 channels, 2 rows of 512 steps) takes 1.22 times
# as long with 16 and 0.93 with 64 (2026-11-29, EPYC with AVX-512, one core of a shared machine, in
# turn).
CHUNK = 32
Tensors = tuple[Tensor, ...]


def momentum_delta_scan(
    q: Float[Tensor, "batch time heads d_key"],
    k: Float[Tensor, "batch time heads d_key"],
    v: Float[Tensor, "batch time heads d_value"],
    p: Float[Tensor, "batch time heads d_key"] | None = None,
    g: Float[Tensor, "batch time heads"] | None = None,
    log_mu: Float[Tensor, "batch time heads"] | None = None,
    beta: Float[Tensor, "batch time heads"] | None = None,
    eta: Float[Tensor, "batch time heads"] | None = None,
    initial_state: tuple[Tensor, Tensor] | None = None,
    *,
    scale: float = 1.0,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
) -> tuple[Float[Tensor, "batch time heads d_value"], tuple[Tensor, Tensor]]:
    r"""Write by the delta rule to a momentum, which a memory takes up, and read that.

    Equation, in every head::

        M_t = exp(log_mu_t) M_{t-1} + eta_t k_t (v_t - S_{t-1}^T p_t)^T    (d_key, d_value)
        S_t = exp(g_t) S_{t-1} + beta_t M_t
        o_t = scale S_t^T q_t

    The error is that of the memory before it decays; pass ``exp(g) k`` for p to take what has
    decayed. Titans' linear memory with a gradient a token is the case of beta 1.

    Args:
        q, k: queries and keys (batch, time, heads, d_key).
        v: values (batch, time, heads, d_value).
        p: what the error reads with, like k; None is k.
        g, log_mu: logarithms of decays of S and of M, at most 0, (batch, time, heads); None keeps
            everything.
        beta, eta: how much of M is taken up, and of the error is written, (batch, time, heads);
            None is 1.
        initial_state: S and M before the first step, (batch, heads, d_key, d_value) each, one for
            each packed sequence; None is zeros.
        scale: of the queries.
        reset: boolean (batch, time); True clears both before that step.
        cu_seqlens, reverse: as in `linear_scan`.

    Returns:
        ``(o, (S, M))``: outputs (batch, time, heads, d_value) in the dtype of v, and the last S
        and M, float32 where the dtype is narrower. Chunks of PyTorch's operators compute it on any
        device, with gradients of any order.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: ``reverse`` that is no truth value, or ``cu_seqlens`` that do not rise from 0
            to ``time``.

    Example:
        >>> import torch
        >>> from linrnn.ops.matrix.momentum_delta import momentum_delta_scan
        >>> one, half = torch.ones(1, 3, 1, 1), torch.full((1, 3, 1), 0.5)
        >>> momentum_delta_scan(one, one, one, log_mu=half.log(), eta=half)[0].flatten()
        tensor([0.5000, 1.0000, 1.2500])

    Reference:
        Behrouz, Zhong and Mirrokni, "Titans: Learning to Memorize at Test Time", 2024,
        arXiv:2501.00663; as momentum of the delta rule, Huang et al., 2026, arXiv:2605.05838.
    """
    where, each = "momentum_delta_scan", {"g": g, "log_mu": log_mu, "beta": beta, "eta": eta}
    S, M = (None, None) if initial_state is None else initial_state
    check_flags(where, reverse=reverse)
    memory = _checked_memory(
        where, {"q": q, "k": k, "v": v}, each, {"p": p, "S": S, "M": M}, reset, cu_seqlens
    )
    accumulator = accumulator_dtype(torch.promote_types(q.dtype, v.dtype))
    rates = [
        torch.full(q.shape[:3], fill, dtype=accumulator, device=q.device)
        if x is None
        else x.to(accumulator)
        for x, fill in zip(each.values(), (0.0, 0.0, 1.0, 1.0), strict=True)
    ]
    zeros = torch.zeros(memory, dtype=accumulator, device=q.device)
    S, M = (zeros if x is None else x.to(accumulator) for x in (S, M))
    alpha, mu, take, rate = rates[0].exp(), rates[1].exp(), rates[2], rates[3]
    q, keys, values, p = (x.to(accumulator) for x in (q * scale, k, v, k if p is None else p))
    steps = (q, rate[..., None] * keys, values, p, alpha, mu, take)
    if not reverse:
        o, S, M = momentum_scan(*steps, S, M, reset, cu_seqlens)
        return o.to(v.dtype), (S, M)
    # both: (seqs, 2, H, K, V)
    _, both, *layout = mirrored(q, torch.stack([S, M], 1), reset, cu_seqlens)
    # (B, T, H, V), (seqs, H, K, V), (seqs, H, K, V)
    o, S, M = momentum_scan(*(x.flip(1) for x in steps), *both.unbind(1), *layout)
    last = (S, M) if cu_seqlens is None else (S.flip(0), M.flip(0))
    return o.flip(1).to(v.dtype), last


def _checked_memory(
    where: str,
    required: dict[str, Tensor],
    rates: dict[str, Tensor | None],
    optional: dict[str, Tensor | None],
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[int, ...]:
    """The shape of S and of M, after all tensors are seen to fit together."""
    check_numbers(where, required, real=True, **rates, **optional)
    q, v = required["q"], required["v"]
    check_shape(where, "q", q.shape, dict.fromkeys(("batch", "time", "heads", "d_key")))
    steps = dict(zip(("batch", "time", "heads"), q.shape, strict=False))
    check_shape(where, "v", v.shape, {**steps, "d_value": None})
    rows = "batch" if cu_seqlens is None else "sequences"
    memory = {rows: check_packed(where, "q", q, cu_seqlens), "heads": q.shape[2]}
    memory |= {"d_key": q.shape[3], "d_value": v.shape[3]}
    axes = {n: {**steps, "d_key": q.shape[3]} for n in ("k", "p")}
    axes |= {n: {**steps} for n in rates} | {n: {**memory} for n in ("S", "M")}
    tensors = {n: x for n, x in (required | rates | optional).items() if x is not None}
    for name, x in tensors.items():
        if name in axes:
            check_shape(where, name, x.shape, axes[name])
    check_reset(where, reset, q.shape[0], q.shape[1])
    check_device(where, "q", q.device, reset=reset, **tensors)
    return tuple(memory.values())


def _shapes(
    q: Any, k: Any, v: Tensor, p: Any, alpha: Any, mu: Any, beta: Any, S: Tensor, M: Tensor,
    reset: Any, cu_seqlens: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    return v.new_empty(v.shape), S.new_empty(S.shape), M.new_empty(M.shape)


@composed(
    "momentum_delta_scan",
    "Tensor q, Tensor k, Tensor v, Tensor p, Tensor alpha, Tensor mu, Tensor beta, Tensor S, "
    "Tensor M, Tensor? reset, Tensor? cu_seqlens",
    _shapes,
)
def momentum_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Tensor,
    alpha: Tensor,
    mu: Tensor,
    beta: Tensor,
    S: Tensor,
    M: Tensor,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, ...]:
    """Follow gradients with momentum, in chunks of time.

    Equation, in every head::

        M_t = mu_t M_{t-1} + k_t (v_t - S_{t-1}^T p_t)^T
        S_t = alpha_t S_{t-1} + beta_t M_t,   o_t = S_t^T q_t

    What a write weighs after later steps is a sum of products of decays, which two scans give
    without any difference or quotient: decays may be anything from 0 to 1. A chunk is one
    triangular system, and memories go from chunk to chunk in a loop.

    Args:
        q, k, p: (B, T, H, K).
        v: (B, T, H, V).
        alpha, mu, beta: (B, T, H).
        S, M: before the first step, (seqs, H, K, V).
        reset: boolean (B, T); True clears both before that step.
        cu_seqlens: offsets of packed sequences, or None.

    Returns:
        ``(o, S, M)``: o (B, T, H, V), and the last S and M.
    """
    K = q.shape[-1]
    if q.shape[1] == 0:
        return v.clone(), S.clone(), M.clone()
    (lost, ended), (k, v, p), (alpha, mu, beta), (S, M) = _finite(
        (k, v, p), (alpha, mu, beta), (S, M), reset, cu_seqlens
    )
    if reset is not None:  # nothing before that step is left, or read
        alpha, mu = (z.masked_fill(reset[..., None], 0) for z in (alpha, mu))
        p = p.masked_fill(reset[..., None, None], 0)
    chunks = _Chunks(q, cu_seqlens)
    q, k, v, p = (chunks.cut(z, 0.0) for z in (q, k, v, p))  # (rows, C, H, ...)
    alpha, mu, beta = (chunks.cut(z, of) for z, of in ((alpha, 1.0), (mu, 1.0), (beta, 0.0)))
    inside, weights = _weights(alpha, mu, beta)  # (rows, H, C, 1 + C), (rows, H, C, 2 + C)
    q, k, v, p = (z.transpose(1, 2) for z in (q, k, v, p))  # (rows, H, C, ...)
    entering = F.pad(weights[:, :, :-1], (0, 0, 1, 0))  # (R, H, C, 2 + C)
    entering[:, :, 0, 0].fill_(1)  # S as the chunk begins
    # (R, H, C, C)
    system = torch.eye(chunks.size, dtype=q.dtype, device=q.device) + entering[..., 2:] * (p @ k.mT)
    right = torch.cat([v, entering[..., :1] * p, entering[..., 1:2] * p], -1)  # (R, H, C, V + 2 K)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    write, erase = solved.split([v.shape[-1], 2 * K], -1)  # (R, H, C, V), (R, H, C, 2 K)
    answers = torch.cat([weights[..., :1] * q, weights[..., 1:2] * q], -1)  # (R, H, C, 2 K)
    scores = (q @ k.mT) * weights[..., 2:]  # (R, H, C, C)
    of_S, of_M, of_momentum = weights[:, :, -1, 0], weights[:, :, -1, 1], inside[:, :, -1, 0]
    at_end = torch.stack([of_S, of_M, torch.zeros_like(of_S), of_momentum], -1)  # (R, H, 4)
    at_end = at_end.unflatten(-1, (2, 2))  # (R, H, 2, 2), of S and M what the chunk makes of both
    # (R, H, C, 2 K)
    keys = torch.cat([weights[:, :, -1, 2:, None] * k, inside[:, :, -1, 1:, None] * k], -1)
    steps = (write, erase, answers, scores, at_end, keys)
    o, S, M = chunks.walk(S, M, steps)
    nan = float("nan")
    marked = (z.masked_fill(ended[..., None, None], nan) for z in (S, M))
    return o.masked_fill(lost[..., None], nan).contiguous(), *marked


def _finite(
    vectors: Tensors,
    rates: Tensors,
    memories: Tensors,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensors, Tensors, Tensors, Tensors]:
    """Zeros instead of steps that are not finite, and which reads (B, T, H) these spoil.

    Beside these, which of the last memories, (seqs, H).

    In a product of matrices they would reach what was read before them, or after a reset.
    """
    wrong = torch.stack([~z.isfinite() for z in rates]).any(0)  # (B, T, H)
    for z in vectors:
        wrong = wrong | ~z.isfinite().all(-1)
    spoilt = torch.stack([~z.isfinite().flatten(2).all(-1) for z in memories]).any(0)  # (seqs, H)
    like = rates[0]
    unreset = (
        torch.ones_like(like) if reset is None else (~reset[..., None]).to(like).expand_as(like)
    )  # (B, T, H)
    lost, ended = linear_scan(unreset, wrong.to(like), spoilt.to(like), cu_seqlens=cu_seqlens)
    return (
        (lost > 0, ended > 0),
        tuple(z.masked_fill(wrong[..., None], 0) for z in vectors),
        tuple(z.masked_fill(wrong, 0) for z in rates),
        tuple(z.masked_fill(spoilt[..., None, None], 0) for z in memories),
    )


class _Chunks:
    """Time in chunks of one length, each a row; filled up, and begun by every packed sequence.

    Args:
        x: (B, T, ...).
        cu_seqlens: offsets of packed sequences, or None.
    """

    def __init__(self, x: Tensor, cu_seqlens: Tensor | None) -> None:
        self.batch, self.time = x.shape[:2]
        ends = [0, self.time] if cu_seqlens is None else cu_seqlens.tolist()
        spans = list(itertools.pairwise(ends))
        self.size = min(CHUNK, max(end - begin for begin, end in spans))
        #: Chunks of each sequence.
        self.counts = [-(-(end - begin) // self.size) for begin, end in spans]
        self.places = self.back = None
        if cu_seqlens is not None:
            places: list[int] = []
            back: list[int] = []
            for (begin, end), count in zip(spans, self.counts, strict=True):
                back += list(range(len(places), len(places) + end - begin))
                filled = count * self.size - (end - begin)
                places += [*range(begin, end), *[self.time] * filled]
            self.places, self.back = (torch.tensor(z, device=x.device) for z in (places, back))

    def cut(self, z: Tensor, fill: float) -> Tensor:
        """``z`` (B, T, ...) as (rows, C, ...), the first chunk of every sequence first."""
        more = 1 if self.places is not None else self.counts[0] * self.size - self.time
        if more:
            z = F.pad(z, (*(0, 0) * (z.ndim - 2), 0, more), value=fill)  # (B, T + more, ...)
        z = z if self.places is None else z.index_select(1, self.places)
        # (chunks, B, C, ...)
        rows: Tensor = z.unflatten(1, (sum(self.counts), self.size)).transpose(0, 1)
        return rows.flatten(0, 1)  # (R, C, ...)

    def walk(self, S: Tensor, M: Tensor, steps: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (B, T, H, V), and the memories that go from chunk to chunk at last."""
        (seqs, heads), batch = S.shape[:2], self.batch
        both = torch.cat([S, M], -2).flatten(0, 1)  # (seqs H, 2 K, V)
        rows = (sum(self.counts), batch)
        steps = tuple(z.unflatten(0, rows).flatten(1, 2) for z in steps)  # (count, B H, ...)
        outputs: list[Tensor] = []
        finals, begin = [], 0
        for s, count in enumerate(self.counts):
            state = both if self.back is None else both[s * heads : (s + 1) * heads]
            chunks, state = _walk(state, tuple(z[begin : begin + count] for z in steps))
            outputs += [o.unflatten(0, (batch, heads)) for o in chunks]  # (batch, heads, C, V) each
            begin += count
            finals.append(state)
        o = torch.stack(outputs, 1).transpose(2, 3).flatten(1, 2)  # (B, steps, H, V)
        o = o[:, : self.time] if self.back is None else o.index_select(1, self.back)
        final = finals[0] if len(finals) == 1 else torch.cat(finals)  # (seqs H, 2 K, V)
        S, M = final.unflatten(0, (seqs, heads)).chunk(2, -2)  # (seqs, H, K, V) each
        return o, S, M


def _walk(both: Tensor, steps: Tensors) -> tuple[list[Tensor], Tensor]:
    outputs = []
    for one in zip(*(z.unbind(0) for z in steps), strict=True):
        o, both = _chunk(both, *one)
        outputs.append(o)
    return outputs, both


def _weights(alpha: Tensor, mu: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of a write, and of the memories before, after each step of a chunk.

    Returns:
        ``(inside, weights)``, (rows, H, C, ...): of M that of M and of the writes, and of S that
        of S, of M and of the writes.
    """
    rows, C, H = alpha.shape
    eye = torch.eye(1 + C, dtype=alpha.dtype, device=alpha.device)
    first, writes = eye[0], eye[1:]  # each its own
    writes = writes[None, :, None].expand(rows, C, H, 1 + C)  # (rows, C, H, 1 + C)
    # (rows, C, H, 1 + C), (rows, H, 1 + C)
    inside, _ = linear_scan(mu[..., None], writes, first.expand(rows, H, 1 + C))
    pushed = F.pad(beta[..., None] * inside, (1, 0))  # (rows, C, H, 2 + C)
    start = F.pad(first[:1], (0, 1 + C)).expand(rows, H, 2 + C)  # (rows, H, 2 + C)
    weights, _ = linear_scan(alpha[..., None], pushed, start)
    # (rows, H, C, 1 + C), (rows, H, C, 2 + C)
    return inside.transpose(1, 2), weights.transpose(1, 2)


def _chunk(
    both: Tensor, write: Tensor, erase: Tensor, answers: Tensor, scores: Tensor, at_end: Tensor,
    keys: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The reads (B H, C, V) of a chunk, and both memories (B H, 2 K, V) after it."""
    written = torch.baddbmm(write, erase, both, alpha=-1)
    o = torch.baddbmm(answers @ both, scores, written)
    S_and_M = both.unflatten(1, (2, both.shape[1] // 2)).flatten(2)  # (B H, 2, K V)
    decayed = (at_end @ S_and_M).view(both.shape)  # (R, 2 K, V)
    return o, torch.baddbmm(decayed, keys.mT, written)  # (R, C, V), (R, 2 K, V)


def momentum_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Tensor,
    alpha: Tensor,
    mu: Tensor,
    beta: Tensor,
    S: Tensor,
    M: Tensor,
    reset: None = None,
    cu_seqlens: None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`momentum_scan` of a single step, the axis of time included."""
    q, k, v, p = (z.transpose(1, 2) for z in (q, k, v, p))  # (B, H, 1, ...)
    alpha, mu, beta = (z.transpose(1, 2)[..., None] for z in (alpha, mu, beta))
    M = mu * M + k.mT @ (v - p @ S)  # (B, H, K, V)
    S = alpha * S + beta * M
    return (q @ S).transpose(1, 2), S, M  # (B, 1, H, V), (B, H, K, V), (B, H, K, V)
