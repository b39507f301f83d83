"""Learning rates chosen on validation, and when rows differ."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from linrnn.compare import Row
from linrnn.compare._tune import at_rate, best_rates, validation
from linrnn.reproductions._base import Setting, Table
from linrnn.reproductions._trained import Column, Outcome, by_seed, train
from linrnn.train import Config
from linrnn.train._figures import metric_scale

RULE = (
    "two rows differ where one of them is better with every seed; a single seed differs from "
    "nothing."
)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Rows at their best learning rates."""

    outcome: Outcome
    """Of all seeds, under the labels of the candidates."""
    rates: Mapping[str, float]
    """The best of each row; none where nothing could be trained."""
    tried: Table
    """The metric on validation of every rate."""


def tuned(
    of: str | Column, candidates: Mapping[str, Mapping[float, Config]], setting: Setting
) -> Tuned:
    """Train every row at each of its rates with the first seed, and the best with all.

    The first seed of the best is there already, since a run goes by its configuration.

    Args:
        of: as that of `train`.
        candidates: configurations by label and learning rate.
        setting: of the reproduction.
    """
    rows = {
        at_rate(label, rate): config
        for label, rates in candidates.items()
        for rate, config in rates.items()
    }
    tried = train(of, rows, replace(setting, seeds=setting.seeds[:1]))
    found = {row.label: validation(row, tried.task.higher_is_better) for row in tried.rows}
    name, metric = tried.column.name, tried.task.metric
    title = f"{name}: {metric} on validation of seed {setting.seeds[0]} while tuning"
    if tried.problem:
        none = Table(title, ["row", "rates"], [[label, "not run"] for label in candidates])
        return Tuned(outcome=replace(tried, labels=tuple(candidates)), rates={}, tried=none)
    best = best_rates(candidates, found, tried.task.higher_is_better)
    taken = {at_rate(label, rate): candidates[label][rate] for label, rate in best.items()}
    outcome = train(of, taken, setting)
    renamed = zip(best, outcome.rows, strict=True)
    outcome = replace(
        outcome,
        labels=tuple(candidates),
        rows=tuple(replace(row, label=label) for label, row in renamed),
    )
    return Tuned(outcome=outcome, rates=best, tried=_table(title, candidates, found, tried))


def budget(rates: Sequence[float]) -> str:
    """What a page says of its tuning, where all rows have the same rates."""
    words = ", ".join(f"{rate:g}" for rate in rates)
    return (
        f"budget of tuning: the learning rates {words}, the same for all rows, with the first "
        "seed, by the metric on validation; nothing else is tuned."
    )


def sure(one: Row, other: Row) -> int:
    """1 where the first is larger with every seed, -1 where it is smaller, otherwise 0: `RULE`.

    Args:
        one, other: rows of one metric.
    """
    mine, theirs = by_seed(one), by_seed(other)
    both = mine.keys() & theirs.keys()
    signs = {(mine[seed] > theirs[seed]) - (mine[seed] < theirs[seed]) for seed in both}
    return signs.pop() if len(both) > 1 and len(signs) == 1 else 0


def order(rows: Sequence[Row], higher_is_better: bool = True) -> str:
    """Labels, best first, with " > " only where all before it are better than all behind it.

    Between others stands a comma, and they keep the order they came in.

    Example:
        >>> row = dict(metric="accuracy", failures=(), n_parameters=1, n_state=1,
        ...            seconds_per_step=1.0, memory=None, folders=())
        >>> order([Row(label="a", values=(0.1, 0.11), **row), Row(label="b", values=(0.9, 0.91),
        ...        **row), Row(label="c", values=(0.11, 0.1), **row)])
        'b > a, c'
    """
    sign = 1 if higher_is_better else -1
    left = [row for row in rows if row.values]
    sorted_rows = sorted(left, key=lambda row: -sign * row.mean)
    groups: list[list[Row]] = [[]]
    for place, row in enumerate(sorted_rows):
        cut = itertools.product(sorted_rows[:place], sorted_rows[place:])
        if place and all(sign * sure(before, behind) > 0 for before, behind in cut):
            groups.append([])
        groups[-1].append(row)
    inside = [", ".join(row.label for row in left if row in group) for group in groups]
    return " > ".join(inside)


def pairs(rows: Sequence[Row], published: Mapping[str, float]) -> str:
    """How many pairs of rows are ordered as their published numbers, by `RULE`.

    Args:
        rows: those without a published number, or that failed, are left out.
        published: numbers by label; two that are equal are no pair.
    """
    counts = {1: 0, -1: 0, 0: 0}
    known = [row for row in rows if row.label in published and row.values]
    for one, other in itertools.combinations(known, 2):
        claim = published[one.label] - published[other.label]
        if claim:
            counts[int(math.copysign(1, claim)) * sure(one, other)] += 1
    return f"{counts[1]} as published, {counts[-1]} the other way, {counts[0]} undecided"


def _table(
    title: str,
    candidates: Mapping[str, Mapping[float, Config]],
    found: Mapping[str, float],
    tried: Outcome,
) -> Table:
    scale, unit = metric_scale(tried.task.metric)
    form = ".1f" if tried.task.metric == "accuracy" else ".3g"

    def shown(value: float) -> str:
        return f"{scale * value:{form}}" if math.isfinite(value) else "failed"

    cells = [
        [label, *(f"{shown(found[at_rate(label, rate)])} at {rate:g}" for rate in rates)]
        for label, rates in candidates.items()
    ]
    most = max(map(len, candidates.values()))
    head = ["row", *(f"rate {i}{unit}" for i in range(1, most + 1))]
    return Table(title, head, [row + [""] * (most + 1 - len(row)) for row in cells])
