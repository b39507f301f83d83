"""Runs over values of any options: a grid, or draws from it and from ranges, times seeds."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from linrnn import learn
from linrnn._files.door import make_folder
from linrnn._options.catalogue import todays_name
from linrnn.backbone.pattern import import_all, stored
from linrnn.compare._range import Range, drawn
from linrnn.compare._runs import Entry, check, train_all
from linrnn.compare._setting import Setting as Setting
from linrnn.compare._shared import check_jobs
from linrnn.compare.match import check_suits
from linrnn.compare.sweep_report import write_sweep
from linrnn.errors import ArgumentError, UnknownNameError, check_few, show
from linrnn.train import Config
from linrnn.train.model import build_task

MAX_COMBINATIONS = 10_000
"""Settings that a sweep may have."""


def sweep(
    config: Config,
    over: Mapping[str, Sequence[Any] | Range],
    *,
    draws: int | None = None,
    seeds: Sequence[int] = (0,),
    out: Path | str,
    jobs: int = 1,
    say: Callable[[str], Any] = lambda line: None,
) -> list[Setting]:
    """Train a configuration with every combination of some values and every seed.

    Like `compare` it can be stopped at any time: what is finished in ``out`` is kept, the run that
    was interrupted goes on, what failed is tried again, and several processes share the runs.

    Args:
        config: of all runs, up to what is swept and the seed.
        over: values by the dotted name of an option, as the command line has it: ``optim.lr``,
            ``mixer.d_state``, ``task.noise``, or ``mixer`` or ``learner``, with which the options
            of another mixer or learner are its defaults. A `Range` instead of values is drawn
            from, and needs ``draws``.
        draws: number of random combinations; the same call draws the same ones, and with more
            draws those before are among them. None takes all.
        seeds: each combination is trained once with each.
        out: folder for the runs, ``sweep.md``, ``sweep.csv``, ``runs.csv`` with a row
            for every run, and the plot ``sweep``.
        jobs: how many runs are trained at once, each with its share of the processors.
        say: told one line for each run.

    Returns:
        A setting for each combination, in the order of the grid or of the draws.

    Raises:
        ArgumentError: nothing to sweep, a value or an end of a range that an option does not take,
            a range without draws, too many combinations, a model that cannot read the data, or
            several jobs on Windows.
        UnknownNameError: no such option, or no such learner.
        RunFolderError: ``out`` holds runs with other options.
        InterruptedRunError: stopped by Ctrl-C; call again to go on.
    """
    points, entries = entries_of(config, over, draws)
    check("sweep", entries, seeds)
    check_jobs("sweep", jobs)
    for entry in entries:
        import_all(entry.config.mixer)
    check_suits(entries)
    folder = Path(out)
    make_folder(folder)
    rows = train_all(entries, seeds, folder, say, jobs)
    pairs = zip(points, rows, strict=True)
    settings = [Setting(values=values, row=row) for values, row in pairs]
    write_sweep(settings, build_task(config), folder, config.task)
    return settings


def entries_of(
    config: Config, over: Mapping[str, Sequence[Any] | Range], draws: int | None
) -> tuple[list[dict[str, Any]], list[Entry]]:
    """The combinations of a sweep, and what is trained of each; see `sweep`."""
    points = combinations(over, draws)
    for name, values in over.items():
        for end in (values.low, values.high) if isinstance(values, Range) else ():
            with_options(config, points[0] | {name: end})  # whether or not it is drawn
    entries = [Entry(label=named(p), config=with_options(config, p)) for p in points]
    for entry in entries:
        learn.build(entry.config.learner, entry.config.learner_options)
    return points, entries


def combinations(
    over: Mapping[str, Sequence[Any] | Range], draws: int | None
) -> list[dict[str, Any]]:
    """All combinations of values, or some that are drawn, each once.

    Raises:
        ArgumentError: no option, no values, values that repeat, more combinations than
            `MAX_COMBINATIONS`, or a range and no draws.

    Example:
        >>> combinations({"optim.lr": [0.1, 0.2], "seed": [1]}, None)
        [{'optim.lr': 0.1, 'seed': 1}, {'optim.lr': 0.2, 'seed': 1}]
    """
    size = 1
    if draws is not None:
        check_few("sweep", MAX_COMBINATIONS, draws=draws)
    ranges = {name: one for name, one in over.items() if isinstance(one, Range)}
    if ranges and draws is None:
        name = next(iter(ranges))
        raise ArgumentError(
            f"sweep: draws must say how many values are drawn from the range of {name}, got None."
        )
    listed = {name: one for name, one in over.items() if not isinstance(one, Range)}
    for name, values in listed.items():
        if not values or len({show(value) for value in values}) < len(values):
            raise ArgumentError(f"sweep: {name} must have values that differ, got {show(values)}.")
        size *= len(values)
    if not over or size > MAX_COMBINATIONS:
        raise ArgumentError(
            f"sweep: there must be 1 to {MAX_COMBINATIONS:,} combinations of values, got "
            f"{size if over else 0:,}. Draw some of fewer values."
        )
    if ranges and draws is not None:
        return drawn(over, draws)
    every = [
        dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())
    ]
    if draws is None:
        return every
    order = list(range(size))
    random.Random(0).shuffle(order)  # the first of a longer list are those of a shorter one
    return [every[i] for i in order[:draws]]


def named(values: Mapping[str, Any]) -> str:
    """Name a combination of values.

    Example:
        >>> named({"optim.lr": 0.01, "mixer": "lru"})
        'optim.lr=0.01 mixer=lru'
    """
    return " ".join(f"{name}={value}" for name, value in values.items())


def with_options(config: Config, values: Mapping[str, Any]) -> Config:
    """A configuration with other values of some options.

    Args:
        config: to change.
        values: by dotted name; see `sweep`.

    Raises:
        UnknownNameError: no such option.
        ArgumentError: a value that the option does not take.
    """
    values = dict(values)
    mixer = values.pop("mixer", config.mixer)
    if isinstance(mixer, str):
        mixer, _ = stored(mixer, {}, config.model.d_model)
    if mixer != config.mixer:  # options of one mixer mean nothing to another
        config = replace(config, mixer=mixer, mixer_options={})
    learner = todays_name(learn.__name__, values.pop("learner", config.learner))
    if learner != config.learner:
        config = replace(config, learner=learner, learner_options={})
    for name, value in values.items():
        config = _with_option(config, name, value)
    return config


def _with_option(config: Config, name: str, value: Any) -> Config:
    section, _, option = name.replace("-", "_").partition(".")
    field = {"mixer": "mixer_options", "learner": "learner_options", "task": "task_options"}.get(
        section, section
    )
    part = getattr(config, field, None)
    if not option or part is None:
        raise UnknownNameError("option", name, ("mixer", "optim.lr", "mixer.d_state"))
    if isinstance(part, dict):
        changed: dict[str, Any] = {field: _with_key(part, option, value)}
        return replace(config, **changed)
    names = [f.name for f in fields(part)]
    if option not in names:
        raise UnknownNameError("option", name, [f"{section}.{one}" for one in names])
    return replace(config, **{field: replace(part, **{option: value})})


def _with_key(options: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Options with another value of one, which may be that of one mixer of a pattern."""
    owner, _, option = name.rpartition(".")
    if not owner:
        return {**options, name: value}
    return {**options, owner: {**options.get(owner, {}), option: value}}
