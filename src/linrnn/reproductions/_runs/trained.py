"""Shared by reproductions that train models: one column of a table, its runs, its sizes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from linrnn.compare import Entry, Row, compare
from linrnn.errors import DataError, MissingExtraError
from linrnn.reproductions._page.base import Reproduction, Setting, Table
from linrnn.reproductions._page.quoted import Printed
from linrnn.reproductions._page.runs import RUNS, Runs, reduction, slug
from linrnn.reproductions._page.verdict import REDUCED, Judged
from linrnn.tasks import Task
from linrnn.train import Config
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_task

_MACHINE = ("threads", "checkpoint_minutes", "device")  # of TrainConfig: not of the experiment


@dataclass(frozen=True, kw_only=True)
class Column:
    """One task of a table, at one size."""

    name: str
    """Head of the printed column."""
    config: Config
    """Configuration of all its runs, but for the seed and what differs between rows."""
    paper: Config
    """The published configuration."""
    steps: int
    """Optimiser steps that were published."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Results of a column."""

    column: Column
    task: Task
    labels: tuple[str, ...]
    """Labels of all rows, failed ones included."""
    rows: tuple[Row, ...]
    """None where nothing could be trained."""
    problem: str = ""
    """Why not."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates that were chosen, by row; none where all have the column's."""


def with_mixer(config: Config, mixer: str, options: Mapping[str, Any] | None = None) -> Config:
    """The configuration with another mixer, of the same ``d_state`` where it has one."""
    shared = {k: v for k, v in config.mixer_options.items() if k == "d_state"}
    return replace(config, mixer=mixer, mixer_options={**shared, **(options or {})})


def train(of: str | Column, rows: Mapping[str, Config], setting: Setting) -> Outcome:
    """Train every row with every seed, or go on with that; see `linrnn.compare.compare`.

    A task whose data is missing is an outcome as well, and leaves nothing in the folder, so that
    the same call can be made again when the data is there.

    Args:
        of: the column of the paper that they are, or a name where there is none. Progress lines and
            the folder below ``runs`` have the name.
        rows: configurations by label.
        setting: seeds, the folder, and who is told.

    Raises:
        RunFolderError: the folder holds runs with other settings.
        InterruptedRunError: stopped by Ctrl-C; the same call goes on from there.
    """
    first, labels = next(iter(rows.values())), tuple(rows)
    column = Column(name=of, config=first, paper=first, steps=0) if isinstance(of, str) else of
    task = build_task(first)
    try:
        task.datasets()
    except (DataError, MissingExtraError) as error:
        problem = f"{error} `linrnn reproduce` looks in LINRNN_DATA."
        setting.say(f"{column.name}: not run: {problem}")
        return Outcome(column=column, task=task, labels=labels, rows=(), problem=problem)
    folder = setting.out / RUNS / slug(column.name)
    n_runs = len(rows) * len(setting.seeds)
    setting.say(f"{column.name}: {n_runs} runs of {column.config.task}, in {folder}")
    trained_rows = compare(
        [Entry(label=label, config=config) for label, config in rows.items()],
        seeds=setting.seeds,
        out=folder,
        jobs=setting.jobs,
        say=lambda line: setting.say(f"{column.name} {line}"),
    )
    return Outcome(column=column, task=task, labels=labels, rows=tuple(trained_rows))


def by_seed(row: Row) -> dict[int, float]:
    """Test metric of the runs that finished, by the place of their seed.

    Rows of a comparison have the same seeds, so values at the same place can be paired.
    """
    if len(row.values) == len(row.folders) or not row.folders:
        return dict(enumerate(row.values))
    results = [RunFolder(folder).read_result() for folder in row.folders]
    return {seed: result.test_metric for seed, result in enumerate(results) if result is not None}


def problems(*outcomes: Outcome) -> list[str]:
    """Why runs failed, and why there are none."""
    failed = [f"{r.label} failed: {why}" for o in outcomes for r in o.rows for why in r.failures]
    return [*failed, *(o.problem for o in outcomes if o.problem)]


def n_steps(row: Row) -> int:
    """Optimiser steps of a run that finished; the same for all seeds, 0 if there is none."""
    results = (RunFolder(folder).read_result() for folder in row.folders)
    return max((result.steps for result in results if result is not None), default=0)


def in_order(runs: Runs, column: Column, printed: Mapping[str, Printed]) -> list[Judged]:
    """The claims of a printed column.

    Args:
        runs: of the page.
        column: whose rows are compared.
        printed: numbers of each column by its name.
    """
    steps = runs.part(column.name).steps
    return runs.part(column.name, scale_of(column, steps)).order(printed.get(column.name, {}))


def orders(
    what: Reproduction, setting: Setting, measures: Mapping[Path, Mapping[str, float]] | None = None
) -> tuple[Judged, ...]:
    """The claims of a page from the runs in its folder."""
    runs = Runs.of_page(setting.out, setting.scale, measures=measures)
    return tuple(what.claims(runs, setting.scale))


def scale_of(column: Column, steps: int) -> str:
    """The scale of a column beside the published one; empty where nothing was changed.

    Args:
        column: of a table.
        steps: of a run of ours.
    """
    if _settings(column.config) == _settings(column.paper):
        return ""
    lengths = [build_task(config).sequence_length for config in (column.config, column.paper)]
    widths = [config.model.d_model for config in (column.config, column.paper)]
    shares = {
        "updates": (float(steps), float(column.steps)),
        "length": (float(lengths[0]), float(lengths[1])),
        "width": (float(widths[0]), float(widths[1])),
    }
    return reduction(shares) or REDUCED


def changes(outcome: Outcome) -> Table | None:
    """Every setting of the column that is not the published one, or None if all are."""
    column = outcome.column
    ours, paper = _settings(column.config), _settings(column.paper)
    if outcome.rates:
        ours["optim.lr"] = ", ".join(f"{label} {lr:g}" for label, lr in outcome.rates.items())
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
    """Return the seconds of training, summed over the runs that finished."""
    results = (RunFolder(folder).read_result() for folder in row.folders)
    return sum(result.seconds for result in results if result is not None)
