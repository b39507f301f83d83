"""The table, the CSV file and the plot of a sweep."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linrnn._files.storage import report_in
from linrnn.compare.run_table import write_runs
from linrnn.tasks import Task
from linrnn.train.checkpoint import write_atomically
from linrnn.train.figures import metric_scale, new_figure, save, spans_decades
from linrnn.train.folder import PLOT_ENDINGS
from linrnn.train.styles import styles

if TYPE_CHECKING:
    from linrnn.compare._runs import Row
    from linrnn.compare._setting import Setting

_MOST_TICKS = 8  # of an axis with a tick at each value
_POINT: dict[str, Any] = {"color": "0.3", "linestyle": "", "marker": "o"}
_ORDER = (
    "in the order of the validation metric, settings with runs that failed behind those with "
    "fewer; test data chose nothing"
)

_FILES = ("sweep.md", "sweep.csv", "runs.csv", *(f"sweep.{ending}" for ending in PLOT_ENDINGS))


def write_sweep(settings: Sequence["Setting"], task: Task, out: Path, name: str) -> None:
    """Write ``sweep.md``, ``sweep.csv``, ``runs.csv`` and the plot ``sweep`` (PNG and SVG).

    ``name`` is that of the task.
    """
    with report_in(out, _FILES):
        write_atomically(out / "sweep.md", ("\n".join(markdown(settings, task)) + "\n").encode())
        write_atomically(out / "sweep.csv", _csv(settings).encode())
        write_runs(out, name)
        save(_panels(settings, task), out / "sweep")


def markdown(settings: Sequence["Setting"], task: Task) -> list[str]:
    """A Markdown table in the order of `ranked`, by validation data; test data stands beside it."""
    scale, unit = metric_scale(task.metric)
    names = list(settings[0].values)
    what = f"{task.metric}{unit} (mean ± s.e.)"
    head = [*names, f"validation {what}", f"test {what}", "seeds", "parameters", "ms per step"]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---:'] * len(head))} |"]
    for setting in ranked(settings, task):
        row = setting.row
        failed = f", {len(row.failures)} failed" if row.failures else ""
        cells = [str(setting.values[name]) for name in names]
        cells.append(_value(row.validation_mean, row.validation_standard_error, scale))
        cells.append(_value(row.mean, row.standard_error, scale) if row.values else "failed")
        cells.append(f"{len(row.values)}{failed}")
        cells += [f"{row.n_parameters:,}", f"{1e3 * row.seconds_per_step:.3g}"]
        lines.append(f"| {' | '.join(cells)} |")
    best_setting = best(settings, task)
    lines += ["", f"chance level: {scale * task.chance:.4g}{unit}"]
    lines.append(
        f"best on validation data: {best_setting.row.label if best_setting else 'none finished'}"
    )
    lines.append(_ORDER)
    return lines + [f"{s.row.label} failed: {why}" for s in settings for why in s.row.failures]


def ranked(settings: Sequence["Setting"], task: Task) -> list["Setting"]:
    """The best mean on validation data first, of settings with as many runs that failed.

    The mean of those that came through is no mean of a setting that fails with some seeds: it comes
    behind those that fail with fewer, as `tune_rates` takes a failed run for the worst there is.
    Those without a mean come last.
    """
    sign = -1 if task.higher_is_better else 1

    def key(setting: "Setting") -> tuple[bool, int, float]:
        mean = setting.row.validation_mean
        none = math.isnan(mean)
        return none, len(setting.row.failures), 0.0 if none else sign * mean

    return sorted(settings, key=key)


def best(settings: Sequence["Setting"], task: Task) -> "Setting | None":
    """The first of `ranked`; None where none has a mean on validation data."""
    first = ranked(settings, task)[0]
    return None if math.isnan(first.row.validation_mean) else first


def _value(mean: float, error: float, scale: float) -> str:
    if math.isnan(mean):
        return "-"
    return f"{scale * mean:.4g}" + ("" if math.isnan(error) else f" ± {scale * error:.2g}")


def _csv(settings: Sequence["Setting"]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(settings[0].values)
    about = ["metric", "mean", "standard_error", "values", "failed", "parameters"]
    chosen = ["validation_mean", "validation_standard_error", "validation"]
    writer.writerow([*names, *about, "seconds_per_step", *chosen])
    for one in settings:
        r = one.row
        values, validation = (" ".join(f"{v:.6g}" for v in of) for of in (r.values, r.validation))
        cells = [r.metric, f"{r.mean:.6g}", f"{r.standard_error:.6g}", values, len(r.failures)]
        cells += [r.n_parameters, f"{r.seconds_per_step:.6g}", f"{r.validation_mean:.6g}"]
        cells += [f"{r.validation_standard_error:.6g}", validation]
        writer.writerow([*(one.values[name] for name in names), *cells])
    return text.getvalue()


def _panels(settings: Sequence["Setting"], task: Task) -> Any:
    """The metric on validation data against each option that is swept, a panel each.

    With two options a line joins the settings with one value of the other, where there are several;
    with more, all are points.
    The metric on test data is hollow and pale beside it.
    """
    names = list(settings[0].values)
    figure = new_figure(1.2 + 4.2 * len(names), 4.2)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    scale, unit = metric_scale(task.metric)
    several = any(len(s.row.values) > 1 for s in settings)
    for name, axes in zip(names, panels, strict=True):
        places = _places([s.values[name] for s in settings])
        groups = dict(_groups(settings, name))
        # of what was drawn from a range no two share a value
        joined = len(names) <= 2 and any(len(group) > 1 for group in groups.values())
        looks = styles([*groups]) if joined else dict.fromkeys(groups, _POINT)
        for label, group in groups.items():
            _draw(axes, group, places, name, scale, label, looks[label])
        if all(isinstance(value, str) for value in places):
            axes.set_xticks(range(len(places)), list(places), rotation=20, ha="right")
        elif _as_logarithms(name, [float(value) for value in places]):
            axes.set_xscale("log")
            if len(places) <= _MOST_TICKS:
                axes.set_xticks(list(places), [f"{value:g}" for value in places])
                axes.xaxis.minorticks_off()
        axes.axhline(scale * task.chance, color="0.5", linestyle=":")
        axes.set(xlabel=name)
        axes.grid(alpha=0.3)
        if len(names) == 2 and joined:
            axes.legend(fontsize="small")
    panels[0].set(ylabel=f"validation {task.metric}{unit}")
    what = "mean ± standard error over the seeds" if several else "one seed"
    caption = f"validation {task.metric}: {what}\nhollow: test {task.metric}; dotted: chance"
    figure.suptitle(caption, fontsize="medium")
    return figure


def _as_logarithms(name: str, values: Sequence[float]) -> bool:
    """Whether an axis is logarithmic: rates of learning always are."""
    return spans_decades(values) or (name.endswith(".lr") and min(values) > 0)


def _places(values: Sequence[Any]) -> dict[Any, float]:
    """Where values stand on an axis: numbers where they are, others one after the other."""
    number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if number:
        return {value: float(value) for value in sorted(values)}
    return {name: float(i) for i, name in enumerate(dict.fromkeys(map(str, values)))}


def _groups(settings: Sequence["Setting"], name: str) -> list[tuple[str, list["Setting"]]]:
    """Settings that share the values of all other options, with these in words."""
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        fixed = [f"{key}={value}" for key, value in setting.values.items() if key != name]
        groups.setdefault(" ".join(fixed), []).append(setting)
    return list(groups.items())


def _draw(
    axes: Any,
    group: Sequence["Setting"],
    places: dict[Any, float],
    name: str,
    scale: float,
    label: str,
    look: dict[str, Any],
) -> None:
    """Settings in the order of an axis: validation data, and pale beside it test data."""
    points: list[tuple[float, Row]] = []
    for setting in group:
        value = setting.values[name]
        if setting.row.values:
            points.append((places[value] if value in places else places[str(value)], setting.row))
    points.sort(key=lambda point: point[0])
    errors = [r.validation_standard_error for _, r in points]
    bars = [0.0 if math.isnan(error) else scale * error for error in errors]
    means = [scale * r.validation_mean for _, r in points]
    places_of = [x for x, _ in points]
    axes.errorbar(places_of, means, yerr=bars, label=label, capsize=3, **look)
    hollow = look | {"linestyle": "", "markerfacecolor": "none", "alpha": 0.5}
    axes.plot(places_of, [scale * r.mean for _, r in points], label=f"_{label}, test", **hollow)
