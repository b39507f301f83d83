"""Learning rates chosen on validation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from linrnn.compare import Row
from linrnn.compare.tune import (
    BEYOND,
    Scores,
    at_an_end,
    at_rate,
    best_rate,
    by_rate,
    search_rates,
    validation,
    with_rate,
)
from linrnn.reproductions._page.base import Setting, Table
from linrnn.reproductions._runs.trained import Column, Outcome, train
from linrnn.train import Config
from linrnn.train.figures import metric_scale
from linrnn.train.model import build_task


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Rows at their best learning rates."""

    outcome: Outcome
    """Runs of all seeds at the chosen rates, under the labels of the candidates."""
    tried: Table
    """The metric on validation of every rate."""
    first: Mapping[str, Mapping[float, Row]]
    """The row of each rate, of the first seed alone, under those labels."""

    def first_and_all(self) -> Iterator[Row]:
        """Rows of every rate with the first seed, and those of the best with all seeds."""
        yield from self.outcome.rows
        for rates in self.first.values():
            yield from rates.values()


def tuned(
    of: str | Column, candidates: Mapping[str, Mapping[float, Config]], setting: Setting
) -> Tuned:
    """Train every row at each of its rates with the first seed, and the best with all.

    Rates beyond an end that was best are tried too; see `search_rates`. The first seed of the best
    is there already, since a run goes by its configuration.

    Args:
        of: as that of `train`.
        candidates: configurations by label and learning rate, which are all they differ in.
        setting: of the reproduction.
    """

    def at(label: str, rate: float) -> Config:
        rates = candidates[label]
        return rates[rate] if rate in rates else with_rate(next(iter(rates.values())), rate)

    task = build_task(next(iter(next(iter(candidates.values())).values())))
    higher = task.higher_is_better
    by_label: dict[str, Row] = {}
    tried: list[Outcome] = []

    def score(rates: Mapping[str, Sequence[float]]) -> Scores:
        rows = {at_rate(x, rate): at(x, rate) for x, of_row in rates.items() for rate in of_row}
        tried.append(train(of, rows, replace(setting, seeds=setting.seeds[:1])))
        if tried[0].problem:
            return {}
        by_label.update({row.label: row for row in tried[-1].rows})
        return by_rate(rates, {label: validation(by_label[label], higher) for label in rows})

    scores = search_rates({x: [*rates] for x, rates in candidates.items()}, score, higher)
    name, seed = tried[0].column.name, setting.seeds[0]
    title = f"{name}: {task.metric} on validation of seed {seed} while tuning"
    if tried[0].problem:
        none = Table(title, ["row", "rates"], [[label, "not run"] for label in candidates])
        return Tuned(outcome=replace(tried[0], labels=tuple(candidates)), tried=none, first={})
    best = {label: best_rate(of_row, higher) for label, of_row in scores.items()}
    outcome = train(of, {at_rate(x, rate): at(x, rate) for x, rate in best.items()}, setting)
    renamed = zip(best, outcome.rows, strict=True)
    outcome = replace(
        outcome,
        labels=tuple(candidates),
        rows=tuple(replace(row, label=label) for label, row in renamed),
        rates=best,
    )
    first = {
        x: {rate: by_label[at_rate(x, rate)] for rate in of_row} for x, of_row in scores.items()
    }
    return Tuned(outcome=outcome, tried=_table(title, scores, task.metric, best), first=first)


def budget(rates: Sequence[float]) -> str:
    """Describe the tuning on a page, where all rows have the same rates."""
    words = ", ".join(f"{rate:g}" for rate in rates)
    return (
        f"budget of tuning: the learning rates {words}, the same for all rows, with the first "
        f"seed, by the metric on validation, and up to {BEYOND} more beyond an end while that is "
        "the best; nothing else is tuned."
    )


def one_rate(outcomes: Sequence[Outcome]) -> str:
    """Describe the learning rate on a page, where all rows have one that was not tuned."""
    rates = dict.fromkeys(f"{outcome.column.config.optim.lr:g}" for outcome in outcomes)
    return (
        f"learning rate: {', '.join(rates)} for all rows, ours; nothing is tuned for any of them."
    )


def _table(title: str, scores: Scores, metric: str, best: Mapping[str, float]) -> Table:
    scale, unit = metric_scale(metric)
    form = ".1f" if metric == "accuracy" else ".3g"

    def shown(value: float) -> str:
        return f"{scale * value:{form}}" if math.isfinite(value) else "failed"

    n_rates = max(map(len, scores.values()))
    cells = []
    for label, of_row in scores.items():
        ours = [f"{shown(value)} at {rate:g}" for rate, value in of_row.items()]
        chosen = f"{best[label]:g}" + ", an end" * at_an_end(best[label], of_row)
        cells.append([label, *ours, *[""] * (n_rates - len(ours)), chosen])
    return Table(
        title, ["row", *(f"rate {i}{unit}" for i in range(1, n_rates + 1)), "chosen"], cells
    )
