"""Laws: how far what a mixer declares explains what it can do."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from linrnn import mixers
from linrnn.atlas._abilities import named
from linrnn.atlas._cells import Cell, Figure, figures
from linrnn.mixers import Choices

_TURNS = ("complex diagonal", "dense", "orthogonal", "local", "low rank")

FEATURES: dict[str, Callable[[Choices], bool]] = {
    "a gate that sees the input": lambda c: c.gate in ("input", "state"),
    "a delta rule": lambda c: c.transition in ("delta", "decay and delta"),
    "a transition that turns": lambda c: c.transition in _TURNS,
    "a memory of keys and values": lambda c: c.memory in ("matrix", "past"),
    "nonlinear steps": lambda c: c.steps == "nonlinear",
}
"""Properties of what a mixer declares."""

EXPECTED = (
    ("selective-copying", "a gate that sees the input"),
    ("overwriting", "a delta rule"),
    ("parity", "a transition that turns"),
    ("recall", "a memory of keys and values"),
    ("permutations-of-three", "nonlinear steps"),
)
"""Pairs of an ability and the property that papers say gives it."""
LEAST = 5
"""Systems that must have a property, and that must lack it, for a law; and those that a fit has
besides one for each of its numbers."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """The figures of an ability, of systems with a property against those without.

    Args:
        ability, feature: a name each.
        having, lacking: how many systems.
        effect: factors of two in the figure; None where there are too few systems.
        low, high: ends of its interval: plus and minus two standard errors.
    """

    ability: str
    feature: str
    having: int
    lacking: int
    effect: float | None = None
    low: float = math.nan
    high: float = math.nan

    @property
    def verdict(self) -> str:
        """The word for the page."""
        if self.effect is None:
            return "too few systems"
        return "supported" if self.low > 0 else "contradicted" if self.high < 0 else "open"


@dataclass(frozen=True, kw_only=True)
class Residual:
    """A figure, and the mean of the systems that declare the same properties.

    Args:
        system, ability: a name each.
        figure: as the map has it.
        expected: mean of the other systems with its properties.
        factors: of two between both.
    """

    system: str
    ability: str
    figure: str
    expected: float
    factors: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The figures of an ability as a sum of effects of all properties at once.

    Args:
        ability: its name.
        systems: how many.
        effects: factors of two of each property that some systems have and some lack, with the
            ends of its interval: plus and minus two standard errors.
        explained: part of the variance of the logarithms that the sum has.
        predicted: the same of each system by a fit without it; below 0 it predicts worse than the
            mean of the others.
    """

    ability: str
    systems: int
    effects: Mapping[str, tuple[float, float, float]]
    explained: float
    predicted: float


def height(one: Figure, ability: str) -> float:
    """The logarithm to base 2 of a figure.

    One below the first value counts as half of that, one above the last as that.
    """
    first = named(ability).values[0]
    return math.log2(first / 2 if one.middle.side == "below" else one.middle.value)


def laws(cells: Sequence[Cell], expected: Sequence[tuple[str, str]] = EXPECTED) -> list[Law]:
    """The difference of means for each pair of an ability and a property.

    Args:
        cells: of a map.
        expected: pairs of an ability and one of `FEATURES`.
    """
    return [_law(_heights(cells, ability), ability, feature) for ability, feature in expected]


def _law(heights: dict[str, float], ability: str, feature: str) -> Law:
    having: list[float] = []
    lacking: list[float] = []
    for name, one in heights.items():
        choices = mixers.load(name).choices
        if choices is not None:
            (having if FEATURES[feature](choices) else lacking).append(one)
    law = Law(ability=ability, feature=feature, having=len(having), lacking=len(lacking))
    if min(law.having, law.lacking) < LEAST:
        return law
    effect = statistics.fmean(having) - statistics.fmean(lacking)
    error = math.sqrt(sum(statistics.variance(one) / len(one) for one in (having, lacking)))
    return replace(law, effect=effect, low=effect - 2 * error, high=effect + 2 * error)


def _heights(cells: Sequence[Cell], ability: str) -> dict[str, float]:
    return {
        name: height(of_abilities[ability], ability)
        for name, of_abilities in figures(cells).items()
        if ability in of_abilities and ":" not in name
    }


def fits(cells: Sequence[Cell]) -> list[Fit]:
    """Fit each ability by least squares: its logarithms by all properties at once.

    Errors are those that allow each system its own variance and weigh it by its leverage: HC3 of
    MacKinnon and White, "Some heteroskedasticity-consistent covariance matrix estimators with
    improved finite sample properties", J. Econometrics 29, 1985. An ability has a fit where there
    are at least `LEAST` more systems than numbers to fit, and its figures differ.

    Args:
        cells: of a map.
    """
    all_fits = (_fit(_heights(cells, a), a) for a in dict.fromkeys(cell.ability for cell in cells))
    return [fit for fit in all_fits if fit is not None]


def _fit(heights: dict[str, float], ability: str) -> Fit | None:
    kinds = {name: _kind(name) for name in heights}
    rows = [(kind, heights[name]) for name, kind in kinds.items() if kind is not None]
    if not rows:
        return None
    has = np.array([kind for kind, _ in rows], dtype=float)  # (systems, properties)
    y = np.array([one for _, one in rows])  # (systems,)
    varies = np.flatnonzero((has.min(0) < 1) & (has.max(0) > 0))
    x = np.column_stack([np.ones(len(y)), has[:, varies]])  # (systems, 1 + properties)
    if len(y) < x.shape[1] + LEAST or np.linalg.matrix_rank(x) < x.shape[1] or np.ptp(y) == 0:
        return None
    inverse = np.linalg.inv(x.T @ x)
    effects = inverse @ x.T @ y
    leverage = np.einsum("ni,ij,nj->n", x, inverse, x)
    if leverage.max() > 1 - 1e-9:  # a system alone with its property is fitted, whatever it is
        return None
    misfits = y - x @ effects
    without = misfits / (1 - leverage)  # what a fit without the system is off by
    covariance = inverse @ (x.T * without**2) @ x @ inverse
    errors = np.sqrt(np.diag(covariance))
    names = list(FEATURES)
    mean, n = y.mean(), len(y)
    mean_without = (mean * n - y) / (n - 1)  # mean of the other systems
    return Fit(
        ability=ability,
        systems=n,
        effects={
            names[k]: (float(e), float(e - 2 * s), float(e + 2 * s))
            for k, e, s in zip(varies, effects[1:], errors[1:], strict=True)
        },
        explained=float(1 - (misfits**2).sum() / ((y - mean) ** 2).sum()),
        predicted=float(1 - (without**2).sum() / ((y - mean_without) ** 2).sum()),
    )


def residuals(cells: Sequence[Cell], most: int = 10) -> list[Residual]:
    """Figures that what a mixer declares explains least, the largest difference first.

    The expectation is the mean over the other systems with the same properties; a system without
    any such has no residual.

    Args:
        cells: of a map.
        most: how many.
    """
    differences, of_map = [], figures(cells)
    for ability in dict.fromkeys(cell.ability for cell in cells):
        heights = _heights(cells, ability)
        kinds = {name: _kind(name) for name in heights}
        for name, one in heights.items():
            rivals = [heights[o] for o in heights if o != name and kinds[o] == kinds[name]]
            if rivals:
                mean = statistics.fmean(rivals)
                differences.append(
                    Residual(
                        system=name,
                        ability=ability,
                        figure=str(of_map[name][ability]),
                        expected=2**mean,
                        factors=one - mean,
                    )
                )
    return sorted(differences, key=lambda one: -abs(one.factors))[:most]


def _kind(name: str) -> tuple[bool, ...] | None:
    choices = mixers.load(name).choices
    return None if choices is None else tuple(has(choices) for has in FEATURES.values())
