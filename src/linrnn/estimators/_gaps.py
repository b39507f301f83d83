"""Gaps of a series: where they are, and a read-out for those of one length."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from linrnn.estimators._ridge import ridges
from linrnn.estimators._shares import shares_of
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
    others: tuple[int, ...]
    """Other channels that are read at the steps of the gap."""
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
        columns += [(o, 0) for o in self.others]
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
        levels = [sides.x[at + k, o] for o in self.others]
        x = sides.x[:, self.channel]
        left, right = x[at] if self.left else x[end], x[end] if self.right else x[at]
        levels.append(self.base(left, right, np.full(len(at), k)))
        return np.concatenate([moving, np.stack(levels, 1)], 1)


class Filling(NamedTuple):
    """Values for gaps of one kind: a line, and shares of others where these were better."""

    rule: Rule
    knots: np.ndarray
    coefficients: np.ndarray
    """(knots, features + 1), the last of a constant; without features there is no read-out."""
    chain: np.ndarray
    """(other channels + 1,): a regression on the other channels at the same step, or none."""
    shares: np.ndarray
    """(4,): of the read-out, the mean, the value beside the gap, and the chain; the rest of 1 is
    that of the line."""
    farthest: float
    """From the line, of the values that the read-out was fitted to."""

    @classmethod
    def fit(cls, rule: Rule, sides: Sides) -> "Filling":
        """Fit to all stretches of the series between two values, as far apart as those of the gap.

        The last stretches choose the penalty and the shares, as they overlap none of the first. A
        stretch that is left out alone overlaps many. With those, gaps of 24 steps in three sensors
        had an error of 0.29, now 0.16.
        """
        knots = np.unique(np.linspace(1, rule.steps, min(rule.steps, _KNOTS)).round().astype(int))
        at = _stretches(rule, sides)
        first = at[: int((1 - _HELD_OUT) * len(at))]
        judged = at[at > first[-1] + rule.steps + 1] if len(first) else at
        if min(len(first), 4 * len(judged)) < _FEWEST:
            return cls._without_read_out(rule, sides, knots, at)
        trial = _Trial.of(rule, sides, first, judged, knots, _PENALTIES)
        trusts = np.clip(trial.products / np.maximum(trial.squares, 1e-300), 0.0, 1.0)
        best = int((trusts**2 * trial.squares - 2 * trusts * trial.products).argmin())
        shares = shares_of(np.stack([trial.read_out[best], *trial.others]), trial.target)
        chain = _chain(rule, sides, len(sides.x))
        if not shares[0]:
            return cls(rule, knots, np.zeros((len(knots), 0)), chain, shares, 0.0)
        still, penalty = rule.still(sides, at), _PENALTIES[best : best + 1]
        fitted = [_solve(rule, sides, at, still, k, penalty)[0] for k in knots.tolist()]
        farthest = max(float(np.abs(_away(rule, sides, at, k)).max()) for k in knots.tolist())
        return cls(rule, knots, np.stack(fitted), chain, shares, farthest)

    @classmethod
    def _without_read_out(
        cls, rule: Rule, sides: Sides, knots: np.ndarray, at: np.ndarray
    ) -> "Filling":
        """Shares of what needs no read-out, by all stretches; the line alone if there are few."""
        shares = np.zeros(4)
        if len(at) >= _FEWEST // 4:
            trial = _Trial.of(rule, sides, at[:0], at, knots, ())
            shares[1:] = shares_of(trial.others, trial.target)
        chain = _chain(rule, sides, len(sides.x))
        return cls(rule, knots, np.zeros((len(knots), 0)), chain, shares, 0.0)

    def fill(self, sides: Sides, gap: Gap) -> np.ndarray:
        """The values of a gap, (steps,)."""
        rule, at = self.rule, np.array([gap.first - 1])
        k = np.arange(1, gap.steps + 1)
        left = sides.x[gap.first - 1, rule.channel] if rule.left else 0.0
        right = sides.x[gap.last + 1, rule.channel] if rule.right else 0.0
        base = rule.base(np.asarray(left), np.asarray(right), k)
        filled = base + self.shares[1:] @ _others_away(
            rule, sides, gap.first - 1 + k, base, left, self.chain
        )
        if not self.shares[0]:
            return np.asarray(filled)
        still = rule.still(sides, at)
        weights = np.stack([np.interp(k, self.knots, w) for w in self.coefficients.T], 1)
        away = [
            _apply(w, still, rule.moving(sides, at, int(place)))[0]
            for place, w in zip(k, weights, strict=True)
        ]
        return np.asarray(filled + self.shares[0] * np.clip(away, -self.farthest, self.farthest))


class _Trial(NamedTuple):
    """How far answers on some stretches are from the lines, at all knots one after the other."""

    target: np.ndarray
    """(rows,)."""
    read_out: np.ndarray
    """(penalties, rows): fitted to earlier stretches."""
    others: np.ndarray
    """(3, rows): the mean, the value beside the gap, and the chain."""

    @classmethod
    def of(
        cls,
        rule: Rule,
        sides: Sides,
        first: np.ndarray,
        judged: np.ndarray,
        knots: np.ndarray,
        penalties: Sequence[float],
    ) -> "_Trial":
        early, told = rule.still(sides, first), rule.still(sides, judged)
        chain = _chain(rule, sides, int(first[-1]) + rule.steps + 2 if len(first) else len(sides.x))
        x, targets, read_outs, others = sides.x[:, rule.channel], [], [], []
        for k in knots.tolist():
            seen = _seen(rule, sides, judged, k)
            at = judged[seen]
            targets.append(_away(rule, sides, at, k))
            if len(penalties):
                weights = _solve(rule, sides, first, early, k, penalties)
                read_outs.append(_apply(weights, told[seen], rule.moving(sides, at, k)))
            base = x[at + k] - targets[-1]
            others.append(_others_away(rule, sides, at + k, base, x[at], chain))
        read_out = np.concatenate(read_outs, 1) if read_outs else np.empty((0, 0))
        return cls(np.concatenate(targets), read_out, np.concatenate(others, 1))

    @property
    def products(self) -> np.ndarray:
        """(penalties,): of read-out and target."""
        return np.asarray(self.read_out @ self.target)

    @property
    def squares(self) -> np.ndarray:
        """(penalties,): of the read-out."""
        return np.asarray(np.square(self.read_out).sum(1))


class Round(NamedTuple):
    """One pass over all gaps: the series it is fitted to, and the read-outs for each kind."""

    sides: Sides
    fillings: dict[Rule, Filling]


def _stretches(rule: Rule, sides: Sides) -> np.ndarray:
    """Steps before stretches with a value of the channel on each side; some, if they are many."""
    n, width = len(sides.x), rule.steps + 2
    if n < width:
        return np.empty(0, int)
    seen = ~sides.missing[:, rule.channel]
    ends = seen[width - 1 :] | (not rule.right)
    at = np.flatnonzero((seen[: n - width + 1] | (not rule.left)) & ends)
    return at[:: -(-len(at) // _ROWS)] if len(at) > _ROWS else at


def _seen(rule: Rule, sides: Sides, at: np.ndarray, k: int) -> np.ndarray:
    """(rows,): whether there is a value at place k of the stretches."""
    return np.asarray(~sides.missing[at + k, rule.channel])


def _chain(rule: Rule, sides: Sides, steps: int) -> np.ndarray:
    """A regression of the channel on the others at the same step: (channels,), the last a constant.

    It is fitted to the first ``steps`` of the series. Empty where others are not read, or rows are
    few.
    """
    others, hidden = sides.x[:steps, list(rule.others)], sides.missing[:steps, list(rule.others)]
    seen = ~sides.missing[:steps, rule.channel]
    if (seen & ~hidden.any(1)).sum() >= _FEWEST + 2 * others.shape[1]:
        seen = seen & ~hidden.any(1)
    if not len(rule.others) or seen.sum() < 5 * (others.shape[1] + 1):
        return np.empty(0)
    rows = np.c_[others[seen], np.ones(int(seen.sum()))]
    return np.asarray(np.linalg.lstsq(rows, sides.x[:steps][seen, rule.channel], rcond=1e-6)[0])


def _others_away(
    rule: Rule,
    sides: Sides,
    step: np.ndarray,
    base: np.ndarray,
    left: np.ndarray | float,
    chain: np.ndarray,
) -> np.ndarray:
    """(3, rows): how far mean, value before and chain are from lines ``base`` at some steps."""
    away = np.stack([-base, left - base if rule.left else 0.0 * base, 0.0 * base])
    if len(chain):
        away[2] = sides.x[step][:, list(rule.others)] @ chain[:-1] + chain[-1] - base
    return away


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
    seen = _seen(rule, sides, at, k)
    at = at[seen]
    features = np.concatenate([still[seen], rule.moving(sides, at, k)], 1)
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
