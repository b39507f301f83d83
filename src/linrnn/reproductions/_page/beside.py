"""Printed numbers and ours side by side: tables, figures, and what they let one conclude."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from linrnn.compare import Row
from linrnn.reproductions._page.base import Findings, Table
from linrnn.reproductions._page.quoted import FAILS, Printed
from linrnn.reproductions._page.runs import slug
from linrnn.reproductions._page.verdict import groups, printed_order
from linrnn.reproductions._runs.trained import Outcome, by_seed, changes, n_steps, seconds
from linrnn.train.figures import metric_scale, new_figure, over_seeds

_FEW = 8  # rows whose order is spelt out
_DECIMALS = 7  # more are powers of ten


def findings(
    outcomes: Sequence[Outcome],
    printed: Mapping[str, Printed],
    *,
    notes: Sequence[str] = (),
    figures: Mapping[str, Any] | None = None,
) -> Findings:
    """Tables, figures and what can be concluded.

    Args:
        outcomes: of the columns.
        printed: numbers of each column by its name; none for a column that has none.
        notes: of the reproduction.
        figures: besides those of every column that has printed numbers.
    """
    changed = [
        change_table for outcome in outcomes if (change_table := changes(outcome)) is not None
    ]
    column_figures: dict[str, Any] = {}
    remarks: list[str] = []
    for outcome in outcomes:
        theirs = printed.get(outcome.column.name, {})
        remarks += _remarks(outcome, theirs)
        if theirs and any(row.values for row in outcome.rows):
            column_figures[slug(outcome.column.name)] = figure(outcome, theirs)
    return Findings(
        tables=(*(table(o, printed.get(o.column.name, {})) for o in outcomes), *changed),
        comparable=comparable(outcomes),
        complete=not any(outcome.problem for outcome in outcomes),
        notes=(*remarks, *notes),
        figures=column_figures | dict(figures or {}),
    )


def table(outcome: Outcome, printed: Printed) -> Table:
    """Printed numbers and ours, row by row; what failed or was not run says so."""
    metric = outcome.task.metric
    unit = metric_scale(metric)[1]
    head = [
        "model",
        *([f"published{unit}"] if printed else []),
        f"ours{unit}, mean ± s.e.",
        "seeds",
        "parameters",
        "steps",
        "ms per step",
    ]
    rows_by_label = {row.label: row for row in outcome.rows}
    rows = []
    for label in outcome.labels:
        theirs = [printed[label].text if label in printed else ""] if printed else []
        ours = _cells(rows_by_label[label]) if label in rows_by_label else ["not run", *[""] * 4]
        rows.append([label, *theirs, *ours])
    return Table(f"{outcome.column.name}: test {metric}", head, rows)


def _cells(row: Row) -> list[str]:
    seeds = str(len(row.values)) + (f", {len(row.failures)} failed" if row.failures else "")
    if not row.values:
        return ["failed", seeds, "", "", ""]
    sizes = [f"{row.n_parameters:,}", f"{n_steps(row):,}", f"{1e3 * row.seconds_per_step:.3g}"]
    return [measured(row), seeds, *sizes]


def measured(row: Row) -> str:
    """Mean and standard error as a cell: per cent for an accuracy."""
    scale = metric_scale(row.metric)[0]
    mean, error = scale * row.mean, scale * row.standard_error
    if row.metric == "accuracy":
        return f"{mean:.1f}" + ("" if math.isnan(error) else f" ± {error:.1f}")
    return with_error(mean, error)


def with_error(mean: float, error: float) -> str:
    """A mean with as many decimals as its error, which has two figures.

    Example:
        >>> with_error(2.4956, 0.0052), with_error(0.172, 0.000511), with_error(2.5, math.nan)
        ('2.4956 ± 0.0052', '0.17200 ± 0.00051', '2.5')
        >>> with_error(1234.5, 210.0), with_error(1.0, 0.0), with_error(2e-9, 3e-10)
        ('1234 ± 210', '1 ± 0', '2e-09 ± 3e-10')
    """
    if math.isnan(error):
        return f"{mean:.3g}"
    decimals = 1 - math.floor(math.log10(error)) if error > 0 else math.inf
    if decimals > _DECIMALS:
        return f"{mean:.3g} ± {error:.2g}"
    return f"{mean:.{max(0, decimals)}f} ± {error:.{max(0, decimals)}f}"


def comparable(outcomes: Sequence[Outcome]) -> str:
    """Say what may be concluded at the sizes that were run."""
    missing = [o.column.name for o in outcomes if not any(row.values for row in o.rows)]
    changed = [o.column.name for o in outcomes if changes(o) is not None]
    full = [o.column.name for o in outcomes if o.column.name not in {*missing, *changed}]
    parts = []
    if full:
        parts.append(f"{_list(full)}: the numbers, within their errors.")
    shrunk = [name for name in changed if name not in missing]
    if shrunk:
        parts.append(
            f"{_list(shrunk)}: the order of the rows, and nothing else. Sizes or training are not "
            "the published ones (see what was changed), so no number is to be compared with a "
            "published one."
        )
    if missing:
        parts.append(f"{_list(missing)}: nothing, since no run finished.")
    if any(len(row.values) == 1 for o in outcomes for row in o.rows):
        parts.append("Rows with one seed have no standard error: their order may be chance.")
    return " ".join(parts)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def _remarks(outcome: Outcome, printed: Printed) -> list[str]:
    """The chance level, how well the orders agree, and every shortfall."""
    name, metric = outcome.column.name, outcome.task.metric
    scale, unit = metric_scale(metric)
    percent = " %" if unit else ""
    lines = [f"{name}: chance level {scale * outcome.task.chance:.3g}{percent}."]
    if outcome.problem:
        lines.append(f"{name}: not run: {outcome.problem}")
    lines += [f"{name}: {row.label} failed: {why}" for row in outcome.rows for why in row.failures]
    lines += agreement(outcome, printed)
    took = sum(map(seconds, outcome.rows))
    if took:
        lines.append(f"{name}: the runs that finished took {took:,.0f} s, one by one.")
    return lines


def agreement(outcome: Outcome, printed: Printed) -> list[str]:
    """Both orders, best first, of the rows that have a number in both; of many, their agreement."""
    pairs = {
        row.label: (printed[row.label].value, row.mean)
        for row in outcome.rows
        if row.label in printed and row.values and not math.isnan(printed[row.label].value)
    }
    if len(pairs) < 2:
        return []
    name = outcome.column.name
    theirs, ours = ([pair[k] for pair in pairs.values()] for k in (0, 1))
    if len(pairs) > _FEW:
        return [
            f"{name}: rank correlation of the {len(pairs)} published means and ours "
            f"{rank_correlation(theirs, ours):.2f} (1: the same order, 0: none)."
        ]
    higher = outcome.task.higher_is_better
    compared = {label: printed[label] for label in pairs}
    ours_by_seed = {row.label: by_seed(row) for row in outcome.rows if row.label in pairs}
    return [
        f"{name}: best first: published {printed_order(compared, higher)} (> where no errors "
        f"overlap); ours {groups(ours_by_seed, higher)} (> where better with every seed)."
    ]


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's: the correlation of the ranks, equal values sharing theirs.

    Example:
        >>> round(rank_correlation([1, 2, 3, 4], [10, 20, 30, 25]), 2)
        0.8
    """
    ranks = [[sum(b < a for b in v) + sum(b == a for b in v) / 2 for a in v] for v in (x, y)]
    if any(len(set(r)) < 2 for r in ranks):
        return math.nan
    return statistics.correlation(*ranks)


def figure(outcome: Outcome, printed: Printed) -> Any:
    """Printed numbers on the left, ours on the right, a line for each row of the table."""
    labels, rows = outcome.labels, {row.label: row for row in outcome.rows}
    scale, unit = metric_scale(outcome.task.metric)
    canvas = new_figure(8.6, 1.3 + 0.28 * max(4, len(labels)))
    same = changes(outcome) is None  # numbers that are to be compared, so on one axis
    left, right = canvas.subplots(1, 2, sharey=True, sharex=same)
    style: dict[str, Any] = {"fmt": "o", "color": "black", "capsize": 3, "markersize": 5}
    for y, label in enumerate(labels):
        quoted = printed.get(label, FAILS)
        if not math.isnan(quoted.value):
            left.errorbar(quoted.value, y, xerr=_bar(quoted.error), label=f"_{label}", **style)
        elif label in printed:
            left.annotate("✗", (0.02, y), xycoords=("axes fraction", "data"), va="center")
        row = rows.get(label)
        if row is None or not row.values:
            right.annotate("failed", (0.02, y), xycoords=("axes fraction", "data"), va="center")
            continue
        right.errorbar(
            scale * row.mean, y, xerr=_bar(scale * row.standard_error), label=f"_{label}", **style
        )
        seeds = [scale * v for v in row.values]
        small: dict[str, Any] = {"color": "0.5", "markersize": 5, "label": f"_{label}, seeds"}
        right.plot(seeds, [y + 0.25] * len(seeds), ".", **small)
    left.set_yticks(range(len(labels)), labels)
    left.set(ylim=(len(labels) - 0.4, -0.6))
    left.set(xlabel=f"test {outcome.task.metric}{unit}", title="published")
    shrunk = "" if same else ", scaled down"
    # a line at the chance level would squeeze what is far from it
    chance = f"chance {scale * outcome.task.chance:.3g}"
    right.set(xlabel=f"test {outcome.task.metric}{unit}, {chance}", title=f"ours{shrunk}")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    words = over_seeds(len(row.values) for row in outcome.rows if row.values)
    several = any(len(row.values) > 1 for row in outcome.rows)
    dots = ", with standard errors; small dots are seeds" if several else ""
    canvas.suptitle(f"{outcome.column.name}: ours {words}{dots}")
    return canvas


def _bar(error: float) -> float:
    return 0.0 if math.isnan(error) else error
