"""A held-out text in two halves: the first chooses learning rates, the second judges.

Where validation and test are one text, as is usual for tiny Shakespeare, what was chosen on it is a
little too good. Trained runs are read once more here, so that choosing and judging are apart.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from linrnn.compare.tune import safe_name
from linrnn.reproductions._page.base import Table
from linrnn.reproductions._page.runs import Part
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


FIRST, SECOND = "loss of the first half", "loss of the second half"
"""Measures of a run, in nats per token."""


class Halves(NamedTuple):
    """Losses of the same weights in nats per token, over whole windows."""

    first: float
    second: float


def measured(search: Tuned) -> dict[Path, dict[str, float]]:
    """Measures of every run by its folder: the losses of both halves."""
    folders = {folder for row in search.first_and_all() for folder in row.folders}
    scores = {folder: halves(folder) for folder in sorted(folders)}
    return {
        folder: {FIRST: score.first, SECOND: score.second}
        for folder, score in scores.items()
        if score is not None
    }


def confirmed(part: Part) -> Part:
    """The runs of rows whose rate is also that which the first half chooses."""
    rows = dict.fromkeys(run.row for run in part.rows)
    same = {row for row in rows if _by_first_half(part, row) in {run.lr for run in part.runs(row)}}
    return replace(part, rows=tuple(run for run in part.rows if run.row in same))


def table(part: Part, labels: Sequence[str]) -> Table:
    """Rates that the first half chooses, and losses of the second.

    Args:
        part: whose runs have measures.
        labels: of its rows.
    """
    part_judged = confirmed(part)
    cells = []
    for label in labels:
        chosen, ours = _by_first_half(part, label), part_judged.values(label, SECOND)
        best = next((f"{run.lr:g}" for run in part.runs(label)), "failed")
        cells.append(
            [
                label,
                "failed" if math.isnan(chosen) else f"{chosen:g}",
                best,
                mean_of(list(ours.values())).text if ours else "not trained at that rate",
                ", ".join(f"{loss:.3f}" for loss in ours.values()),
            ]
        )
    head = ["model", "rate by the first half", "chosen", "second half, mean ± s.e.", "by seed"]
    return Table("The held-out text in halves (nats per character)", head, cells)


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


def _by_first_half(part: Part, label: str) -> float:
    """The rate whose first seed has the smallest loss of the first half; NaN if none has one."""
    runs = [run for run in part.rows if run.row == safe_name(label)]
    first = min((run.seed for run in runs), default=0)
    tried = [run for run in runs if run.seed == first and FIRST in run.measures]
    losses = {run.lr: run.measures[FIRST] for run in tried}
    return min(losses, key=losses.__getitem__, default=math.nan)
