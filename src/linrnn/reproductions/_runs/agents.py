"""Training runs of agents as files that are not made twice, and tables and curves of them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from linrnn._files.storage import read_json, write_atomically
from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.reproductions._page.base import Table
from linrnn.reproductions._page.runs import Runs, slug
from linrnn.reproductions._runs.ppo import PPO, Trainer
from linrnn.train.figures import legend_below, new_figure, over_seeds
from linrnn.train.styles import styles

FOLDER = "agents"
"""Below that of a page."""
_POINTS = 40
"""Points of a curve that are kept."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run: who learns where, and how."""

    family: str
    make: Callable[[], Any]
    label: str
    mixer: str
    options: Mapping[str, Any]
    how: PPO
    seed: int

    def file(self, out: Path) -> Path:
        """Path of its results, below the folder of a page."""
        name = f"{self.label}-{self.how.rate:g}-{self.how.steps}-seed{self.seed}.json"
        return out / FOLDER / self.family / name.replace(" ", "_")


@dataclass(frozen=True, kw_only=True)
class Played:
    """Results of a run."""

    best: float
    """Largest mean return of the last episodes, over the training; NaN if there is none."""
    last: float
    """Mean of the mean returns in the last tenth of the training."""
    curve: Sequence[tuple[int, float]]
    """Steps, and the mean return of the last episodes."""
    parameters: int
    floats: int
    """Numbers of the state."""
    acting: float
    """Microseconds of the processor a step, with those of the environment."""
    learning: float
    """Microseconds of the processor a step."""


def read(job: Job, out: Path) -> Played | None:
    """Results of a run that is finished."""
    try:
        values = read_json(job.file(out), inside=out)
    except FileNotFoundError:
        return None
    curve = [(steps, value) for steps, value in values["curve"]]
    return Played(**{**values, "curve": curve})


def played(job: Job, out: Path) -> Played:
    """Results of a run, which is made if it is not there."""
    done = read(job, out)
    if done is None:
        with torch.random.fork_rng(devices=[]):
            done = _trained(job)
        path = job.file(out)
        write_atomically(path, json.dumps(vars(done)).encode(), inside=out)
    return done


def _trained(job: Job) -> Played:
    trainer = Trainer(job.make, job.mixer, job.how, job.seed, job.options)
    try:
        curve = trainer.learn()
    finally:
        trainer.env.close()
    means = [point.mean for point in curve]
    late = [point.mean for point in curve if point.steps > 0.9 * job.how.steps]
    every = max(1, len(curve) // _POINTS)
    micro = 1e6 / max(trainer.steps, 1)
    return Played(
        best=max(means, default=float("nan")),
        last=mean(late) if late else float("nan"),
        curve=[(point.steps, round(point.mean, 5)) for point in curve[every - 1 :: every]],
        parameters=sum(p.numel() for p in trainer.agent.parameters()),
        floats=trainer.agent.floats,
        acting=micro * trainer.acting,
        learning=micro * trainer.learning,
    )


Found = Mapping[tuple[str, str], Mapping[int, Played]]
"""By family and label, of the seeds that are finished."""


def finished(jobs: Iterable[Job], out: Path) -> Found:
    """Results that are there."""
    results: dict[tuple[str, str], dict[int, Played]] = {}
    for job in jobs:
        done = read(job, out)
        if done is not None:
            results.setdefault((job.family, job.label), {})[job.seed] = done
    return results


def grid(title: str, families: Sequence[str], labels: Sequence[str], cell: Any) -> Table:
    """A row for each label and a column for each family."""
    rows = [[label, *(cell(family, label) for family in families)] for label in labels]
    return Table(title, ["memory", *families], rows)


def spread(values: Sequence[float]) -> str:
    """Mean and range of seeds, and how many there are; nothing of none.

    Runs that broke off because a loss was not finite have NaN, and are counted apart.

    Example:
        >>> spread([0.5, 1.0, float("nan")]), spread([0.5]), spread([])
        ('0.75 [0.50, 1.00] (2, 1 broke off)', '0.50 (1)', '')
    """
    finite = [value for value in values if not isnan(value)]
    lost = len(values) - len(finite)
    count = f"{len(finite)}, {lost} broke off" if lost else str(len(finite))
    if not finite:
        return f"({count})" if lost else ""
    if len(values) == 1:
        return f"{finite[0]:.2f} (1)"
    return f"{mean(finite):.2f} [{min(finite):.2f}, {max(finite):.2f}] ({count})"


def costs(results: Found, labels: Sequence[str]) -> Table:
    """Cost of a step, over all families."""
    rows = []
    for label in labels:
        runs = [run for (_, of), seeds in results.items() if of == label for run in seeds.values()]
        if runs:
            times = [f"{min(getattr(run, name) for run in runs):.0f}" for name in _TIMES]
            rows.append([label, f"{runs[0].floats:,}", f"{runs[0].parameters:,}", *times])
    head = ["memory", "numbers of state", "parameters", "acting [µs]", "learning [µs]"]
    return Table("Cost of a step of an environment, the least of the runs", head, rows)


_TIMES = ("acting", "learning")


def as_runs(jobs: Iterable[Job], out: Path, scale: str) -> Runs:
    """Rows of those that are finished; the score is the maximal mean return.

    Args:
        jobs: of the page, and those by which a rate was chosen; one may come twice.
        out: folder of the page.
        scale: of the page.
    """
    rows = {job.file(out): (job, read(job, out)) for job in jobs}
    return Runs(tuple(_row(job, done, scale) for job, done in rows.values() if done is not None))


def _row(job: Job, done: Played, scale: str) -> Run:
    return Run(
        scale=scale,
        part=slug(job.family),
        row=safe_name(job.label),
        seed=job.seed,
        lr=job.how.rate,
        task=job.family,
        mixer=job.mixer,
        options=json.dumps(dict(job.options)) if job.options else "",
        parameters=done.parameters,
        state=done.floats,
        steps=job.how.steps,
        metric="maximal mean return",
        validation=done.best,
        test=done.best,
        measures={"last tenth": done.last, "acting": done.acting, "learning": done.learning},
    )


def curves_csv(results: Found) -> bytes:
    """The curves of all runs."""
    curves = ["environment,memory,seed,steps,mean return"]
    for (family, label), seeds in sorted(results.items()):
        for seed, run in sorted(seeds.items()):
            curves += [f"{family},{label},{seed},{steps},{value:.5f}" for steps, value in run.curve]
    return "\n".join([*curves, ""]).encode()


def learning_curves(results: Found, families: Sequence[str], labels: Sequence[str]) -> Any:
    """Mean return along the training, a panel for each family, with the range of seeds as bands."""
    columns = min(len(families), 2)
    rows = -(-len(families) // columns)
    figure = new_figure(3.8 * columns + 0.4, 2.7 * rows + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False)
    looks, counts = styles(list(labels)), set()
    for axes, family in zip(panels.flat, families, strict=False):
        for label in labels:
            seeds = [run.curve for run in results.get((family, label), {}).values()]
            if not seeds:
                continue
            counts.add(len(seeds))
            points = [list(zip(*at, strict=True)) for at in zip(*seeds, strict=False)]
            steps = [at[0][0] for at in points]
            look = {**looks[label], "marker": ""}
            axes.plot(steps, [mean(at[1]) for at in points], label=label, **look)
            if len(seeds) > 1:
                low, high = ([end(at[1]) for at in points] for end in (min, max))
                axes.fill_between(steps, low, high, alpha=0.2, color=look["color"], linewidth=0)
        axes.set(title=family, xlabel="steps")
        axes.grid(alpha=0.3)
    for row in panels:
        row[0].set(ylabel="mean return")
    figure.suptitle(f"last 100 episodes: {over_seeds(counts)}, bands are their range")
    legend_below(figure, *panels.flat)
    return figure
