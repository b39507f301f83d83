"""Plots of the test metric against training time and against parameters."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from linrnn.tasks import Task
from linrnn.train.figures import legend_below, metric_scale, new_figure, over_seeds
from linrnn.train.folder import RunFolder
from linrnn.train.styles import styles

if TYPE_CHECKING:
    from linrnn.compare._runs import Row


def draw_costs(rows: Sequence["Row"], task: Task) -> Any | None:
    """The test metric against seconds of training and against parameters, side by side.

    Both panels have the same y axis. A point is a mean over seeds with its standard error; the
    time is the median over them, validation included. None where no row has finished.

    Args:
        rows: of a comparison; those that failed are left out.
        task: of all of them.
    """
    done = [row for row in rows if row.values]
    if not done:
        return None
    scale, unit = metric_scale(task.metric)
    figure = new_figure(9, 4.2)
    time, size = figure.subplots(1, 2, sharey=True)
    looks = styles([row.label for row in rows])
    for row in done:
        look = {**looks[row.label], "linestyle": "none", "markersize": 7, "capsize": 3}
        error = row.standard_error
        bar = {} if error != error else {"yerr": scale * error}
        for axes, x in ((time, _seconds(row)), (size, float(row.n_parameters))):
            axes.errorbar(x, scale * row.mean, label=row.label, **bar, **look)
    what = over_seeds(len(row.values) for row in done)
    time.set(xlabel="training (seconds, median of the seeds)", title=f"against time: {what}")
    time.set_ylabel(f"test {task.metric}{unit}")
    size.set(xlabel="parameters", title=f"against parameters: {what}")
    for axes, values in ((time, [*map(_seconds, done)]), (size, [r.n_parameters for r in done])):
        axes.grid(alpha=0.3)
        if max(values) > 10 * min(values) > 0:
            axes.set_xscale("log")
        else:
            axes.set_xlim(0, 1.1 * max(values))
    size.xaxis.set_major_formatter("{x:,.0f}")
    legend_below(figure, time)
    return figure


def _seconds(row: "Row") -> float:
    done = [RunFolder(folder).read_result() for folder in row.folders]
    return statistics.median(result.seconds for result in done if result is not None)
