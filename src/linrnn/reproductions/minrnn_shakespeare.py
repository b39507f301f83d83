"""minGRU, minLSTM, Mamba and a Transformer on tiny Shakespeare."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from linrnn import recipes
from linrnn.compare.match import count_parameters, match_parameters
from linrnn.compare.tune import with_rates
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import findings
from linrnn.reproductions._page.quoted import Quoted
from linrnn.reproductions._page.runs import Part, Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs import halves
from linrnn.reproductions._runs.language import (
    LOSS,
    RATES,
    TEXT_NOTE,
    best_steps,
    curves,
    loss_order,
    losses_by_row,
    orders,
    test_nats,
    with_model,
)
from linrnn.reproductions._runs.trained import Column, Outcome, scale_of, train
from linrnn.reproductions._runs.tuned import budget, tuned
from linrnn.train import Config

NAME = "tiny Shakespeare"
STEPS = 5_000
PUBLISHED = {  # best test loss in nats per character, and the step it was reached at
    "minGRU": (1.548, 575),
    "minLSTM": (1.555, 625),
    "Mamba": (1.575, 400),
    "Transformer": (1.547, 2_000),
}
HEADS = 6
_ERROR = 0.005


class MinRNNShakespeare(Reproduction):
    """A small language model on characters, with four mixers.

    The recurrent layers are in blocks of convolution, mixer and MLP; Mamba has its own
    convolution and no MLP, the Transformer no convolution. Scaled down, each has the best of four
    learning rates, the budget of ``memory-shakespeare``.

    Args:
        column: size to run in place of that of the scale.
        rates: to try in place of `RATES`, where models are scaled down.
    """

    summary: ClassVar[str] = "minGRU, minLSTM, Mamba and a Transformer on tiny Shakespeare"
    source: ClassVar[str] = "Feng et al. 2024, arXiv:2410.01201, language modelling"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "narrower models of equal size and fewer steps; shows the order after short training, "
            "not the published losses; 30 minutes of processor time a seed, and two hours for "
            "tuning"
        ),
        "paper": "the published sizes and number of steps; shows the losses, needs a GPU",
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Best test loss on tiny Shakespeare (nats per character)",
            ["model", "loss", "steps to that loss"],
            [[name, f"{loss:.3f}", f"{steps:,}"] for name, (loss, steps) in PUBLISHED.items()],
        ),
    )

    def __init__(self, column: Column | None = None, rates: Sequence[float] = RATES) -> None:
        self.column, self.rates = column, rates

    def run(self, setting: Setting) -> Findings:
        """Train all four: as published, or tuned where they are scaled down."""
        chosen = self.column or column(setting.scale)
        models = rows(chosen.config)
        if setting.scale == "paper":
            search, outcome = None, train(chosen, models, setting)
        else:
            candidates = {
                label: with_rates(config, self.rates) for label, config in matched(models).items()
            }
            search = tuned(chosen, candidates, setting)
            outcome = search.outcome
        measures = None if search is None else halves.measured(search)
        runs = Runs.of_page(setting.out, setting.scale, measures=measures)
        tables, notes = [], []
        if search is not None:
            labels = [row.label for row in outcome.rows]
            tables = [halves.table(runs.part(NAME), labels), search.tried]
            notes = [halves.NOTE, budget(self.rates)]
        page = findings([outcome], {}, notes=NOTES, figures=curves([outcome]))
        part, measure = _judged_by(runs.part(NAME), setting.scale)
        losses = losses_by_row(part, tuple(PUBLISHED), measure)
        return replace(
            page,
            tables=(beside(outcome), *page.tables, *tables),
            notes=(*page.notes, *notes, *orders(losses, _PRINTED)),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The published order; scaled down, by the half of the text that chose no rate."""
        size = scale_of(self.column or column(scale), runs.part(NAME).steps)
        part, measure = _judged_by(runs.part(NAME, size), scale)
        return loss_order(part, _PRINTED, measure=measure, in_nats=True)


NOTES = (
    TEXT_NOTE,
    f"the paper prints no errors; {_ERROR:g} stands for each. A mean over the 111,540 characters "
    "of the test is as uncertain, for the losses of single ones have a deviation of 1.6 here.",
    "the steps to the best loss depend on how often it is looked at: every 25 steps in the paper, "
    "every pass through the text here.",
    "the paper gives no norm, weight decay or schedule for this experiment; ours are those of the "
    "recipe `lm`.",
)


def column(scale: str) -> Column:
    """The configuration of the recipe `lm` at that scale."""
    configs = {name: recipes.load("lm", name).config for name in {scale, "paper"}}
    return Column(name=NAME, config=configs[scale], paper=configs["paper"], steps=STEPS)


def rows(base: Config) -> dict[str, Config]:
    """The four models."""
    gated = {"mixer_options": base.mixer_options}
    heads = {"n_heads": HEADS if base.model.d_model % HEADS == 0 else 4}
    return {
        "minGRU": with_model(base, "mingru", **gated),
        "minLSTM": with_model(base, "minlstm", **gated),
        "Mamba": with_model(base, "mamba", block="bare", conv_width=0),
        "Transformer": with_model(base, "attention", mixer_options=heads, conv_width=0),
    }


def matched(models: Mapping[str, Config]) -> dict[str, Config]:
    """Set widths that give all models the parameters of the first, within 3 %.

    As published, all have one width; small models of one width differ too much in size to be
    ranked.
    """
    target = count_parameters(next(iter(models.values())))
    return {label: match_parameters(config, target) for label, config in models.items()}


def beside(outcome: Outcome) -> Table:
    """Published losses and ours."""
    rows_by_label = {row.label: row for row in outcome.rows}
    cells = []
    for name, (loss, steps) in PUBLISHED.items():
        ours = test_nats(rows_by_label[name]) if name in rows_by_label else None
        at = best_steps(rows_by_label[name]) if ours else ""
        cells.append([name, f"{loss:.3f}", ours.text if ours else "not run", f"{steps:,}", at])
    head = ["model", "published", "ours, mean ± s.e.", "at step, published", "at step, ours"]
    return Table("Best test loss (nats per character)", head, cells)


_PRINTED = {name: Quoted(loss, taken=_ERROR) for name, (loss, _) in PUBLISHED.items()}


def _judged_by(part: Part, scale: str) -> tuple[Part, str]:
    """The runs that claims are judged by, and the measure of theirs."""
    return (part, LOSS) if scale == "paper" else (halves.confirmed(part), halves.SECOND)
