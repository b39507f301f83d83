"""Ten symbols to repeat after 500 blanks, by gated, orthogonal and oscillating cells."""

from collections.abc import Mapping, Sequence
from math import log
from typing import ClassVar

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.cells import (
    BEFORE,
    FAILS,
    NOT_PUBLISHED,
    SOLVES,
    Model,
    Race,
    Said,
    one_layer,
)
from linrnn.tasks.copy import CopyOptions
from linrnn.train import Config

DELAY, BATCH = 500, 32
EPOCHS, PER_EPOCH = 14, 200  # steps
BASELINE = 10 * log(8) / (DELAY + 20)
GOAL = BASELINE / 10
D_MODEL = 64

MODELS: Mapping[str, Model] = {
    "IndRNN": Model(
        mixer="ind_rnn", options={"t_max": DELAY + 20}, n_layers=2, lr=1e-3, source="ours"
    ),
    "coRNN": Model(
        mixer="co_rnn",
        options={"step_size": 0.076, "gamma": 0.4, "eps": 8.0},
        lr=5e-3,
        source="its psMNIST; ours",
    ),
    "UnICORNN": Model(
        mixer="unicornn", options={"step_size": 0.19, "alpha": 0.0}, lr=5e-3, source="ours"
    ),
    "LEM": Model(mixer="lem", options={"step_size": 0.0242}, lr=2.6e-3, source="its adding"),
    "expRNN": Model(
        mixer="exp_rnn",
        options={"init": "henaff"},
        lr=1e-3,
        recurrent=0.1,
        source="arXiv:1901.08428, five times its rates",
    ),
    "LSTM": Model(mixer="lstm", lr=1e-3, source="arXiv:1804.11188"),
    "LSTM, chrono": Model(
        mixer="lstm",
        options={"gates": "chrono", "t_max": 3 * DELAY // 2},
        lr=1e-3,
        source="the same",
    ),
    "LSTM, UR": Model(mixer="lstm", options={"gates": "ur"}, lr=1e-3, source="arXiv:1910.09890"),
}
"""Published settings where there are any; learning rates without a source are ours, one each."""
SAID = {
    **dict.fromkeys(("IndRNN", "coRNN", "UnICORNN", "LEM"), NOT_PUBLISHED),
    "expRNN": Said("190 channels, delay 1,000: solves it within 4,000 steps", SOLVES),
    "LSTM": Said("128 channels, delay 500: stays at the baseline", FAILS),
    **dict.fromkeys(
        ("LSTM, chrono", "LSTM, UR"), Said("solves it where the LSTM does not", BEFORE)
    ),
}
"""Claims of the sources; curves are drawn, no numbers printed."""


class CellsCopy(Reproduction):
    """The copy problem at a delay of 500: which recurrence beats an answer without a memory.

    One layer of 64 channels, of IndRNN two, between an embedding and a linear map, on sequences of
    one marker and a loss on every step; what differs is the layer and its learning rate.

    Args:
        models: labels of `MODELS` in place of all.
        base: configuration of all runs in place of ours.
    """

    summary: ClassVar[str] = "copying over 500 steps by eight recurrent layers"
    source: ClassVar[str] = (
        "Lezcano-Casado & Martinez-Rubio 2019, arXiv:1901.08428, Figure 1; Tallec & Ollivier 2018, "
        "arXiv:1804.11188, Figure 3; Gu et al. 2020, arXiv:1910.09890"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "layers of 64 channels and 2,800 steps of 32 sequences; shows who learns within that, "
            "not who would later; some 23 minutes of processor time a seed"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Claims; curves are drawn, no numbers are printed",
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
            name="copy",
            base=self.base,
            models={label: MODELS[label] for label in self.models},
            said=SAID,
            goal=GOAL,
            baseline=BASELINE,
        )


def config() -> Config:
    """Return the configuration that all runs share."""
    options = CopyOptions(
        length=DELAY, train_size=BATCH * PER_EPOCH, validation_size=256, test_size=1_000
    )
    return one_layer("copy", options, d_model=D_MODEL, epochs=EPOCHS, batch_size=BATCH, pool="none")
