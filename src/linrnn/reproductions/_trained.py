"""What reproductions that train models share: one column of a table, its runs, its sizes."""

import itertools
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from linrnn._storage import exclusive
from linrnn.compare import Entry, Row, compare
from linrnn.errors import DataError, MissingExtraError
from linrnn.reproductions._base import Setting, Table
from linrnn.tasks import Task
from linrnn.train import Config
from linrnn.train._folder import RunFolder
from linrnn.train._model import build_task

RUNS = "runs"
"""Folder of the trained models, in that of the report."""

_WAIT = 2.0  # seconds, while other processes train all that is left
_MACHINE = ("threads", "checkpoint_minutes", "device")  # of TrainConfig: not of the experiment


@dataclass(frozen=True, kw_only=True)
class Column:
    """One task of a table, at one size."""

    name: str
    """Head of the printed column."""
    config: Config
    """Of all its runs, up to what tells the rows apart and the seed."""
    paper: Config
    """The same as it was published."""
    steps: int
    """Optimiser steps that were published."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came out of a column."""

    column: Column
    task: Task
    labels: tuple[str, ...]
    """Of the rows that were wanted."""
    rows: tuple[Row, ...]
    """None where nothing could be trained."""
    problem: str = ""
    """Why not."""


def with_mixer(config: Config, mixer: str, options: Mapping[str, Any] | None = None) -> Config:
    """The configuration with another mixer, of the same ``d_state`` where it has one."""
    kept = {k: v for k, v in config.mixer_options.items() if k == "d_state"}
    return replace(config, mixer=mixer, mixer_options={**kept, **(options or {})})


def train(column: Column, rows: Mapping[str, Config], setting: Setting) -> Outcome:
    """Train every row with every seed, or go on with that; see `linrnn.compare.compare`.

    A task whose data is missing is an outcome as well, and leaves nothing in the folder, so that
    the same call can be made again when the data is there.

    Args:
        column: named in what is said; its name is that of the folder below ``runs``.
        rows: configurations by label.
        setting: seeds, the folder, and who is told.

    Raises:
        RunFolderError: the folder holds runs with other settings.
        InterruptedRunError: stopped by Ctrl-C; the same call goes on from there.
    """
    task, labels = build_task(next(iter(rows.values()))), tuple(rows)
    try:
        task.datasets()
    except (DataError, MissingExtraError) as error:
        problem = f"{error} `linrnn reproduce` looks in LINRNN_DATA."
        setting.say(f"{column.name}: not run: {problem}")
        return Outcome(column=column, task=task, labels=labels, rows=(), problem=problem)
    folder = setting.out / RUNS / slug(column.name)
    n_runs, count = len(rows) * len(setting.seeds), itertools.count(1)
    setting.say(f"{column.name}: {n_runs} runs of {column.config.task}, in {folder}")
    found = compare(
        [Entry(label=label, config=config) for label, config in rows.items()],
        seeds=setting.seeds,
        out=folder,
        say=lambda line: setting.say(f"{column.name} {next(count)}/{n_runs}: {line}"),
    )
    return Outcome(column=column, task=task, labels=labels, rows=tuple(found))


def train_each(of: str | Column, rows: Mapping[str, Config], setting: Setting) -> Outcome:
    """Train every row as a column of its own, so that several processes can share the work.

    A row that another process is training is left to it and read when it is done: the same command
    started twice takes half the time, and both end with the whole page.

    Args:
        of: the name of all, or the column of the paper that they are.
        rows: configurations by label.
        setting: of the reproduction; its folder is what the processes share.
    """
    setting.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Outcome] = {}
    while len(found) < len(rows):
        before = len(found)
        for label in [label for label in rows if label not in found]:
            outcome = _trained_here(label, rows[label], setting)
            if outcome is not None:
                found[label] = outcome
            if outcome is not None and outcome.problem:  # of the task, so that of all rows
                return _together(of, rows, [outcome])
        if len(found) == before:
            time.sleep(_WAIT)
    return _together(of, rows, [found[label] for label in rows])


def _trained_here(label: str, config: Config, setting: Setting) -> Outcome | None:
    """A row, or None while another process trains it."""
    with _held(setting.out / f".{slug(label)}.lock") as free:
        if not free:
            return None
        column = Column(name=label, config=config, paper=config, steps=0)
        return train(column, {label: config}, setting)


def _together(of: str | Column, rows: Mapping[str, Config], outcomes: list[Outcome]) -> Outcome:
    first = outcomes[0]
    return replace(
        first,
        column=replace(first.column, name=of) if isinstance(of, str) else of,
        labels=tuple(rows),
        rows=tuple(row for outcome in outcomes for row in outcome.rows),
    )


@contextmanager
def _held(lock: Path) -> Iterator[bool]:
    """Whether no other process holds it; then it is held."""
    try:
        with exclusive(lock):
            yield True
    except BlockingIOError:
        yield False


def by_seed(row: Row) -> dict[int, float]:
    """Test metric of the runs that finished, by the place of their seed.

    Rows of a comparison have the same seeds, so what stands at one place can be paired.
    """
    if len(row.values) == len(row.folders) or not row.folders:
        return dict(enumerate(row.values))
    done = [RunFolder(folder).read_result() for folder in row.folders]
    return {seed: result.test_metric for seed, result in enumerate(done) if result is not None}


def slug(name: str) -> str:
    """A column's name in the name of a file.

    Example:
        >>> slug("sCIFAR, rows")
        'scifar-rows'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def n_steps(row: Row) -> int:
    """Optimiser steps of a run that finished; the same for all seeds, 0 if there is none."""
    done = (RunFolder(folder).read_result() for folder in row.folders)
    return max((result.steps for result in done if result is not None), default=0)


def changes(outcome: Outcome) -> Table | None:
    """Every setting of the column that is not the published one, or None if all are."""
    column = outcome.column
    ours, paper = _settings(column.config), _settings(column.paper)
    rows = [
        [name, _word(paper.get(name)), _word(ours.get(name))]
        for name in dict.fromkeys([*paper, *ours])
        if paper.get(name) != ours.get(name)
    ]
    if not rows:
        return None
    steps = max(map(n_steps, outcome.rows), default=0)
    if steps:
        rows.append(["optimiser steps", f"{column.steps:,}", f"{steps:,}"])
    title = f"{column.name}: what was changed, as named by `linrnn train`"
    return Table(title, ["setting", "published", "ours"], rows)


def _settings(config: Config) -> dict[str, Any]:
    """Everything the runs of a column share, by the names of the command line."""
    parts = {"model": asdict(config.model), "optim": asdict(config.optim)}
    parts["train"] = {k: v for k, v in asdict(config.train).items() if k not in _MACHINE}
    parts["task"] = {k: v for k, v in asdict(config.task_options).items() if k != "data"}
    parts["mixer"] = {k: v for k, v in config.mixer_options.items() if k == "d_state"}
    return {f"{part}.{name}": v for part, values in parts.items() for name, v in values.items()}


def _word(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def seconds(row: Row) -> float:
    """Of training the runs that finished, one after the other."""
    done = (RunFolder(folder).read_result() for folder in row.folders)
    return sum(result.seconds for result in done if result is not None)
