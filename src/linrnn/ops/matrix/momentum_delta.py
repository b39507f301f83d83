"""The delta rule with momentum: a second memory of corrections that the first one takes up."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.arguments import check_device, check_numbers, check_reset
from linrnn.compute.composed import composed
from linrnn.compute.layout import accumulator_dtype
from linrnn.errors import check_shape
from linrnn.ops.linear.linear_scan import linear_scan
from linrnn.typing import Float, ResetMask

CHUNK = 32  # steps that are solved at once
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
        initial_state: S and M before the first step, (batch, heads, d_key, d_value) each; None is
            zeros.
        scale: of the queries.
        reset: boolean (batch, time); True clears both before that step.

    Returns:
        ``(o, (S, M))``: outputs (batch, time, heads, d_value) in the dtype of v, and the last S
        and M, float32 where the dtype is narrower. Chunks of PyTorch's operators compute it on any
        device, with gradients of any order.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.

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
    optional = {"p": p, **each, "S": S, "M": M}
    check_numbers(where, {"q": q, "k": k, "v": v}, real=True, **optional)
    check_shape(where, "q", q.shape, dict.fromkeys(("batch", "time", "heads", "d_key")))
    sizes = dict(zip(("batch", "time", "heads", "d_key"), q.shape, strict=True))
    steps = {n: sizes[n] for n in ("batch", "time", "heads")}
    check_shape(where, "v", v.shape, {**steps, "d_value": None})
    state = {"batch": sizes["batch"], "heads": sizes["heads"], "d_key": sizes["d_key"]}
    axes: dict[str, dict[str, int | None]] = {"k": {**sizes}, "p": {**sizes}}
    axes |= {n: {**steps} for n in each}
    axes |= {n: {**state, "d_value": v.shape[3]} for n in ("S", "M")}
    tensors = {"k": k, **{n: x for n, x in optional.items() if x is not None}}
    for name, x in tensors.items():
        check_shape(where, name, x.shape, axes[name])
    check_reset(where, reset, q.shape[0], q.shape[1])
    check_device(where, "q", q.device, reset=reset, v=v, **tensors)
    wide = accumulator_dtype(torch.promote_types(q.dtype, v.dtype))
    rates = [
        torch.full(q.shape[:3], fill, dtype=wide, device=q.device) if x is None else x.to(wide)
        for x, fill in zip(each.values(), (0.0, 0.0, 1.0, 1.0), strict=True)
    ]
    zeros = torch.zeros(*state.values(), v.shape[3], dtype=wide, device=q.device)
    S, M = (zeros if x is None else x.to(wide) for x in (S, M))
    alpha, mu, take, rate = rates[0].exp(), rates[1].exp(), rates[2], rates[3]
    q, keys, values, p = (x.to(wide) for x in (q * scale, k, v, k if p is None else p))
    written = rate[..., None] * keys
    o, S, M = momentum_scan(q, written, values, p, alpha, mu, take, S, M, reset)
    return o.to(v.dtype), (S, M)


def _shapes(
    q: Any, k: Any, v: Tensor, p: Any, alpha: Any, mu: Any, beta: Any, S: Tensor, M: Tensor,
    reset: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    return v.new_empty(v.shape), S.new_empty(S.shape), M.new_empty(M.shape)


@composed(
    "momentum_delta_scan",
    "Tensor q, Tensor k, Tensor v, Tensor p, Tensor alpha, Tensor mu, Tensor beta, Tensor S, "
    "Tensor M, Tensor? reset",
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
        S, M: before the first step, (B, H, K, V).
        reset: boolean (B, T); True clears both before that step.

    Returns:
        ``(o, S, M)``: o (B, T, H, V), and the last S and M.
    """
    B, T, H, K = q.shape
    if T == 0:
        return v.clone(), S.clone(), M.clone()
    lost, (k, v, p), (alpha, mu, beta), (S, M) = _finite(
        (k, v, p), (alpha, mu, beta), (S, M), reset
    )
    if reset is not None:  # nothing before that step is left, or read
        alpha, mu = (z.masked_fill(reset[..., None], 0) for z in (alpha, mu))
        p = p.masked_fill(reset[..., None, None], 0)
    size = min(CHUNK, T)
    count = -(-T // size)
    rest = count * size - T
    q, k, v, p = (_cut(z, count, rest, 0.0) for z in (q, k, v, p))  # (B count, C, H, ...)
    alpha, mu, beta = (_cut(z, count, rest, of) for z, of in ((alpha, 1.0), (mu, 1.0), (beta, 0.0)))
    inside, weights = _weights(alpha, mu, beta)  # (B count, H, C, 1 + C), (B count, H, C, 2 + C)
    q, k, v, p = (z.transpose(1, 2) for z in (q, k, v, p))  # (B count, H, C, ...)
    before = F.pad(weights[:, :, :-1], (0, 0, 1, 0))
    before[:, :, 0, 0].fill_(1)  # S as the chunk begins
    system = torch.eye(size, dtype=q.dtype, device=q.device) + before[..., 2:] * (p @ k.mT)
    right = torch.cat([v, before[..., :1] * p, before[..., 1:2] * p], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    write, erase = solved.split([v.shape[-1], 2 * K], -1)
    answers = torch.cat([weights[..., :1] * q, weights[..., 1:2] * q], -1)
    scores = weights[..., 2:] * (q @ k.mT)
    kept = torch.stack([weights[:, :, -1, 0], weights[:, :, -1, 1], inside[:, :, -1, 0]], -1)
    keys = torch.cat([weights[:, :, -1, 2:, None] * k, inside[:, :, -1, 1:, None] * k], -1)
    steps = (write, erase, answers, scores, kept, keys)
    outputs = []
    for one in zip(*(z.unflatten(0, (B, count)).unbind(1) for z in steps), strict=True):
        o, S, M = _chunk(S, M, *one)
        outputs.append(o)
    o = torch.stack(outputs, 1).transpose(2, 3)  # (B, count, C, H, V)
    o = o.reshape(B, count * size, H, v.shape[-1])[:, :T]
    ends = lost[:, -1, :, None, None]
    nothing = float("nan")
    marked = (z.masked_fill(ends, nothing) for z in (S, M))
    return o.masked_fill(lost[..., None], nothing).contiguous(), *marked


def _finite(
    vectors: Tensors, rates: Tensors, memories: Tensors, reset: Tensor | None
) -> tuple[Tensor, Tensors, Tensors, Tensors]:
    """Zeros in the place of steps that are not finite, and which reads (B, T, H) these spoil.

    In a product of matrices they would reach what was read before them, or after a reset.
    """
    wrong = torch.stack([~z.isfinite() for z in rates]).any(0)  # (B, T, H)
    for z in vectors:
        wrong = wrong | ~z.isfinite().all(-1)
    spoilt = torch.stack([~z.isfinite().flatten(2).all(-1) for z in memories]).any(0)  # (B, H)
    like = rates[0]
    kept = torch.ones_like(like) if reset is None else (~reset[..., None]).to(like).expand_as(like)
    lost, _ = linear_scan(kept, wrong.to(like), spoilt.to(like))
    return (
        lost > 0,
        tuple(z.masked_fill(wrong[..., None], 0) for z in vectors),
        tuple(z.masked_fill(wrong, 0) for z in rates),
        tuple(z.masked_fill(spoilt[..., None, None], 0) for z in memories),
    )


def _cut(z: Tensor, count: int, rest: int, filled: float) -> Tensor:
    """Time in ``count`` chunks, each a row, of which the last is filled up."""
    z = F.pad(z, (*(0, 0) * (z.ndim - 2), 0, rest), value=filled)
    rows: Tensor = z.unflatten(1, (count, z.shape[1] // count)).flatten(0, 1)
    return rows


def _weights(alpha: Tensor, mu: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """What a write, and the memories before, weigh after each step of a chunk.

    Returns:
        ``(inside, weights)``, (rows, H, C, ...): of M that of M and of the writes, and of S that
        of S, of M and of the writes.
    """
    rows, C, H = alpha.shape
    eye = torch.eye(1 + C, dtype=alpha.dtype, device=alpha.device)
    first, writes = eye[0], eye[1:]  # each its own
    writes = writes[None, :, None].expand(rows, C, H, 1 + C)
    inside, _ = linear_scan(mu[..., None], writes, first.expand(rows, H, 1 + C))
    pushed = F.pad(beta[..., None] * inside, (1, 0))
    start = F.pad(first[:1], (0, 1 + C)).expand(rows, H, 2 + C)
    weights, _ = linear_scan(alpha[..., None], pushed, start)
    return inside.transpose(1, 2), weights.transpose(1, 2)


def _chunk(
    S: Tensor, M: Tensor, write: Tensor, erase: Tensor, answers: Tensor, scores: Tensor,
    kept: Tensor, keys: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What is read in a chunk, and both memories after it."""
    both = torch.cat([S, M], -2)  # (B, H, 2 K, V)
    written = write - erase @ both
    o = answers @ both + scores @ written
    S_new, M_new = (keys.mT @ written).chunk(2, -2)
    of_S, of_M, inside = kept[..., None, None].unbind(-3)
    return o, of_S * S + of_M * M + S_new, inside * M + M_new


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
) -> tuple[Tensor, Tensor, Tensor]:
    """`momentum_scan` of a single step, the axis of time included."""
    q, k, v, p = (z.transpose(1, 2) for z in (q, k, v, p))  # (B, H, 1, ...)
    alpha, mu, beta = (z.transpose(1, 2)[..., None] for z in (alpha, mu, beta))
    M = mu * M + k.mT @ (v - p @ S)
    S = alpha * S + beta * M
    return (q @ S).transpose(1, 2), S, M
