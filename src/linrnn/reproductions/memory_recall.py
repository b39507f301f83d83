"""How many pairs a memory recalls that corrects itself, that forgets, or that only adds up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from linrnn.compare.tune import with_rates
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged, groups, in_words
from linrnn.reproductions._runs.language import curves
from linrnn.reproductions._runs.trained import by_seed, orders, problems
from linrnn.reproductions._runs.tuned import budget, tuned
from linrnn.tasks.associative_recall import AssociativeRecallOptions
from linrnn.tasks.mqar import MQAROptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

HEADS, CHANNELS = 2, 16
#: Learning rates: each is tried with one seed, the best on validation is taken.
RATES = (3e-3, 1e-2, 3e-2)
_SIZE = {"n_heads": HEADS, "d_key": CHANNELS, "d_value": CHANNELS}
MEMORIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "delta": ("delta_net", {"d_conv": 1}),
    "delta and decay": ("gated_delta_net", {"d_conv": 1}),
    "decay by channel": ("gla", {}),
    "decay by head, fixed": ("retnet", {}),
    "plain, normalised": ("linear_attention", {}),
}
"""The mixer of each row, and its options beside the size."""


@dataclass(frozen=True)
class Question:
    """A task at one size."""

    task: str
    options: Any
    epochs: int


QUESTIONS = {
    "mqar, 8 pairs": Question("mqar", MQAROptions(length=64, n_pairs=8, vocabulary=128,
                                                  train_size=16_000, test_size=1_000), 6),
    "mqar, 32 pairs": Question("mqar", MQAROptions(length=128, n_pairs=32, vocabulary=128,
                                                   train_size=16_000, test_size=1_000), 6),
    "associative recall, 32 keys": Question(
        "associative_recall",
        AssociativeRecallOptions(length=128, vocabulary=64, train_size=16_000,
                                 validation_size=1_000, test_size=1_000), 6),
}  # fmt: skip


class MemoryRecall(Reproduction):
    """Multi-query and single associative recall by matrix memories of one size.

    Every layer has the same memory, 2 heads of 16 x 16 numbers, behind the same convolution of four
    steps and before the same MLP; what differs is how it is written. The learning rate of each is
    the best of three on validation.

    Args:
        questions: tasks to run in place of all.
        memories: labels of `MEMORIES` in place of all.
    """

    summary: ClassVar[str] = "recall by delta, decaying and plain memories of one size"
    source: ClassVar[str] = (
        "Yang et al. 2024, arXiv:2406.06484, Figure 2 and Yang et al. 2025, arXiv:2412.06464, "
        "Section 3: multi-query associative recall and retrieval"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "memories of 2 x 16 x 16 numbers and 1,500 steps; shows an order at this size and "
            "training alone; about half an hour of processor time a seed, and as much for tuning"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Accuracy where there are many pairs, from curves; no numbers are printed",
            ["claim", "published"],
            [["order, best first", "delta rule > decay > sum"]],
        ),
    )

    def __init__(
        self,
        questions: Mapping[str, Question] = QUESTIONS,
        memories: Sequence[str] = tuple(MEMORIES),
    ) -> None:
        self.questions, self.memories = questions, memories

    def run(self, setting: Setting) -> Findings:
        """Tune every memory on every task, then train it with every seed."""
        outcomes, tables = [], []
        best_first: list[str] = []
        for name, question in self.questions.items():
            candidates = {m: with_rates(row(question, m), RATES) for m in self.memories}
            search = tuned(name, candidates, setting)
            outcomes.append(search.outcome)
            tables += [table(search.outcome, {}), search.tried]
            accuracies = {row.label: by_seed(row) for row in search.outcome.rows}
            best = groups(accuracies) or "not run"
            best_first.append(f"{name}: best first {best} (> where better with every seed).")
        return Findings(
            tables=tuple(tables),
            verdicts=orders(self, setting),
            comparable=(
                "the order only: sizes, number of symbols, steps and the blocks around the memory "
                "are not those of the papers."
            ),
            complete=not any(outcome.problem for outcome in outcomes),
            notes=(*best_first, budget(RATES), *problems(*outcomes)),
            figures=curves(outcomes),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The order of the papers on each task."""
        pairs = in_words([m for m in ORDER if m in self.memories])
        return [
            runs.part(name).claim(
                better, worse, f"{name}: {better} is better than {worse}", "by curves"
            )
            for name in self.questions
            for better, worse in pairs
        ]


def config(question: Question) -> Config:
    """Return the configuration that all memories share."""
    return Config(
        task=question.task,
        task_options=question.options,
        model=ModelConfig(
            d_model=HEADS * CHANNELS,
            n_layers=2,
            norm="rms",
            block="mlp",
            conv_width=4,
            dropout=0.0,
            pool="none",
            final_norm=True,
        ),
        optim=OptimConfig(lr=1e-3, weight_decay=0.1),
        train=TrainConfig(epochs=question.epochs, batch_size=64, threads=1),
    )


def row(question: Question, memory: str) -> Config:
    """Return a memory's configuration, but for its learning rate."""
    mixer, options = MEMORIES[memory]
    return replace(config(question), mixer=mixer, mixer_options={**_SIZE, **options})


ORDER = ("delta", "decay by channel", "plain, normalised")
"""Memories in the order of the papers, best first."""
