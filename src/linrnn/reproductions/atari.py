"""A game of Atari from single frames: which memory stands in for a stack of frames."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import sub
from typing import Any, ClassVar

from linrnn.errors import LinrnnError
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.agent import FRAMES, NO_MEMORY
from linrnn.reproductions._runs.agents import (
    Found,
    Job,
    as_runs,
    costs,
    curves_csv,
    finished,
    grid,
    learning_curves,
    played,
    read,
    spread,
)
from linrnn.reproductions._runs.ppo import PPO
from linrnn.reproductions._runs.screens import FULL, Screens

GAME, PONG = "Pong", "ALE/Pong-v5"
CONTROL = "no memory"
SYSTEMS: Mapping[str, str] = {
    "GRU": "gru",
    "minGRU": "mingru",
    "LRU": "lru",
    "frame stacking": FRAMES,
    CONTROL: NO_MEMORY,
}
"""The mixer of each row, or a control."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Runs of a scale."""

    how: PPO
    block: tuple[int, int]
    """Rows and columns of a block of pixels that becomes one."""


def _size(block: tuple[int, int], how: Mapping[str, Any]) -> Size:
    screen = FULL[0] // block[0], FULL[1] // block[1]
    return Size(how=PPO(screen=screen, entropy=0.01, scale=1.0, **how), block=block)


SIZES = {
    "hour": _size((5, 4), {"steps": 3_000_000, "rate": 5e-4}),
    "full": _size(
        (2, 2),
        {"steps": 10_000_000, "rate": 2.5e-4, "environments": 32, "width": 512, "workers": 8},
    ),
}
_DRQN = "Hausknecht and Stone 2015, arXiv:1507.06527, abstract"


class Atari(Reproduction):
    """Proximal policy optimisation of Pong from one frame at a time.

    A single frame does not show where the ball is going. An agent sees small grey screens, its last
    action, and whether a game begins. Three convolutions and a linear map read them, then comes the
    memory, and a hidden layer each for the actor and the critic. Frame stacking reads the last four
    frames instead of a memory.

    Args:
        sizes: by scale, in place of ours.
        most_runs: after how many new runs the page is written, with empty cells for those that
            are missing. Default: after all.
    """

    summary: ClassVar[str] = "Pong of Atari from single frames: GRU, minGRU, LRU, frames, no memory"
    source: ClassVar[str] = _DRQN
    scales: ClassVar[Mapping[str, str]] = {
        "hour": (
            "three million steps of four frames, screens of 42 x 40, layers of 128; shows who "
            "learns soonest, not where they end; an hour of processor time a run, by the 1,000 "
            "steps a second that its first 2,048 took; not run here beyond those"
        ),
        "full": (
            "ten million steps of four frames, screens of 105 x 80, layers of 512; not run here, "
            "a day or more a run"
        ),
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "A recurrent layer instead of a stack of frames",
            ["finding", "holds"],
            [
                ["a recurrent agent that sees single frames is as good as one with a stack", "yes"],
                ["recurrence is systematically better than a stack of equal length", "no"],
            ],
        ),
    )
    hours: ClassVar[Sequence[str]] = ("hour", "full")

    def __init__(self, sizes: Mapping[str, Size] = SIZES, most_runs: int | None = None) -> None:
        self.sizes, self.most_runs = sizes, most_runs

    def run(self, setting: Setting) -> Findings:
        """Train every memory with every seed."""
        size = self.sizes[setting.scale]
        jobs = [job(size, label, seed) for seed in setting.seeds for label in SYSTEMS]
        left, problems = inf if self.most_runs is None else self.most_runs, ""
        for one in jobs:
            if not left or problems:
                break
            if read(one, setting.out) is not None:
                continue
            try:
                done = played(one, setting.out)
            except LinrnnError as error:
                problems = str(error)
                continue
            left -= 1
            setting.say(f"{one.label}, seed {one.seed}: {done.best:.2f} at best, {done.last:.2f}")
        runs = finished(jobs, setting.out)
        findings = _findings(runs, len(jobs) - sum(map(len, runs.values())), problems)
        rows = as_runs(jobs, setting.out, setting.scale)
        return replace(findings, runs=rows, verdicts=tuple(self.claims(rows, setting.scale)))

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether a memory is worth it."""
        part = runs.part(GAME)
        return [
            part.paired(
                f"{label} is better than {CONTROL}", "ours: a control", "of return",
                (label, CONTROL), sub,
            )
            for label in SYSTEMS
            if label != CONTROL and part.has(label, CONTROL)
        ]  # fmt: skip


def job(size: Size, label: str, seed: int) -> Job:
    """A run at a scale."""
    return Job(
        family=GAME,
        make=functools.partial(Screens, PONG, size.block),
        label=label,
        mixer=SYSTEMS[label],
        options={},
        how=size.how,
        seed=seed,
    )


def _findings(runs: Found, empty: int, problems: str) -> Findings:
    systems = [label for label in SYSTEMS if (GAME, label) in runs]

    def cells(name: str) -> Any:
        def cell(family: str, label: str) -> str:
            return spread([getattr(run, name) for run in runs[family, label].values()])

        return cell

    notes = [
        "cells: mean over seeds, their range, how many there are; from -21, a lost game, to 21.",
        "an action lasts four frames, and the one before is repeated with a probability of 0.25.",
    ]
    if empty:
        notes.append(f"{empty} runs are missing; the command goes on with them.")
    if problems:
        notes.append(problems)
    if not runs:
        return Findings(tables=(), comparable="nothing was run.", complete=False, notes=(*notes,))
    return Findings(
        tables=(
            grid("Maximal mean return of 100 games", [GAME], systems, cells("best")),
            grid("Mean return of the last tenth", [GAME], systems, cells("last")),
            costs(runs, systems),
        ),
        comparable="the order of rows; the paper trains by Q-learning, and longer.",
        complete=not empty,
        notes=tuple(notes),
        figures={"returns": learning_curves(runs, [GAME], systems)},
        files={"curves.csv": curves_csv(runs)},
    )
