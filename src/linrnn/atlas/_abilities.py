"""Abilities: tasks, each with a dial that is turned until a system fails."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from linrnn import tasks
from linrnn.tasks import Task

HELD_OUT = 256
"""Sequences of validation, on which nothing is decided but when to stop."""
TESTED = 512
"""Sequences of the test: a standard error of 2.2 points at half of the way."""


@dataclass(frozen=True, kw_only=True)
class Ability:
    """A task and the option that makes it harder.

    A system has the ability at a value of the dial where it comes at least half of the way from
    chance to perfect. Its figure is where the dial breaks: see `linrnn.atlas.breaking_point`.

    Args:
        name: how it is called everywhere.
        summary: one line.
        task: name of the task.
        dial: what the values count, for tables.
        values: of the dial, the easiest first.
        options: of the task, for a value of the dial.
        pool: how the model's outputs over time become its answer.
        timed: whether only systems that read times between steps can have it.
    """

    name: str
    summary: str
    task: str
    dial: str
    values: tuple[int, ...]
    options: Callable[[int], Mapping[str, Any]] = field(repr=False)
    pool: Literal["none", "last"] = "none"
    timed: bool = False

    def build(self, value: int, *, examples: int, seed: int = 0) -> Task:
        """The task at a value of the dial.

        Args:
            value: of the dial; any that the task takes.
            examples: training sequences.
            seed: of the data.
        """
        cls = tasks.load(self.task)
        sizes = {"train_size": examples, "validation_size": HELD_OUT, "test_size": TESTED}
        return cls(cls.Options(**sizes, data_seed=seed, **self.options(value)))

    def fraction(self, task: Task, score: float) -> float:
        """How far a score is from chance to perfect: 0 is chance, 1 perfect, below 0 is worse."""
        perfect = 1.0 if task.higher_is_better else 0.0
        return (score - task.chance) / (perfect - task.chance)


_LENGTHS = (8, 16, 32, 64, 128, 256, 512)
_WORDS = (2, 4, 8, 16, 32, 64, 128, 256)

ABILITIES: tuple[Ability, ...] = (
    Ability(
        name="copying",
        summary="repeat four tokens after a silence",
        task="copy",
        dial="silent steps",
        values=_LENGTHS,
        options=lambda n: {"length": n, "n_tokens": 4, "vocabulary": 10, "markers": "all"},
    ),
    Ability(
        name="selective-copying",
        summary="repeat four tokens that lie among blanks",
        task="selective_copy",
        dial="blanks",
        values=_LENGTHS,
        options=lambda n: {"length": n, "n_tokens": 4, "vocabulary": 10},
    ),
    Ability(
        name="recall",
        summary="recall the value of each of several keys",
        task="mqar",
        dial="pairs",
        values=(2, 4, 8, 16, 32, 64),
        options=lambda n: {
            "n_pairs": n,
            "length": 4 * n,
            "vocabulary": max(16, 4 * n),
            "power": 1.0,
        },
    ),
    Ability(
        name="induction",
        summary="recall what followed a special token",
        task="induction_heads",
        dial="steps",
        values=_LENGTHS,
        options=lambda n: {"length": n, "vocabulary": 16},
        pool="last",
    ),
    Ability(
        name="parity",
        summary="whether the ones so far are an odd number",
        task="parity",
        dial="steps",
        values=_WORDS,
        options=lambda n: {"length": n},
    ),
    Ability(
        name="modular-sums",
        summary="the sum so far modulo 5",
        task="modular_sums",
        dial="steps",
        values=_WORDS,
        options=lambda n: {"length": n},
    ),
    Ability(
        name="permutations-of-three",
        summary="the product so far in the group S3",
        task="group_words",
        dial="steps",
        values=_WORDS,
        options=lambda n: {"length": n, "group": "S3"},
    ),
    Ability(
        name="permutations-of-five",
        summary="the product so far in the group A5, which no solvable group contains",
        task="group_words",
        dial="steps",
        values=_WORDS,
        options=lambda n: {"length": n, "group": "A5"},
    ),
    Ability(
        name="adding",
        summary="add the two marked ones of many numbers",
        task="adding",
        dial="steps",
        values=_LENGTHS,
        options=lambda n: {"length": n},
        pool="last",
    ),
    Ability(
        name="delay",
        summary="give a smooth signal back some steps later",
        task="delay",
        dial="steps of delay",
        values=(4, 8, 16, 32, 64, 128),
        options=lambda n: {"lag": n, "length": 2 * n + 32, "frequency": 0.1},
    ),
    Ability(
        name="noisy-delay",
        summary="give white noise back some steps later",
        task="delay",
        dial="steps of delay",
        values=(1, 2, 4, 8, 16, 32, 64),
        options=lambda n: {"lag": n, "length": 2 * n + 32, "frequency": 0.5},
    ),
    Ability(
        name="irregular-times",
        summary="how fast a wave rises, from heights at irregular times",
        task="gaps",
        dial="steps",
        values=(8, 16, 32, 64, 128),
        options=lambda n: {"length": n, "times": "dt"},
        timed=True,
    ),
    Ability(
        name="overwriting",
        summary="recall the last value of each of four keys",
        task="overwrite",
        dial="updates",
        values=(1, 2, 4, 8, 16, 32, 64, 128),
        options=lambda n: {"n_updates": n},
    ),
    Ability(
        name="forgetting",
        summary="repeat four tokens after a cue, and forget those before it",
        task="forget",
        dial="tokens to forget",
        values=(1, 2, 4, 8, 16, 32, 64, 128),
        options=lambda n: {"n_before": n},
    ),
    Ability(
        name="brackets",
        summary="the innermost open bracket of four kinds",
        task="dyck",
        dial="depth",
        values=(2, 4, 8, 16, 32, 64),
        options=lambda n: {"depth": n},
    ),
    Ability(
        name="regression",
        summary="values of a linear function that examples show",
        task="in_context_regression",
        dial="weights",
        values=(1, 2, 4, 8, 16),
        options=lambda n: {"rank": n},
    ),
)
"""In the order in which they are measured."""

TUNING = Ability(
    name="reversal",
    summary="give four tokens back in reverse order",
    task="reverse",
    dial="silent steps",
    values=(4,),
    options=lambda n: {"length": 4, "delay": n, "vocabulary": 10},
)
"""Chooses the learning rate of a system; it is not on the map."""


def named(name: str) -> Ability:
    """The ability of a name, of the map or that for tuning."""
    return {ability.name: ability for ability in (*ABILITIES, TUNING)}[name]
