"""The table, the CSV file and the plots of a comparison."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linrnn._files.storage import report_in
from linrnn.compare._plots import draw_costs
from linrnn.compare.run_table import write_runs
from linrnn.tasks import Task
from linrnn.train import Config
from linrnn.train.checkpoint import write_atomically
from linrnn.train.figures import (
    Point,
    clip_outliers,
    legend_below,
    metric_against_depth,
    metric_scale,
    new_figure,
    over_seeds,
    save,
)
from linrnn.train.folder import PLOT_ENDINGS, RunFolder
from linrnn.train.metrics import read_metrics
from linrnn.train.styles import styles

if TYPE_CHECKING:
    from linrnn.compare._runs import Row
    from linrnn.compare.tune import Search

_PLOTS = ("curves", "bars", "costs", "depth")
_FILES = (
    *("compare.md", "compare.csv", "runs.csv", "tuning.csv"),
    *(f"{plot}.{ending}" for plot in _PLOTS for ending in PLOT_ENDINGS),
)


def write_report(
    rows: Sequence["Row"],
    task: Task,
    configs: Sequence[Config],
    out: Path,
    search: "Search | None" = None,
    rates: str = "",
) -> None:
    """Write ``compare.md``, ``compare.csv``, ``runs.csv``; plot ``curves``, ``bars`` and ``costs``.

    Where some of the ``configs``, one for each row, differ in the number of layers alone, there
    is a plot ``depth`` as well; of a ``search`` of learning rates a table, and ``tuning.csv``.
    ``rates`` says whose the learning rates are.
    """
    with report_in(out, _FILES):
        _write(rows, task, configs, out, search, rates)


def _write(
    rows: Sequence["Row"],
    task: Task,
    configs: Sequence[Config],
    out: Path,
    search: "Search | None",
    rates: str,
) -> None:
    lines = [*markdown(rows, task), *([rates] if rates else [])]
    if search is not None:
        lines += ["", *tuning_table(search, task)]
        write_atomically(out / "tuning.csv", _tuning_csv(search).encode())
    write_atomically(out / "compare.md", ("\n".join(lines) + "\n").encode())
    write_atomically(out / "compare.csv", _csv(rows).encode())
    write_runs(out, configs[0].task, chance=task.chance)
    save(learning_curves(rows, task), out / "curves")
    save(_bars(rows, task), out / "bars")
    costs = draw_costs(rows, task)
    if costs is not None:
        save(costs, out / "costs")
    depths = by_depth(rows, configs)
    if depths:
        what = over_seeds(len(row.values) for row in rows if row.values)
        figure = metric_against_depth(depths, metric=task.metric, chance=task.chance, title=what)
        save(figure, out / "depth")


def markdown(rows: Sequence["Row"], task: Task) -> list[str]:
    """A Markdown table: test metric (mean ± standard error), sizes, time and memory.

    The learner is named unless all runs used back-propagation.

    Example:
        >>> from linrnn import tasks
        >>> markdown([], tasks.load("digits")())[0][:27]
        '| mixer | test accuracy (%)'
    """
    scale, unit = metric_scale(task.metric)
    with_learner = any(row.learner != "bptt" for row in rows)
    head = [
        "mixer",
        *(["learner"] if with_learner else []),
        f"test {task.metric}{unit} (mean ± s.e.)",
        "seeds",
        "learning rate",
        "parameters",
        "state (floats)",
        "ms per step",
        "memory of training (MB)",
    ]
    lines = [f"| {' | '.join(head)} |", f"| :--- |{' ---: |' * (len(head) - 1)}"]
    for row in rows:
        memory = "" if row.memory is None else f"{row.memory / 2**20:.0f}"
        count = f"{len(row.values)}" + (f", {len(row.failures)} failed" if row.failures else "")
        cells = [
            row.label,
            *([row.learner] if with_learner else []),
            _value(row, scale),
            count,
            f"{row.lr:g}",
            f"{row.n_parameters:,}",
            f"{row.n_state:,}",
            f"{1e3 * row.seconds_per_step:.3g}",
            memory,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    lines.append(f"chance level: {scale * task.chance:.4g}{unit}")
    lines += [f"{row.label} failed: {why}" for row in rows for why in row.failures]
    return lines


def by_depth(rows: Sequence["Row"], configs: Sequence[Config]) -> dict[str, list[Point]]:
    """Layers, mean metric and standard error of the rows that differ in depth alone, by mixer."""
    groups: list[tuple[Config, list[Row]]] = []
    depth = {}
    for row, config in zip(rows, configs, strict=True):
        depth[row.label] = config.model.n_layers
        base = replace(config, model=replace(config.model, n_layers=1))
        same = next((group for existing, group in groups if existing == base), None)
        if same is None:
            groups.append((base, same := []))
        same += [row] if row.values else []
    deep = [
        (base, members) for base, members in groups if len({depth[r.label] for r in members}) > 1
    ]
    mixers = [base.mixer for base, _ in deep]
    return {
        base.mixer
        if mixers.count(base.mixer) == 1
        else f"{base.mixer} ({members[0].label}, ...)": [
            (depth[r.label], r.mean, r.standard_error) for r in members
        ]
        for base, members in deep
    }


def _value(row: "Row", scale: float) -> str:
    if not row.values:
        return "failed"
    error = row.standard_error
    return f"{scale * row.mean:.4g}" + ("" if math.isnan(error) else f" ± {scale * error:.2g}")


def _csv(rows: Sequence["Row"]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["mixer", "metric", "mean", "standard_error", "values", "failed", "parameters"]
    writer.writerow([*names, "state_floats", "seconds_per_step", "memory_bytes", "lr", "learner"])
    for r in rows:
        values = " ".join(f"{v:.6g}" for v in r.values)
        cells = [r.label, r.metric, f"{r.mean:.6g}", f"{r.standard_error:.6g}", values]
        sizes = [len(r.failures), r.n_parameters, r.n_state, f"{r.seconds_per_step:.6g}"]
        writer.writerow([*cells, *sizes, r.memory or "", f"{r.lr:g}", r.learner])
    return text.getvalue()


def tuning_table(search: "Search", task: Task) -> list[str]:
    """A Markdown table of the metric on validation data at every rate; the one taken is bold."""
    scale, unit = metric_scale(task.metric)
    n_rates = max(map(len, search.tried.values()))
    head = ["mixer", *(f"rate {i}: validation {task.metric}{unit}" for i in range(1, n_rates + 1))]
    lines = [f"| {' | '.join(head)} |", f"| :--- |{' ---: |' * n_rates}"]
    chosen_rates = {entry.label: entry.config.optim.lr for entry in search.entries}
    for label, rates in search.tried.items():
        cells = [f"{rate:g}: {_tried(scale * value)}" for rate, value in rates.items()]
        bold = [
            f"**{cell}**" if rate == chosen_rates[label] else cell
            for cell, rate in zip(cells, rates, strict=True)
        ]
        absent = [""] * (n_rates - len(bold))  # others went on beyond an end
        lines.append(f"| {' | '.join([label, *bold, *absent])} |")
    return lines


def _tried(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "failed"


def _tuning_csv(search: "Search") -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["mixer", "lr", "seed", "validation_metric", "taken"])
    chosen_rates = {entry.label: entry.config.optim.lr for entry in search.entries}
    for label, rates in search.tried.items():
        for rate, value in rates.items():
            chosen = int(rate == chosen_rates[label])
            writer.writerow([label, f"{rate:g}", search.seed, f"{value:.6g}", chosen])
    return text.getvalue()


def learning_curves(rows: Sequence["Row"], task: Task) -> Any:
    """Validation metric against the optimiser's steps: the mean of each row, its seeds behind it.

    Chance is shown unless it is an error so far above all others that they would lie in one line.
    """
    figure = new_figure()
    axes = figure.subplots()
    scale, unit = metric_scale(task.metric)
    shown: list[float] = []
    looks, counts = styles([row.label for row in rows]), []
    for row in rows:
        runs = [read_metrics(f) for f in map(RunFolder, row.folders) if f.result.is_file()]
        if not runs:
            continue
        look = looks[row.label]
        counts.append(len(runs))
        for seed, run in enumerate(runs if len(runs) > 1 else []):
            values = [scale * r.validation_metric for r in run]
            axes.plot(
                [r.step for r in run],
                values,
                color=look["color"],
                alpha=0.25,
                label=f"_{row.label}, run {seed + 1}",
            )
        together = list(zip(*runs, strict=False))
        means = [scale * sum(r.validation_metric for r in t) / len(t) for t in together]
        shown += means
        axes.plot([t[0].step for t in together], means, label=row.label, **look)
    chance = scale * task.chance
    if task.higher_is_better or chance < 2 * max(shown, default=chance):
        axes.axhline(chance, color="0.5", linestyle=":", label="chance")
    axes.set(
        xlabel="step",
        ylabel=f"validation {task.metric}{unit}",
        title=over_seeds(counts) + (", each behind it" if max(counts, default=1) > 1 else ""),
    )
    axes.grid(alpha=0.3)
    clip_outliers(axes, "high" if task.higher_is_better else "low")
    legend_below(figure, axes)
    return figure


def _bars(rows: Sequence["Row"], task: Task) -> Any:
    figure = new_figure(1.6 + 1.1 * max(3, len(rows)), 4.2)
    axes = figure.subplots()
    scale, unit = metric_scale(task.metric)
    looks = styles([row.label for row in rows])
    for i, row in enumerate(rows):
        error = 0.0 if math.isnan(row.standard_error) else scale * row.standard_error
        height = 0.0 if math.isnan(row.mean) else scale * row.mean
        look = {"facecolor": "white", "edgecolor": looks[row.label]["color"], "linewidth": 2}
        axes.bar(i, height, yerr=error, label=f"_{row.label}", capsize=4, zorder=2, **look)
        axes.plot(
            [i] * len(row.values),
            [scale * v for v in row.values],
            "k.",
            zorder=3,
            label=f"_{row.label}, seeds",
        )
    axes.axhline(scale * task.chance, color="0.3", linestyle=":", label="chance", zorder=3)
    axes.set_xticks(range(len(rows)), [r.label for r in rows], rotation=20, ha="right")
    axes.set_ylabel(f"test {task.metric}{unit}")
    axes.set_title(_of_seeds(rows), fontsize="medium")
    axes.grid(alpha=0.3, axis="y", zorder=0)
    legend_below(figure, axes)
    return figure


def _of_seeds(rows: Sequence["Row"]) -> str:
    counts = [len(row.values) for row in rows if row.values]
    words = over_seeds(counts)
    return f"{words}, with standard errors\ndots are seeds" if max(counts, default=1) > 1 else words
