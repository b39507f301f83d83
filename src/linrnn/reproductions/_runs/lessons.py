"""Trains by a learning rule: one loop, rates chosen on validation, errors step by step."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, pi
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.compare import run_table
from linrnn.compare.tune import BEYOND, Scores, at_an_end, best_rate, safe_name, search_rates
from linrnn.learn import Batch
from linrnn.reproductions._page.base import Setting, Table
from linrnn.reproductions._page.runs import slug
from linrnn.train.figures import legend_below, new_figure, over_seeds
from linrnn.train.styles import styles

ROWS, TEST_ROWS = 16, 256
"""Sequences of a batch, and of validation and of test."""
EVERY = 25
"""Steps between two looks at validation."""
BUDGET = (
    "budget of tuning: the rates of the last tables with the first seed, the same for all rules, "
    f"and up to {BEYOND} more beyond an end while that is the best; nothing else is tuned."
)
_VALIDATION, _TEST = 1 << 20, 1 << 21  # seeds of data, far from those of runs


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A row: a learner, and what of the layer stays as it was drawn."""

    learner: str
    options: Mapping[str, Any] = field(default_factory=dict)
    held: Sequence[str] = ()
    """Names of parameters of the first layer."""
    faster: Callable[[], learn.Learner] | None = None
    """Builds a learner of the same gradient that is faster; a test compares the two."""

    def build(self) -> learn.Learner:
        """Build the learner that finds the gradients of a run."""
        return learn.build(self.learner, self.options) if self.faster is None else self.faster()


@dataclass(frozen=True, kw_only=True)
class Lesson(ABC):
    """A task, the model that is to do it, and its training."""

    name: str
    steps: int
    rates: Sequence[float]
    rows: int = ROWS
    """Sequences of a batch."""
    falling: bool = False
    """Whether the rate falls to 0 along half a cosine."""

    @abstractmethod
    def model(self, seed: int) -> SequenceModel:
        """The model with its initial weights."""

    @abstractmethod
    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        """Sequences to learn from."""

    @abstractmethod
    def error(self, model: nn.Module, batch: Batch) -> float:
        """Return the error of the model on a batch, the smaller the better."""

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """Return the training loss, a mean over steps: windows of one length weigh alike."""
        return mse_loss(y, target)

    def asked(self) -> tuple[Batch, Batch]:
        """Sequences of validation and of the test, the same for all runs."""
        validation, test = (self.draw(TEST_ROWS, _generator(seed)) for seed in (_VALIDATION, _TEST))
        return validation, test


class Run(NamedTuple):
    """Results of one training run."""

    curve: list[tuple[int, float]]
    """Steps, and the error on validation after them."""
    error: float
    """Error on the test."""


Runs = Mapping[str, Sequence[Run]]
"""By rule, one for each seed."""


def descend(
    model: nn.Module,
    learner: learn.Learner,
    *,
    steps: int,
    rate: float,
    draw: Callable[[], Batch],
    look: Callable[[int], Any],
    loss: Callable[[Tensor, Tensor], Tensor] = mse_loss,
    falling: bool = False,
) -> None:
    """Adam with gradients of a norm up to 1; ``look`` gets 0, then the number of steps after each.

    Args:
        model, learner: of which the second finds gradients for the first.
        steps, rate: of Adam.
        draw: gives the next batch.
        look: is told how many steps are done.
        loss: of an answer and its target.
        falling: the rate falls to 0 along half a cosine.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer, loop = torch.optim.Adam(parameters, rate), learn.Loop(loss)
    learner.check(model)
    look(0)
    for step in range(1, steps + 1):
        if falling:
            optimizer.param_groups[0]["lr"] = rate * (1 + cos(pi * (step - 1) / steps)) / 2
        optimizer.zero_grad()
        learner.step(model, draw(), None, loop)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        look(step)


def trained(lesson: Lesson, rule: Rule, rate: float, seed: int) -> Run:
    """Learn by a rule: the gradient of whole batches, however it is found."""
    model = lesson.model(seed)
    for name, parameter in model.mixers[0].named_parameters():
        if name in rule.held:
            parameter.requires_grad_(False)
    validation, test = lesson.asked()
    curve: list[tuple[int, float]] = []

    def look(step: int) -> None:
        if step % EVERY == 0 or step == lesson.steps:
            curve.append((step, lesson.error(model, validation)))

    generator = _generator(seed)
    descend(
        model,
        rule.build(),
        steps=lesson.steps,
        rate=rate,
        draw=lambda: lesson.draw(lesson.rows, generator),
        look=look,
        loss=lesson.loss,
        falling=lesson.falling,
    )
    return Run(curve, lesson.error(model, test))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Tuned(NamedTuple):
    """Lessons learned, every rule at the best of its rates."""

    runs: Mapping[str, Runs]
    """At the best rates, by lesson."""
    tried: Sequence[Table]
    """Errors on validation at every rate, a table for each lesson."""
    rows: Sequence[run_table.Run]
    """Every run as data, those at other rates among them."""


def tuned(
    lesson: Lesson, rules: Mapping[str, Rule], setting: Setting
) -> tuple[Runs, Table, list[run_table.Run]]:
    """Every rule at each rate with the first seed, and at the best on validation with all.

    Rates beyond an end that was best are tried too; see `search_rates`.

    Returns:
        Runs at the best rates, what was tried, and every run as data.
    """
    seeds = setting.seeds
    runs, tried, records = {}, [], []
    for label, rule in rules.items():
        first = _searched(lesson, rule, seeds[0])
        best = best_rate(_last(first), higher_is_better=False)
        remaining = [trained(lesson, rule, best, seed) for seed in seeds[1:]]
        runs[label] = [first[best], *remaining]
        further = [(best, seed, run) for seed, run in zip(seeds[1:], remaining, strict=True)]
        every = [*((rate, seeds[0], run) for rate, run in first.items()), *further]
        records += [_row(lesson, label, rule, setting.scale, *each) for each in every]
        cells = [f"{run.curve[-1][1]:.3g} at {rate:g}" for rate, run in first.items()]
        tried.append([label, *cells, f"{best:g}" + ", an end" * at_an_end(best, first)])
        setting.say(f"{lesson.name}, {label}: {errors(runs[label])} at {best:g}")
    title = f"{lesson.name}: error on validation of seed {seeds[0]} while tuning"
    size = max(map(len, tried))
    head = ["rule", *(f"rate {i}" for i in range(1, size - 1)), "chosen"]
    return runs, Table(title, head, [_padded(row, size) for row in tried]), records


def _searched(lesson: Lesson, rule: Rule, seed: int) -> dict[float, Run]:
    """Runs at the rates of a lesson, and at those beyond an end that was best, in their order."""
    runs: dict[float, Run] = {}

    def score(rates: Mapping[str, Sequence[float]]) -> Scores:
        (rates_of_rule,) = rates.values()
        runs.update({rate: trained(lesson, rule, rate, seed) for rate in rates_of_rule})
        return {rule.learner: _last(runs)}

    search_rates({rule.learner: lesson.rates}, score, higher_is_better=False)
    return dict(sorted(runs.items()))


def _last(runs: Mapping[float, Run]) -> dict[float, float]:
    """Errors on validation after the last step; infinite where it is no number."""
    return {rate: _rank(run.curve[-1][1]) for rate, run in runs.items()}


def _row(
    lesson: Lesson, label: str, rule: Rule, scale: str, rate: float, seed: int, run: Run
) -> run_table.Run:
    options = {"learner": rule.learner, **rule.options, "held": list(rule.held)}
    return run_table.Run(
        scale=scale, part=slug(lesson.name), row=safe_name(label), seed=seed, lr=rate,
        options=json.dumps(options, sort_keys=True), steps=lesson.steps, metric="error",
        validation=run.curve[-1][1], test=run.error, test_loss=run.error,
    )  # fmt: skip


def tuned_all(lessons: Iterable[tuple[Lesson, Mapping[str, Rule]]], setting: Setting) -> Tuned:
    """Apply `tuned` to several lessons with their rules."""
    runs: dict[str, Runs] = {}
    tried, rows = [], list[run_table.Run]()
    for lesson, rules in lessons:
        runs[lesson.name], table, records = tuned(lesson, rules, setting)
        tried.append(table)
        rows += records
    return Tuned(runs, tried, rows)


def together(tried: Sequence[Table]) -> Table:
    """Join the tables of rates tried for several lessons, as `tuned` gives them."""
    longest = max((table.head for table in tried), key=len)
    rows = [
        [table.title.split(": error")[0], *_padded(row, len(longest))]
        for table in tried
        for row in table.rows
    ]
    title = tried[0].title.split(": ", 1)[1]
    return Table(title[:1].upper() + title[1:], ["task", *longest], rows)


def _padded(row: Sequence[str], size: int) -> list[str]:
    """Cells of a row, with empty ones before the last where others have more rates."""
    return [*row[:-1], *[""] * (size - len(row)), row[-1]]


def _rank(value: float) -> float:
    """Errors in their order, those that are no number last."""
    return value if value == value else float("inf")


def errors(runs: Sequence[Run]) -> str:
    """Format the errors on the test, seed by seed."""
    return ", ".join(f"{run.error:.3g}" for run in runs)


def stacked(runs: Sequence[Run]) -> tuple[list[int], Tensor]:
    """Steps, and the errors (seeds, steps) on validation after them."""
    steps = [step for step, _ in runs[0].curve]
    return steps, torch.tensor([[value for _, value in run.curve] for run in runs])


def near(candidate: float, exact: float, baseline: float) -> float:
    """By how much the first lacks less than half of what the last lacks of the exact one."""
    return (baseline - exact) / 2 - (candidate - exact)


def learning(
    lessons: Mapping[str, Runs],
    *,
    title: str,
    error: str = "error",
    lines: Mapping[str, float] | None = None,
    columns: int | None = None,
) -> Any:
    """Errors on validation along the training, means over seeds: a panel for each lesson.

    Args:
        lessons: by the name of a lesson.
        title: of the figure, before the number of seeds.
        error: label of the vertical axis.
        lines: heights by label, to compare with.
        columns: panels beside one another. Default: all.
    """
    columns = columns or len(lessons)
    rows = -(-len(lessons) // columns)
    figure = new_figure(3.4 * columns + 0.6, 3.1 * rows + 0.7)
    grid = figure.subplots(rows, columns, sharex=rows > 1, sharey=True, squeeze=False)
    looks = styles(list(dict.fromkeys(label for runs in lessons.values() for label in runs)))
    seeds = {len(several) for runs in lessons.values() for several in runs.values()}
    for axes, (name, runs) in zip(grid.flat, lessons.items(), strict=False):
        for label, several in runs.items():
            steps, values = stacked(several)
            axes.plot(steps, values.mean(0).tolist(), label=label, **looks[label])
        for label, height in (lines or {}).items():
            axes.axhline(height, color="0.5", linestyle=":", label=label)
        axes.set(yscale="log", title=name)
        axes.grid(alpha=0.3)
    for axes in grid[-1]:
        axes.set(xlabel="steps")
    for row in grid:
        row[0].set(ylabel=f"validation {error}")
    figure.suptitle(f"{title}: {over_seeds(seeds)}")
    legend_below(figure, *grid.flat)
    return figure
