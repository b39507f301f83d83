"""A held-out text in two halves: the first chooses learning rates, the second judges.

Where validation and test are one text, as is usual for tiny Shakespeare, what was chosen on it is a
little too good. Trained runs are read once more here, so that choosing and judging are apart.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from linrnn.compare import Row
from linrnn.reproductions._page.base import Table
from linrnn.reproductions._runs.language import mean_of
from linrnn.reproductions._runs.tuned import Tuned
from linrnn.tasks.lm import LM
from linrnn.train.context import open_run
from linrnn.train.evaluation import score
from linrnn.train.folder import RunFolder

NOTE = (
    "in halves: what the first half of the held-out text chooses among the rates, and the loss of "
    "the second half, which no rate was chosen on and the verdicts are of. A row whose first half "
    "chooses another rate than that it was trained at with every seed is judged by none. The step "
    "whose weights are tested has the best loss of both halves."
)


class Halves(NamedTuple):
    """Losses of the same weights in nats per token, over whole windows."""

    first: float
    second: float


def in_halves(search: Tuned) -> tuple[Table, dict[str, dict[int, float]]]:
    """Choose by the first half; return the table, and losses of the second by row and seed."""
    read = functools.cache(halves)  # the first seed of a chosen rate is read twice
    losses: dict[str, dict[int, float]] = {}
    cells = []
    for row in search.outcome.rows if search.first else ():
        best_rate, chosen = search.outcome.rates[row.label], _chosen(search.first[row.label], read)
        if chosen == best_rate:
            by_seed = dict(enumerate(map(read, row.folders)))
            losses[row.label] = {seed: scores.second for seed, scores in by_seed.items() if scores}
        ours = losses.get(row.label)
        cells.append(
            [
                row.label,
                "failed" if chosen is None else f"{chosen:g}",
                f"{best_rate:g}",
                mean_of(list(ours.values())).text if ours else "not trained at that rate",
                ", ".join(f"{loss:.3f}" for loss in ours.values()) if ours else "",
            ]
        )
    head = ["model", "rate by the first half", "chosen", "second half, mean ± s.e.", "by seed"]
    return Table("The held-out text in halves (nats per character)", head, cells), losses


def halves(folder: Path) -> Halves | None:
    """Test a run's best weights on both halves; None if it did not finish."""
    if RunFolder(folder).read_result() is None:
        return None
    run = open_run(folder)
    assert isinstance(run.task, LM)
    half = run.task.options.validation / 2
    cut = replace(run.task.options, validation=half, test=half)
    parts = LM(cut, tokenizer=run.task.tokenizer).datasets()
    return Halves(score(run, parts.validation).loss, score(run, parts.test).loss)


def _chosen(rates: Mapping[float, Row], read: Callable[[Path], Halves | None]) -> float | None:
    """The rate whose first seed has the smallest loss of the first half."""
    losses = {rate: scores.first for rate, row in rates.items() if (scores := read(row.folders[0]))}
    return min(losses, key=losses.__getitem__, default=None)
