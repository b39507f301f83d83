"""A wave that is seen at irregular times, by layers that know time and by an LSTM."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.cells import RIVAL, one_layer
from linrnn.reproductions._runs.language import curves
from linrnn.reproductions._runs.trained import orders, problems, train
from linrnn.tasks.gaps import GapsOptions
from linrnn.train import Config

WIDTH, BATCH, EPOCHS, PER_EPOCH = 16, 64, 10, 80
LAYERS: Mapping[str, tuple[str, dict[str, Any], float]] = {
    "LTC": ("ltc", {}, 1e-2),
    "CfC": ("cfc", {}, 5e-3),
    "LSTM": ("lstm", {}, 5e-3),
}
"""The layer of each pair of rows, its options and its learning rate."""
TIMED = {"LTC": "dt", "CfC": "dt", "LSTM": "column"}
"""How each is told the time, in the words of the task `gaps`."""
HELP, BETTER = "by its making", "on most series of the papers"


class CellsGaps(Reproduction):
    """The velocity of an oscillator from its heights at irregular times, with time and without.

    LTC and CfC are given the times between steps as times, the LSTM as one more column of its
    input; and each once without any.

    Args:
        layers: labels of `LAYERS` in place of all.
        base: configuration of all runs in place of ours.
    """

    summary: ClassVar[str] = "a series with gaps by LTC, CfC and LSTM, with and without its times"
    source: ClassVar[str] = (
        "Hasani et al. 2021, arXiv:2006.04439 and 2022, arXiv:2106.13898: series sampled at "
        "irregular times"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "layers of 16 channels, 800 steps, a series that is made; shows what times are worth "
            "to each layer on a known system; about five minutes of processor time a seed"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Claims, of other series",
            ["claim", "published"],
            [
                ["times help a layer that knows time", HELP],
                ["LTC and CfC do better than an LSTM with times", BETTER],
            ],
        ),
    )

    def __init__(self, layers: Sequence[str] = tuple(LAYERS), base: Config | None = None) -> None:
        self.layers, self.base = layers, base or config()

    def run(self, setting: Setting) -> Findings:
        """Train every layer with times and without, and compare them seed by seed."""
        rows = {
            name: configured(self.base, layer, times)
            for layer in self.layers
            for name, times in ((f"{layer}, times", TIMED[layer]), (f"{layer}, no times", "none"))
        }
        outcome = train(NAME, rows, setting)
        return Findings(
            tables=(table(outcome, {}),),
            comparable="the claims only: the series, widths and training are not the papers'.",
            complete=not outcome.problem,
            verdicts=orders(self, setting),
            notes=(NOTE, _RATES, *problems(outcome)),
            figures=curves([outcome]),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether times help each layer, and which does better than the LSTM."""
        part = runs.part(NAME)
        pairs = [
            (
                f"{layer}, times",
                f"{layer}, no times",
                f"{layer}: times lower the error",
                HELP if layer != RIVAL else "ours",
            )
            for layer in self.layers
        ]
        pairs += [
            (
                f"{layer}, times",
                f"{RIVAL}, times",
                f"{layer} does better than the LSTM, both with times",
                BETTER,
            )
            for layer in self.layers
            if layer != RIVAL
        ]
        return [part.claim(*pair) for pair in pairs if part.has(*pair[:2])]


NAME = "gaps"
NOTE = (
    "an error is smaller if that of the test is, with the same seed. The velocity follows exactly "
    "from two heights and the time between them, and cannot be told from heights alone."
)
_RATES = (
    f"learning rates: {', '.join(f'{label} {lr:g}' for label, (*_, lr) in LAYERS.items())}, "
    "ours; nothing is tuned for any of them."
)


def config() -> Config:
    """Return the configuration that all runs share."""
    options = GapsOptions(train_size=BATCH * PER_EPOCH, validation_size=512, test_size=2_000)
    return one_layer("gaps", options, d_model=WIDTH, epochs=EPOCHS, batch_size=BATCH, pool="none")


def configured(base: Config, layer: str, times: str) -> Config:
    """The configuration of a layer that reads times in one of the task's ways."""
    mixer, options, lr = LAYERS[layer]
    return replace(
        base,
        mixer=mixer,
        mixer_options=options,
        optim=replace(base.optim, lr=lr),
        task_options=replace(base.task_options, times=times),
    )
