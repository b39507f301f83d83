"""Recall two, four and eight segments later, beside the floats of state of each layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from linrnn import SequenceModel
from linrnn.compare import Row
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import Part, Runs, seed_by_seed
from linrnn.reproductions._page.verdict import NOT_KEPT, UNLEARNED, Judged, margin
from linrnn.reproductions._runs.language import curves, mean_of
from linrnn.reproductions._runs.trained import problems, train
from linrnn.reproductions._runs.tuned import budget, tuned
from linrnn.tasks import IGNORE, Task
from linrnn.tasks.mqar import MQAROptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig, load_model
from linrnn.train.data import eval_loader
from linrnn.train.figures import legend_below, new_figure, over_seeds
from linrnn.train.styles import styles

SEGMENT, DISTANCES = 8, (2, 4, 8)
"""Steps of a segment; and segments from the pairs to a question, of which the claims are."""
N_PAIRS = 2
ENOUGH = 0.75
"""The accuracy of a layer that recalls: halfway from guessing among the sequence's values to 1."""
UNIT = "points from the bound"
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
"""Learning rates: each is tried with one seed, the best on validation is taken."""
NAME = f"mqar, {N_PAIRS} pairs"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A row: a layer, and how far it can look by what it is made of."""

    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reach: int | None = None
    """Segments before its own of which something reaches it; None: all."""
    said: str
    where: str
    judged: bool = True
    """Whether that says how far it answers."""


def _of_segments(**options: Any) -> dict[str, Any]:
    return {"n_heads": 2, "segment": SEGMENT, **options}


LAYERS: Mapping[str, Layer] = {
    "attention, window": Layer(
        mixer="attention",
        options={"n_heads": 2, "window": SEGMENT},
        reach=1,
        said="a layer sees its window",
        where="arXiv:2004.05150",
    ),
    "transformer_xl": Layer(
        mixer="transformer_xl",
        options=_of_segments(),
        reach=1,
        said="a layer sees its segment and the memory, here one segment",
        where="arXiv:1901.02860",
    ),
    "compressive_transformer": Layer(
        mixer="compressive_transformer",
        options=_of_segments(ratio=2),
        reach=3,
        said="the memory, and the compressed rows times their ratio: here 1 + 2 segments",
        where="arXiv:1911.05507",
    ),
    "rmt": Layer(
        mixer="rmt",
        options=_of_segments(n_memory=8, d_inner=32),
        said="memory carries the queried values over several segments",
        where="arXiv:2207.06881",
    ),
    "block_recurrent": Layer(
        mixer="block_recurrent",
        options=_of_segments(n_states=8),
        said="states carry what left the window",
        where="arXiv:2203.07852",
    ),
    "infini_transformer, linear": Layer(
        mixer="infini_transformer",
        options=_of_segments(),
        said="inputs of any length with a memory of one size",
        where="arXiv:2404.07143",
    ),
    "infini_transformer, delta": Layer(
        mixer="infini_transformer",
        options=_of_segments(update="delta"),
        said="the same",
        where="arXiv:2404.07143",
    ),
    "memformer": Layer(
        mixer="memformer",
        options=_of_segments(n_memory=8),
        said="slots keep what is important of all segments before",
        where="arXiv:2010.06891",
    ),
    "mingru": Layer(
        mixer="mingru",
        options={"expansion": 2.0},
        said="of such a task nothing; it has no segments",
        where="arXiv:2410.01201",
        judged=False,
    ),
    "gla": Layer(
        mixer="gla",
        options={"n_heads": 2},
        said="recalls pairs; it has no segments",
        where="arXiv:2312.06635",
    ),
}
"""Layers of segments, and three without."""

ABLATED, THROUGH = "infini_transformer, linear", (0, 1, 2, 4)
"""A row that is trained once more with gradients through these numbers of memories."""

Recall = Mapping[str, Sequence[Sequence[float]]]
"""Share of right answers by row, seed and distance in segments, from 0 on."""
Shares = Mapping[Path, Sequence[float]]
"""Share of right answers of a run, by its folder and distance in segments, from 0 on."""


class SegmentRecall(Reproduction):
    """Two pairs in the first of nine segments, queried in any; one layer of 32 channels.

    All rows have the same convolution of two steps, which puts a key beside its value, and the same
    MLP. Every model meets all distances in training; they are told apart in the test. The learning
    rate of each is the best of four on validation. Rows are shared between processes.

    Args:
        base: configuration of all runs in place of ours.
        labels: of `LAYERS`, in place of all.
        rates: learning rates, in place of `RATES`.
        through: gradients of a second table, in place of `THROUGH`.
    """

    summary: ClassVar[str] = "recall over two to eight segments: who answers, with what state"
    source: ClassVar[str] = (
        "what the papers of these layers say of their reach (arXiv ids in the table); the task is "
        "that of Arora et al. 2024, arXiv:2312.04927"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "one layer of 32 channels, segments of 8 steps, two pairs and 600 steps of 32 "
            "sequences; shows who learns to answer within that, not who would later; 100 runs with "
            "five seeds, of about a minute each on a busy machine"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements about the memory; none is at these sizes",
            ["layer", "published", "where"],
            [[label, layer.said, layer.where] for label, layer in LAYERS.items()],
        ),
    )

    def __init__(
        self,
        base: Config | None = None,
        labels: Sequence[str] = tuple(LAYERS),
        rates: Sequence[float] = RATES,
        through: Sequence[int] = THROUGH,
    ) -> None:
        self.base = config() if base is None else base
        self.labels, self.rates, self.through = labels, rates, through

    def run(self, setting: Setting) -> Findings:
        """Tune every layer, train it with every seed, and ask at every distance."""
        candidates = {
            label: {rate: with_layer(self.base, label, rate) for rate in self.rates}
            for label in self.labels
        }
        search = tuned(NAME, candidates, setting)
        shares = recalls(search.outcome.rows)
        tables = [answers("Who answers", search.outcome.rows, shares)]
        outcomes = [search.outcome]
        if ABLATED in self.labels and self.through:
            config = candidates[ABLATED][search.outcome.rates[ABLATED]]
            outcomes.append(train(f"{NAME}, {ABLATED}", ablated(config, self.through), setting))
            rows = outcomes[-1].rows
            shares |= recalls(rows)
            title = "One of them, with gradients through a limited number of memories in training"
            tables.append(answers(title, rows, shares))
        runs = Runs.of_page(setting.out, setting.scale, measures=measured(shares))
        recall = by_row(search.outcome.rows, shares)
        return Findings(
            tables=(*tables, table(search.outcome, {}), search.tried),
            comparable=(
                "who answers how far, at this size and training; a row that does not answer where "
                "it could may learn to later."
            ),
            notes=(*NOTES, *problems(*outcomes)),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures={"distances": figure(recall), **curves([search.outcome])} if recall else {},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether each layer answers as far as it reaches, and no further."""
        part = runs.part(NAME)
        return [judged(part, label) for label in self.labels if LAYERS[label].judged]


NOTES = (
    f"a layer answers at a distance where at least {100 * ENOUGH:g} % of the questions there are "
    f"right; guessing among the values of a sequence has {100 / N_PAIRS:g} %, among all 20 %. A "
    "distance is the number of segments between that of the pairs and that of the question.",
    "floats of state are all that a sequence leaves for its next step: memory, the segment begun, "
    "and the step before for the convolution.",
    budget(RATES),
)


def config() -> Config:
    """Return the configuration that all rows share."""
    options = MQAROptions(
        length=SEGMENT * (max(DISTANCES) + 1),
        n_pairs=N_PAIRS,
        vocabulary=10,
        power=1.0,
        train_size=4_800,
        test_size=2_000,
    )
    model = ModelConfig(
        d_model=32,
        n_layers=1,
        norm="rms",
        block="mlp",
        conv_width=2,
        dropout=0.0,
        pool="none",
        final_norm=True,
    )
    return Config(
        task="mqar",
        task_options=options,
        model=model,
        optim=OptimConfig(lr=1e-3, weight_decay=0.0),
        train=TrainConfig(epochs=4, batch_size=32, threads=1),
    )


def with_layer(base: Config, label: str, rate: float) -> Config:
    """The configuration of a row.

    Args:
        base: what all share.
        label: of `LAYERS`.
        rate: of learning.
    """
    layer, optim = LAYERS[label], replace(base.optim, lr=rate)
    return replace(base, mixer=layer.mixer, mixer_options=dict(layer.options), optim=optim)


def ablated(config: Config, through: Sequence[int]) -> dict[str, Config]:
    """A row for each number of memories that gradients pass through, by label."""
    return {
        f"{ABLATED}, through {n}": replace(
            config, mixer_options={**config.mixer_options, "memory_gradient": n}
        )
        for n in through
    }


def recalls(rows: Sequence[Row]) -> dict[Path, list[float]]:
    """Test every trained model: the share of right answers by folder."""
    folders = (folder for row in rows for folder in row.folders)
    return {f: recalled(f) for f in folders if (f / "result.json").is_file()}


def measured(shares: Shares) -> dict[Path, dict[str, float]]:
    """Measures of runs: their share of right answers at each distance, by its name."""
    return {
        folder: {later(d): share for d, share in enumerate(by_distance)}
        for folder, by_distance in shares.items()
    }


def later(distance: int) -> str:
    """Name of a measure: the share of right answers a number of segments later.

    Example:
        >>> later(2)
        'right 2 segments later'
    """
    return f"right {distance} segments later"


def by_row(rows: Sequence[Row], shares: Shares) -> dict[str, list[Sequence[float]]]:
    """Shares of the rows that have any, seed by seed."""
    finished = {row.label: [shares[f] for f in row.folders if f in shares] for row in rows}
    return {label: seeds for label, seeds in finished.items() if seeds}


def recalled(run: Path) -> list[float]:
    """`by_segment` of a trained model.

    Args:
        run: its folder.
    """
    model, task, _ = load_model(run)
    return by_segment(model, task)


@torch.inference_mode()
def by_segment(model: SequenceModel, task: Task) -> list[float]:
    """The part of the questions that is right in each segment, of the test data.

    Args:
        model: in evaluation mode.
        task: with questions in every segment.
    """
    right = questions = torch.zeros(task.sequence_length)
    for x, target in eval_loader(task.datasets().test, 500):
        right = right + (model(x)[0].argmax(-1) == target).sum(0)
        questions = questions + (target != IGNORE).sum(0)
    parts = (z.view(-1, SEGMENT).sum(1) for z in (right, questions))  # (segments,) each
    return torch.div(*parts).tolist()


def answers(title: str, rows: Sequence[Row], shares: Shares) -> Table:
    """Tabulate the share of right answers by distance, beside the size of the state."""
    shown, recall = (1, *DISTANCES), by_row(rows, shares)
    cells = []
    for row in rows:
        seeds = recall.get(row.label, [])
        sizes = [f"{row.n_state:,}", f"{row.n_parameters:,}"]
        right = [_percent([seed[d] for seed in seeds]) for d in shown]
        cells.append([row.label, *right, *(sizes if seeds else ["", ""])])
    head = ["layer", "1 segment later (%)", *(f"{d} (%)" for d in DISTANCES)]
    return Table(title, [*head, "floats of state", "parameters"], cells)


def _percent(values: Sequence[float]) -> str:
    if not values:
        return "failed"
    mean = mean_of([100 * value for value in values])
    return f"{mean.value:.1f}" + ("" if len(values) < 2 else f" ± {mean.error:.1f}")


def judged(part: Part, label: str) -> Judged:
    """Whether a layer answers as far as it reaches, and no further: by its smallest margin.

    A layer that does not answer where it could may learn to later, which decides nothing.
    """
    reach = LAYERS[label].reach
    expected = {d: reach is None or d <= reach for d in DISTANCES}
    shares = {d: part.values(label, later(d)) for d in DISTANCES}

    def points(*recalled: float) -> float:
        signs = (1 if yes else -1 for yes in expected.values())
        return 100 * min(s * (x - ENOUGH) for s, x in zip(signs, recalled, strict=True))

    margins = seed_by_seed(points, *shares.values())
    could = (mean_of([*shares[d].values()]).value for d, yes in expected.items() if yes and margins)
    why = part.why_not(label) if margins else NOT_KEPT
    if not why and any(share < ENOUGH for share in could):
        why = UNLEARNED
    text = f"{label}: {claim(expected)}"
    published = f"reaches {'all segments' if reach is None else f'{reach} back'}"
    return margin(text, published, margins, unit=UNIT, scale=part.scale, why_not=why)


def claim(expected: Mapping[int, bool]) -> str:
    """The distances at which a layer should recall, in words.

    Example:
        >>> claim({2: True, 4: False}), claim({2: False})
        ('answers 2 segments later, not 4', 'does not answer 2 segments later')
    """
    yes, no = (", ".join(str(d) for d, v in expected.items() if v is way) for way in (True, False))
    if not yes:
        return f"does not answer {no} segments later"
    return f"answers {yes} segments later" + (f", not {no}" if no else "")


def figure(recall: Recall) -> Any:
    """Draw the share of right answers against the distance, a line for each row."""
    canvas = new_figure(7.2, 4.8)
    axes, looks = canvas.subplots(), styles(list(recall))
    for label, seeds in recall.items():
        means = [100 * mean_of(at).value for at in zip(*seeds, strict=True)]
        axes.plot(range(len(means)), means, label=label, **looks[label])
    axes.axhline(100 / N_PAIRS, color="0.35", linestyle=":", linewidth=1, label="guessing")
    axes.set(xlabel="segments between pair and question", ylabel="accuracy (%)")
    axes.set(title=over_seeds(len(seeds) for seeds in recall.values()))
    axes.grid(alpha=0.3)
    legend_below(canvas, axes)
    return canvas
