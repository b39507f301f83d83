"""Evidence that a forecaster's errors have become larger than those it was calibrated with."""

import warnings
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from linrnn.errors import DriftWarning
from linrnn.estimators._forecast_series import Series

BOUND = 5000.0
"""Smallest evidence of a notice; a false one comes in as many steps or more in the mean."""
_POWERS = np.array([0.4, 0.6, 0.8])
_SMALLEST = 0.005  # p-value: no single error says more
_LARGEST = 1e300  # evidence stays finite
_OCTAVE = 32  # bins between an error and one twice as large
_BINS = 40 * _OCTAVE  # from 2^-20 to 2^20 units


@dataclass(frozen=True, kw_only=True)
class Drift:
    r"""Conformal Shiryaev-Roberts statistics of absolute errors, one for each channel.

    Equation:
        p_t = (number of |e_s| >= |e_t|, s <= t) / t          the errors of the back-test first
        R_t = mean over k of R_t^k,   R_t^k = (R_{t-1}^k + 1) k max(p_t, 0.005)^(k-1)
        notice when R_t >= 5000 channels                      k = 0.4, 0.6, 0.8

    If the errors of the back-test and those since are exchangeable, ``R_t - t`` falls in the mean.
    So a false notice in any of the channels comes after 5,000 steps or more in the mean, and within
    T steps with probability T / 5000 at most. Errors are counted in bins, 32 from one size to twice
    that, so memory is constant. Errors of one bin count as equal, which only lowers ``R``.

    Reference:
        Vovk et al. 2021, arXiv:2102.10439 (conformal Shiryaev-Roberts); Vovk, Nouretdinov and
        Gammerman, "Testing exchangeability on-line", 2003 (powers of p-values as bets); Shin,
        Ramdas and Rinaldo 2022, arXiv:2203.03532 (means of such statistics).
    """

    steps: int
    """How many were read since the back-test."""
    tails: np.ndarray
    """(channels, bins): how many errors were in a bin or above it."""
    evidence: np.ndarray
    """(channels, powers)"""
    first: np.ndarray
    """(channels,): the step of the notice, from 1; 0 where there is none."""

    @classmethod
    def of(cls, errors: Tensor) -> "Drift":
        """After errors (channels, windows) of a back-test, in units of each channel's scale."""
        channels = len(errors)
        counts = np.stack([np.bincount(row, minlength=_BINS) for row in _bins(errors)])
        tails = counts[:, ::-1].cumsum(1)[:, ::-1].copy()
        nothing = np.zeros((channels, len(_POWERS)))
        return cls(steps=0, tails=tails, evidence=nothing, first=np.zeros(channels, np.int64))

    def read(self, errors: Tensor) -> "Drift":
        """After the next errors (channels, steps); this one stays as it was."""
        tails, evidence, first = self.tails.copy(), self.evidence.copy(), self.first.copy()
        bound = BOUND * len(tails)
        for c, row in enumerate(_bins(errors)):
            tail, past = tails[c], evidence[c]
            for step, place in enumerate(row.tolist(), self.steps + 1):
                tail[: place + 1] += 1
                p = max(float(tail[place] / tail[0]), _SMALLEST)
                past = np.minimum((past + 1) * _POWERS * p ** (_POWERS - 1), _LARGEST)
                if not first[c] and past.mean() >= bound:
                    first[c] = step
            evidence[c] = past
        steps = self.steps + errors.shape[1]
        return replace(self, steps=steps, tails=tails, evidence=evidence, first=first)

    def warn(self, before: "Drift", form: Series) -> None:
        """A `DriftWarning` at the caller of `update`, of channels without a notice before.

        Args:
            before: the statistics before the update.
            form: of the series of ``fit``, which names the channels.
        """
        new = np.flatnonzero(self.first != before.first).tolist()
        if new:
            warnings.warn(
                f"RecurrentForecaster.update: forecasts {form.said(new)}one step ahead are further "
                f"off than in the back-test of fit, after {self.steps} values since. Bands may "
                f"cover less than they say. By chance this comes once in {BOUND:g} values or more "
                "in the mean. If the series has changed for good, fit its recent part.",
                DriftWarning,
                stacklevel=3,
            )


def _bins(errors: Tensor) -> np.ndarray:
    """Places of absolute errors, of the same shape; one that is no number counts as the largest."""
    sizes = errors.abs().nan_to_num(nan=float("inf")).log2() * _OCTAVE + _BINS // 2
    bins: np.ndarray = sizes.floor().clamp(0, _BINS - 1).long().numpy()
    return bins
