"""The options of ``linrnn train``: those of every run, of the chosen mixer and of the task."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from linrnn import mixers, tasks
from linrnn._declared import dataclass_of, declared
from linrnn._import_path import look_here
from linrnn._pattern import OneMixer, import_all, label, option_names, options_of, pattern
from linrnn.train import Config

UNTUNED = "none"
"""Named in the place of a recipe and of its scale: defaults that suit any task, tuned for none."""


MOST_SEEDS = 10_000
"""Runs of one setting that anybody asks for."""


class Start(NamedTuple):
    """Where the options of a run start from."""

    config: Config
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


def parse_train(argv: Sequence[str], start: Start) -> tuple[Config, Path | None]:
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

    config = start.config
    mixer = peek(argv, "--mixer") or config.mixer
    import_named(mixer)
    defaults = config.mixer_options if mixer == config.mixer else {}
    source = f"those of the recipe {start.recipe}, scale {start.scale}"
    if start.recipe == UNTUNED:
        source = "untuned: they suit any task"
    command = _command(start, mixer, mixer_class(mixer, defaults))
    short = {"on-nan": "train.on-nan"} | dict(tasks.load(config.task).short_options)
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
        model=chosen.model,
        mixer_options=dataclasses.asdict(chosen.mixer),
        task_options=chosen.task,
        optim=chosen.optim,
        train=chosen.train,
    )
    return config, chosen.out


def import_named(mixer: str) -> None:
    """Import what a command names by import paths.

    Raises:
        ArgumentError: one leads to no mixer.
    """
    if ":" in mixer:
        look_here()
    import_all(mixer)


def spell_out(argv: Sequence[str], short: Mapping[str, str]) -> list[str]:
    """A command line with the full names of options in place of a task's short ones.

    Example:
        >>> spell_out(["--data", "a", "--bptt=8"], {"data": "task.data", "bptt": "task.length"})
        ['--task.data', 'a', '--task.length=8']
    """
    full = {f"--{name}": f"--{option}" for name, option in short.items()}
    parts = (arg.partition("=") for arg in argv)
    return ["".join((full.get(name, name), sign, value)) for name, sign, value in parts]


def mixer_class(mixer: str, defaults: Mapping[str, Any]) -> type:
    """A dataclass of the options of a mixer, or, of a pattern, one of such dataclasses by name.

    Args:
        mixer: a name, an import path, whose module is imported, or several with commas between.
        defaults: override those of the constructors, as `linrnn.SequenceModel` takes them.
    """
    given = options_of(mixer, defaults)
    classes = {label(part): _one_mixer_class(part, given[label(part)]) for part in pattern(mixer)}
    if len(classes) == 1:
        return next(iter(classes.values()))
    groups = [(name, cls, _default(cls)) for name, cls in classes.items()]
    made = dataclasses.make_dataclass("MixerOptions", groups, frozen=True, kw_only=True)
    made.__doc__ = f"The mixers {mixer}, each with options of its own."
    return made


def _one_mixer_class(mixer: OneMixer, defaults: Mapping[str, Any]) -> type:
    cls, known = mixers.load(mixer), option_names(mixer)
    options = [
        o._replace(default=defaults.get(o.name, o.default))
        for o in declared(cls)
        if o.name in known
    ]
    return dataclass_of(f"{cls.__name__}Options", f"The mixer {label(mixer)}.", options)


def _default(cls: type) -> Any:
    """A field of a class, with a value where it needs no arguments."""
    fields: Any = dataclasses.fields(cls)
    no = dataclasses.MISSING
    needs = any(f.default is no and f.default_factory is no for f in fields)
    return dataclasses.field() if needs else dataclasses.field(default=cls())


def _command(start: Start, mixer: str, options: type) -> type:
    """The dataclass that tyro turns into the command line."""
    import tyro

    config = start.config
    arg = tyro.conf.arg
    top = [
        ("mixer_name", Annotated[str, arg(name="mixer", help=_MIXER_HELP)], mixer),
        ("recipe", Annotated[str, arg(help=_RECIPE_HELP)], start.recipe),
        ("scale", Annotated[str, arg(help=_SCALE_HELP)], start.scale),
        ("seed", Annotated[int, arg(help=_SEED_HELP)], config.seed),
        ("out", Annotated[Path | None, arg(help=_OUT_HELP, metavar="DIR")], None),
    ]
    groups = [
        ("model", type(config.model), config.model),
        ("optim", type(config.optim), config.optim),
        ("train", type(config.train), config.train),
        ("task", type(config.task_options), config.task_options),
    ]
    fields = [(name, kind, dataclasses.field(default=value)) for name, kind, value in top + groups]
    fields.insert(len(top) + 1, ("mixer", options, _default(options)))
    return dataclasses.make_dataclass("TrainCommand", fields, frozen=True, kw_only=True)


_MIXER_HELP = (
    "What mixes information along time: one of `linrnn list mixers`, an import path such as "
    "pkg.module:Mine, or several with commas between, repeated along the depth."
)
_RECIPE_HELP = "Whose values are the defaults; `linrnn list recipes` shows all; none: untuned."
_SCALE_HELP = "Which scale of the recipe: cpu takes minutes, paper is as published."
_SEED_HELP = "Of the initial weights, the order of the data, dropout and augmentation."
_OUT_HELP = "The run folder, new or empty. Without it: the next free runs/TASK-MIXER-N."
