"""Modes of the LRU for forecasts: at harmonics of the seasons, random ones, and decays."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_HARMONICS = 10  # of all seasons together
_MEMORIES = 21  # seasons, of the slowest modes


def draw_modes(
    n_modes: int, seasons: Sequence[float], unit: float, longest: float, rng: np.random.Generator
) -> Tensor:
    r"""Eigenvalues ``lam = exp(-1/m + 2 pi i / p)``, of memory m and period p, in steps.

    A quarter lies at harmonics ``p = season / k``, k = 1 to 10 over the number of seasons (at most
    half a season), with memories spaced by equal factors from one to 21 seasons; nine sixteenths
    are random, m log-uniform from 1 to 7 units and p from 2 to 14 units; the rest are real decays,
    m spaced by equal factors from 1 to 21 units. Without a season the first quarter is random too.

    Args:
        n_modes: of all three kinds.
        seasons: their lengths in steps; none at all is allowed.
        unit: in steps, what the memories of the random and the real modes are measured in.
        longest: memory in steps that none exceeds.
        rng: draws the random ones.

    Returns:
        (n_modes,) complex128; the real decays are last.
    """
    n_seasonal = n_modes // 4 if seasons else 0
    n_real = 3 * n_modes // 16
    seasonal = _at_harmonics(n_seasonal, seasons, longest)
    n_random = n_modes - n_real - len(seasonal)
    memory = _log_uniform(rng, 1, min(7 * unit, longest), n_random)
    period = _log_uniform(rng, 2, 14 * unit, n_random)
    random = np.exp(-1 / memory + 2j * np.pi / period)
    decays = np.exp(-1 / np.geomspace(1, max(2, min(_MEMORIES * unit, longest)), n_real))
    return torch.from_numpy(np.concatenate([seasonal, random, decays.astype(np.complex128)]))


def _log_uniform(rng: np.random.Generator, low: float, high: float, size: int) -> np.ndarray:
    return np.asarray(np.exp(rng.uniform(math.log(low), math.log(max(high, 2 * low)), size)))


def _at_harmonics(size: int, seasons: Sequence[float], longest: float) -> np.ndarray:
    modes = []
    for i, season in enumerate(seasons):
        share = (size + i) // len(seasons)
        n_harmonics = max(1, min(_HARMONICS // len(seasons), int(season // 2)))
        n_memories = -(-share // n_harmonics)
        low, high = min(season, longest), min(_MEMORIES * season, longest)
        memories = np.geomspace(low, high, n_memories)
        harmonics = np.arange(1, n_harmonics + 1)
        grid = -1 / memories[:, None] + 2j * np.pi * harmonics / season
        modes.append(np.exp(grid).ravel()[:share])
    return np.concatenate(modes) if modes else np.empty(0, np.complex128)
