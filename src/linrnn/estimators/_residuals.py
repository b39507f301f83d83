"""How far forecasts were from what came, as quantiles."""

import numpy as np
import torch
from torch import Tensor

LEVELS = np.arange(1, 200) / 200
"""Quantiles that are kept."""


def residual_quantiles(residuals: Tensor) -> Tensor:
    r"""Quantiles at `LEVELS` of residuals (rows, ...), in place of their rows.

    Of n residuals the one of rank ``ceil((n + 1) q)`` stands for a level q above one half, of rank
    ``floor((n + 1) q)`` below, within 1 and n: the ranks of split conformal prediction (Vovk,
    Gammerman & Shafer 2005; Lei et al. 2018, arXiv:1604.04173), which cover at least q where the
    next residual is exchangeable with these. Those of a series are so only roughly.
    """
    n = len(residuals)
    above = LEVELS > 0.5
    ranks = np.where(above, np.ceil((n + 1) * LEVELS - 1e-9), np.floor((n + 1) * LEVELS + 1e-9))
    places = torch.from_numpy(np.clip(ranks, 1, n).astype(np.int64) - 1)
    return residuals.sort(0).values[places]


def at_levels(kept: Tensor, levels: np.ndarray) -> Tensor:
    """Quantiles (levels, ...) between those kept, straight from one to the next."""
    place = torch.from_numpy(levels * 200 - 1).clamp(0, len(LEVELS) - 1)
    low = place.floor().long().clamp(max=len(LEVELS) - 2)
    share = (place - low).reshape(-1, *[1] * (kept.ndim - 1))
    return kept[low] * (1 - share) + kept[low + 1] * share
