r"""Attention whose keys are reflected by every step after their own.

    H_t = I - u_t u_t^T,   score_ts = q_t^T H_t H_{t-1} ... H_{s+1} k_s

A product of such matrices is I less a product of three, as in the delta rule, by one triangular
system a block (`_solved`). Queries go back in time from block to block, and keys stay where they
are, so that nothing of the size of all keys is stored for each block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.composed import composed
from linrnn.ops.attention.forgetting import forgotten

# A training step of PaTH attention (64 channels, 1 row of 1,024 steps) takes 1.25 times as long
# with 16, 1.00 with 32 and 1.02 with 128 (2026-11-29, EPYC with AVX-512, one core of a shared
# machine, in turn).
BLOCK = 64
"""Steps of a block of keys before the queries."""


def path_read(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Weights that add up to 1, of keys that were reflected on the way, of several heads.

    Args:
        q: (B, T, H, K).
        k: keys, u and, where scores decay, the logarithm of each step's decay, side by side,
            (B, S, H, 2 K) or (B, S, H, 2 K + 1). Entries of an earlier call have u = 0.
        v, visible: as in `linrnn.ops.attention.softmax_read`; the last query is of the same step
            as the last key.
    """
    size = q.shape[-1]
    keys, u = (z.transpose(1, 2) for z in k[..., : 2 * size].chunk(2, -1))  # (B, H, S, K)
    scores = path_scores(q.transpose(1, 2), keys, u) * size**-0.5  # (B, H, T, S)
    if k.shape[-1] > 2 * size:
        scores = scores + forgotten(k[..., -1], q.shape[1])
    weights = torch.where(visible[:, None], scores, float("-inf")).softmax(-1)
    y: Tensor = (weights @ v.transpose(1, 2)).transpose(1, 2)  # (B, T, H, V)
    return y


def path_scores(q: Tensor, k: Tensor, u: Tensor) -> Tensor:
    """``q_t^T H_t ... H_{s+1} k_s``, of no meaning where s is later than t: (B, H, T, S).

    Args:
        q: of the last steps, (B, H, T, K).
        k, u: of all steps, (B, H, S, K).
    """
    past = k.shape[2] - q.shape[2]
    of_keys, of_u = _solved(k[:, :, past:], u[:, :, past:])
    met = (q @ u[:, :, past:].mT).tril()  # (B, H, T, T)
    scores = [q @ k[:, :, past:].mT - met @ of_keys]  # (B, H, T, T)
    q = q - met @ of_u  # of the step before the first  # (B, H, T, K)
    k, u = (_in_blocks(z[:, :, :past]) for z in (k, u))  # (B, H, blocks, BLOCK, K)
    of_keys, of_u = _solved(k, u)
    k = k - of_keys.mT @ u  # at the end of their block  # (B, H, blocks, BLOCK, K)
    for block in range(k.shape[2] - 1, -1, -1):
        scores.append(q @ k[:, :, block].mT)  # (B, H, T, BLOCK)
        q = q - q @ u[:, :, block].mT @ of_u[:, :, block]  # (B, H, T, K)
    every = torch.cat(scores[::-1], -1)  # (B, H, T, blocks * BLOCK + T)
    return every[..., every.shape[-1] - past - scores[0].shape[-1] :]


def carried_keys(k: Tensor, u: Tensor) -> Tensor:
    """``H_T ... H_{s+1} k_s``: the keys of all steps s after the last one, T.

    A key is NaN where a step after it, or its own, is not finite; others are not touched by that.

    Args:
        k, u: (B, S, H, K).

    Example:
        >>> k = torch.tensor([[3.0, 4.0], [0.0, 1.0]]).view(1, 2, 1, 2)
        >>> u = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).view(1, 2, 1, 2)
        >>> carried_keys(k, u).view(2, 2)
        tensor([[0., 4.],
                [0., 1.]])
    """
    bad = ~(k.isfinite().flatten(2).all(-1) & u.isfinite().flatten(2).all(-1))  # (B, S)
    k, u = (torch.where(bad[..., None, None], 0, z) for z in (k, u))
    later = bad.flip(1).cumsum(1).flip(1) > 0
    carried: Tensor = torch.where(later[..., None, None], float("nan"), _carried(k, u)[0])
    return carried


def _shapes(k: Tensor, u: Tensor) -> tuple[Tensor]:
    return (k.new_empty(k.shape),)


@composed("carry_keys", "Tensor k, Tensor u", _shapes)
def _carried(k: Tensor, u: Tensor) -> tuple[Tensor]:
    """The keys block by block, the last first: later blocks are one matrix for all before."""
    entries = k.shape[1]
    k, u = (_in_blocks(z.transpose(1, 2)) for z in (k, u))  # (B, H, blocks, BLOCK, K)
    of_keys, of_u = _solved(k, u)
    k = k - of_keys.mT @ u  # (B, H, blocks, BLOCK, K)
    parts: list[Tensor] = []
    later = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    for block in range(k.shape[2] - 1, -1, -1):
        parts.append(k[:, :, block] @ later)  # (B, H, BLOCK, K)
        later = later - of_u[:, :, block].mT @ (u[:, :, block] @ later)  # (B, H, K, K)
    every = torch.cat(parts[::-1], 2) if parts else k.flatten(2, 3)  # (B, H, blocks * BLOCK, K)
    return (every[:, :, every.shape[2] - entries :].transpose(1, 2).contiguous(),)  # (B, S, H, K)


def _in_blocks(x: Tensor) -> Tensor:
    """(B, H, S, K) as (B, H, blocks, BLOCK, K), with zeros in front."""
    # (B, H, blocks, BLOCK, K)
    blocks: Tensor = F.pad(x, (0, 0, -x.shape[2] % BLOCK, 0)).unflatten(2, (-1, BLOCK))
    return blocks


def _solved(k: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """``M stril(u k^T)`` and ``M u``, M the inverse of ``I + stril(u u^T)``, of (..., C, K).

    Then ``H_C ... H_1 = I - u^T M u``.
    """
    both = torch.cat([(u @ k.mT).tril(-1), u], -1)  # (..., C, C + K)
    lower = (u @ u.mT).tril(-1)  # (..., C, C)
    solved = torch.linalg.solve_triangular(lower, both, upper=False, unitriangular=True)
    of_keys, of_u = solved.split([u.shape[-2], u.shape[-1]], -1)  # (..., n, n), (..., n, K)
    return of_keys, of_u
