"""Offline decisions: policies that are told a return, learned from records of MuJoCo."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import sub
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, NamedTuple

import torch

from linrnn._files.storage import read_json, write_atomically
from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.errors import DataError
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.quoted import Quoted
from linrnn.reproductions._page.runs import Runs, slug
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.agents import spread
from linrnn.reproductions._runs.bodies import (
    BODIES,
    QUALITIES,
    data_folder,
    make,
    record,
)
from linrnn.reproductions._runs.decisions import CLONING, Decided, Learning, decide
from linrnn.reproductions._runs.episodes import Episode, read_episodes
from linrnn.train.figures import legend_below, new_figure
from linrnn.train.styles import styles


class Set(NamedTuple):
    """Recorded episodes of a body."""

    body: str
    quality: str

    @property
    def label(self) -> str:
        """As in tables."""
        return f"{self.body} {self.quality}"


SETS = tuple(Set(body, quality) for quality in QUALITIES for body in BODIES)
CONTROL = "cloning"
SYSTEMS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "minLSTM": ("minlstm", {}),
    "minGRU": ("mingru", {}),
    "Mamba": ("mamba", {}),
    "attention": ("attention", {"n_heads": 1}),
    CONTROL: (CLONING, {}),
}
"""The mixer of each row, or the control, and its options beside the size."""
_TOKENS = 3


@dataclass(frozen=True, kw_only=True)
class Size:
    """Runs of a scale."""

    sets: Sequence[Set]
    how: Learning
    recorded: int = 0
    """Steps of a set that is recorded here; 0 for the files of D4RL."""


_SMALL = Learning(steps=1000, batch=32, width=64, layers=2, warmup=100, episodes=10)
_PUBLISHED = Learning(steps=100_000)
SIZES = {
    "cpu": Size(sets=[s for s in SETS if s.body == "Hopper"], how=_SMALL, recorded=40_000),
    "bodies": Size(sets=SETS, how=_SMALL, recorded=40_000),
    "d4rl": Size(sets=SETS, how=_SMALL),
    "paper": Size(sets=SETS, how=_PUBLISHED),
}
_SLOW = {Set("Hopper", "medium"), Set("Hopper", "medium-replay"), Set("Walker2d", "medium")}
"""Sets with a learning rate of 1e-4 instead of 1e-3 in the paper."""
_WIDE = {Set("Hopper", "medium"), Set("Hopper", "medium-replay")}

_COLUMNS = ("attention", "DS4", "DAaren", "Mamba", "minLSTM", "minGRU")
_ROWS: Mapping[Set, Sequence[Quoted]] = {
    Set(body, quality): [*map(Quoted, others), Quoted(*lstm), Quoted(*gru)]
    for quality, body, others, lstm, gru in (
        ("medium", "HalfCheetah", (42.6, 42.5, 42.2, 42.8), (42.7, 0.7), (43.0, 0.4)),
        ("medium", "Hopper", (68.4, 54.2, 80.9, 83.5), (85.0, 4.4), (79.4, 8.2)),
        ("medium", "Walker2d", (75.5, 78.0, 74.4, 78.2), (72.0, 7.5), (73.3, 3.3)),
        ("medium-replay", "HalfCheetah", (37.0, 15.2, 37.9, 39.6), (38.6, 1.1), (38.5, 1.1)),
        ("medium-replay", "Hopper", (85.6, 49.6, 77.9, 82.6), (88.5, 4.7), (90.5, 0.9)),
        ("medium-replay", "Walker2d", (71.2, 69.0, 71.4, 70.9), (69.7, 10.7), (72.8, 8.9)),
        ("medium-expert", "HalfCheetah", (88.8, 92.7, 75.7, 91.9), (85.4, 1.7), (86.3, 0.5)),
        ("medium-expert", "Hopper", (109.6, 110.8, 103.9, 111.1), (110.3, 1.6), (109.7, 2.7)),
        ("medium-expert", "Walker2d", (109.3, 105.7, 110.5, 108.3), (110.3, 0.5), (110.3, 0.4)),
    )
}
PRINTED = {data: dict(zip(_COLUMNS, row, strict=True)) for data, row in _ROWS.items()}
"""Normalised returns."""
_PAPER = "Feng et al. 2024, arXiv:2410.01201, Table 3"
FOLDER = "decisions"
"""Runs, below the folder of a page."""


class OfflineDecisions(Reproduction):
    """Recurrent layers and attention as policies that are told the return to reach.

    A Decision Transformer reads the return to go, the observation and the action of each step. Here
    minLSTM, minGRU and Mamba stand in its place, and beside all a small network that imitates the
    records step by step, without a memory and without returns.

    Args:
        sizes: by scale, in place of ours.
        most_runs: after how many new runs the page is written, with empty cells for those that
            are missing. Default: after all.
    """

    summary: ClassVar[str] = (
        "decisions from records of MuJoCo: minLSTM, minGRU, Mamba, attention, cloning"
    )
    source: ClassVar[str] = _PAPER
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "three sets of Hopper that are recorded here, 40,000 steps each, and none of D4RL; "
            "two layers of 64, 1,000 batches; shows what a target and a memory add to "
            "cloning; some 5 minutes of processor time a set and seed"
        ),
        "bodies": "all three bodies and qualities recorded here, with the settings of cpu",
        "d4rl": "the nine sets of D4RL, whose files you put in place, with the settings of cpu",
        "paper": (
            "the nine sets of D4RL, whose files you put in place, with the settings of the paper: "
            "three layers of 128 or 256, 100,000 batches"
        ),
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Normalised return: 0 is chance, 100 the expert of D4RL",
            ["set", *(label.replace("attention", "DT (attention)") for label in _COLUMNS)],
            [[data.label, *(q.text for q in row.values())] for data, row in PRINTED.items()],
        ),
    )

    def __init__(self, sizes: Mapping[str, Size] = SIZES, most_runs: int | None = None) -> None:
        self.sizes, self.most_runs = sizes, most_runs

    def run(self, setting: Setting) -> Findings:
        """Learn from every set with every seed, and play."""
        size = self.sizes[setting.scale]
        left = float("inf") if self.most_runs is None else self.most_runs
        problems: list[str] = []
        results: Results = {}
        for seed, data in itertools.product(setting.seeds, size.sets):
            jobs = [Job(data, label, seed, size) for label in SYSTEMS]
            try:
                for job in jobs:
                    done = read(job, setting.out)
                    if done is None and left:
                        left -= 1
                        done = made(job, setting)
                    if done is not None:
                        results.setdefault((data, job.label), {})[job.seed] = done
            except DataError as error:
                problems.append(str(error))
        total = len(size.sets) * len(SYSTEMS) * len(setting.seeds)
        empty = total - sum(map(len, results.values()))
        rows = as_runs(results, setting.scale)
        claims = tuple(self.claims(rows, setting.scale))
        return replace(_findings(size, results, empty, problems), runs=rows, verdicts=claims)

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether a memory is worth it beside cloning, and the printed order on its own data."""
        verdicts = []
        for data in SETS:
            part = runs.part(data.label)
            verdicts += [
                part.paired(
                    f"{data.label}: {label} is better than {CONTROL}",
                    "ours: a control",
                    "of the normalised return",
                    (label, CONTROL),
                    sub,
                )
                for label in SYSTEMS
                if label != CONTROL and part.has(label, CONTROL)
            ]
            if not self.sizes[scale].recorded:
                verdicts += part.order(PRINTED[data])
        return verdicts


class Job(NamedTuple):
    """A run: who learns from what."""

    data: Set
    label: str
    seed: int
    size: Size

    @property
    def how(self) -> Learning:
        """Settings; those of the paper differ from set to set."""
        how = self.size.how
        if how != _PUBLISHED:
            return how
        width = 256 if self.data in _WIDE else how.width
        return replace(how, rate=1e-4 if self.data in _SLOW else how.rate, width=width)

    def file(self, out: Path) -> Path:
        """Path of its results, below the folder of a page."""
        origin = f"own-{self.size.recorded}" if self.size.recorded else "d4rl"
        name = f"{self.label}-{origin}-{self.how.steps}-seed{self.seed}.json"
        return out / FOLDER / self.data.label.replace(" ", "-") / name


Results = dict[tuple[Set, str], dict[int, Decided]]
"""Runs by set, label and seed."""


def episodes_of(data: Set, size: Size, out: Path) -> list[Episode]:
    """The episodes of a set.

    Raises:
        DataError: their file is missing or wrong, or a package is.
    """
    if size.recorded:
        return read_episodes(record(data.body, data.quality, size.recorded, out))
    name = f"{data.body.lower()}_{data.quality.replace('-', '_')}-v2"
    folder = data_folder() / "d4rl"
    path = folder / f"{name}.hdf5"
    if not path.exists() and not (folder / name).exists():
        raise DataError(f"{path} must be there, or a folder {name} of Minari beside it.")
    return read_episodes(path if path.exists() else folder / name)


def read(job: Job, out: Path) -> Decided | None:
    """Results of a run that is finished."""
    try:
        values = read_json(job.file(out), inside=out)
    except FileNotFoundError:
        return None
    curve = [(steps, value) for steps, value in values["curve"]]
    return Decided(**{**values, "curve": curve})


def made(job: Job, setting: Setting) -> Decided:
    """Make a run, and keep it."""
    make(job.data.body).close()  # an error comes before the training, not after it
    episodes = episodes_of(job.data, job.size, setting.out)
    mixer, options = SYSTEMS[job.label]
    if mixer == "attention":
        options = {**options, "window": _TOKENS * job.how.time}
    with torch.random.fork_rng(devices=[]):
        done = decide(job.data.body, episodes, mixer, job.how, job.seed, options)
    write_atomically(job.file(setting.out), json.dumps(vars(done)).encode(), inside=setting.out)
    setting.say(
        f"{job.data.label}, {job.label}, seed {job.seed}: {_score(job.data, done.returns):.1f}"
    )
    return done


def _score(data: Set, returns: Sequence[float]) -> float:
    return BODIES[data.body].score(mean(returns))


def _findings(size: Size, results: Results, empty: int, problems: Sequence[str]) -> Findings:
    sets = [data for data in size.sets if any((data, label) in results for label in SYSTEMS)]
    tables = [_scores("Normalised return, read anew from the last 20 steps", results, sets)]
    tables.append(_scores("The same with the state carried", results, sets, carried=True))
    tables.append(_costs(results))
    notes = [
        "cells: mean over seeds of the mean over the episodes, range of seeds, how many there are.",
        "cloning: a network without memory that is told no return, learned from the same batches.",
        "the return to reach: Hopper 3,600, HalfCheetah 6,000, Walker2d 5,000.",
        "version 5 of the bodies in gymnasium, on today's MuJoCo; D4RL has version 2.",
    ]
    if size.recorded:
        notes.append(_OWN)
    if problems and not size.recorded:
        notes.append("files of D4RL lie in the folder d4rl below LINRNN_DATA; put these there.")
    if empty:
        notes.append(f"{empty} runs are missing; the command goes on with them.")
    return Findings(
        tables=tuple(tables) if results else (),
        comparable=(
            "the rows among one another, on records of our own; the published numbers are of other "
            "records, so none of ours stands beside one."
            if size.recorded
            else "the order of rows; the simulator is newer than the one that made the records."
        ),
        complete=not empty,
        notes=(*notes, *dict.fromkeys(problems)),
        figures={"scores": _figure(results, sets)} if results else {},
        files=as_csv(results) if results else {},
    )


_OWN = (
    "none of this is D4RL's data: the records are made here from two expert episodes of a body. "
    'Of "medium" a clone of the expert plays with noise on its actions; of "medium-replay" its '
    'snapshots do, untrained to trained; of "medium-expert" half is as the first, and half near '
    "the expert's return. The expert's own is 116 for Hopper, 36 for HalfCheetah, 121 for Walker2d."
)


def _scores(title: str, results: Results, sets: Sequence[Set], *, carried: bool = False) -> Table:
    def cell(data: Set, label: str) -> str:
        runs = results.get((data, label), {}).values()
        returns = [run.carried if carried else run.returns for run in runs]
        return spread([_score(data, one) for one in returns if one])

    labels = [label for label in SYSTEMS if not (carried and label == CONTROL)]
    rows = [[label, *(cell(data, label) for data in sets)] for label in labels]
    return Table(title, ["policy", *(data.label for data in sets)], rows)


def _costs(results: Results) -> Table:
    rows = []
    for label in SYSTEMS:
        runs = [
            run for (_, row), seeds in results.items() if row == label for run in seeds.values()
        ]
        if runs:
            fastest = [min(getattr(run, name) for run in runs) for name in _TIMES]
            cells = [f"{value:.0f}" if value else "" for value in fastest]
            rows.append([label, f"{runs[0].parameters:,}", *cells])
    head = ["policy", "parameters", "a batch [ms]", "an action [µs]", "with its state [µs]"]
    return Table(
        "Processor time, the least of the runs; an action is one of all bodies", head, rows
    )


_TIMES = ("learning", "acting", "carrying")


def as_runs(results: Results, scale: str) -> Runs:
    """A row of each run; the score is the normalised return, read anew."""
    rows = []
    for (data, label), seeds in results.items():
        for seed, run in sorted(seeds.items()):
            measures = {"last loss": run.curve[-1][1]}
            if run.carried:
                measures["state carried"] = _score(data, run.carried)
            rows.append(
                Run(
                    scale=scale,
                    part=slug(data.label),
                    row=safe_name(label),
                    seed=seed,
                    task=data.label,
                    mixer=SYSTEMS[label][0],
                    parameters=run.parameters,
                    metric="normalised return",
                    test=_score(data, run.returns),
                    measures=measures,
                )
            )
    return Runs(tuple(rows))


def as_csv(results: Results) -> dict[str, bytes]:
    """Every episode that was played."""
    episodes = ["set,policy,seed,read,episode,return,steps"]
    for (data, label), seeds in results.items():
        for seed, run in sorted(seeds.items()):
            key = f"{data.label},{label},{seed}"
            played = {"anew": (run.returns, run.lengths)}
            played["carried"] = (run.carried, run.carried_lengths)
            for how, (returns, lengths) in played.items():
                for n, (gained, steps) in enumerate(zip(returns, lengths, strict=True)):
                    episodes.append(f"{key},{how},{n},{gained:.2f},{steps}")
    return {"episodes.csv": "\n".join([*episodes, ""]).encode()}


def _figure(results: Results, sets: Sequence[Set]) -> Any:
    """Scores of every seed, a place for each policy, a panel for each set."""
    columns = min(len(sets), 3)
    rows = -(-len(sets) // columns)
    figure = new_figure(2.8 * columns + 0.6, 2.6 * rows + 0.6)
    panels = figure.subplots(rows, columns, squeeze=False)
    looks = styles(list(SYSTEMS))
    for axes, data in zip(panels.flat, sets, strict=False):
        for place, label in enumerate(SYSTEMS):
            scores = [_score(data, run.returns) for run in results.get((data, label), {}).values()]
            look = {**looks[label], "linestyle": "none"}
            axes.plot([place] * len(scores), scores, label=label, **look)
        axes.set(title=data.label, xticks=[])
        axes.grid(alpha=0.3, axis="y")
    for row in panels:
        row[0].set(ylabel="normalised return")
    figure.suptitle("a point for each seed, the mean of its episodes")
    legend_below(figure, *panels.flat)
    return figure
