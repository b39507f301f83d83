"""Modes of the LRU for forecasts, and their states with the last value taken out."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn.ops import linear_scan

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


class Reading(NamedTuple):
    """Where the reading of a series stands: of constant size."""

    state: Tensor
    """(channels, modes) complex."""
    last: Tensor
    """(channels,): the last value read."""


class ChangeBank:
    r"""States of modes that read a series, with its last value taken out.

    Equation:
        h_t = lam h_{t-1} + y_t                       the recurrence, were it written out
        f_t = y_t / (1 - lam) - h_t                   its answer to the constant y_t, less itself
            = lam f_{t-1} + lam / (1 - lam) (y_t - y_{t-1})

    ``f`` is a linear recurrence in the changes of the series: what is read after the last value is
    taken out of all of the past costs one scan and no difference of large numbers. Before its
    first value the series is taken to have had that value. Features are the real and the imaginary
    parts of ``sqrt(1 - |lam|^2) f_t``; adding a constant to a series changes none.

    Args:
        modes: (modes,) complex, real ones last.
    """

    def __init__(self, modes: Tensor) -> None:
        self.modes = modes
        self.gain = modes / (1 - modes) * (1 - modes.abs().square()).sqrt()
        self.n_complex = int((modes.imag != 0).sum())
        self.n_features = len(modes) + self.n_complex

    def start(self, first: Tensor) -> Reading:
        """Before the first values (channels,)."""
        return Reading(self.modes.new_zeros(len(first), len(self.modes)), first)

    def read(self, values: Tensor, reading: Reading) -> tuple[Tensor, Reading]:
        """Features (channels, time, features) after each of the values (time, channels)."""
        changes = torch.diff(values, dim=0, prepend=reading.last[None])
        drive = changes.T[..., None] * self.gain  # (C, T, N)
        states, last = linear_scan(self.modes, drive, reading.state)
        return self.features(states), Reading(last, values[-1].clone())

    def features(self, states: Tensor) -> Tensor:
        """(..., features) of states (..., modes)."""
        return torch.cat([states.real, states[..., : self.n_complex].imag], -1)

    def steps_at_once(self, channels: int, horizon: int) -> int:
        """Steps of a block whose states and targets take some tens of megabytes."""
        return max(16, min(2048, 2**21 // (channels * max(len(self.modes), horizon // 2))))
