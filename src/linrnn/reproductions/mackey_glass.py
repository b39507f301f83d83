"""A chaotic series, predicted by a Legendre memory, an LSTM and an LRU of one size."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from linrnn.compare import match_parameters
from linrnn.compare.tune import with_rates
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import Runs, reduction
from linrnn.reproductions._page.student import with_interval
from linrnn.reproductions._page.verdict import REDUCED, Judged, groups
from linrnn.reproductions._runs import legendre
from linrnn.reproductions._runs.language import curves
from linrnn.reproductions._runs.legendre import HYBRID, LMU, LSTM
from linrnn.reproductions._runs.trained import by_seed, orders, problems
from linrnn.reproductions._runs.tuned import tuned
from linrnn.tasks.mackey_glass import MackeyGlassOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train.figures import new_figure, over_seeds
from linrnn.train.styles import styles

NAME = "mackey-glass"
PARAMETERS = 18_000
"""Parameters of every model, as published."""
DEVIATION = 0.2161
"""Standard deviation of the series: an NRMSE is the root mean squared error over it."""
RATES = (1e-3, 3e-3, 1e-2, 3e-2)


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
        rates=RATES,
    ),
    "LSTM": Model(mixer="lstm", model=_BARE_STACK, rates=RATES),
    "LRU": Model(
        mixer="lru",
        options={"d_state": 32, "r_min": 0.5, "r_max": 0.99},
        model={"n_layers": 2},
        rates=RATES,
    ),
}
_PRINTED = {
    LMU: (0.0487, 1.107e-4),
    LSTM: (0.0587, 1.608e-4),
    HYBRID: (0.0447, 9.33e-5),
}


class MackeyGlass(Reproduction):
    """LMU, LSTM and LRU on the Mackey-Glass series, with as many parameters each.

    At the published scale data, models and training are those of the public code. At ours LMU and
    LSTM are stacks of four layers as published, and the LRU has two of its residual blocks. There
    the learning rate of each is the best of four on validation, and rows are shared between
    processes.

    Args:
        base: configuration of all runs of our scale, in place of ours.
        labels: of `MODELS`, in place of all.
        parameters: of each model, within 3 %.
        size: of the published scale, in place of the published numbers.
    """

    summary: ClassVar[str] = "a chaotic series predicted by LMU, LSTM and LRU of one size"
    source: ClassVar[str] = (
        "Voelker, Kajic and Eliasmith, Legendre Memory Units, NeurIPS 2019, as its public code"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "500 steps in place of 5,000, and 800 updates of 16 sequences; shows "
            "an order at this size and training alone; about 20 minutes of processor time with "
            "five seeds, half of them for tuning"
        ),
        "paper": (
            "data, models and training of the public code: 32 sequences of 5,000 steps and 500 "
            "updates; shows the numbers themselves; six minutes of a core for each of three "
            "models and seed, 90 in all with five seeds"
        ),
    }
    hours: ClassVar[Collection[str]] = ()
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
        size: legendre.Size | None = None,
    ) -> None:
        self.base = config() if base is None else base
        self.labels, self.parameters = labels, parameters
        self.size = legendre.Size() if size is None else size

    def run(self, setting: Setting) -> Findings:
        """Train every model with every seed; at our scale, after tuning it."""
        if setting.scale == "paper":
            return self._as_published(setting)
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
                "the claims only: sequences are a tenth as long, 256 of them in batches of 16 in "
                "place of one batch of 32, the learning rate falls along a cosine, and an encoder "
                "stands before the layers."
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

    def _as_published(self, setting: Setting) -> Findings:
        """Train the published models as their public code does."""
        rows, errors = [], dict[str, list[list[float]]]()
        for seed in setting.seeds:
            for label in legendre.ROWS:
                run, curve = legendre.trained(label, seed, self.size, setting)
                rows.append(run)
                errors.setdefault(label, []).append(curve)
                setting.say(f"{label}, seed {seed}: NRMSE {run.test:.4f}")
        runs = Runs(tuple(rows))
        return Findings(
            tables=(_beside(runs), _by_seed(runs)),
            comparable=(
                "the numbers: data, models, initial weights, optimiser and the choice of weights "
                "are those of the public code. Its LSTM may differ: Keras had a piecewise linear "
                "gate until version 2.3, and the version that was used is not printed. Ours is "
                "the sigmoid."
            ),
            verdicts=tuple(self.claims(runs, setting.scale)),
            runs=runs,
            notes=NOTES,
            figures={"validation": _curves(errors)},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Who has the smaller error."""
        if scale == "paper":
            part = runs.part(legendre.PART, "" if self.size == legendre.Size() else REDUCED)
            return [
                part.claim(
                    better,
                    worse,
                    f"{better} has a smaller error than {worse}",
                    f"NRMSE of {_PRINTED[better][0]} against {_PRINTED[worse][0]}",
                    printed=_PRINTED[worse][0] - _PRINTED[better][0],
                )
                for better, worse in ((LMU, LSTM), (HYBRID, LSTM), (HYBRID, LMU))
                if part.has(better, worse)
            ]
        steps = runs.part(NAME).steps
        part = runs.part(NAME, reduction({"updates": (steps, 500), "length": (500, 5_000)}))
        return [
            part.claim(better, worse, f"{better} has a smaller error than {worse}", published)
            for better, worse, published in CLAIMS
            if part.has(better, worse)
        ]


NOTES = (
    "the public code draws 64 sequences for training, of which Keras takes half for validation: "
    "so an update reads 32 sequences, and an epoch is one update.",
    "the printed errors are those of one run of each model. The answers to the test are those of "
    "the weights with the smallest error on validation.",
    "an NRMSE is the root of the mean squared error over that of the targets; repeating the newest "
    "value gives 1.62.",
)


def _beside(runs: Runs) -> Table:
    """Ours with intervals, beside the printed numbers."""
    part, rows = runs.part(legendre.PART), []
    for label in legendre.ROWS:
        size = f"{part.runs(label)[0].parameters:,}"
        ours = with_interval(part.values(label).values(), 4)
        rows.append([label, f"{_PRINTED[label][0]:.4f}", ours, size])
    seeds = over_seeds([len({run.seed for run in runs.rows})])
    head = ["model", "published", "ours [95 %]", "parameters"]
    return Table(f"Test NRMSE, {seeds}", head, rows)


def _by_seed(runs: Runs) -> Table:
    part = runs.part(legendre.PART)
    rows = [
        [label, ", ".join(f"{value:.4f}" for value in part.values(label).values())]
        for label in legendre.ROWS
    ]
    return Table("Test NRMSE by seed", ["model", "by seed"], rows)


def _curves(errors: Mapping[str, Sequence[Sequence[float]]]) -> Any:
    """Errors on validation along the training, means over seeds."""
    figure, looks = new_figure(), styles(list(errors))
    axes = figure.subplots()
    for label, curves_of_seeds in errors.items():
        means = [sum(values) / len(values) for values in zip(*curves_of_seeds, strict=True)]
        updates = [legendre.EVERY * (i + 1) for i in range(len(means))]
        axes.plot(updates, means, label=label, **looks[label])
        axes.axhline(_PRINTED[label][0], color=looks[label].get("color"), linestyle=":")
    counts = {len(curves_of_seeds) for curves_of_seeds in errors.values()}
    axes.set(
        xlabel="updates",
        ylabel="NRMSE on validation (dotted: published, test)",
        yscale="log",
        title=f"Mackey-Glass as published: {over_seeds(counts)}",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


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
        optim=OptimConfig(lr=1e-3, weight_decay=0.0, recurrent_lr_factor=1.0),
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
