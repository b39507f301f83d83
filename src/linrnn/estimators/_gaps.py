"""Gaps of a series: where they are, and a read-out for those of one length."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from linrnn.estimators._ridge import ridges
from linrnn.nn.change_bank import ChangeBank

_PENALTIES = np.logspace(-1, 5, 9).tolist()
_ROWS = 3000  # of a regression
_FEWEST = 40  # of these; with fewer a line is drawn
_KNOTS = 16  # places in a gap that have coefficients; between them these are interpolated
_HELD_OUT = 0.25  # last share of the rows, which says how far the read-out is trusted


class Gap(NamedTuple):
    """Steps that are missing in one channel, first and last."""

    first: int
    last: int

    @property
    def steps(self) -> int:
        """How many."""
        return self.last - self.first + 1


def gaps_of(missing: np.ndarray) -> list[Gap]:
    """Stretches of True, in order."""
    edges = np.diff(np.r_[0, missing.astype(int), 0])
    firsts, lasts = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return [Gap(a, b) for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True)]


def lines(x: np.ndarray) -> np.ndarray:
    """Series (time, channels) with lines in the gaps, and the nearest value at the ends."""
    filled, steps = x.copy(), np.arange(len(x))
    for column in filled.T:
        observed = ~np.isnan(column)
        if observed.any():
            column[~observed] = np.interp(steps[~observed], steps[observed], column[observed])
    return filled


class Sides(NamedTuple):
    """A series, and what frozen modes remember of it at each step on either side of a gap."""

    x: np.ndarray
    """(time, channels), with lines in the gaps, in units of each channel's spread."""
    missing: np.ndarray
    """(time, channels)."""
    before: np.ndarray
    """(channels, time, features): what the past says, with that step read."""
    after: np.ndarray
    """(channels, time, features): what the future says, read backwards."""

    @classmethod
    def of(cls, x: np.ndarray, missing: np.ndarray, bank: ChangeBank) -> "Sides":
        """Read a series without gaps in both directions."""
        forward = torch.from_numpy(np.ascontiguousarray(x))
        forward_features, _ = bank.read(forward, bank.start(forward[0]))
        backward_features, _ = bank.read(forward.flip(0), bank.start(forward[-1]))
        return cls(x, missing, forward_features.numpy(), backward_features.flip(1).numpy())


class Rule(NamedTuple):
    """Inputs of the regression that fills gaps of one kind.

    A gap between two values starts from the line that joins them. One at the beginning or the end
    of a series has a value on one side only, and starts from it.
    """

    channel: int
    steps: int
    left: bool
    """Whether there is a value before the gap."""
    right: bool
    """Whether there is one behind it."""
    others: bool
    """Whether other channels are read at the steps of the gap."""
    seasons: tuple[int, ...]
    """In steps; values as many seasons away as lie outside the gap are read."""

    def base(self, left: np.ndarray, right: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Values on the line at the places k of the gap, from those at its sides."""
        if self.left and self.right:
            line: np.ndarray = left + (right - left) * (k / (self.steps + 1))
            return line
        return left + 0.0 * k if self.left else right + 0.0 * k

    def still(self, sides: Sides, at: np.ndarray) -> np.ndarray:
        """(rows, features): what does not depend on the place, for left sides ``at``."""
        c, end = self.channel, at + self.steps + 1
        parts = []
        if self.left:
            parts.append(sides.before[c, at])
        if self.right:
            parts.append(sides.after[c, end])
        if self.left and self.right:
            parts.append((sides.x[end, c] - sides.x[at, c])[:, None])
        return np.concatenate(parts, 1)

    def moving(self, sides: Sides, at: np.ndarray, k: int) -> np.ndarray:
        """(rows, series): how far others are from their lines at place k, 1 to ``steps``."""
        n, end = len(sides.x), at + self.steps + 1
        columns = []
        if self.others:
            columns += [(o, 0) for o in range(sides.x.shape[1]) if o != self.channel]
        for season in self.seasons:
            away = season * -(-(self.steps + 1) // season)
            columns += [(self.channel, -away), (self.channel, away)]
        moving = np.zeros((len(at), len(columns)))
        for place, (o, shift) in zip(moving.T, columns, strict=True):
            a, b = (at if self.left else end) + shift, (end if self.right else at) + shift
            inside = (np.minimum(a, b) >= 0) & (np.maximum(a, b) < n)
            step = at + k + shift
            inside &= (step >= 0) & (step < n)
            a, b, step = a[inside], b[inside], step[inside]
            base = self.base(sides.x[a, o], sides.x[b, o], np.full(len(a), k))
            place[inside] = sides.x[step, o] - base
        if not self.others:
            return moving
        # values themselves, beside how far they are from their lines: ends of lines have noise
        n_others = sides.x.shape[1] - 1
        levels = [sides.x[at + k, o] for o, _ in columns[:n_others]]
        x = sides.x[:, self.channel]
        left, right = x[at] if self.left else x[end], x[end] if self.right else x[at]
        levels.append(self.base(left, right, np.full(len(at), k)))
        return np.concatenate([moving, np.stack(levels, 1)], 1)


class Filling(NamedTuple):
    """Coefficients of a rule at some places of the gap, and how far they are trusted."""

    rule: Rule
    knots: np.ndarray
    coefficients: np.ndarray
    """(knots, features + 1), the last of a constant."""
    trust: float
    """From 0, the line alone, to 1."""
    farthest: float
    """From the line, of the values that it was fitted to."""

    @classmethod
    def fit(cls, rule: Rule, sides: Sides) -> "Filling":
        """Fit to all stretches of the series that have no gap, and look like it has.

        The last stretches choose the penalty, as they overlap none of the first. A stretch that is
        left out alone overlaps many. With those, gaps of 24 steps in three sensors had an error of
        0.29, now 0.19.
        """
        knots = np.unique(np.linspace(1, rule.steps, min(rule.steps, _KNOTS)).round().astype(int))
        at = _whole(rule, sides)
        if len(at) < _FEWEST:
            return cls(rule, knots, np.zeros((len(knots), 0)), 0.0, 0.0)
        first = at[: int((1 - _HELD_OUT) * len(at))]
        judged = at[at > first[-1] + rule.steps + 1]
        still = rule.still(sides, at)
        products, squares = np.zeros((2, len(_PENALTIES)))
        if len(first) >= _FEWEST and len(judged) >= _FEWEST // 4:
            values = still[np.searchsorted(at, judged)]
            for k in knots.tolist():
                weights = _solve(rule, sides, first, still[: len(first)], k, _PENALTIES)
                away = _apply(weights, values, rule.moving(sides, judged, k))  # (penalties, rows)
                target = _away(rule, sides, judged, k)
                products += away @ target
                squares += np.square(away).sum(1)
        trusts = np.clip(products / np.where(squares > 0, squares, 1.0), 0.0, 1.0)
        errors = trusts**2 * squares - 2 * trusts * products  # less those of the line
        best = int(errors.argmin())
        trust = float(trusts[best])
        if not trust:
            return cls(rule, knots, np.zeros((len(knots), 0)), 0.0, 0.0)
        penalty = _PENALTIES[best : best + 1]
        fitted = [_solve(rule, sides, at, still, k, penalty)[0] for k in knots.tolist()]
        farthest = max(float(np.abs(_away(rule, sides, at, k)).max()) for k in knots.tolist())
        return cls(rule, knots, np.stack(fitted), trust, farthest)

    def fill(self, sides: Sides, gap: Gap) -> np.ndarray:
        """The values of a gap, (steps,)."""
        rule, at = self.rule, np.array([gap.first - 1])
        k = np.arange(1, gap.steps + 1)
        left = sides.x[gap.first - 1, rule.channel] if rule.left else 0.0
        right = sides.x[gap.last + 1, rule.channel] if rule.right else 0.0
        base = rule.base(np.asarray(left), np.asarray(right), k)
        if not self.trust:
            return base
        still = rule.still(sides, at)
        weights = np.stack([np.interp(k, self.knots, w) for w in self.coefficients.T], 1)
        away = [
            _apply(w, still, rule.moving(sides, at, int(place)))[0]
            for place, w in zip(k, weights, strict=True)
        ]
        filled: np.ndarray = base + self.trust * np.clip(away, -self.farthest, self.farthest)
        return filled


class Round(NamedTuple):
    """One pass over all gaps: the series it is fitted to, and the read-outs for each kind."""

    sides: Sides
    fillings: dict[Rule, Filling]


def _whole(rule: Rule, sides: Sides) -> np.ndarray:
    """Steps before stretches without a gap in the channel; some of them, if they are many."""
    n, width = len(sides.x), rule.steps + 2
    if n < width:
        return np.empty(0, int)
    count = np.r_[0, np.cumsum(sides.missing[:, rule.channel])]
    at = np.flatnonzero(count[width:] == count[: n - width + 1])
    return at[:: -(-len(at) // _ROWS)] if len(at) > _ROWS else at


def _away(rule: Rule, sides: Sides, at: np.ndarray, k: int) -> np.ndarray:
    """How far values at place k are from their lines."""
    x = sides.x[:, rule.channel]
    places = np.full(len(at), k)
    away: np.ndarray = x[at + k] - rule.base(x[at], x[at + rule.steps + 1], places)
    return away


def _solve(
    rule: Rule, sides: Sides, at: np.ndarray, still: np.ndarray, k: int, penalties: Sequence[float]
) -> np.ndarray:
    """(penalties, features + 1): the coefficients at place k, the last a constant."""
    features = np.concatenate([still, rule.moving(sides, at, k)], 1)
    mean, scale = features.mean(0), features.std(0)
    scale = np.where(scale > 0, scale, np.inf)
    target = _away(rule, sides, at, k)
    centred = (target - target.mean())[:, None]
    weights = ridges((features - mean) / scale, centred, penalties)[..., 0] / scale
    both: np.ndarray = np.c_[weights, target.mean() - weights @ mean]
    return both


def _apply(weights: np.ndarray, still: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """Away from the line by coefficients (..., features + 1): (..., rows)."""
    n = still.shape[1]
    away: np.ndarray = (
        weights[..., :n] @ still.T + weights[..., n:-1] @ moving.T + weights[..., -1:]
    )
    return away
