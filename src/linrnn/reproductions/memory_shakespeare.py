"""Matrix memories as language models of one size on tiny Shakespeare."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from linrnn import recipes
from linrnn.compare.match import count_parameters, match_parameters
from linrnn.compare.tune import with_rates
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.quoted import Quoted
from linrnn.reproductions._page.runs import Runs, reduction
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs import halves
from linrnn.reproductions._runs.language import (
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
from linrnn.reproductions._runs.trained import Outcome, problems
from linrnn.reproductions._runs.tuned import budget, tuned
from linrnn.train import Config

NAME = "tiny Shakespeare"
HEADS = 4
_ERROR = 0.01
PARAMETERS = 400e6
"""Size of a published model."""
PUBLISHED = {"mLSTM": 13.43, "RetNet": 16.23, "RWKV-6": 17.40, "GLA": 19.56}
MODELS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "GLA": ("gla", "mlp", {"n_heads": HEADS}),
    "DeltaNet": ("delta_net", "mlp", {"n_heads": HEADS}),
    "RetNet": ("retnet", "mlp", {"n_heads": HEADS}),
    "Mamba-2": ("mamba2", "bare", {"d_state": 64, "d_head": 64}),
    "RWKV-6": ("rwkv6", "channel_mix", {"n_heads": HEADS}),
    "mLSTM": ("mlstm", "bare", {"n_heads": HEADS}),
}
"""The mixer of each row, the block it is published in, and its options."""


class MemoryShakespeare(Reproduction):
    """A small language model on characters, with six matrix memories.

    The configuration is that of the recipe ``lm``, and the number of parameters that of its minGRU,
    so that the losses stand beside those of ``minrnn-shakespeare``. Each layer has what it is
    published with around it: an MLP, channel mixing, or nothing where it already has gates;
    convolutions where it brings one. Each has the best of four learning rates.

    Args:
        base: configuration to run in place of the recipe's.
        rates: to try in place of `RATES`.
    """

    summary: ClassVar[str] = "six matrix memories as language models on tiny Shakespeare"
    source: ClassVar[str] = (
        "Beck et al. 2024, arXiv:2405.04517, language modelling on SlimPajama, 15 billion tokens"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "models of 0.6 million parameters and 2,946 batches of the recipe `lm`; shows the "
            "order after short training on a megabyte; an hour and a half of processor time a "
            "seed, and six for tuning"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Validation perplexity on SlimPajama at some 400 million parameters",
            ["model", "perplexity"],
            [[name, f"{perplexity:.2f}"] for name, perplexity in PUBLISHED.items()],
        ),
    )

    def __init__(self, base: Config | None = None, rates: Sequence[float] = RATES) -> None:
        self.base, self.rates = base, rates

    def run(self, setting: Setting) -> Findings:
        """Tune all six, then train them with every seed."""
        base = self.base or recipes.load("lm").config
        candidates = {label: with_rates(config, self.rates) for label, config in rows(base).items()}
        search = tuned(NAME, candidates, setting)
        outcome = search.outcome
        runs = Runs.of_page(setting.out, setting.scale, measures=halves.measured(search))
        part = runs.part(NAME)
        losses = losses_by_row(halves.confirmed(part), tuple(MODELS), halves.SECOND)
        halved = halves.table(part, [row.label for row in outcome.rows])
        return Findings(
            tables=(_losses(outcome), table(outcome, {}), halved, search.tried),
            comparable=(
                "the order only: models, text and training are a thousand times smaller than "
                "those of the source. DeltaNet and Mamba-2 are not in its table."
            ),
            notes=(
                TEXT_NOTE,
                halves.NOTE,
                ERROR_NOTE,
                budget(self.rates),
                *orders(losses, _PRINTED),
                *problems(outcome),
            ),
            complete=not outcome.problem,
            figures=curves([outcome]),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The published order, by the half of the held-out text that chose no rate."""
        ours = max((run.parameters for run in runs.rows), default=0)
        part = runs.part(NAME, reduction({"parameters": (ours, PARAMETERS)}))
        return loss_order(halves.confirmed(part), _PRINTED, measure=halves.SECOND)


ERROR_NOTE = (
    f"the source prints no errors; {100 * _ERROR:g} % of a perplexity stands for each, about what "
    "two seeds of one model differ by here."
)


def rows(base: Config) -> dict[str, Config]:
    """The six models, with the parameters of the configuration's own."""
    target = count_parameters(base)
    return {
        label: match_parameters(
            with_model(base, mixer, mixer_options=options, block=block, conv_width=0), target
        )
        for label, (mixer, block, options) in MODELS.items()
    }


def _losses(outcome: Outcome) -> Table:
    cells = []
    for row in outcome.rows:
        loss = test_nats(row)
        cells.append([row.label, loss.text if loss else "failed", best_steps(row)])
    title = "Best test loss (nats per character)"
    return Table(title, ["model", "ours, mean ± s.e.", "at step"], cells)


_PRINTED = {
    name: Quoted(perplexity, taken=_ERROR * perplexity) for name, perplexity in PUBLISHED.items()
}
