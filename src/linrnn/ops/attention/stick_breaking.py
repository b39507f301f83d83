"""Weights that break a stick: the nearest entry takes its share first."""

import torch
import torch.nn.functional as F
from torch import Tensor


def stick_breaking_read(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, *, current: bool = False
) -> Tensor:
    """Weights ``A_ts = sigma(z_ts) prod over s < r < t of (1 - sigma(z_tr))``, of several heads.

    Args:
        q, k, v, visible: as in `linrnn.ops.attention.softmax_read`; z are its scores. The last
            query is of the same step as the last key.
        current: a step sees itself too, and r runs up to t.
    """
    q, k, v = (z.transpose(1, 2) for z in (q, k, v))  # (B, H, T, K)
    k, v = (z.repeat_interleave(q.shape[1] // k.shape[1], 1) for z in (k, v))  # (B, H, S, ...)
    time, entries = q.shape[2], k.shape[2]
    attended = visible
    if not current:
        step = torch.arange(entries, device=q.device)
        attended = visible & (step != step[entries - time :, None])
    scores = q @ k.mT * q.shape[3] ** -0.5  # (B, H, T, S)
    left = torch.where(attended[:, None], F.logsigmoid(-scores), 0)
    # (B, H, T, S), of all later entries
    log_left = F.pad(left[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
    share = torch.where(attended[:, None], F.logsigmoid(scores) + log_left, float("-inf"))
    return (share.exp() @ v).transpose(1, 2)  # (B, T, H, V)
