"""Frozen modes that read how a series changes: their states do not depend on its level."""

from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.ops import linear_scan


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
