"""From a dense linear RNN to the LRU, one change at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from linrnn.mixers.lru import ladder
from linrnn.recipes import LRU_TABLE
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import findings
from linrnn.reproductions._page.quoted import FAILS, Quoted
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.lru_columns import NAMES, NOTES, SOURCE, Size, published, small
from linrnn.reproductions._runs.trained import Column, in_order, orders, train, with_mixer
from linrnn.tasks.scifar import SCIFAROptions
from linrnn.train import Config

CPU = {
    "scifar": Size(
        task_options=SCIFAROptions(rows=True, train_images=9_000),
        d_model=64,
        d_state=64,
        n_layers=4,
        epochs=10,
        lr=4e-3,
    ),
}
"""The tasks of the scale "cpu", and what they are scaled down to."""
PIXELS = Size(
    task_options=SCIFAROptions(train_images=5_000),
    d_model=32,
    d_state=32,
    n_layers=2,
    epochs=3,
    lr=4e-3,
)
"""sCIFAR of the scale "pixels": as long as published, and little of it."""

ROWS = {
    "dense A": "dense",
    "Λ real + imaginary": "naive",
    "Λ exponential": "exponential",
    "Λ stable exponential": "stable exponential",
    "+ ring": "ring",
}
"""Names in `linrnn.mixers.lru.ladder` of the paper's rows but the last."""
LAST = "+ γ (LRU)"
AT_SCALE = {"pixels": ("Λ stable exponential", LAST)}
"""Rows of a scale that does not train all."""

RINGS = {
    "scifar": (0.9, 0.99),
    "listops": (0.0, 1.0),
    "imdb": (0.0, 0.9),
    "retrieval": (0.5, 0.9),
    "pathfinder": (0.9, 0.999),
    "path_x": (0.999, 0.9999),
}
"""r_min and r_max without gamma; Table 8 prints none for PathX, which has that of the LRU here."""

_PRINTED = {
    "dense A": ((72.2, 0.2), (50.4, 0.2), (89.1, 0.1), (89.1, 0.1), None, None),
    "Λ real + imaginary": ((86.5, 0.1), (58.8, 0.3), (87.4, 0.3), (87.8, 0.5), None, None),
    "Λ exponential": ((85.4, 0.7), (60.5, 0.3), (86.5, 0.4), (89.4, 0.1), (65.4, 9.0), None),
    "Λ stable exponential": ((87.2, 0.4), (59.4, 0.3), (87.6, 0.3), (89.1, 0.2), (93.5, 0.5), None),
    "+ ring": ((88.1, 0.0), (59.4, 0.3), (89.4, 0.1), (90.1, 0.1), (94.4, 0.3), None),
    LAST: ((89.0, 0.1), (60.2, 0.8), (89.4, 0.1), (89.9, 0.1), (95.1, 0.1), (94.2, 0.4)),
}
PRINTED = {
    name: {k: Quoted(*pair) if (pair := v[i]) else FAILS for k, v in _PRINTED.items()}
    for i, name in enumerate(NAMES.values())
}
"""Accuracy in per cent and its standard error, by column and row."""

_REPRODUCED = {
    "S4D, reproduced": ("91.5 ± 0.2", "60.2 ± 0.3", "86.4 ± 0.0", "89.5 ± 0.0", "94.2 ± 0.3"),
    "S5, reproduced": ("88.8 ± 0.1", "58.5 ± 0.3", "86.2 ± 0.1", "88.9 ± 0.0", "95.7 ± 0.1"),
}
_REPRODUCED_PATHX = {"S4D, reproduced": "97.5 ± 0.0", "S5, reproduced": "96.0 ± 0.1"}


class LRUTable8(Reproduction):
    """The ladder of the LRU paper: diagonal, exponential, stable, ring, gamma.

    Each row is one change after the one before: eigenvalues in place of a matrix; learned as decay
    and phase; decays that cannot leave the unit disk; initial eigenvalues on a ring; a normalised
    input. The last row is the LRU as its paper has it, which also learns the logarithm of the
    phase and, for PathX, starts with small phases.

    Args:
        columns: tasks and sizes to run in place of those of the scale.
    """

    summary: ClassVar[str] = "from a dense linear RNN to the LRU, one change at a time"
    source: ClassVar[str] = f"{SOURCE}, Tables 2, 7 and 8"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "a part of colour CIFAR-10 read by rows, narrow models; shows that every change trains "
            "and how they order at 32 steps; not the accuracies, nor which matter at length 1,024"
        ),
        "pixels": (
            "the same by the pixel, 1,024 steps, with two of the rows, two layers of width 32 and "
            "270 steps of training; shows whether a model that has learned so little gains "
            "by a ring and gamma, not what they are worth later; 20 minutes of processor time with "
            "five seeds"
        ),
        "paper": (
            "all tasks with the hyperparameters of Table 9; shows the numbers themselves. Needs a "
            "GPU: at the LRU's steps a second on an A100 (the paper's Table 4), one seed of the "
            "last row takes 58 hours, half of them for PathX; the dense row takes longer"
        ),
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Test accuracy (%) ± standard error; ✗: no better than guessing",
            ["model", *PRINTED],
            [
                *([label, *(PRINTED[c][label].text for c in PRINTED)] for label in _PRINTED),
                *(
                    [label, *cells, _REPRODUCED_PATHX[label]]
                    for label, cells in _REPRODUCED.items()
                ),
            ],
        ),
    )

    def __init__(self, columns: Sequence[Column] | None = None) -> None:
        self.columns = columns

    def run(self, setting: Setting) -> Findings:
        """Train every row on every task."""
        columns = self.columns or _columns(setting.scale)
        labels = AT_SCALE.get(setting.scale, tuple(_PRINTED))
        outcomes = [
            train(column, {label: configurations(column)[label] for label in labels}, setting)
            for column in columns
        ]
        page = findings(outcomes, PRINTED, notes=(*NOTES, _START))
        return replace(page, verdicts=orders(self, setting))

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The printed order of the rows on each task."""
        columns = self.columns or _columns(scale)
        return [judged for column in columns for judged in in_order(runs, column, PRINTED)]


_START = (
    "rows without a ring start with eigenvalues uniform in the unit disk; the rings of the others "
    "are those of Table 8."
)


def configurations(column: Column) -> dict[str, Config]:
    """The configuration of every row."""
    task = column.config.task
    ablations, last = ladder(*RINGS[task]), LRU_TABLE[task]
    options = {"r_min": last.ring[0], "r_max": last.ring[1], "max_phase": last.max_phase}
    configs = {
        label: with_mixer(column.config, *ablations[ablation]) for label, ablation in ROWS.items()
    }
    return {**configs, LAST: with_mixer(column.config, "lru", options)}


def _columns(scale: str) -> list[Column]:
    if scale == "paper":
        return [published(task) for task in NAMES]
    if scale == "pixels":
        return [small("scifar", PIXELS)]
    return [small(task, size) for task, size in CPU.items()]
