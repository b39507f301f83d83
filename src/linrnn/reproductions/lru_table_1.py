"""Whether a recurrence needs a nonlinearity."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from linrnn.compare.tune import with_rates
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import findings
from linrnn.reproductions._page.quoted import FAILS, Quoted
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.lru_columns import NAMES, NOTES, SOURCE, Size, published, small
from linrnn.reproductions._runs.trained import Column, in_order, orders, train, with_mixer
from linrnn.reproductions._runs.tuned import tuned
from linrnn.tasks.listops import ListOpsOptions
from linrnn.tasks.scifar import SCIFAROptions

CPU = {
    "listops": Size(
        task_options=ListOpsOptions(
            min_length=20, max_length=100, train_size=20_000, validation_size=1_000, test_size=5_000
        ),
        d_model=64,
        d_state=64,
        n_layers=4,
        epochs=5,
        lr=1e-3,
        clip=1.0,
    ),
    "scifar": Size(
        task_options=SCIFAROptions(rows=True, train_images=9_000),
        d_model=64,
        d_state=64,
        n_layers=4,
        epochs=15,
        lr=1e-3,
        clip=1.0,
    ),
}
"""The tasks of the scale "cpu", and what they are scaled down to."""

RATES_SIZE = replace(
    CPU["listops"],
    task_options=replace(CPU["listops"].task_options, train_size=10_000),
    epochs=3,
)
"""ListOps of the scale "rates", where every row has the learning rate that suits it."""
RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates tried for each row."""

MIXERS = {"ReLU": "relu_rnn", "tanh": "tanh_rnn", "linear": "linear_rnn"}

_PRINTED = {
    "ReLU": ((69.7, 0.2), (37.6, 8.0), (88.0, 0.1), (88.5, 0.1), None, None),
    "tanh": ((69.9, 0.3), (43.9, 0.1), (87.2, 0.1), (88.9, 0.2), None, None),
    "linear": ((72.2, 0.2), (50.4, 0.2), (89.1, 0.1), (89.1, 0.1), None, None),
}
PRINTED = {
    name: {k: Quoted(*pair) if (pair := v[i]) else FAILS for k, v in _PRINTED.items()}
    for i, name in enumerate(NAMES.values())
}
"""Accuracy in per cent and its standard error, by column and row."""


class LRUTable1(Reproduction):
    """Deep dense RNNs with ReLU, with tanh and with nothing in their recurrence.

    The same residual stack, of norm, recurrence, GLU and skip, trains each. A linear one
    that is not worse, and mostly better, is the first step of the paper.

    Args:
        columns: tasks and sizes to run in place of those of the scale.
    """

    summary: ClassVar[str] = "dense RNNs with ReLU, tanh and no nonlinearity"
    source: ClassVar[str] = f"{SOURCE}, Tables 1 and 6"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "short ListOps expressions and a part of CIFAR-10 read by rows, narrow models; shows "
            "whether the linear recurrence keeps up, not by how much at full length and width; 19 "
            "minutes of processor time a seed"
        ),
        "rates": (
            "ListOps of the scale cpu in a third of the steps, each row at the best of three "
            "learning rates; shows whether their order at this length is the learning rate's; an "
            "hour of processor time with five seeds, two fifths of it tuning"
        ),
        "paper": (
            "all tasks with the hyperparameters of Table 9; shows the numbers themselves. Needs a "
            "GPU: at the steps a second the paper prints for a tanh RNN on an A100 (Table 4), one "
            "seed of that row takes 29 days, 21 of them for PathX"
        ),
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Test accuracy (%) ± standard error; ✗: no better than guessing",
            ["recurrence", *PRINTED],
            [[label, *(PRINTED[c][label].text for c in PRINTED)] for label in MIXERS],
        ),
    )

    def __init__(self, columns: Sequence[Column] | None = None) -> None:
        self.columns = columns

    def run(self, setting: Setting) -> Findings:
        """Train three recurrences on every task."""
        if setting.scale == "rates":
            page = _at_best_rates(setting)
            return replace(page, verdicts=orders(self, setting))
        columns = self.columns or _columns(setting.scale)
        outcomes = [
            train(
                column,
                {label: with_mixer(column.config, mixer) for label, mixer in MIXERS.items()},
                setting,
            )
            for column in columns
        ]
        return replace(findings(outcomes, PRINTED, notes=NOTES), verdicts=orders(self, setting))

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The printed order of each task."""
        columns = self.columns or _columns(scale)
        return [judged for column in columns for judged in in_order(runs, column, PRINTED)]


def _at_best_rates(setting: Setting) -> Findings:
    (column,) = _columns("rates")
    candidates = {
        label: with_rates(with_mixer(column.config, mixer), RATES)
        for label, mixer in MIXERS.items()
    }
    search = tuned(column, candidates, setting)
    page = findings([search.outcome], PRINTED, notes=NOTES[:0])
    return replace(page, tables=(*page.tables, search.tried))


def _columns(scale: str) -> list[Column]:
    if scale == "paper":
        return [published(task) for task in NAMES]
    if scale == "rates":
        return [small("listops", RATES_SIZE)]
    return [small(task, size) for task, size in CPU.items()]
