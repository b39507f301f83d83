"""Two marked numbers among 2,000, added up by gated, orthogonal and oscillating cells."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.cells import (
    BEFORE,
    NOT_PUBLISHED,
    SOLVES,
    Model,
    Race,
    Said,
    one_layer,
)
from linrnn.tasks.adding import AddingOptions
from linrnn.train import Config

LENGTH, BATCH = 2000, 16
EPOCHS, PER_EPOCH = 12, 300  # steps
GOAL, BASELINE = 0.01, 1 / 6
D_MODEL = 32

MODELS: Mapping[str, Model] = {
    "IndRNN": Model(
        mixer="ind_rnn",
        options={"t_max": LENGTH},
        n_layers=2,
        lr=2e-3,
        source="arXiv:1803.04831, lr ours",
    ),
    "coRNN": Model(
        mixer="co_rnn",
        options={"step_size": 0.06, "gamma": 66.0, "eps": 15.0},
        lr=2e-2,
        source="its public code",
    ),
    "UnICORNN": Model(
        mixer="unicornn", options={"step_size": 0.19, "alpha": 0.0}, lr=5e-3, source="ours"
    ),
    "LEM": Model(
        mixer="lem", options={"step_size": 0.0242}, lr=5e-3, source="its public code, lr ours"
    ),
    "expRNN": Model(
        mixer="exp_rnn", options={"init": "cayley"}, lr=1e-3, recurrent=0.1, source="ours"
    ),
    "LSTM": Model(mixer="lstm", lr=1e-3, source="arXiv:1804.11188"),
    "LSTM, chrono": Model(
        mixer="lstm", options={"gates": "chrono", "t_max": LENGTH}, lr=1e-3, source="the same"
    ),
    "LSTM, UR": Model(mixer="lstm", options={"gates": "ur"}, lr=1e-3, source="arXiv:1910.09890"),
}
"""Published settings where there are any; learning rates without a source are ours, one each."""
SAID = {
    "IndRNN": Said("two layers of 128 learn up to length 5,000", SOLVES),
    "coRNN": Said("128 channels learn up to length 5,000, after thousands of steps", SOLVES),
    "UnICORNN": NOT_PUBLISHED,
    "LEM": Said("128 channels, batches of 50: below 0.01 after 1,900 steps, by its log", SOLVES),
    "expRNN": NOT_PUBLISHED,
    "LSTM": Said("learns later than those beside it"),
    "LSTM, chrono": Said("learns at length 750, before the LSTM", BEFORE),
    "LSTM, UR": Said("learns, before the LSTM", BEFORE),
}
"""Claims of the sources; curves are drawn, and few numbers printed."""


class CellsAdding(Reproduction):
    """The adding problem at length 2,000: which recurrence learns it at all, and before the LSTM.

    One layer of 32 channels between linear maps, of IndRNN two, for one cannot multiply the number
    and the mark; what differs is the layer and its learning rate.

    Args:
        models: labels of `MODELS` in place of all.
        base: configuration of all runs in place of ours.
    """

    summary: ClassVar[str] = "adding at length 2,000 by eight recurrent layers"
    source: ClassVar[str] = (
        "Rusch et al. 2021, arXiv:2110.04744, Figure 2 and Rusch & Mishra 2020, arXiv:2010.00951, "
        "Figure 1; Li et al. 2018, arXiv:1803.04831; Gu et al. 2020, arXiv:1910.09890; Tallec & "
        "Ollivier 2018, arXiv:1804.11188"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "layers of 32 channels and 3,600 steps of 16 sequences; shows who learns within that, "
            "not who would later; some 25 minutes of processor time a seed"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Claims; curves are drawn, few numbers are printed",
            ["model", "published"],
            [[label, said.words] for label, said in SAID.items()],
        ),
    )

    def __init__(self, models: Sequence[str] = tuple(MODELS), base: Config | None = None) -> None:
        self.models, self.base = models, base or config()

    def run(self, setting: Setting) -> Findings:
        """Train all, and compare when they are there."""
        return self._race().run(setting)

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Judge the published words about each model."""
        return self._race().claims(runs)

    def _race(self) -> Race:
        return Race(
            name="adding",
            base=self.base,
            models={label: MODELS[label] for label in self.models},
            said=SAID,
            goal=GOAL,
            baseline=BASELINE,
        )


def config() -> Config:
    """Return the configuration that all runs share."""
    options = AddingOptions(
        length=LENGTH, train_size=BATCH * PER_EPOCH, validation_size=256, test_size=1_000
    )
    return one_layer(
        "adding", options, d_model=D_MODEL, epochs=EPOCHS, batch_size=BATCH, pool="last"
    )
