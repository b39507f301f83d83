"""Contiguous batches with the state kept, with the state cleared, and shuffled windows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged, less
from linrnn.reproductions._runs.language import (
    NATS,
    TEXT_NOTE,
    BothWays,
    Curve,
    loss_from,
    mean_of,
    measured_both_ways,
    read_both_ways,
    small,
    whole,
    with_model,
)
from linrnn.reproductions._runs.trained import Outcome, problems, train
from linrnn.reproductions._runs.tuned import one_rate
from linrnn.train import Config
from linrnn.train.figures import losses_against_position, over_seeds

MIXERS = ("lru", "mingru", "rwkv4")
OPTIONS: Mapping[str, dict[str, Any]] = {"rwkv4": {"init": "published"}}
CHUNKS = (16, 128)
ARMS: Mapping[str, Mapping[str, Any]] = {
    "kept": {"order": "contiguous", "carry_state": True},
    "cleared": {"order": "contiguous", "carry_state": False},
    "shuffled": {"order": "shuffled", "carry_state": False},
}
D_MODEL, N_LAYERS, EPOCHS, BATCH_TOKENS = 64, 2, 2, 4096
_SCALE = "with two layers of width 64"
ROWS = 16  # streams the test text is read in: few, so that hardly any chunk begins without a past


class CarriedState(Reproduction):
    """Training on short chunks, each of which may begin with the state of the one before.

    Truncated back-propagation through time on rows of consecutive text: with the state kept,
    without its gradient; with the state cleared at every chunk, in the same order; and on shuffled
    chunks. All see the same text in batches of as many tokens. Every trained model is tested both
    ways, so that what the state brings in the test is told from what it brings in training.

    Args:
        mixers, chunks: in place of ours.
        base: a function from a length of chunk to the shared configuration, in place of ours.
    """

    summary: ClassVar[str] = "train on short chunks with the state kept, cleared, or shuffled"
    source: ClassVar[str] = (
        "a blog post of 2023 on the LRU and RWKV: proposed there, without a result"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "two layers of width 64 on a megabyte of Shakespeare; shows for which lengths of "
            "chunk a kept state helps at this size, and what of it is due to the test; 20 minutes "
            "of processor time a seed"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "No result was published",
            ["expectation", "published"],
            [["a kept state helps, most of all for short chunks", "none"]],
        ),
    )

    def __init__(
        self,
        mixers: Sequence[str] = MIXERS,
        chunks: Sequence[int] = CHUNKS,
        base: Any = None,
    ) -> None:
        self.mixers, self.chunks, self.base = mixers, chunks, base or base_config

    def run(self, setting: Setting) -> Findings:
        """Train every mixer in every way on every length of chunk; test each both ways."""
        outcomes: list[Outcome] = []
        measures: dict[Path, dict[str, float]] = {}
        tables: list[Table] = []
        read: dict[int, BothWays] = {}
        for chunk in self.chunks:
            outcome = train(_part(chunk), self._rows(self.base(chunk)), setting)
            outcomes.append(outcome)
            curves = read[chunk] = read_both_ways(outcome.rows, ROWS)
            tables.append(_losses(chunk, curves))
            measures |= measured_both_ways(outcome.rows, curves, 1)
        runs = Runs.of_page(setting.out, setting.scale, measures=measures)
        return Findings(
            runs=runs,
            tables=(*tables, *(table(o, {}) for o in outcomes)),
            comparable="nothing was published; the rows of a table with each other.",
            notes=(TEXT_NOTE, *NOTES, one_rate(outcomes), *problems(*outcomes)),
            complete=not any(outcome.problem for outcome in outcomes),
            figures=self._figures(read),
            verdicts=tuple(self.claims(runs, setting.scale)),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether a state that is kept, in training and in the test, lowers the loss."""
        return [
            less(
                f"{_part(chunk)}: a kept state helps {mixer}",
                "expected, no result",
                runs.part(_part(chunk)).values(label(mixer, "kept"), loss_from(1, True)),
                runs.part(_part(chunk)).values(label(mixer, "cleared"), loss_from(1, False)),
            )._replace(unit=NATS, scale=_SCALE)
            for chunk, mixer in product(self.chunks, self.mixers)
        ]

    def _rows(self, base: Config) -> dict[str, Config]:
        return {
            label(mixer, arm): replace(
                with_model(base, mixer, mixer_options=OPTIONS.get(mixer)),
                train=replace(base.train, **ARMS[arm]),
            )
            for mixer, arm in product(self.mixers, ARMS)
        }

    def _figures(self, read: Mapping[int, BothWays]) -> dict[str, Any]:
        """A row of panels for each length of chunk, one in it for each mixer."""
        panels, counts = {}, []
        for (chunk, curves), mixer in product(read.items(), self.mixers):
            series = {}
            for arm, carried in product(ARMS, (True, False)):
                seeds = curves.get((label(mixer, arm), carried))
                if seeds:
                    name = f"{arm} in training, {'kept' if carried else 'cleared'} in the test"
                    series[name] = _points([*seeds.values()])
                    counts.append(len(seeds))
            panels[f"chunks of {chunk}", mixer] = series
        if not counts:
            return {}
        errors = ", with standard errors" if max(counts) > 1 else ""
        return {"positions": losses_against_position(panels, title=over_seeds(counts) + errors)}


NOTES = (
    f"the test text is read in {ROWS} streams in every row of the first tables, so their numbers "
    "differ from the test metric of the runs below, which use the batch of training.",
    "a row whose state is cleared in training and kept in the test is a model that meets states "
    "it was never trained on.",
)


def base_config(chunk: int) -> Config:
    """Return the configuration that all models share."""
    return small(chunk, BATCH_TOKENS, EPOCHS, D_MODEL, N_LAYERS)


def label(mixer: str, arm: str) -> str:
    """Return the label of a row.

    Example:
        >>> label("lru", "kept")
        'lru, kept'
    """
    return f"{mixer}, {arm}"


def _part(chunk: int) -> str:
    return f"chunks of {chunk}"


def _losses(chunk: int, curves: BothWays) -> Table:
    cells = []
    for name in dict.fromkeys(name for name, _ in curves):
        carried, cleared = (
            mean_of([whole(curve) for curve in curves[name, way].values()]) for way in (True, False)
        )
        first = mean_of([curve[0].loss for curve in curves[name, True].values()])
        cells.append([name, carried.text, cleared.text, first.text])
    head = ["model, state in training", "kept in the test", "cleared in the test"]
    title = f"{_part(chunk).capitalize()}: test loss (nats per character), mean ± s.e."
    return Table(title, [*head, "first position, kept"], cells)


def _points(seeds: Sequence[Curve]) -> list[tuple[float, float, float]]:
    points = []
    for at in zip(*seeds, strict=True):
        mean = mean_of([p.loss for p in at])
        points.append(((at[0].first * at[0].last) ** 0.5, mean.value, mean.error))
    return points
