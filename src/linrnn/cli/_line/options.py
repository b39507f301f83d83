"""The options of ``linrnn train``: those of every run, of the chosen mixer and of the task."""

import dataclasses
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from linrnn import learn, tasks
from linrnn._options.declared import dataclass_of, declared
from linrnn.cli._line.described import described, values_of
from linrnn.cli._line.names import UNTUNED

if TYPE_CHECKING:
    from linrnn.train import Config

SHORT = {
    "on-nan": "train.on-nan",
    "devices": "train.devices",
    "trainer.devices": "train.devices",  # as in programs of Lightning
}
"""Other names of options of every task."""


def short_names(stated: Mapping[str, str], options: Container[str]) -> dict[str, str]:
    """Other names of the options of a task, by which they may be given as well.

    Args:
        stated: those that are the task's own.
        options: names of the task's options; ``data``, where it is one, needs no ``task.``.
    """
    return SHORT | ({"data": "task.data"} if "data" in options else {}) | dict(stated)


CHOSEN = {
    "mixer": "str",
    "learner": "str",
    "recipe": "str",
    "scale": "str",
    "seed": "int",
    "out": "Path",
}
"""Options of a run that are of none of its parts, and what they are."""

MOST_SEEDS = 10_000
JOBS = "runs trained at once, each with its share of the processors (1)"
"""Runs of one setting that anybody asks for."""


class Start(NamedTuple):
    """The configuration whose values are the defaults of a run's options."""

    config: "Config"
    """Its values are the defaults."""
    recipe: str
    """Name of the recipe it is of, or `UNTUNED`."""
    scale: str
    """Scale of that recipe, or `UNTUNED`."""


def peek(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag before anything else is parsed, or None."""
    for i, arg in enumerate(argv):
        if arg.startswith(f"{flag}="):
            return arg.partition("=")[2]
        if arg == flag and i + 1 < len(argv):
            return argv[i + 1]
    return None


def parse_train(argv: Sequence[str], start: Start) -> "tuple[Config, Path | None]":
    """A configuration changed by the command line, and the run folder if one is given.

    Args:
        argv: what follows the task.
        start: the defaults, and whose they are.

    Raises:
        UnknownNameError: no such mixer.
        ArgumentError: an import path that leads to none.
        SystemExit: with 2 for wrong options and 0 after ``--help``.
    """
    import tyro

    from linrnn.cli._line.mixer_options import import_named, mixer_class

    config = start.config
    mixer = peek(argv, "--mixer") or config.mixer
    import_named(mixer)
    defaults = config.mixer_options if mixer == config.mixer else {}
    source = f"those of the recipe {start.recipe}, scale {start.scale}"
    if start.recipe == UNTUNED:
        source = "untuned: they suit any task"
    learner = peek(argv, "--learner") or config.learner
    learner_defaults = config.learner_options if learner == config.learner else {}
    learners = learner_class(learner, learner_defaults)
    command = _command(start, mixer, mixer_class(mixer, defaults), learner, learners)
    task = tasks.load(config.task)
    fields = {field.name for field in dataclasses.fields(task.Options)}
    short = short_names(task.short_options, fields)
    also = ", ".join(f"--{name} for --{option}" for name, option in short.items())
    chosen: Any = tyro.cli(
        command,
        args=spell_out(argv, short),
        prog=f"linrnn train {config.task}",
        description=f"Train on the task {config.task}. Defaults are {source}."
        + (f" Short: {also}." if also else ""),
    )
    config = dataclasses.replace(
        config,
        mixer=mixer,
        seed=chosen.seed,
        model=type(config.model)(**values_of(chosen.model)),
        mixer_options=values_of(chosen.mixer),
        task_options=type(config.task_options)(**values_of(chosen.task)),
        optim=type(config.optim)(**values_of(chosen.optim)),
        train=type(config.train)(**values_of(chosen.train)),
        learner=learner,
        learner_options=values_of(chosen.learner),
    )
    return config, chosen.out


def spell_out(argv: Sequence[str], short: Mapping[str, str]) -> list[str]:
    """A command line with the full names of options in place of a task's short ones.

    Example:
        >>> spell_out(["--data", "a", "--bptt=8"], {"data": "task.data", "bptt": "task.length"})
        ['--task.data', 'a', '--task.length=8']
    """
    full = {f"--{name}": f"--{option}" for name, option in short.items()}
    parts = (arg.partition("=") for arg in argv)
    return ["".join((full.get(name, name), sign, value)) for name, sign, value in parts]


def learner_class(name: str, defaults: Mapping[str, Any]) -> type:
    """A dataclass of the options of a learner, described by its docstring.

    Args:
        name: of the learner.
        defaults: override those of the constructor.
    """
    cls = learn.load(name)
    options = [o._replace(default=defaults.get(o.name, o.default)) for o in declared(cls)]
    return dataclass_of(f"{cls.__name__}Options", f"The learner {name}.", options)


def _command(start: Start, mixer: str, options: type, learner: str, learners: type) -> type:
    """The dataclass that tyro turns into the command line."""
    import tyro

    from linrnn.cli._line.mixer_options import defaults_of

    config = start.config
    arg, hint = tyro.conf.arg, "(default: the next free runs/TASK-MIXER-N)"
    top = [
        ("mixer_name", Annotated[str, arg(name="mixer", help=_MIXER_HELP)], mixer),
        ("learner_name", Annotated[str, arg(name="learner", help=_LEARNER_HELP)], learner),
        ("recipe", Annotated[str, arg(help=_RECIPE_HELP)], start.recipe),
        ("scale", Annotated[str, arg(help=_SCALE_HELP)], start.scale),
        ("seed", Annotated[int, arg(help=_SEED_HELP)], config.seed),
        (
            "out",
            Annotated[Path | None, arg(help=_OUT_HELP, metavar="DIR", help_behavior_hint=hint)],
            None,
        ),
    ]
    parts = [
        ("model", type(config.model), config.model),
        ("mixer", options, dataclasses.MISSING),
        ("optim", type(config.optim), config.optim),
        ("train", type(config.train), config.train),
        ("task", type(config.task_options), config.task_options),
        ("learner", learners, learners()),
    ]
    groups: list[tuple[str, Any, Any]] = []
    for name, cls, values in parts:
        like = described(cls, values)
        groups.append((name, like, defaults_of(like)))
    fields = [(name, kind, dataclasses.field(default=value)) for name, kind, value in top]
    return dataclasses.make_dataclass("TrainCommand", fields + groups, frozen=True, kw_only=True)


_MIXER_HELP = (
    "The layer along time: a name of `linrnn list mixers`, an import path such as "
    "pkg.module:Mine, or several separated by commas, repeated along the depth."
)
_LEARNER_HELP = "The rule that computes gradients; `linrnn list learners` shows all."
_RECIPE_HELP = "The recipe with the defaults; `linrnn list recipes` shows all; none: untuned."
_SCALE_HELP = "The scale of the recipe: cpu takes minutes, paper is as published."
_SEED_HELP = "Seed of the initial weights, the order of the data, dropout and augmentation."
_OUT_HELP = "The run folder, new or empty."
