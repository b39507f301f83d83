"""How many layers of gates that depend on the input alone it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import findings
from linrnn.reproductions._page.quoted import Quoted
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.selective_copying import NAME, NOTES, SOURCE, column
from linrnn.reproductions._runs.trained import Column, Outcome, in_order, orders, train
from linrnn.train import Config
from linrnn.train.figures import Point, metric_against_depth, over_seeds

MIXERS = {"minLSTM": "minlstm", "minGRU": "mingru"}
AT_SCALE = {"cpu": ("minGRU",), "paper": tuple(MIXERS)}
"""Which of them are trained."""
LAYERS = (1, 2, 3)

_PRINTED = {
    "minLSTM": ((37.6, 2.0), (85.7, 5.8), (96.0, 2.8)),
    "minGRU": ((37.0, 2.3), (96.8, 3.2), (99.5, 0.2)),
}


def label(mixer: str, layers: int) -> str:
    """Return the label of a row.

    Example:
        >>> label("minGRU", 2)
        'minGRU, 2 layers'
    """
    return f"{mixer}, {layers} layer{'s' if layers > 1 else ''}"


PRINTED = {
    label(mixer, layers): Quoted(*_PRINTED[mixer][layers - 1])
    for mixer, layers in product(MIXERS, LAYERS)
}
"""Accuracy in per cent and its standard deviation, by row."""


def with_all_tokens(column: Column) -> Column:
    """As many tokens to copy as published: 8, as in the recipe, two layers copy as well as three.

    With those, 8,000 steps gave 42.2 ± 0.9, 98.2 ± 0.6 and 97.8 ± 0.5 % for 1, 2 and 3 layers.
    """
    options: Any = column.config.task_options
    paper: Any = column.paper.task_options
    options = replace(options, n_tokens=paper.n_tokens)
    return replace(column, config=replace(column.config, task_options=options))


class MinRNNTable1(Reproduction):
    """minGRU and minLSTM of one, two and three layers on selective copying.

    Gates of the first layer see the current token alone; those of the next see what the first has
    kept. A second layer is therefore what makes the task solvable.

    Args:
        column: size to run in place of that of the scale.
        layers: depths to run in place of 1, 2 and 3.
    """

    summary: ClassVar[str] = "selective copying by minGRU and minLSTM of 1, 2 and 3 layers"
    source: ClassVar[str] = f"{SOURCE}, Table 1"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "minGRU alone, all 16 tokens among 256 blanks, fewer sequences and an expansion of 2; "
            "shows what a second and a third layer bring in 8,000 steps, too few to solve the "
            "task; not the accuracies at length 4,096; 17 minutes of processor time a seed"
        ),
        "paper": ("length 4,096, 400,000 batches of 64; shows the numbers themselves, needs a GPU"),
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Accuracy on selective copying (%) ± standard deviation",
            ["model", *(f"{n} layer{'s' if n > 1 else ''}" for n in LAYERS)],
            [[mixer, *(PRINTED[label(mixer, n)].text for n in LAYERS)] for mixer in MIXERS],
        ),
    )

    def __init__(self, column: Column | None = None, layers: Sequence[int] = LAYERS) -> None:
        self.column, self.layers = column, layers

    def run(self, setting: Setting) -> Findings:
        """Train both mixers at every depth."""
        chosen = self.column or with_all_tokens(column(setting.scale))
        outcome = train(chosen, self._rows(chosen.config, AT_SCALE[setting.scale]), setting)
        figures = self._figures(outcome)
        page = findings([outcome], {chosen.name: PRINTED}, notes=NOTES, figures=figures)
        return replace(page, verdicts=orders(self, setting))

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The printed order of the depths."""
        chosen = self.column or with_all_tokens(column(scale))
        return in_order(runs, chosen, {chosen.name: PRINTED})

    def _rows(self, base: Config, mixers: Sequence[str]) -> dict[str, Config]:
        configs = {}
        for mixer, n in product(mixers, self.layers):
            model = replace(base.model, n_layers=n)
            configs[label(mixer, n)] = replace(base, mixer=MIXERS[mixer], model=model)
        return configs

    def _figures(self, outcome: Outcome) -> dict[str, Any]:
        rows = {row.label: row for row in outcome.rows if row.values}
        series: dict[str, list[Point]] = {}
        for mixer, n in product(MIXERS, self.layers):
            if label(mixer, n) in rows:
                row = rows[label(mixer, n)]
                series.setdefault(mixer, []).append((n, row.mean, row.standard_error))
        if not series:
            return {}
        figure = metric_against_depth(
            series,
            metric=outcome.task.metric,
            chance=outcome.task.chance,
            title=f"{NAME}: {over_seeds(len(row.values) for row in rows.values())}",
        )
        return {"depth": figure}
