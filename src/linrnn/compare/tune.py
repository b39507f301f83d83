"""A small declared search of the learning rate, by the metric on validation data."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from linrnn._options.numbers import counted, duration
from linrnn.compare._runs import Entry, Row, finished, train_all
from linrnn.compare._runs import safe_name as safe_name
from linrnn.errors import ArgumentError
from linrnn.train import Config

FACTORS = (0.3, 1.0, 3.0)
"""By which a learning rate is tried, unless somebody says others."""
BEYOND = 3
"""Further rates that are tried for a row, one after another, while the best of all is an end."""


Scores: TypeAlias = dict[str, dict[float, float]]
"""A metric on validation by the label of a row and its learning rate."""


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
            f"{factors}, and of up to {BEYOND} more beyond an end that was best; "
            f"{counted(self.runs, 'run')}, {counted(self.steps, 'step')}, "
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
    """Train every entry with its rates and one seed, and choose by validation data.

    Args:
        entries: whose rates are tried.
        factors: of their learning rates; see `search_rates` for what is tried beyond.
        seed: of all runs.
        out: folder of the runs; see `train_all`.
        higher_is_better: of the metric.
        say: told one line for each run.
        jobs: how many runs at once.
    """
    configs = {entry.label: entry.config for entry in entries}
    rows: list[Row] = []

    def score(rates: Mapping[str, Sequence[float]]) -> Scores:
        tried = [
            Entry(label=at_rate(label, rate), config=with_rate(configs[label], rate))
            for label, of_row in rates.items()
            for rate in of_row
        ]
        trained = train_all(tried, [seed], out, say, jobs)
        rows.extend(trained)
        return by_rate(rates, {row.label: validation(row, higher_is_better) for row in trained})

    rates = {label: factored(config, factors) for label, config in configs.items()}
    scores = search_rates(rates, score, higher_is_better)
    best = {label: best_rate(tried, higher_is_better) for label, tried in scores.items()}
    done = [result for row in rows for folder in row.folders if (result := finished(folder))]
    return Search(
        entries=tuple(
            Entry(label=label, config=with_rate(configs[label], rate), folder=at_rate(label, rate))
            for label, rate in best.items()
        ),
        tried=scores,
        factors=tuple(factors),
        seed=seed,
        runs=len(rows),
        steps=sum(result.steps for result in done),
        seconds=sum(result.seconds for result in done),
    )


def search_rates(
    rates: Mapping[str, Sequence[float]],
    score: Callable[[Mapping[str, Sequence[float]]], Scores],
    higher_is_better: bool,
) -> Scores:
    """Try the rates of every row, and further ones while the best of a row is an end of them.

    Who stops at an end does not know whether a better rate lies beyond it. The next rate continues
    the ratio of the last two. A row has up to `BEYOND` further rates, and one alone has none.

    Args:
        rates: to begin with, by the label of a row.
        score: trains rows at rates, and gives the metric on validation of each.
        higher_is_better: of the metric.

    Returns:
        The scores by label and rate, in the order of the rates.
    """
    scores: Scores = {label: {} for label in rates}
    for _ in range(1 + BEYOND):
        for label, new in score(rates).items():
            scores[label] |= new
        further = {x: next_rate(tried, higher_is_better) for x, tried in scores.items() if tried}
        rates = {label: [rate] for label, rate in further.items() if rate is not None}
        if not rates:
            break
    return {label: dict(sorted(tried.items())) for label, tried in scores.items()}


def next_rate(scores: Mapping[float, float], higher_is_better: bool) -> float | None:
    """The rate beyond the best, where that is an end of those tried.

    Example:
        >>> next_rate({0.001: 2.0, 0.003: 1.0}, higher_is_better=False)
        0.009
    """
    best, ordered = best_rate(scores, higher_is_better), sorted(scores)
    if not (at_an_end(best, scores) and math.isfinite(scores[best])):
        return None
    inner = ordered[1] if best == ordered[0] else ordered[-2]
    return float(f"{best * best / inner:.2g}")


def factored(config: Config, factors: Sequence[float]) -> list[float]:
    """The learning rate of a configuration times some factors, rounded to four digits."""
    return [float(f"{factor * config.optim.lr:.4g}") for factor in factors]


def with_rates(config: Config, rates: Sequence[float]) -> dict[float, Config]:
    """A configuration at several learning rates, by rate."""
    return {rate: with_rate(config, rate) for rate in rates}


def with_rate(config: Config, rate: float) -> Config:
    """A configuration with another learning rate."""
    return replace(config, optim=replace(config.optim, lr=rate))


def at_an_end(rate: float, tried: Collection[float]) -> bool:
    """Whether a rate is the smallest or largest of several, so that a better one may lie beyond."""
    return len(tried) > 1 and rate in (min(tried), max(tried))


def best_rate(scores: Mapping[float, float], higher_is_better: bool) -> float:
    """The rate with the best score; of equal ones one that is no end.

    Args:
        scores: the metric on validation, by rate.
        higher_is_better: of the metric.
    """
    first = (max if higher_is_better else min)(scores, key=scores.__getitem__)
    equal = [rate for rate in scores if scores[rate] == scores[first]]
    inner = [rate for rate in equal if not at_an_end(rate, scores)]
    return (inner or [first])[0]


def by_rate(rates: Mapping[str, Sequence[float]], scores: Mapping[str, float]) -> Scores:
    """Scores by the label of a row and its rate, from those under the labels of `at_rate`."""
    return {x: {rate: scores[at_rate(x, rate)] for rate in of_row} for x, of_row in rates.items()}


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
