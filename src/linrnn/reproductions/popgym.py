"""Agents in partly seen worlds of POPGym: which memory learns what, beside none at all."""

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
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

FOUR = ("RepeatFirst", "RepeatPrevious", "PositionOnlyCartPole", "NoisyPositionOnlyPendulum")
FAMILIES = (
    *FOUR,
    "Autoencode",
    "Battleship",
    "Concentration",
    "CountRecall",
    "HigherLower",
    "LabyrinthEscape",
    "LabyrinthExplore",
    "MineSweeper",
    "MultiarmedBandit",
    "NoisyPositionOnlyCartPole",
    "PositionOnlyPendulum",
    "VelocityOnlyCartPole",
)
TUNED_ON = "RepeatPrevious"
"""The family on which the learning rate of every memory is chosen."""
_HEADS = {"n_heads": 4}
SYSTEMS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "GRU": ("gru", {}),
    "minGRU": ("mingru", {}),
    "LRU": ("lru", {}),
    "no memory": (NO_MEMORY, {}),
    "frame stacking": (FRAMES, {}),
    "LSTM": ("lstm", {}),
    "S5": ("s5", {}),
    "Mamba": ("mamba", {}),
    "linear attention": ("linear_attention", _HEADS),
    "delta rule": ("delta_net", _HEADS),
}
"""The mixer of each row, or a control, and its options beside the size."""
CONTROL = "no memory"


@dataclass(frozen=True, kw_only=True)
class Size:
    """Runs of a scale."""

    families: Sequence[str]
    systems: Sequence[str]
    how: PPO
    rates: Sequence[float]
    level: str = "Easy"


_SMALL = PPO(steps=250_000)
_PUBLISHED = PPO(
    steps=15_000_000,
    environments=64,
    time=1024,
    epochs=30,
    parts=8,
    lam=1.0,
    entropy=0.0,
    value=1.0,
    scale=1.0,
    width=256,
    workers=4,
)
SIZES = {
    "cpu": Size(families=FOUR, systems=tuple(SYSTEMS)[:4], how=_SMALL, rates=(1e-3, 3e-3, 1e-2)),
    "easy": Size(families=FAMILIES, systems=tuple(SYSTEMS), how=_SMALL, rates=(1e-3, 3e-3, 1e-2)),
    "paper": Size(families=FAMILIES, systems=tuple(SYSTEMS), how=_PUBLISHED, rates=(5e-5,)),
}
_PAPER = "Morad et al. 2023, arXiv:2303.01859"
_UNSURE = "not checked against the paper"


class POPGym(Reproduction):
    """Proximal policy optimisation with one recurrent layer of each kind, and without any.

    An observation, the action before and whether an episode begins go through a linear map, the
    memory, and a hidden layer each for the actor and the critic. Rollouts are learned from in one
    pass. The learning rate of each memory is chosen on one family with one seed.

    Args:
        sizes: by scale, in place of ours.
        most_runs: after how many new runs the page is written, with empty cells for those that
            are missing. Default: after all.
    """

    summary: ClassVar[str] = "agents of POPGym with nine kinds of memory, and without any"
    source: ClassVar[str] = f"{_PAPER}: mean over environments of the maximal mean return"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "four families at easy, three memories and none, 250,000 steps, layers of 128; shows "
            "which need a memory and who learns soonest, not where they end after the 15 million "
            "steps of the paper; about a minute of processor time a run"
        ),
        "easy": (
            "all sixteen families at easy, nine memories and none, 250,000 steps; some 3 hours of "
            "processor time a seed"
        ),
        "paper": (
            "15 million steps with the settings that are published; a layer of 256 instead of "
            "128 around a state of 256"
        ),
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Maximal mean return, mean over all environments at three levels",
            ["memory", "return", "how sure"],
            [
                ["GRU", "0.349", _UNSURE],
                ["LSTM", "0.26", _UNSURE],
                ["frame stacking", "0.19", _UNSURE],
                ["linear attention (FART)", "0.14", _UNSURE],
                ["no memory (MLP)", "0.07", _UNSURE],
                ["S4D", "-0.18", _UNSURE],
                ["the GRU is ahead of all others, newer ones included", "yes",
                 "read: the introduction of Morad et al. 2023, arXiv:2310.04128"],
            ],
        ),
    )  # fmt: skip

    def __init__(self, sizes: Mapping[str, Size] = SIZES, most_runs: int | None = None) -> None:
        self.sizes, self.most_runs = sizes, most_runs

    def run(self, setting: Setting) -> Findings:
        """Tune every memory on one family, and train it on all with every seed."""
        size = self.sizes[setting.scale]
        missing = _missing()
        if missing and self.most_runs != 0:
            return Findings(tables=(), comparable="nothing was run.", complete=False, notes=missing)
        budget = _Budget(self.most_runs)
        tuning = _tuning(size, setting, budget)
        rates = {label: best(runs) for label, runs in tuning.items()}
        chosen = [
            job(size, family, label, seed, rates[label])
            for seed in setting.seeds
            for family in size.families
            for label in size.systems
            if label in rates
        ]
        for one in chosen:
            if budget.left or read(one, setting.out):
                budget.make(one, setting)
        results = finished(chosen, setting.out)
        count = sum(map(len, results.values()))
        planned = len(setting.seeds) * len(size.families) * len(size.systems)
        runs = as_runs([*_tuned(size, setting), *chosen], setting.out, setting.scale)
        claims = tuple(self.claims(runs, setting.scale))
        return replace(
            self._findings(size, results, tuning, planned - count), runs=runs, verdicts=claims
        )

    def _findings(self, size: Size, results: Found, tuning: "Tuning", empty: int) -> Findings:
        families = [f for f in size.families if any((f, s) in results for s in size.systems)]
        systems = [s for s in size.systems if any((f, s) in results for f in families)]

        def cells(name: str) -> Any:
            def cell(family: str, label: str) -> str:
                seeds = results.get((family, label), {}).values()
                return spread([getattr(run, name) for run in seeds])

            return cell

        notes = [
            "cells: mean over seeds, their range, how many there are; an empty one was not run.",
            "maximal mean return: that of the last 100 episodes, at the step of the training where "
            "it is largest, which is what is published. It flatters; the second table does not.",
            f"budget of tuning: learning rates {', '.join(f'{r:g}' for r in size.rates)} on "
            f"{TUNED_ON} with the first seed, the same for all memories.",
        ]
        if empty:
            notes.append(f"{empty} runs are missing; the command goes on with them.")
        return Findings(
            tables=(
                grid("Maximal mean return", families, systems, cells("best")),
                grid("Mean return of the last tenth", families, systems, cells("last")),
                costs(results, systems),
                _tried(size, tuning),
            ),
            comparable=(
                "who learns what within these steps; the published numbers are means over all "
                "environments after 15 million steps, so no number of ours stands beside one."
            ),
            complete=not empty,
            notes=tuple(notes),
            figures={"returns": learning_curves(results, families, systems)} if results else {},
            files={"curves.csv": curves_csv(results)} if results else {},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether a memory is worth it, and whether the GRU is ahead, seed by seed."""
        tuned, verdicts = runs.part(TUNED_ON), list[Judged]()
        for family in FAMILIES:
            part = runs.part(family)
            pairs = [(label, CONTROL) for label in SYSTEMS if label != CONTROL]
            pairs += [("GRU", label) for label in SYSTEMS if label not in (CONTROL, "GRU")]
            for better, worse in pairs:
                if part.has(better, worse):
                    source = "ours: a control" if worse == CONTROL else _PAPER
                    claim = f"{family}: {better} is better than {worse}"
                    judged = part.paired(claim, source, "of return", (better, worse), sub)
                    edge = tuned.why_not(better, worse)  # the rate of all families is from there
                    verdicts.append(judged._replace(why_not=judged.why_not or edge))
        return verdicts


Tuning = Mapping[str, Mapping[float, float]]
"""Maximal mean return of each memory at each rate."""


class _Budget:
    """Counts the runs that are made."""

    def __init__(self, limit: int | None) -> None:
        self.left = float("inf") if limit is None else limit

    def make(self, one: Job, setting: Setting) -> float:
        """The maximal mean return of a run."""
        new = read(one, setting.out) is None
        done = played(one, setting.out)
        self.left -= new
        if new:
            setting.say(
                f"{one.family}, {one.label}, seed {one.seed}, rate {one.how.rate:g}: "
                f"{done.best:.3f} at best, {done.last:.3f} at the end"
            )
        return done.best


def _missing() -> tuple[str, ...]:
    """Advice where the environments are not installed."""
    try:
        importlib.import_module("popgym.envs")
    except ImportError:
        return ("popgym must be installed, got none. The extra `rl` brings it.",)
    return ()


def environment(name: str) -> Any:
    """An environment by the name of its class."""
    try:
        return getattr(importlib.import_module("popgym.envs"), name)()
    except AttributeError as error:
        raise LinrnnError(
            f"popgym: the environment {name} must be there, got an installation without it. "
            "The labyrinths need a Python before 3.12: pip install 'popgym[navigation]'"
        ) from error


def job(size: Size, family: str, label: str, seed: int, rate: float) -> Job:
    """A run at a scale."""
    mixer, options = SYSTEMS[label]
    return Job(
        family=family,
        make=functools.partial(environment, family + size.level),
        label=label,
        mixer=mixer,
        options=options,
        how=replace(size.how, rate=rate),
        seed=seed,
    )


def _tuned(size: Size, setting: Setting) -> list[Job]:
    """The runs that choose the rate of each memory: every rate with the first seed."""
    seed = setting.seeds[0]
    return [job(size, TUNED_ON, label, seed, rate) for label in size.systems for rate in size.rates]


def _tuning(size: Size, setting: Setting, budget: _Budget) -> Tuning:
    """Make these runs."""
    tuning: dict[str, dict[float, float]] = {}
    for one in _tuned(size, setting):
        if budget.left or read(one, setting.out):
            tuning.setdefault(one.label, {})[one.how.rate] = budget.make(one, setting)
    return {label: runs for label, runs in tuning.items() if len(runs) == len(size.rates)}


def best(runs: Mapping[float, float]) -> float:
    """The rate with the largest return."""
    return max(runs, key=lambda rate: -1e9 if isnan(runs[rate]) else runs[rate])


def _tried(size: Size, tuning: Tuning) -> Table:
    rows = [
        [label, *(f"{runs[rate]:.2f} at {rate:g}" for rate in size.rates), f"{best(runs):g}"]
        for label, runs in tuning.items()
    ]
    head = ["memory", *(f"rate {i}" for i in range(1, len(size.rates) + 1)), "taken"]
    return Table(f"{TUNED_ON}: maximal mean return of the first seed while tuning", head, rows)
