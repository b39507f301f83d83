"""Which recurrences track a state: parity and words of groups, read at four times the length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from linrnn.compare import Row
from linrnn.compare.tune import with_rates
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged, groups
from linrnn.reproductions._runs.trained import problems
from linrnn.reproductions._runs.tuned import budget, tuned
from linrnn.tasks.group_words import GroupWordsOptions
from linrnn.tasks.parity import ParityOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig, evaluate
from linrnn.train.folder import RunFolder

RATES = (3e-3, 1e-2)
"""Learning rates: each is tried with one seed, the best on validation is taken."""
LONGER = "longer words"
"""Name of the accuracy there."""
TIMES = 4
"""Words are also read at this multiple of the training length."""
_HEADS = {"n_heads": 2, "d_key": 16, "d_value": 16}
SYSTEMS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "GRU": ("gru", {}),
    "PD-SSM": ("pd_ssm", {}),
    "products of two reflections": ("gated_delta_product", {**_HEADS, "d_conv": None}),
    "delta rule, rates to 2": ("delta_net", {**_HEADS, "d_conv": None, "beta_max": 2.0}),
    "delta rule, rates to 1": ("delta_net", {**_HEADS, "d_conv": None, "beta_max": 1.0}),
    "RWKV-7": ("rwkv7", {}),
    "LRU": ("lru", {}),
    "Mamba": ("mamba", {}),
    "minGRU": ("mingru", {}),
}
"""The mixer of each row, and its options beside the size."""


@dataclass(frozen=True)
class Size:
    """Words and training of one scale."""

    length: int
    steps: int
    width: int
    batch: int = 64
    tested: int = 1_000
    """Words of validation and of the test."""


SIZES = {"cpu": Size(24, 800, 32), "paper": Size(128, 20_000, 128)}
_CLAIMS = (
    ("parity", "delta rule, rates to 1", "delta rule, rates to 2", "Grazzi et al. 2024"),
    ("parity", "Mamba", "delta rule, rates to 2", "Grazzi et al. 2024"),
    ("S3", "delta rule, rates to 2", "products of two reflections", "Siems et al. 2025"),
    ("A5", "Mamba", "PD-SSM", "Terzic et al. 2025"),
    ("A5", "Mamba", "GRU", "Merrill et al. 2024"),
)
"""A task, the row that is worse and the one that is better, and the source of the claim."""


class StateTracking(Reproduction):
    """Parity, and words of S3 and A5, by one layer of each system, trained at one length.

    Every model answers after every element. It is tested at the length of training and at four
    times that, where only a model that keeps the product as its state is right. The learning rate
    of each is the best of two on validation.

    Args:
        systems: labels of `SYSTEMS` in place of all.
        groups: of "parity", "S3", "A4", "S4", "A5" and "S5", in place of ours.
        sizes: by scale, in place of ours.
    """

    summary: ClassVar[str] = "parity and words of groups, read at four times the length"
    source: ClassVar[str] = (
        "Merrill et al. 2024, arXiv:2404.08819; Grazzi et al. 2024, arXiv:2411.12537; "
        "Siems et al. 2025, arXiv:2502.10297; Terzic et al. 2025, arXiv:2509.22284"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "words of 24 elements, read at 96, one layer of 32 channels and 800 steps of 64 words; "
            "shows who learns a rule that holds at other lengths within that; "
            "about 25 minutes of processor time a seed"
        ),
        "paper": "words of 128 elements, read at 512, one layer of 128 channels and 20,000 steps",
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements about state tracking",
            ["statement", "where"],
            [
                ["a diagonal recurrence with positive decays cannot tell parity at any length",
                 "Grazzi et al. 2024"],
                ["rates of the delta rule up to 2 make it learn parity", "Grazzi et al. 2024"],
                ["more reflections a step track groups that one cannot",
                 "Siems et al. 2025"],
                ["permutations times diagonals track A5 with one layer", "Terzic et al. 2025"],
                ["diagonal recurrences need more layers the longer words of A5 are, an RNN one",
                 "Merrill et al. 2024"],
            ],
        ),
    )  # fmt: skip

    def __init__(
        self,
        systems: Sequence[str] = tuple(SYSTEMS),
        groups: Sequence[str] = ("parity", "S3", "A5"),
        sizes: Mapping[str, Size] = SIZES,
    ) -> None:
        self.systems, self.groups, self.sizes = systems, groups, sizes

    def run(self, setting: Setting) -> Findings:
        """Tune every system on every group, train it with every seed, and read longer words."""
        size = self.sizes[setting.scale]
        outcomes, tables, notes = [], [], []
        measures: dict[Path, dict[str, float]] = {}
        for group in self.groups:
            rows = {x: with_rates(config(group, x, size), RATES) for x in self.systems}
            search = tuned(group, rows, setting)
            outcomes.append(search.outcome)
            longer = {r.label: longer_words(r, size) for r in search.outcome.rows}
            tables += [scores(group, search.outcome.rows, longer, size), search.tried]
            for r in search.outcome.rows:
                values = longer[r.label].items()
                measures |= {r.folders[seed]: {LONGER: value} for seed, value in values}
            best = groups(longer) or "not run"
            notes.append(f"{group} at {TIMES * size.length}: best first {best}.")
        runs = Runs.of_page(setting.out, setting.scale, measures=measures)
        return Findings(
            tables=tuple(tables),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            comparable=(
                "the order only: sizes, steps and blocks are not those of the papers, which train "
                "for 10 to 100 times as long, some from short words to long ones."
            ),
            complete=not any(outcome.problem for outcome in outcomes),
            notes=(
                *notes,
                "in these lines > is better with every seed.",
                budget(RATES),
                *problems(*outcomes),
            ),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The statements about each group, at the longer length."""
        return [
            runs.part(group).claim(
                better, worse, f"{group}: {better} is better than {worse}", where, measure=LONGER
            )
            for group, worse, better, where in _CLAIMS
            if group in self.groups and runs.part(group).has(worse, better)
        ]


def config(group: str, system: str, size: Size) -> Config:
    """Return the configuration of a system, but for its learning rate."""
    mixer, options = SYSTEMS[system]
    words = {"length": size.length, "train_size": size.steps * size.batch}
    words |= {"validation_size": size.tested, "test_size": size.tested}
    task_options: Any = ParityOptions(**words)
    if group != "parity":
        task_options = GroupWordsOptions(group=group, **words)  # type: ignore[arg-type]
    return Config(
        task="parity" if group == "parity" else "group_words",
        task_options=task_options,
        mixer=mixer,
        mixer_options=options,
        model=ModelConfig(
            d_model=size.width,
            n_layers=1,
            norm="rms",
            block="mlp",
            dropout=0.0,
            pool="none",
            final_norm=True,
        ),
        optim=OptimConfig(lr=1e-3, weight_decay=0.01),
        train=TrainConfig(epochs=1, batch_size=size.batch, threads=1),
    )


def longer_words(row: Row, size: Size) -> dict[int, float]:
    """Accuracy at `TIMES` the length, by the place of the seed."""
    length = TIMES * size.length
    scored = {}
    for seed, folder in enumerate(row.folders):
        if RunFolder(folder).read_result() is not None:
            scored[seed] = evaluate(folder, length=length)[0].metric
    return scored


def scores(
    group: str, rows: Sequence[Row], longer: Mapping[str, Mapping[int, float]], size: Size
) -> Table:
    """Accuracy at both lengths."""
    lengths = (size.length, TIMES * size.length)
    head = ["system", *(f"{n} elements" for n in lengths), "parameters", "floats of state"]
    body = []
    for r in rows:
        accuracies = (r.values, tuple(longer[r.label].values()))
        body.append([r.label, *map(_spread, accuracies), f"{r.n_parameters:,}", f"{r.n_state:,}"])
    return Table(f"{group}: accuracy [%] after every element, mean and range of seeds", head, body)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "failed"
    mean, low, high = (100 * x for x in (sum(values) / len(values), min(values), max(values)))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"
