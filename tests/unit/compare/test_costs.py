"""The plot of a metric against what it costs."""

from pathlib import Path

import pytest

from linrnn import tasks
from linrnn.compare import Row
from linrnn.compare._plots import draw_costs


def row(label, folders=(), values=(), parameters=100):
    return Row(
        label=label,
        metric="accuracy",
        values=values,
        failures=(),
        n_parameters=parameters,
        n_state=1,
        seconds_per_step=1.0,
        memory=None,
        folders=tuple(Path(str(seconds)) for seconds in folders),
    )


@pytest.fixture
def finished(monkeypatch):
    """Folders that are named by the seconds which their runs took."""
    from linrnn.compare import _plots

    class Folder:
        def __init__(self, path):
            self.seconds = float(path.name)

        def read_result(self):
            return self

    monkeypatch.setattr(_plots, "RunFolder", Folder)


def test_time_and_size_share_the_metric_and_failures_are_left_out(finished):
    rows = [
        row("lru", (10.0, 30.0, 20.0), (0.5, 0.7, 0.6)),
        row("gru", (400.0,), (0.9,), parameters=2_000),
        row("mamba"),
    ]
    figure = draw_costs(rows, tasks.load("digits")())
    time, size = figure.axes
    assert time.get_ylabel() == "test accuracy (%)"
    assert time.get_ylim() == size.get_ylim()
    assert [c.get_label() for c in time.containers] == ["lru", "gru"]
    assert [float(c[0].get_xdata()[0]) for c in time.containers] == [20.0, 400.0]
    assert [float(c[0].get_xdata()[0]) for c in size.containers] == [100.0, 2_000.0]
    assert time.containers[0][0].get_ydata()[0] == pytest.approx(60)
    assert (time.get_xscale(), size.get_xscale()) == ("log", "log")
    assert time.get_title() == "against time: mean over 1 to 3 seeds"


def test_sizes_of_one_kind_begin_at_nothing(finished):
    rows = [row("lru", (10.0,), (0.5,)), row("gru", (20.0,), (0.6,))]
    time, _ = draw_costs(rows, tasks.load("digits")()).axes
    assert (time.get_xscale(), time.get_xlim()[0]) == ("linear", 0)
    assert time.get_title() == "against time: one seed"


def test_nothing_finished_is_no_plot():
    assert draw_costs([row("lru")], tasks.load("digits")()) is None
