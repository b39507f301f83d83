"""Decays between the steps of a sequence, as what they add to scores."""

from torch import Tensor


def forgotten(g: Tensor, time: int) -> Tensor:
    """``G_t - G_s`` of the last ``time`` steps t and all s, G the running sum of ``g``.

    Args:
        g: logarithms of the decay of each step, at most 0, (B, S, H).
        time: how many of the last steps ask.

    Returns:
        (B, H, time, S); of no meaning where s is later than t.

    Example:
        >>> import torch
        >>> forgotten(torch.tensor([-1.0, -2.0, -4.0]).view(1, 3, 1), 1).flatten()
        tensor([-6., -4.,  0.])
    """
    total = g.double().cumsum(1).mT  # (B, H, S)
    last = total[..., total.shape[-1] - time :]
    # near the steps that ask these are small, and far from them a rounding weighs nothing
    total, last = ((z - last[..., :1]).to(g.dtype) for z in (total, last))
    return last[..., None] - total[..., None, :]
