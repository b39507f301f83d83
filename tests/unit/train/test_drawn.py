"""The numbers of a figure, as a table beside it."""

import csv
import io
import math

import numpy as np
import pytest

from linrnn.train import figures
from linrnn.train.drawn import HEAD, drawn


def rows(figure):
    found = list(csv.reader(io.StringIO(drawn(figure).decode())))
    assert tuple(found[0]) == HEAD
    return found[1:]


def panel():
    figure = figures.new_figure()
    axes = figure.subplots()
    axes.set_title("a panel")
    return figure, axes


def test_lines_have_their_labels_shown_or_not():
    figure, axes = panel()
    axes.plot([1, 2], [0.5, math.nan], label="lru")
    axes.plot([1], [7], label="_lru, seed 1")
    axes.plot([3], [4])
    assert rows(figure) == [
        ["a panel", "lru", "1", "0.5", "", ""],
        ["a panel", "lru", "2", "", "", ""],
        ["a panel", "lru, seed 1", "1", "7", "", ""],
        ["a panel", "line 3", "3", "4", "", ""],
    ]


def test_error_bars_are_numbers_of_their_points_and_caps_are_nothing():
    figure, axes = panel()
    axes.errorbar([1, 2], [10, 20], yerr=[0.5, 2], capsize=3, label="up")
    axes.errorbar(5, 1, xerr=0.25, label="across")
    axes.errorbar([3], [4], label="none")
    assert rows(figure) == [
        ["a panel", "up", "1", "10", "0.5", ""],
        ["a panel", "up", "2", "20", "2", ""],
        ["a panel", "across", "5", "1", "0.25", ""],
        ["a panel", "none", "3", "4", "", ""],
    ]


def test_a_level_has_no_x_and_a_mark_no_y_and_an_axis_is_no_data():
    figure, axes = panel()
    axes.axhline(0.1, label="chance")
    axes.axvline(64, label="trained")
    axes.axhline(0)
    assert [row[1:4] for row in rows(figure)] == [["chance", "", "0.1"], ["trained", "64", ""]]


def test_bars_points_and_cells():
    figure, axes = panel()
    axes.bar([0, 1], [3, 4], yerr=[1, 2], label="bars")
    axes.scatter([1, 2], [5, 6], label="cloud")
    axes.imshow([[1, 2], [3, 4]], label="counts")
    axes.imshow(np.zeros((2, 2, 3)), label="in colour")
    axes.imshow(np.zeros((2, 2)))
    found = [row[1:] for row in rows(figure)]
    assert found[:2] == [["bars", "0", "3", "1", ""], ["bars", "1", "4", "2", ""]]
    assert found[2:4] == [["cloud", "1", "5", "", ""], ["cloud", "2", "6", "", ""]]
    assert found[4:] == [
        ["counts", "0", "0", "", "1"],
        ["counts", "1", "0", "", "2"],
        ["counts", "0", "1", "", "3"],
        ["counts", "1", "1", "", "4"],
    ]


def test_pictures_alone_have_no_table(tmp_path):
    figure, axes = panel()
    axes.imshow(np.zeros((2, 2)))
    figures.save(figure, tmp_path / "pictures")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pictures.png", "pictures.svg"]


def test_a_saved_figure_has_its_numbers_beside_it(tmp_path):
    series = {"lru": [(1, 0.5, 0.1), (2, 0.75, math.nan)]}
    figures.save(figures.metric_against_depth(series, metric="accuracy"), tmp_path / "depth")
    text = (tmp_path / "depth.drawn.csv").read_text()
    assert text.splitlines()[1:] == ["1,lru,1,50,10,", "1,lru,2,75,,"]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_what_lies_far_out_is_cut_off_and_said(scale):
    figure, axes = panel()
    usual = [1 + 0.01 * i for i in range(20)]
    axes.plot(range(22), [*usual, 1e6, 2e6], label="lru")
    axes.set(yscale=scale, xlabel="step")
    figures.clip_outliers(axes)
    assert axes.get_ylim()[1] < 2
    assert axes.get_xlabel() == "step\n2 points above 1.19 not shown, up to 2e+06"
    assert "2e+06" in drawn(figure).decode()  # the data keeps it


@pytest.mark.parametrize(("better", "far"), [("low", -1e6), ("high", 1e6)])
def test_what_is_far_better_than_all_else_is_shown(better, far):
    _, axes = panel()
    axes.plot(range(22), [*range(20), far, -far], label="lru")
    figures.clip_outliers(axes, better)
    bottom, top = axes.get_ylim()
    assert bottom < far < top
    assert "1 point " in axes.get_xlabel()
    assert not bottom < -far < top


def test_what_lies_low_is_cut_off_too_and_nothing_else_is():
    _, axes = panel()
    axes.plot(range(21), [*range(20), -1e6], label="lru")
    axes.set_xlabel("step")
    figures.clip_outliers(axes)
    assert axes.get_xlabel() == "step\n1 point below 0 not shown, up to -1e+06"
    _, axes = panel()
    axes.plot(range(20), np.geomspace(1, 0.1, 20), label="lru")
    before = axes.get_ylim()
    figures.clip_outliers(axes)
    assert (axes.get_xlabel(), axes.get_ylim()) == ("", before)
