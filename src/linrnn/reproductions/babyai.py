"""Imitation in BabyAI: demonstrations of its bot, learned by agents with and without memory."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch

from linrnn._files.storage import read_json, write_atomically
from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.errors import LinrnnError
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Runs, slug
from linrnn.reproductions._page.student import interval
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.agent import NO_MEMORY
from linrnn.reproductions._runs.grid_worlds import make, recorded
from linrnn.reproductions._runs.imitation import TORCH_GRU, Imitated, Imitating, imitate

CONTROL = "no memory"
SYSTEMS: Mapping[str, str] = {
    "nn.GRU": TORCH_GRU,
    "minGRU": "mingru",
    "LRU": "lru",
    CONTROL: NO_MEMORY,
}
"""The memory of each row: a mixer, PyTorch's own layer, or none."""
FOLDER = "imitation"
"""Runs, below the folder of a page."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Runs of a scale: settings by level."""

    levels: Mapping[str, Imitating]


_SMALL = Imitating(demonstrations=1000, epochs=20, rate=3e-3)
_LARGE = Imitating(
    demonstrations=100_000, epochs=40, batch=128, rate=3e-4, width=512, channels=128, episodes=512
)
SIZES = {
    "cpu": Size(levels={"GoToLocal": _SMALL, "MemoryS7, key above": _SMALL}),
    "large": Size(
        levels={
            name: _LARGE
            for name in (
                "GoToLocal",
                "visits in order",
                "MemoryS9",
                "GoToSeqS5R2",
                "GoTo",
                "GoToSeq",
                "BossLevel",
            )
        }
    ),
}
_PAPER = "Hui et al. 2020, arXiv:2007.12770, abstract"


class BabyAI(Reproduction):
    """Behaviour cloning of BabyAI's bot, with one recurrent layer of each kind and without any.

    An agent sees 7 x 7 cells before it and reads a mission. It learns the actions of the bot by
    cross entropy, from whole episodes, and then plays fresh ones. A run counts the share that it
    wins, with actions that are drawn and with the likeliest ones.

    "MemoryS7, key above" needs a memory. It is MiniGrid's level MemoryS7, in which an agent turns
    at the end of a hallway to the object that is like a sign at its beginning; here the key always
    lies above. The agent cannot see both at once, so without memory it wins one half at best. In
    "visits in order" and GoToLocal nothing is lost by going to a wrong object, and there is time to
    go to all.

    Args:
        sizes: by scale, in place of ours.
        most_runs: after how many new runs the page is written, with empty cells for those that
            are missing. Default: after all.
    """

    summary: ClassVar[str] = "imitation of BabyAI's bot: nn.GRU, minGRU, LRU, and no memory"
    source: ClassVar[str] = f"{_PAPER}; Chevalier-Boisvert et al. 2019, arXiv:1810.08272"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "GoToLocal and a level that needs a memory, 1,000 demonstrations each, layers of 128; "
            "shows where a memory decides; it shows no sample efficiency, for which the paper "
            "takes up to a million demonstrations; about 20 seconds of processor time a run"
        ),
        "large": (
            "seven levels up to BossLevel, 100,000 demonstrations each, layers of 512; not run "
            "here, days of a processor"
        ),
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Success on BossLevel after imitation of a million demonstrations [%]",
            ["agent", "success"],
            [["BabyAI 1.0", "77"], ["BabyAI 1.1", "90.4"]],
        ),
    )
    hours: ClassVar[Sequence[str]] = ("large",)

    def __init__(self, sizes: Mapping[str, Size] = SIZES, most_runs: int | None = None) -> None:
        self.sizes, self.most_runs = sizes, most_runs

    def run(self, setting: Setting) -> Findings:
        """Learn every level with every seed, and play."""
        size = self.sizes[setting.scale]
        left = math.inf if self.most_runs is None else self.most_runs
        problems: tuple[str, ...] = ()
        results: Results = {}
        for seed, (level, how) in itertools.product(setting.seeds, size.levels.items()):
            for label in SYSTEMS:
                job = Job(level, label, seed, how)
                done = read(job, setting.out)
                if done is None and left and not problems:
                    try:
                        done = made(job, setting)
                    except LinrnnError as error:
                        problems = (str(error),)
                    left -= 1
                if done is not None:
                    results.setdefault((level, label), {})[seed] = done
        rows = as_runs(results, setting.scale)
        total = len(size.levels) * len(SYSTEMS) * len(setting.seeds)
        empty = total - sum(map(len, results.values()))
        claims = tuple(self.claims(rows, setting.scale))
        return replace(_findings(size, results, empty, problems), runs=rows, verdicts=claims)

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether a memory wins more than none, seed by seed, with actions that are drawn."""
        levels = dict.fromkeys(name for size in SIZES.values() for name in size.levels)
        parts = map(runs.part, levels)
        return [
            part.paired(
                f"{part.name}: {label} wins more than {CONTROL}",
                "ours: a control",
                "points",
                (label, CONTROL),
                lambda memory, none: 100 * (memory - none),
            )
            for part in parts
            for label in SYSTEMS
            if label != CONTROL and part.has(label, CONTROL)
        ]


class Job(NamedTuple):
    """A run: who learns what."""

    level: str
    label: str
    seed: int
    how: Imitating

    def file(self, out: Path) -> Path:
        """Path of its results, below the folder of a page."""
        folder = self.level.replace(",", "").replace(" ", "-")
        sizes = f"{self.how.demonstrations}-{self.how.epochs}-{self.how.rate:g}"
        name = f"{self.label}-{sizes}-seed{self.seed}.json"
        return out / FOLDER / folder / name.replace(" ", "_")


Results = dict[tuple[str, str], dict[int, Imitated]]
"""Runs by level, label and seed."""


def read(job: Job, out: Path) -> Imitated | None:
    """Results of a run that is finished."""
    try:
        values = read_json(job.file(out), inside=out)
    except FileNotFoundError:
        return None
    curve = [(epoch, loss) for epoch, loss in values["curve"]]
    return Imitated(**{**values, "curve": curve})


def made(job: Job, setting: Setting) -> Imitated:
    """Make a run, and keep it.

    Raises:
        LinrnnError: minigrid is not installed.
    """
    make(job.level).close()
    demonstrations = recorded(job.level, job.how.demonstrations, setting.out)
    with torch.random.fork_rng(devices=[]):
        done = imitate(job.level, demonstrations, SYSTEMS[job.label], job.how, job.seed)
    write_atomically(job.file(setting.out), json.dumps(vars(done)).encode(), inside=setting.out)
    setting.say(
        f"{job.level}, {job.label}, seed {job.seed}: {share(done.won):.3f} won, "
        f"{share(done.greedy):.3f} with the likeliest actions"
    )
    return done


def share(won: Sequence[bool]) -> float:
    """The share of episodes that were won.

    Example:
        >>> share([True, True, False, True])
        0.75
    """
    return sum(won) / len(won)


def percent(shares: Sequence[float]) -> str:
    """Mean of seeds in per cent, Student's 95 % interval, and how many there are.

    Example:
        >>> percent([0.5, 0.6, 0.7]), percent([0.5]), percent([])
        ('60 [35, 85] (3)', '50 (1)', '')
    """
    if not shares:
        return ""
    mean, low, high = (100 * end for end in interval(shares))
    if math.isnan(low):
        return f"{mean:.0f} ({len(shares)})"
    return f"{mean:.0f} [{low:.0f}, {high:.0f}] ({len(shares)})"


def _findings(size: Size, results: Results, empty: int, problems: Sequence[str]) -> Findings:
    levels = [name for name in size.levels if any((name, label) in results for label in SYSTEMS)]

    def table(title: str, field: str) -> Table:
        rows = [
            [label, *(percent([share(getattr(run, field)) for run in _runs(results, level, label)])
                      for level in levels)]
            for label in SYSTEMS
        ]  # fmt: skip
        return Table(title, ["memory", *levels], rows)

    notes = [
        "cells: mean over seeds, Student's 95 % interval, how many seeds there are.",
        "each seed draws weights, batches and fresh episodes: 256 are played for each way to act.",
        'in "MemoryS7, key above" an agent without memory wins one half at best.',
        "loss: cross entropy of the bot's actions, in nats a step, in the last epoch.",
    ]
    if empty:
        notes.append(f"{empty} runs are missing; the command goes on with them.")
    return Findings(
        tables=(
            table("Episodes that are won, actions drawn [%]", "won"),
            table("Episodes that are won, the likeliest actions [%]", "greedy"),
            _lengths(results, levels),
            _costs(results, levels),
        )
        if results
        else (),
        comparable=(
            "who wins after the same demonstrations; the published numbers are of another level "
            "and of a thousand times as many, so none of ours stands beside one."
        ),
        complete=not empty,
        notes=(*notes, *problems),
    )


def _runs(results: Results, level: str, label: str) -> list[Imitated]:
    return list(results.get((level, label), {}).values())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _lengths(results: Results, levels: Sequence[str]) -> Table:
    """Steps of an episode, with actions that are drawn."""
    rows = []
    for label in SYSTEMS:
        cells = [
            [length for run in _runs(results, level, label) for length in run.lengths]
            for level in levels
        ]
        rows.append([label, *(f"{_mean(cell):.1f}" if cell else "" for cell in cells)])
    return Table("Steps of an episode, actions drawn", ["memory", *levels], rows)


def _costs(results: Results, levels: Sequence[str]) -> Table:
    rows = []
    for label in SYSTEMS:
        runs = [run for level in levels for run in _runs(results, level, label)]
        if not runs:
            continue
        losses = []
        for level in levels:
            last = [run.curve[-1][1] for run in _runs(results, level, label)]
            losses.append(f"{_mean(last):.4f}" if last else "")
        seconds = min(run.learning for run in runs)
        rows.append([label, f"{runs[0].parameters:,}", f"{seconds:.0f}", *losses])
    head = ["memory", "parameters", "learning [µs]", *(f"loss, {level}" for level in levels)]
    return Table("Processor time of a step of a demonstration, and the last loss", head, rows)


def as_runs(results: Results, scale: str) -> Runs:
    """A row of each run; the score is the share of episodes that are won, actions drawn."""
    rows = []
    for (level, label), seeds in sorted(results.items()):
        for seed, run in sorted(seeds.items()):
            measures = {
                "likeliest": share(run.greedy),
                "steps of an episode": _mean(run.lengths),
                "last loss": run.curve[-1][1],
            }
            rows.append(
                Run(
                    scale=scale,
                    part=slug(level),
                    row=safe_name(label),
                    seed=seed,
                    task=level,
                    mixer=SYSTEMS[label],
                    parameters=run.parameters,
                    metric="accuracy",
                    test=share(run.won),
                    measures=measures,
                )
            )
    return Runs(tuple(rows))
