"""The table, the CSV file and the plot of a sweep."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linrnn.tasks import Task
from linrnn.train._checkpoint import write_atomically
from linrnn.train._figures import metric_scale, new_figure, save, spans_decades
from linrnn.train._styles import styles

if TYPE_CHECKING:
    from linrnn.compare._runs import Row
    from linrnn.compare._sweep import Setting

_POINT: dict[str, Any] = {"color": "0.3", "linestyle": "", "marker": "o"}


def write_sweep(settings: Sequence["Setting"], task: Task, out: Path) -> None:
    """Write ``sweep.md``, ``sweep.csv`` and the plot ``sweep`` (PNG and SVG)."""
    write_atomically(out / "sweep.md", ("\n".join(markdown(settings, task)) + "\n").encode())
    write_atomically(out / "sweep.csv", _csv(settings).encode())
    save(_panels(settings, task), out / "sweep")


def markdown(settings: Sequence["Setting"], task: Task) -> list[str]:
    """A Markdown table, the best setting first, those that failed last."""
    scale, unit = metric_scale(task.metric)
    names = list(settings[0].values)
    head = [*names, f"test {task.metric}{unit} (mean ± s.e.)", "seeds", "parameters", "ms per step"]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---:'] * len(head))} |"]
    for setting in ranked(settings, task):
        row = setting.row
        failed = f", {len(row.failures)} failed" if row.failures else ""
        cells = [str(setting.values[name]) for name in names]
        cells += [_value(setting, scale), f"{len(row.values)}{failed}"]
        cells += [f"{row.n_parameters:,}", f"{1e3 * row.seconds_per_step:.3g}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"chance level: {scale * task.chance:.4g}{unit}"]
    lines.append("the best of several settings on test data is better than it will be on new data")
    return lines + [f"{s.row.label} failed: {why}" for s in settings for why in s.row.failures]


def ranked(settings: Sequence["Setting"], task: Task) -> list["Setting"]:
    """The best mean first; those without one last."""
    sign = -1 if task.higher_is_better else 1

    def key(setting: "Setting") -> tuple[bool, float]:
        mean = setting.row.mean
        return math.isnan(mean), 0.0 if math.isnan(mean) else sign * mean

    return sorted(settings, key=key)


def _value(setting: "Setting", scale: float) -> str:
    row = setting.row
    if not row.values:
        return "failed"
    error = row.standard_error
    return f"{scale * row.mean:.4g}" + ("" if math.isnan(error) else f" ± {scale * error:.2g}")


def _csv(settings: Sequence["Setting"]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(settings[0].values)
    about = ["metric", "mean", "standard_error", "values", "failed", "parameters"]
    writer.writerow([*names, *about, "seconds_per_step"])
    for one in settings:
        r = one.row
        values = " ".join(f"{v:.6g}" for v in r.values)
        cells = [r.metric, f"{r.mean:.6g}", f"{r.standard_error:.6g}", values, len(r.failures)]
        swept = [one.values[name] for name in names]
        writer.writerow([*swept, *cells, r.n_parameters, f"{r.seconds_per_step:.6g}"])
    return text.getvalue()


def _panels(settings: Sequence["Setting"], task: Task) -> Any:
    """The test metric against each option that is swept, a panel each.

    Of two options a line joins the settings with one value of the other; of more, all are points.
    """
    names = list(settings[0].values)
    figure = new_figure(1.2 + 4.2 * len(names), 4.2)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    scale, unit = metric_scale(task.metric)
    several = any(len(s.row.values) > 1 for s in settings)
    for name, axes in zip(names, panels, strict=True):
        places = _places([s.values[name] for s in settings])
        groups = dict(_groups(settings, name))
        looks = styles([*groups]) if len(names) <= 2 else dict.fromkeys(groups, _POINT)
        for label, group in groups.items():
            _draw(axes, group, places, name, scale, label, looks[label])
        if all(isinstance(value, str) for value in places):
            axes.set_xticks(range(len(places)), list(places), rotation=20, ha="right")
        elif spans_decades([float(value) for value in places]):
            axes.set_xscale("log")
        axes.axhline(scale * task.chance, color="0.5", linestyle=":")
        axes.set(xlabel=name)
        axes.grid(alpha=0.3)
        if len(names) == 2:
            axes.legend(fontsize="small")
    panels[0].set(ylabel=f"test {task.metric}{unit}")
    what = "mean ± standard error over the seeds" if several else "one seed"
    figure.suptitle(f"{task.metric}: {what}; dotted: chance", fontsize="medium")
    return figure


def _places(values: Sequence[Any]) -> dict[Any, float]:
    """Where values stand on an axis: numbers where they are, others one after the other."""
    number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if number:
        return {value: float(value) for value in sorted(values)}
    return {name: float(i) for i, name in enumerate(dict.fromkeys(map(str, values)))}


def _groups(settings: Sequence["Setting"], name: str) -> list[tuple[str, list["Setting"]]]:
    """Settings that share the values of all other options, with these in words."""
    found: dict[str, list[Setting]] = {}
    for setting in settings:
        others = [f"{key}={value}" for key, value in setting.values.items() if key != name]
        found.setdefault(" ".join(others), []).append(setting)
    return list(found.items())


def _draw(
    axes: Any,
    group: Sequence["Setting"],
    places: dict[Any, float],
    name: str,
    scale: float,
    label: str,
    look: dict[str, Any],
) -> None:
    """Settings in the order of an axis."""
    points: list[tuple[float, Row]] = []
    for setting in group:
        value = setting.values[name]
        if setting.row.values:
            points.append((places[value] if value in places else places[str(value)], setting.row))
    points.sort(key=lambda point: point[0])
    errors = [0.0 if math.isnan(r.standard_error) else scale * r.standard_error for _, r in points]
    means = [scale * r.mean for _, r in points]
    axes.errorbar([x for x, _ in points], means, yerr=errors, label=label, capsize=3, **look)
