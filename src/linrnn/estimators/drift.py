"""Evidence that a forecaster's errors have become larger than those it was calibrated with."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import DriftWarning

BOUND = 5000.0
"""Smallest evidence of a notice; a false one comes in as many steps or more in the mean."""
ADVICE = (
    f"Bands may cover less than they say. By chance this comes once in {BOUND:g} values or more in "
    "the mean. If the series has changed for good, fit its recent part."
)
_SMALLEST = 0.005  # p-value: no single error says more
_LARGEST = 1e300  # evidence stays finite
_OCTAVE = 16  # bins between an error and one twice as large
_NEAR, _FAR = 2.0**-20, 2.0**12  # sizes of errors that bins tell apart, in units of the scale
_BINS = 32 * _OCTAVE + 1


@dataclass(frozen=True, kw_only=True)
class Drift:
    r"""Conformal Shiryaev-Roberts statistics of absolute errors, one for each channel.

    Equation:
        p_t = (number of |e_s| >= |e_t|, s <= t) / t          the errors of the back-test first
        R_t = mean over k of R_t^k,   R_t^k = (R_{t-1}^k + 1) k max(p_t, 0.005)^(k-1)
        notice when R_t >= 5000 channels                      k = 0.4, 0.6, 0.8

    If the errors of the back-test and those since are exchangeable, ``R_t - t`` falls in the mean.
    So a false notice in any of the channels comes after 5,000 steps or more in the mean, and within
    T steps with probability T / 5000 at most. Errors are counted in bins, 16 from one size to twice
    that, so memory is constant. Errors of one bin count as equal, which only lowers ``R``.

    Values that did not come are not judged, nor are as many after them: the forecasts of those have
    read what did not come.

    Reference:
        Vovk et al. 2021, arXiv:2102.10439 (conformal Shiryaev-Roberts); Vovk, Nouretdinov and
        Gammerman, "Testing exchangeability on-line", 2003 (powers of p-values as bets); Shin,
        Ramdas and Rinaldo 2022, arXiv:2203.03532 (means of such statistics).
    """

    steps: int
    """How many were read since the back-test."""
    tails: np.ndarray
    """(channels, bins): how many errors were in a bin or above it."""
    evidence: list[tuple[float, float, float]]
    """R of k = 0.4, 0.6 and 0.8, of each channel."""
    pause: tuple[int, ...]
    """For how many more steps of each channel errors are not judged, after a gap."""
    first: tuple[int, ...]
    """The step of the notice of each channel, from 1; 0 where there is none."""

    @classmethod
    def of(cls, errors: Tensor) -> "Drift":
        """After errors (channels, windows) of a back-test, in units of each channel's scale."""
        counts = np.stack([np.bincount(row, minlength=_BINS) for row in _bins(errors)])
        return cls.after(counts[:, ::-1].cumsum(1)[:, ::-1].astype(float))

    @classmethod
    def after(cls, tails: np.ndarray) -> "Drift":
        """After a back-test with ``tails``."""
        none = (0,) * len(tails)
        evidence = [(0.0, 0.0, 0.0)] * len(tails)
        return cls(steps=0, tails=tails, evidence=evidence, pause=none, first=none)

    def read(self, errors: Tensor, missing: Tensor | None = None) -> "Drift":
        """After the next errors (channels, steps); this one stays as it was.

        Args:
            errors: in the same units.
            missing: (steps, channels), which values did not come; None: all did.
        """
        pause = self.pause
        if missing is not None or any(pause):
            errors, pause = self._judged(errors, missing)
        tails, evidence, first = self.tails.copy(), [], self.first
        enough = 3 * BOUND * len(tails)
        for c, row in enumerate(_bins(errors)):
            tail, (r4, r6, r8), notice = tails[c], self.evidence[c], first[c]
            for step, place in enumerate(row, self.steps + 1):
                if place < 0:
                    continue
                tail[: place + 1] += 1
                bet = max(tail.item(place) / tail.item(0), _SMALLEST) ** -0.2
                r8 = min((r8 + 1) * 0.8 * bet, _LARGEST)
                r6 = min((r6 + 1) * 0.6 * bet * bet, _LARGEST)
                r4 = min((r4 + 1) * 0.4 * bet * bet * bet, _LARGEST)
                if not notice and r4 + r6 + r8 >= enough:
                    notice = step
            evidence.append((r4, r6, r8))
            if notice != first[c]:
                first = (*first[:c], notice, *first[c + 1 :])
        steps = self.steps + errors.shape[1]
        return Drift(steps=steps, tails=tails, evidence=evidence, pause=pause, first=first)

    def _judged(self, errors: Tensor, missing: Tensor | None) -> tuple[Tensor, tuple[int, ...]]:
        """The errors, NaN where they are not judged, and the pauses after them."""
        errors, pauses = errors.clone(), []
        gaps = torch.zeros_like(errors.T, dtype=torch.bool) if missing is None else missing
        for c, pause in enumerate(self.pause):
            skipped = []
            for gap in gaps[:, c].tolist():
                skipped.append(gap or pause > 0)
                pause = pause + 1 if gap else max(0, pause - 1)
            errors[c, torch.tensor(skipped, device="cpu")] = torch.nan
            pauses.append(pause)
        return errors, tuple(pauses)

    def new(self, before: "Drift") -> list[int]:
        """Channels that have a notice here and had none before."""
        return [c for c, step in enumerate(self.first) if step != before.first[c]]

    def warn(self, before: "Drift", said: Callable[[list[int]], str]) -> None:
        """A `DriftWarning` at the caller of `update`, of channels without a notice before.

        Args:
            before: the statistics before the update.
            said: words some channels, as `Series.said` of the series of ``fit``.
        """
        if new := self.new(before):
            warnings.warn(
                f"RecurrentForecaster.update: forecasts {said(new)}one step ahead are further "
                f"off than in the back-test of fit, after {self.steps} values since. {ADVICE}",
                DriftWarning,
                stacklevel=3,
            )


def _bins(errors: Tensor) -> list[list[int]]:
    """Places of absolute errors (channels, steps); -1 for NaN."""
    sizes = np.abs(errors.numpy())
    bins = (np.log2(np.maximum(np.fmin(sizes, _FAR), _NEAR)) + 20) * _OCTAVE
    places: list[list[int]] = np.where(np.isnan(sizes), -1, bins).astype(np.int64).tolist()
    return places
