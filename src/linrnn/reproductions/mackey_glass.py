"""A chaotic series, predicted by a Legendre memory, an LSTM and an LRU of one size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from linrnn.compare import match_parameters
from linrnn.compare.tune import with_rates
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import Runs, reduction
from linrnn.reproductions._page.verdict import Judged, groups
from linrnn.reproductions._runs.language import curves
from linrnn.reproductions._runs.trained import by_seed, orders, problems
from linrnn.reproductions._runs.tuned import tuned
from linrnn.tasks.mackey_glass import MackeyGlassOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

NAME = "mackey-glass"
PARAMETERS = 18_000
"""Parameters of every model, as published."""
DEVIATION = 0.2161
"""Standard deviation of the series: an NRMSE is the root mean squared error over it."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A row: a mixer, and the model around it."""

    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any]
    rates: Sequence[float]


_BARE_STACK = {"n_layers": 4, "block": "bare", "skip": False}  # a stack, as in the published models
MODELS: Mapping[str, Model] = {
    "LMU": Model(
        mixer="lmu",
        options={"order": 4, "theta": 4.0},
        model=_BARE_STACK,
        rates=(1e-3, 3e-3, 1e-2),
    ),
    "LSTM": Model(mixer="lstm", model=_BARE_STACK, rates=(1e-3, 3e-3, 1e-2)),
    "LRU": Model(
        mixer="lru",
        options={"d_state": 32, "r_min": 0.5, "r_max": 0.99},
        model={"n_layers": 2},
        rates=(1e-3, 3e-3, 1e-2),
    ),
}
_PRINTED = {
    "LMU, 4 layers of 49": (0.0487, 1.107e-4),
    "LSTM, 4 layers of 25": (0.0587, 1.608e-4),
    "LMU and LSTM in turn": (0.0447, 9.33e-5),
}


class MackeyGlass(Reproduction):
    """LMU, LSTM and LRU on the Mackey-Glass series, with as many parameters each.

    LMU and LSTM are stacks of four layers as published, the LRU has two of its residual blocks. The
    learning rate of each is the best of three on validation. Rows are shared between processes.

    Args:
        base: configuration of all runs in place of ours.
        labels: of `MODELS`, in place of all.
        parameters: of each model, within 3 %.
    """

    summary: ClassVar[str] = "a chaotic series predicted by LMU, LSTM and LRU of one size"
    source: ClassVar[str] = (
        "Voelker, Kajic and Eliasmith, Legendre Memory Units, NeurIPS 2019, as its public code"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "500 steps in place of 5,000 and 800 updates in place of 1,000; shows "
            "an order at this size and training alone; about 16 minutes of processor time with "
            "five seeds, 8 of them for tuning"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Test error, models of 18 thousand parameters, 500 epochs",
            ["model", "NRMSE", "MSE"],
            [[label, f"{nrmse:.4f}", f"{mse:.3e}"] for label, (nrmse, mse) in _PRINTED.items()],
        ),
    )

    def __init__(
        self,
        base: Config | None = None,
        labels: Sequence[str] = tuple(MODELS),
        parameters: int = PARAMETERS,
    ) -> None:
        self.base = config() if base is None else base
        self.labels, self.parameters = labels, parameters

    def run(self, setting: Setting) -> Findings:
        """Tune every model, then train it with every seed."""
        candidates = {
            label: of_size(self.base, MODELS[label], self.parameters) for label in self.labels
        }
        search = tuned(NAME, candidates, setting)
        mse = {row.label: by_seed(row) for row in search.outcome.rows}
        errors = Table(
            "Test error",
            ["model", "NRMSE of each seed"],
            [
                [label, ", ".join(f"{nrmse(v):.4f}" for v in seeds.values())]
                for label, seeds in mse.items()
            ],
        )
        return Findings(
            tables=(errors, table(search.outcome, {}), search.tried),
            verdicts=orders(self, setting),
            comparable=(
                "the claims only: sequences are a tenth as long, updates fewer, and the learning "
                "rate falls along a cosine. The published models had no validation data."
            ),
            complete=not search.outcome.problem,
            notes=(
                f"smallest error first: {groups(mse, higher_is_better=False)} (> where better with "
                "every seed).",
                "an NRMSE is the root of the error over the standard deviation of the series, "
                f"{DEVIATION}; repeating the newest value gives 1.62.",
                *problems(search.outcome),
            ),
            figures=curves([search.outcome]),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Who has the smaller error."""
        steps = runs.part(NAME).steps
        part = runs.part(NAME, reduction({"updates": (steps, 1_000), "length": (500, 5_000)}))
        return [
            part.claim(better, worse, f"{better} has a smaller error than {worse}", published)
            for better, worse, published in CLAIMS
            if part.has(better, worse)
        ]


CLAIMS = (
    ("LMU", "LSTM", "NRMSE of 0.0487 against 0.0587"),
    ("LRU", "LSTM", "ours; nothing is printed of the LRU"),
    ("LRU", "LMU", "ours; nothing is printed of the LRU"),
)
"""Pairs with the smaller error first, and the source of the claim."""


def config() -> Config:
    """Return the configuration that all runs share."""
    options = MackeyGlassOptions(length=500, train_size=256, validation_size=16, test_size=64)
    return Config(
        task="mackey_glass",
        task_options=options,
        model=ModelConfig(d_model=32, norm="none", dropout=0.0, pool="none"),
        optim=OptimConfig(weight_decay=0.0, recurrent_lr_factor=1.0),
        train=TrainConfig(epochs=50, batch_size=16, threads=1),
    )


def of_size(base: Config, model: Model, parameters: int) -> dict[float, Config]:
    """The configurations of a row by learning rate, of the width with that many parameters.

    Args:
        base: what all runs share.
        model: the row.
        parameters: of the model, within 3 %.
    """
    shape = replace(base.model, **model.model)
    config = replace(base, mixer=model.mixer, mixer_options=dict(model.options), model=shape)
    return with_rates(match_parameters(config, parameters), model.rates)


def nrmse(error: float) -> float:
    """Convert a mean squared error to an NRMSE.

    Example:
        >>> round(nrmse(1.107e-4), 4)
        0.0487
    """
    return float(error**0.5 / DEVIATION)
