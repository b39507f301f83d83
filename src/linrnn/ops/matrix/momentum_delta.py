"""The delta rule with momentum: a second memory of corrections that the first one takes up."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.arguments import check_device, check_numbers, check_reset
from linrnn.compute.composed import composed
from linrnn.compute.layout import accumulator_dtype, stacked
from linrnn.compute.modes import seen_finite
from linrnn.errors import check_shape
from linrnn.typing import Float, ResetMask

#: Steps of a chunk; fewer than `_FEW` are faster one after the other.
_CHUNK, _FEW = 32, 8


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
    rows = [x.to(wide) for x in (q * scale, k, v, k if p is None else p)]
    o, S, M = _momentum_delta(*rows, *rates, S, M, reset)
    return o.to(v.dtype), (S, M)


def _shapes(q: Tensor, k: Tensor, v: Tensor, p: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    S, M = rest[4:6]
    return v.new_empty(v.shape), S.new_empty(S.shape), M.new_empty(M.shape)


@composed(
    "momentum_delta_scan",
    "Tensor q, Tensor k, Tensor v, Tensor p, Tensor g, Tensor log_mu, Tensor beta, Tensor eta, "
    "Tensor S, Tensor M, Tensor? reset",
    _shapes,
)
def _momentum_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Tensor,
    g: Tensor,
    log_mu: Tensor,
    beta: Tensor,
    eta: Tensor,
    S: Tensor,
    M: Tensor,
    reset: Tensor | None,
) -> tuple[Tensor, ...]:
    """``(o, S, M)``: in chunks, unless steps are few or a number is not finite.

    Zero times infinity is not zero: in a product it would reach steps that do not see it.
    """
    rows, rates = (q, k, v, p), (g.exp(), log_mu.exp(), beta, eta)
    whole = v.shape[1] >= _FEW and v.numel() > 0 and k.numel() > 0
    if whole and all(seen_finite(x) for x in (*rows, *rates, S, M)):
        results = _in_chunks(rows, rates, S, M, reset)
        if all(seen_finite(x) for x in results):
            return results
    outputs = []
    for t in range(v.shape[1]):
        if reset is not None:
            S, M = (torch.where(reset[:, t, None, None, None], 0, x) for x in (S, M))
        now = [x[:, t, :, None] for x in rows]  # (B, H, 1, K or V)
        alpha, mu, take, rate = (x[:, t, :, None, None] for x in rates)
        short = now[2] - now[3] @ S  # (B, H, 1, V)
        M = mu * M + rate * (now[1].mT @ short)
        S = alpha * S + take * M
        outputs.append((now[0] @ S).squeeze(-2))
    return stacked(outputs, v[:, 0] if v.shape[1] else v.sum(1)), S, M


def _in_chunks(
    rows: Sequence[Tensor],
    rates: Sequence[Tensor],
    S: Tensor,
    M: Tensor,
    reset: Tensor | None,
) -> tuple[Tensor, ...]:
    """What steps of a chunk have to do with one another is found for all chunks at once."""
    time = rows[0].shape[1]
    padding = -time % _CHUNK
    keep = torch.ones_like(rates[0]) if reset is None else (~reset)[..., None].expand_as(rates[0])
    fills = (0.0,) * 4 + (1.0, 1.0, 0.0, 0.0, 1.0)
    q, k, v, p, alpha, mu, beta, eta, keep = (
        _chunked(x.to(S.dtype), padding, fill)
        for x, fill in zip((*rows, *rates, keep), fills, strict=True)
    )
    of_S, of_M, own, ends = _weights(alpha, mu, beta, keep)
    # what each step is short of: u = eta (v - p S_{t-1}), where S_{t-1} has earlier u in it
    before = [x[0][..., None] * p * eta[..., None] for x in (of_S, of_M)]
    system = torch.eye(_CHUNK, dtype=S.dtype, device=S.device) + eta[..., None] * (
        own[0] * (p @ k.mT)
    )
    right = torch.cat([*before, v * eta[..., None]], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    K = k.shape[-1]
    W_S, W_M, U = solved.split([K, K, v.shape[-1]], -1)
    read = own[1] * (q @ k.mT)  # (B, n, H, C, C)
    read_S, read_M = of_S[1][..., None] * q - read @ W_S, of_M[1][..., None] * q - read @ W_M
    o = read @ U
    left_S, left_M = ((x[..., None] * k).mT for x in (own[1][..., -1, :], ends[1]))
    outputs = []
    for n in range(v.shape[1]):
        u = U[:, n] - W_S[:, n] @ S - W_M[:, n] @ M
        outputs.append(o[:, n] + read_S[:, n] @ S + read_M[:, n] @ M)
        last = [x[:, n, :, -1, None, None] for x in (of_S[1], of_M[1], ends[0])]
        S, M = last[0] * S + last[1] * M + left_S[:, n] @ u, last[2] * M + left_M[:, n] @ u
    joined = torch.stack(outputs, 1).transpose(2, 3).flatten(1, 2)  # (B, n C, H, V)
    return joined[:, :time], S, M


def _chunked(x: Tensor, padding: int, fill: float) -> Tensor:
    """(B, T, H, ...) as (B, n, H, C, ...)."""
    if padding:
        x = torch.cat([x, x.new_full((x.shape[0], padding, *x.shape[2:]), fill)], 1)
    chunks: Tensor = x.unflatten(1, (-1, _CHUNK))
    return chunks.transpose(2, 3)


def _weights(alpha: Tensor, mu: Tensor, beta: Tensor, keep: Tensor) -> tuple[Any, Any, Any, Any]:
    """How much of both memories and of each write is in the memory, before and behind each step.

    Returns:
        For S and for M before the chunk, and for the writes of its steps, the share in S before
        and behind each step, (.., C) or (.., C, C); and that in M behind the last step.
    """
    one, none = torch.ones_like(alpha[..., 0]), torch.zeros_like(alpha)
    S, M, momentum = one, torch.zeros_like(one), one
    written, moving, shares = none, none, []
    for i in range(alpha.shape[-1]):
        a, m, b, r = (x[..., i] for x in (alpha, mu, beta, keep))
        S, M, momentum = r * S, r * M, r * momentum
        written, moving = r[..., None] * written, r[..., None] * moving
        before = S, M, written
        here = torch.zeros_like(alpha)
        here[..., i] = 1
        momentum, moving = m * momentum, m[..., None] * moving + here
        S, M = a * S, a * M + b * momentum
        written = a[..., None] * written + b[..., None] * moving
        shares.append((*before, S, M, written, momentum))
    of_S, of_M, of_writes, S_, M_, writes_, momenta = zip(*shares, strict=True)
    pairs = (
        (torch.stack(of_S, -1), torch.stack(S_, -1)),
        (torch.stack(of_M, -1), torch.stack(M_, -1)),
        (torch.stack(of_writes, -2), torch.stack(writes_, -2)),
    )
    return *pairs, (torch.stack(momenta, -1), moving)
