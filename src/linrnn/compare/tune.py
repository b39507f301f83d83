"""A small declared search of the learning rate, by the metric on validation data."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linrnn._options.numbers import counted, duration
from linrnn.compare._runs import Entry, Row, finished, train_all
from linrnn.compare._runs import safe_name as safe_name
from linrnn.errors import ArgumentError
from linrnn.train import Config

FACTORS = (0.3, 1.0, 3.0)
"""By which a learning rate is tried, unless somebody says others."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """Results of a search for learning rates, with its runs, steps and training time."""

    entries: tuple[Entry, ...]
    """At their best rates; the folders are those of the search."""
    tried: Mapping[str, Mapping[float, float]]
    """The metric on validation data of every rate, by label."""
    factors: tuple[float, ...]
    seed: int
    runs: int
    steps: int
    """Optimiser steps, in all runs that finished."""
    seconds: float
    """Training time, in all of them."""

    def words(self) -> str:
        """The search in a sentence, with what it took."""
        factors = ", ".join(f"{factor:g}" for factor in self.factors)
        rates = {entry.label: entry.config.optim.lr for entry in self.entries}
        ends = [label for label, rate in rates.items() if at_an_end(rate, self.tried[label])]
        text = (
            f"learning rates: the best on validation data, seed {self.seed}, of the rate times "
            f"{factors}; {counted(self.runs, 'run')}, {counted(self.steps, 'step')}, "
            f"{duration(self.seconds)} of training"
        )
        if ends:
            text += (
                f"; at the end of the tried range, so a better rate may exist: {', '.join(ends)}"
            )
        return text


def check_factors(factors: Sequence[float]) -> None:
    """Raise `ArgumentError` unless all factors are positive, finite and different."""
    good = all(0 < factor < math.inf for factor in factors)
    if not good or len(set(factors)) < len(factors):
        raise ArgumentError(
            "compare: factors of the learning rate must be positive, finite and different, got "
            f"{list(factors)}."
        )


def tune_rates(
    entries: Sequence[Entry],
    factors: Sequence[float],
    seed: int,
    out: Path,
    higher_is_better: bool,
    say: Callable[[str], Any],
    jobs: int = 1,
) -> Search:
    """Train every entry with every rate and one seed, and choose by validation data.

    Args:
        entries: whose rates are tried.
        factors: of their learning rates.
        seed: of all runs.
        out: folder of the runs; see `train_all`.
        higher_is_better: of the metric.
        say: told one line for each run.
        jobs: how many runs at once.
    """
    candidates = {entry.label: at_rates(entry.config, factors) for entry in entries}
    tried = [
        Entry(label=at_rate(label, rate), config=config)
        for label, rates in candidates.items()
        for rate, config in rates.items()
    ]
    rows = train_all(tried, [seed], out, say, jobs)
    metrics = {row.label: validation(row, higher_is_better) for row in rows}
    best = best_rates(candidates, metrics, higher_is_better)
    done = [result for row in rows for folder in row.folders if (result := finished(folder))]
    return Search(
        entries=tuple(
            Entry(label=label, config=candidates[label][rate], folder=at_rate(label, rate))
            for label, rate in best.items()
        ),
        tried={
            label: {rate: metrics[at_rate(label, rate)] for rate in rates}
            for label, rates in candidates.items()
        },
        factors=tuple(factors),
        seed=seed,
        runs=len(tried),
        steps=sum(result.steps for result in done),
        seconds=sum(result.seconds for result in done),
    )


def at_rates(config: Config, factors: Sequence[float]) -> dict[float, Config]:
    """A configuration at several learning rates, which are rounded to four digits."""
    return with_rates(config, [float(f"{factor * config.optim.lr:.4g}") for factor in factors])


def with_rates(config: Config, rates: Sequence[float]) -> dict[float, Config]:
    """A configuration at several learning rates, by rate."""
    return {rate: replace(config, optim=replace(config.optim, lr=rate)) for rate in rates}


def at_an_end(rate: float, tried: Collection[float]) -> bool:
    """Whether a rate is the smallest or largest of several, so that a better one may lie beyond."""
    return len(tried) > 1 and rate in (min(tried), max(tried))


def best_rates(
    candidates: Mapping[str, Mapping[float, Config]],
    metrics: Mapping[str, float],
    higher_is_better: bool,
) -> dict[str, float]:
    """The rate of each label with the best metric; of equal ones one that is no end.

    Args:
        candidates: configurations by label and rate.
        metrics: under the labels of `at_rate`.
        higher_is_better: of the metric.
    """
    choose = max if higher_is_better else min
    best = {}
    for label, rates in candidates.items():
        scores = {rate: metrics[at_rate(label, rate)] for rate in rates}
        first = choose(scores, key=scores.__getitem__)
        equal = [rate for rate in scores if scores[rate] == scores[first]]
        inner = [rate for rate in equal if not at_an_end(rate, scores)]
        best[label] = (inner or [first])[0]
    return best


def at_rate(label: str, rate: float) -> str:
    """The label of a row at a learning rate.

    Example:
        >>> at_rate("S4", 0.01)
        'S4 at 0.01'
    """
    return f"{label} at {rate:g}"


def validation(row: Row, higher_is_better: bool = True) -> float:
    """The metric on validation of the run that finished; the worst there is if it failed."""
    worst = -math.inf if higher_is_better else math.inf
    values = [result.validation_metric for f in row.folders if (result := finished(f))]
    return (max if higher_is_better else min)(values, default=worst)
