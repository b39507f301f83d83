"""A small trained Hyena, and small recurrences that replace its filters."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from linrnn.backbone import SequenceModel
from linrnn.compare import Row
from linrnn.distillation import distill_orders
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import SECONDS, Part, Runs, decades, seed_by_seed
from linrnn.reproductions._page.verdict import Judged, margin
from linrnn.reproductions._runs.language import TEXT_NOTE, mean_of, small, with_model
from linrnn.reproductions._runs.timing import Call, Timing, Turns, digits, faster, rounds
from linrnn.reproductions._runs.trained import problems, train
from linrnn.reproductions._runs.tuned import one_rate
from linrnn.state import n_floats
from linrnn.train import Config, OrderFit, Score
from linrnn.train.context import open_run
from linrnn.train.distil import measure_orders
from linrnn.train.figures import legend_below, log_axis, new_figure, over_seeds
from linrnn.train.styles import styles

ORDERS = (2, 4, 8, 16, 32, 64)
LENGTH, BATCH_TOKENS, EPOCHS, D_MODEL, N_LAYERS = 256, 4096, 4, 64, 2
HYENA: Mapping[str, Any] = {"d_position": 33, "frequency": 14.0}
"""As in the published configuration of a language model on the Pile."""
SUFFICES = 1e-3
"""An order suffices if it raises the validation loss by no more, in nats a character."""
ENOUGH = (16, 32)
"""The orders of which that is judged; the abstract, on which the claim rests, names none."""
POSITIONS = (256, 1024, 4096)
REACH = 8192
"""Taps of the filters whose steps are timed."""
STEPS = 256
"""Steps in a row that are timed: one of every 256 steps of Hyena makes a block."""
STEADY_FACTOR = 1.25
BEFORE, AFTER = "hyena", "laughing_hyena"
TEXT, TIMED = "tiny Shakespeare", "steps"
_SCALE = "with two layers of width 64"


class Seed(NamedTuple):
    """One trained model."""

    before: Score
    fits: tuple[OrderFit, ...]


class Distillation(Reproduction):
    """A language model of Hyena is trained, and its filters replaced by recurrences of each order.

    Nothing is trained after that. Beside the errors of filters and outputs stands what a step of
    one sequence costs, before and after, in models of the same sizes whose filters reach further
    than they read.

    Args:
        base: configuration to run in place of ours.
        orders: in rising order.
        positions: steps read before those that are timed, in rising order.
        reach: taps of the filters of the model that is timed.
        steps: timed in a row.
        turns: how to time.
    """

    summary: ClassVar[str] = "a trained Hyena distilled to small recurrences: order, loss, speed"
    source: ClassVar[str] = (
        "Massaroli et al. 2023, Laughing Hyena Distillery, arXiv:2310.18780, abstract and section 5"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "two layers of width 64 on a megabyte of Shakespeare, filters of 256 steps; shows how "
            "order, errors and loss go together at this size, not what a large model loses; 4 "
            "minutes of processor time a seed, and one for the steps"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements about distilled models of up to 1.3 billion parameters",
            ["statement", "published"],
            [
                ["no loss in quality after distillation", "yes"],
                ["tokens a second of generation, beside Hyena's", "1.5 times"],
            ],
        ),
    )

    def __init__(
        self,
        base: Config | None = None,
        orders: Sequence[int] = ORDERS,
        positions: Sequence[int] = POSITIONS,
        reach: int = REACH,
        steps: int = STEPS,
        turns: Turns | None = None,
    ) -> None:
        self.base, self.orders = base or base_config(), orders
        self.positions, self.reach, self.steps = positions, reach, steps
        self.turns = turns or Turns()

    def run(self, setting: Setting) -> Findings:
        """Train, distil at every order, and time steps."""
        outcome = train(TEXT, {BEFORE: self.base}, setting)
        distilled = {f: self._distilled(f, setting) for f in _finished(outcome.rows)}
        seeds = [*distilled.values()]
        times = self._times(setting)
        measures = {folder: _measures(seed) for folder, seed in distilled.items()}
        trained = Runs.of_page(setting.out, setting.scale, measures=measures)
        steps = {_row(*at): timing for at, (timing, _) in times.items()}
        runs = Runs((*trained.rows, *rounds({TIMED: steps}, setting.scale)))
        tables = [
            *([_orders(seeds)] if seeds else []),
            _steps(times, self.steps),
            table(outcome, {}),
        ]
        figures = {"orders": _order_figure(seeds)} if seeds else {}
        return Findings(
            tables=tuple(tables),
            comparable=(
                "whether the statements hold; models, text and training are a thousand times "
                "smaller than those of the source, and the speed is that of one sequence on a CPU."
            ),
            notes=(TEXT_NOTE, *NOTES, one_rate([outcome]), *problems(outcome)),
            complete=not outcome.problem,
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures=figures,
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The statements about loss and speed, seed by seed and round by round."""
        orders = judged(runs.part(TEXT, _SCALE), self.orders)
        return [*orders, *judged_steps(runs.part(TIMED, _SCALE), self.positions)]

    def _distilled(self, folder: Path, setting: Setting) -> Seed:
        run = open_run(folder)
        length = run.task.sequence_length
        seed = Seed(*measure_orders(run, distill_orders(run.layers, self.orders, length=length)))
        last = seed.fits[-1]
        setting.say(f"{folder.name}: order {last.order} has an error of {last.outputs:.2g}")
        return seed

    def _times(self, setting: Setting) -> "dict[tuple[str, int], tuple[Timing, int]]":
        """Time and floats of state of a step, by model and position."""
        calls: dict[str, Call] = {}
        floats: dict[tuple[str, int], int] = {}
        modes = max(self.orders) // 2
        options = {BEFORE: {**HYENA, "l_max": self.reach}, AFTER: {"d_state": modes}}
        for mixer, its in options.items():
            model = _timed(self.base, mixer, its)
            for position in self.positions:
                calls[_row(mixer, position)], floats[mixer, position] = self._stream(
                    model, position
                )
        timings = self.turns.measure(calls)
        for name, timing in timings.items():
            setting.say(f"{self.steps} steps after {name}: {timing.milliseconds()} ms")
        return {
            (mixer, position): (timings[_row(mixer, position)], floats[mixer, position])
            for mixer in options
            for position in self.positions
        }

    @torch.inference_mode()
    def _stream(self, model: SequenceModel, position: int) -> tuple[Call, int]:
        """Steps of one sequence from a position on, and the floats of its state there."""
        start = model(torch.zeros(1, position, dtype=torch.long))[1]
        token = torch.zeros(1, dtype=torch.long)

        @torch.inference_mode()
        def steps() -> None:
            state = start
            for _ in range(self.steps):
                _, state = model.step(token, state)

        return steps, n_floats(start)


NOTES = (
    f"an order suffices where it raises the validation loss by at most {SUFFICES:g} nats a "
    "character, or lowers it; filters are fitted over the length of a training sequence, in closed "
    "form, and nothing is trained after that.",
    "the error of a filter is the norm of the difference as part of its norm, that of outputs the "
    "same over all logits of the validation text; least is what the largest error of a filter is "
    "at least for any recurrence of the order, by its Hankel matrix.",
    "steps are those of models that were not trained, whose weights play no part in the time; the "
    f"filters of that Hyena reach {REACH:,} steps back, and LaughingHyena has half as many modes "
    f"as the largest order. Times of a round are alike within a factor of {STEADY_FACTOR:g}.",
)


def base_config() -> Config:
    """Return the configuration that is trained."""
    base = small(LENGTH, BATCH_TOKENS, EPOCHS, D_MODEL, N_LAYERS)
    return with_model(base, "hyena", mixer_options={**HYENA, "l_max": LENGTH})


def _finished(rows: Sequence[Row]) -> list[Path]:
    return [f for row in rows for f in row.folders if (f / "result.json").is_file()]


def _timed(base: Config, mixer: str, options: Mapping[str, Any]) -> SequenceModel:
    """A model of the sizes of the configuration."""
    model = base.model
    return SequenceModel(
        65,
        65,
        mixer=mixer,
        mixer_options=options,
        encoder="tokens",
        d_model=model.d_model,
        n_layers=model.n_layers,
        norm=model.norm,
        block=model.block,
        final_norm=model.final_norm,
        pool="none",
    ).eval()


def _orders(seeds: Sequence[Seed]) -> Table:
    rows = []
    for at, fit in enumerate(seeds[0].fits):
        every = [seed.fits[at] for seed in seeds]
        changes = [f.score.loss - seed.before.loss for f, seed in zip(every, seeds, strict=True)]
        errors = [
            f"{np.mean([getattr(f, name) for f in every]):.2g}"
            for name in ("largest", "median", "floor", "outputs")
        ]
        size = f"{fit.n_state:,}"
        rows.append([str(fit.order), *errors, f"{np.mean(changes):+.2g}", size])
    head = ["order", "filters, largest", "median", "least", "outputs", "validation loss"]
    original = mean_of([seed.before.loss for seed in seeds])
    title = (
        "Errors by order, means over seeds; "
        f"the change of a loss of {original.text} nats a character"
    )
    return Table(title, [*head, "floats of state"], rows)


def _steps(times: Mapping[tuple[str, int], tuple[Timing, int]], steps: int) -> Table:
    count = list(dict.fromkeys(position for _, position in times))
    rows = []
    for mixer in dict.fromkeys(mixer for mixer, _ in times):
        cells = [_cell(*times[mixer, position]) for position in count]
        rows.append([mixer, *cells])
    head = ["model", *(f"after {position:,} steps" for position in count)]
    return Table(f"Milliseconds of {steps} steps in a row, and floats of state", head, rows)


def _cell(timing: Timing, floats: int) -> str:
    return f"{digits(1e3 * timing.median)}; {floats:,}"


def _measures(seed: Seed) -> dict[str, float]:
    """Measures of a distilled model, by name."""
    measures = {}
    for fit in seed.fits:
        measures[_rise(fit.order)] = fit.score.loss - seed.before.loss
        measures[_error(fit.order)] = fit.outputs
    return measures


def _rise(order: int) -> str:
    return f"rise of the loss, order {order}"


def _error(order: int) -> str:
    return f"error of outputs, order {order}"


def _row(mixer: str, position: int) -> str:
    return f"{mixer}, {position}"


def judged(part: Part, orders: Sequence[int]) -> list[Judged]:
    """Judge the claims about orders, model by model.

    Args:
        part: of the trained models.
        orders: in rising order.
    """
    verdicts = []
    for order in ENOUGH:
        rises = part.values(BEFORE, _rise(order))
        verdicts.append(
            margin(
                f"order {order} suffices",
                "no loss in quality; the order is ours",
                {seed: 1e3 * (SUFFICES - rise) for seed, rise in rises.items()},
                unit="thousandths of a nat under the bound of one",
                scale=part.scale,
            )
        )
    errors = [part.values(BEFORE, _error(order)) for order in orders]
    falls = seed_by_seed(
        lambda *errors: min(decades(after, before) for before, after in pairwise(errors)), *errors
    )
    claim, unit = "the error of the outputs falls with the order", "decades, the smallest fall"
    return [*verdicts, margin(claim, "ours", falls, unit=unit, scale=part.scale)]


def judged_steps(part: Part, positions: Sequence[int]) -> list[Judged]:
    """Judge the claims about the time of a step, round by round.

    Args:
        part: of the rounds.
        positions: in rising order.
    """
    spreads = seed_by_seed(
        lambda *seconds: decades(max(seconds) / min(seconds), STEADY_FACTOR),
        *(part.values(_row(AFTER, position), SECONDS) for position in positions),
    )
    claim = "after, a step costs as much however much was read"
    unit = f"decades under a factor of {STEADY_FACTOR:g}"
    steady = margin(claim, "by its making", spreads, unit=unit, scale=part.scale)
    return [
        steady._replace(each="rounds"),
        *(
            faster(
                part,
                _row(AFTER, position),
                _row(BEFORE, position),
                f"after {position:,} steps one costs less than before distillation",
                "1.5 times the tokens a second, on a GPU",
            )
            for position in positions
        ),
    ]


def _order_figure(seeds: Sequence[Seed]) -> Any:
    figure = new_figure()
    axes = figure.subplots()
    orders = [fit.order for fit in seeds[0].fits]
    shown = {"largest": "filters, largest", "median": "filters, median", "outputs": "outputs"}
    looks = styles(list(shown.values()))
    for name, label in shown.items():
        values = [[getattr(fit, name) for fit in seed.fits] for seed in seeds]
        axes.plot(orders, np.mean(values, 0), label=label, **looks[label])
    axes.set(yscale="log", xlabel="order", ylabel="relative error (norm)")
    log_axis(axes, orders, [str(order) for order in orders])
    axes.set(title=over_seeds([len(seeds)]))
    axes.grid(alpha=0.3)
    legend_below(figure, axes)
    return figure
