"""The table, the CSV file and the plots of a comparison."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linrnn.tasks import Task
from linrnn.train import Config
from linrnn.train._checkpoint import write_atomically
from linrnn.train._folder import RunFolder
from linrnn.train._metrics import read_metrics

if TYPE_CHECKING:
    from linrnn.compare._compare import Row

_STYLES = ("-", "--", "-.", ":")
_MARKERS = "osD^vP*X<>"


def write_report(rows: Sequence["Row"], task: Task, config: Config, out: Path) -> None:
    """Write ``compare.md``, ``compare.csv``, ``curves`` and ``bars`` (PNG and SVG)."""
    write_atomically(out / "compare.md", ("\n".join(markdown(rows, task)) + "\n").encode())
    write_atomically(out / "compare.csv", _csv(rows).encode())
    save(_curves(rows, task), out / "curves")
    save(_bars(rows, task), out / "bars")


def markdown(rows: Sequence["Row"], task: Task) -> list[str]:
    """A Markdown table: test metric (mean ± standard error), sizes, time and memory.

    Example:
        >>> from linrnn import tasks
        >>> markdown([], tasks.load("digits")())[0][:27]
        '| mixer | test accuracy (%)'
    """
    scale, unit = _unit(task)
    head = [
        "mixer",
        f"test {task.metric}{unit} (mean ± s.e.)",
        "seeds",
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
            _value(row, scale),
            count,
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


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG and SVG."""
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=130)


def line(index: int) -> dict[str, Any]:
    """How the n-th line is drawn: told apart by dash and marker, also in grey."""
    from matplotlib import colormaps

    return {
        "color": colormaps["viridis"](0.8 * (index % 5) / 4),
        "linestyle": _STYLES[index % len(_STYLES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 4,
        "linewidth": 1.6,
    }


def _unit(task: Task) -> tuple[float, str]:
    return (100.0, " (%)") if task.metric == "accuracy" else (1.0, "")


def _value(row: "Row", scale: float) -> str:
    if not row.values:
        return "failed"
    error = row.standard_error
    return f"{scale * row.mean:.4g}" + ("" if math.isnan(error) else f" ± {scale * error:.2g}")


def _csv(rows: Sequence["Row"]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["mixer", "metric", "mean", "standard_error", "values", "failed", "parameters"]
    writer.writerow([*names, "state_floats", "seconds_per_step", "memory_bytes"])
    for r in rows:
        values = " ".join(f"{v:.6g}" for v in r.values)
        cells = [r.label, r.metric, f"{r.mean:.6g}", f"{r.standard_error:.6g}", values]
        sizes = [len(r.failures), r.n_parameters, r.n_state, f"{r.seconds_per_step:.6g}"]
        writer.writerow([*cells, *sizes, r.memory or ""])
    return text.getvalue()


def _curves(rows: Sequence["Row"], task: Task) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    scale, unit = _unit(task)
    for i, row in enumerate(rows):
        runs = [read_metrics(f) for f in map(RunFolder, row.folders) if f.result.is_file()]
        if not runs:
            continue
        for run in runs:
            values = [scale * r.validation_metric for r in run]
            axes.plot([r.step for r in run], values, color=line(i)["color"], alpha=0.25)
        together = list(zip(*runs, strict=False))
        means = [scale * sum(r.validation_metric for r in t) / len(t) for t in together]
        axes.plot([t[0].step for t in together], means, label=row.label, **line(i))
    axes.axhline(scale * task.chance, color="0.5", linestyle=":", label="chance")
    axes.set(
        xlabel="step",
        ylabel=f"validation {task.metric}{unit}",
        title="Mean over seeds, each seed behind it",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _bars(rows: Sequence["Row"], task: Task) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6 + 1.1 * max(3, len(rows)), 4.2), layout="constrained")
    axes = figure.subplots()
    scale, unit = _unit(task)
    for i, row in enumerate(rows):
        error = 0.0 if math.isnan(row.standard_error) else scale * row.standard_error
        height = 0.0 if math.isnan(row.mean) else scale * row.mean
        axes.bar(i, height, yerr=error, color="0.75", edgecolor="black", capsize=4, zorder=2)
        axes.plot([i] * len(row.values), [scale * v for v in row.values], "k.", zorder=3)
    axes.axhline(scale * task.chance, color="0.3", linestyle=":", label="chance", zorder=3)
    axes.set_xticks(range(len(rows)), [r.label for r in rows], rotation=20, ha="right")
    axes.set(ylabel=f"test {task.metric}{unit}", title="Mean ± standard error; dots are seeds")
    axes.grid(alpha=0.3, axis="y", zorder=0)
    axes.legend()
    return figure
