"""Bands around forecasts, as wide as a back-test says."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError, show
from linrnn.estimators._rolling import Residuals

LEVELS = torch.arange(1, 100, dtype=torch.float64, device="cpu") / 100
"""Coverages whose bands are kept."""
_FEWEST = 1e-12  # of a spread: a band that is not wider has no width
_SHARE = 0.01  # of a width that the earlier half of the windows gives at least
_POOLED = 16  # steps ahead, evenly spaced, that say by how much to widen

_LONGER = "Fit a longer series, a shorter horizon or a larger validation part."


@dataclass(frozen=True, kw_only=True)
class Bands:
    """Half widths of bands, in units of the spread of each channel.

    Equation:
        u = |y_{t+h} - yhat_{t+h}| / spread_t               of the windows t of the back-test
        q_L(h) = quantile of u at L (1 + 1 / n_h)           n_h = windows / sqrt(h)
        half width = widening * q_L(h)

    The windows overlap, so h steps ahead those of n say less than n independent ones, and n_h
    stands for them in the rank of split conformal prediction. ``widening``, at least 1, is what the
    bands of the earlier half of the windows need to cover a share L of the later half.
    """

    widths: Tensor
    """(levels, channels, horizon); infinity where there are too few windows for a level."""
    shown: Tensor
    """(levels, channels, horizon): the share of the later half within bands of the earlier."""
    windows: int
    """Number of windows of the back-test."""

    def highest(self, steps: int) -> float:
        """The largest coverage that the back-test has windows for, at most ``steps`` ahead."""
        finite = self.widths[..., :steps].isfinite().all(2).all(1)
        return float(LEVELS[finite].max()) if bool(finite.any()) else 0.0

    def check_coverage(self, where: str, coverage: float, steps: int) -> None:
        """Raise `ArgumentError` for a level that the back-test is too short for."""
        highest = self._highest_for(where, coverage, steps)
        if highest < coverage:
            raise ArgumentError(
                f"{where}: coverage must be at most {highest:g}, which the {self.windows} windows "
                f"of the back-test can show {steps} steps ahead, got {coverage}. {_LONGER}"
            )

    def check_quantiles(self, where: str, levels: np.ndarray, steps: int) -> None:
        """Raise `ArgumentError` where one is the end of such a band."""
        coverage = float(np.abs(2 * levels - 1).max())
        highest = self._highest_for(where, coverage, steps)
        if highest < coverage:
            low, high = (1 - highest) / 2, (1 + highest) / 2
            raise ArgumentError(
                f"{where}: quantiles must lie between {low:g} and {high:g}, which the "
                f"{self.windows} windows of the back-test can show {steps} steps ahead, got "
                f"{show(levels.tolist())}. {_LONGER}"
            )

    def _highest_for(self, where: str, coverage: float, steps: int) -> float:
        highest = self.highest(steps)
        if highest == 0 < coverage:
            raise ArgumentError(
                f"{where}: the back-test must have enough windows to show a coverage {steps} steps "
                f"ahead, got {self.windows}, too few for any. {_LONGER}"
            )
        return highest + 1e-9

    def at(self, coverage: float) -> Tensor:
        """Half widths (channels, horizon) of a coverage from 0 to `highest`."""
        return _between(torch.cat([torch.zeros_like(self.widths[:1]), self.widths]), coverage)

    def shown_at(self, coverage: float) -> Tensor:
        """Shares (channels, horizon) of the later half that bands of a coverage held."""
        return _between(torch.cat([torch.zeros_like(self.shown[:1]), self.shown]), coverage)


def _between(table: Tensor, level: float) -> Tensor:
    """Straight from one of the levels to the next, the first row being that of 0."""
    place = min(max(level * 100, 0.0), len(table) - 1.0)
    low = min(math.floor(place + 1e-9), len(table) - 1)
    share = max(0.0, place - low)
    if share < 1e-9:
        return table[low]
    return table[low] * (1 - share) + table[low + 1] * share


def calibrate(residuals: Residuals, spreads: Tensor) -> Bands:
    """Bands of what a back-test got wrong.

    Args:
        residuals: of its windows, in their order.
        spreads: (time, channels), see `Spread`.
    """
    origins = residuals.origins
    u = residuals.errors.abs() / spreads[origins][..., None]  # (W, C, H)
    n, half, horizon = len(u), len(u) // 2, u.shape[2]
    widths, earlier = [], []
    for h in range(1, horizon + 1):
        independent = min(n, residuals.steps / math.sqrt(h))
        widths.append(_quantiles(u[..., h - 1], independent))
        # whose horizon ended before the later half began
        past = u[: int((origins + h <= origins[half]).sum()), :, h - 1]
        earlier.append(_quantiles(past, len(past)))
    bounds = torch.stack(widths, 2).clamp_min(_FEWEST)  # (levels, C, H)
    basis = torch.maximum(torch.stack(earlier, 2), _SHARE * bounds)
    later = u[half:]
    widening = _widening(later, basis)
    shown = [(later <= limits).double().mean(0) for limits in basis * widening[..., None]]
    bounds = torch.where(basis.isfinite(), bounds, torch.inf) * widening[..., None]
    reached = torch.stack(shown).cummax(0).values  # (levels, C, H)
    return Bands(widths=bounds.cummax(0).values, shown=reached, windows=n)


def _quantiles(u: Tensor, independent: float) -> Tensor:
    """At `LEVELS`, of u (windows, channels); infinity where there are too few windows."""
    infinite = torch.full((1, u.shape[1]), torch.inf, dtype=u.dtype, device="cpu")
    if not len(u):
        return infinite.expand(len(LEVELS), -1)
    ranks = torch.ceil(LEVELS * len(u) * (1 + 1 / independent) - 1e-9).long()
    return torch.cat([u.sort(0).values, infinite])[(ranks - 1).clamp(0, len(u))]


def _widening(later: Tensor, basis: Tensor) -> Tensor:
    """(levels, channels): the factor with which bands cover their share of the later windows."""
    few = slice(None, None, math.ceil(later.shape[2] / _POOLED))
    later = later[..., few].transpose(0, 1)  # (C, W, H)
    factors = []
    for level, limits in zip(LEVELS.tolist(), basis[..., few], strict=True):
        ratios = (later / limits[:, None]).flatten(1)  # (C, W * H)
        rank = min(ratios.shape[1], math.ceil(level * ratios.shape[1] - 1e-9))
        factors.append(ratios.kthvalue(rank, 1).values)
    # a quotient times its divisor may be a rounding short of the dividend
    return torch.stack(factors).clamp_min(1.0) * (1 + 1e-12)
