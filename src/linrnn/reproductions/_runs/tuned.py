"""Learning rates chosen on validation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from linrnn.compare import Row
from linrnn.compare.tune import at_an_end, at_rate, best_rates, validation
from linrnn.reproductions._page.base import Setting, Table
from linrnn.reproductions._runs.trained import Column, Outcome, train
from linrnn.train import Config
from linrnn.train.figures import metric_scale


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
    scores = {row.label: validation(row, tried.task.higher_is_better) for row in tried.rows}
    name, metric = tried.column.name, tried.task.metric
    title = f"{name}: {metric} on validation of seed {setting.seeds[0]} while tuning"
    if tried.problem:
        none = Table(title, ["row", "rates"], [[label, "not run"] for label in candidates])
        return Tuned(outcome=replace(tried, labels=tuple(candidates)), tried=none, first={})
    best = best_rates(candidates, scores, tried.task.higher_is_better)
    chosen = {at_rate(label, rate): candidates[label][rate] for label, rate in best.items()}
    outcome = train(of, chosen, setting)
    renamed = zip(best, outcome.rows, strict=True)
    outcome = replace(
        outcome,
        labels=tuple(candidates),
        rows=tuple(replace(row, label=label) for label, row in renamed),
        rates=best,
    )
    by_label = {row.label: row for row in tried.rows}
    first = {
        label: {rate: by_label[at_rate(label, rate)] for rate in rates}
        for label, rates in candidates.items()
    }
    table = _table(title, candidates, scores, tried, best)
    return Tuned(outcome=outcome, tried=table, first=first)


def budget(rates: Sequence[float]) -> str:
    """Describe the tuning on a page, where all rows have the same rates."""
    words = ", ".join(f"{rate:g}" for rate in rates)
    return (
        f"budget of tuning: the learning rates {words}, the same for all rows, with the first "
        "seed, by the metric on validation; nothing else is tuned. Beyond an end of what was tried "
        "a better one may lie."
    )


def one_rate(outcomes: Sequence[Outcome]) -> str:
    """Describe the learning rate on a page, where all rows have one that was not tuned."""
    rates = dict.fromkeys(f"{outcome.column.config.optim.lr:g}" for outcome in outcomes)
    return (
        f"learning rate: {', '.join(rates)} for all rows, ours; nothing is tuned for any of them."
    )


def _table(
    title: str,
    candidates: Mapping[str, Mapping[float, Config]],
    scores: Mapping[str, float],
    tried: Outcome,
    best: Mapping[str, float],
) -> Table:
    scale, unit = metric_scale(tried.task.metric)
    form = ".1f" if tried.task.metric == "accuracy" else ".3g"

    def shown(value: float) -> str:
        return f"{scale * value:{form}}" if math.isfinite(value) else "failed"

    n_rates = max(map(len, candidates.values()))
    cells = []
    for label, rates in candidates.items():
        ours = [f"{shown(scores[at_rate(label, rate)])} at {rate:g}" for rate in rates]
        chosen = f"{best[label]:g}" + ", an end" * at_an_end(best[label], rates)
        cells.append([label, *ours, *[""] * (n_rates - len(ours)), chosen])
    return Table(
        title, ["row", *(f"rate {i}{unit}" for i in range(1, n_rates + 1)), "chosen"], cells
    )
