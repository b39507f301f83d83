import math

import pytest
from matplotlib.image import imread

from linrnn.errors import ArgumentError
from linrnn.train import figures

NAN = math.nan
SERIES = {"one": [(2, 0.5, 0.1), (1, 0.25, NAN)], "two": [(1, 0.1, NAN)]}


def labels(axes):
    (legend,) = axes.figure.legends
    assert axes.get_legend() is None  # below the plot, where it hides nothing
    return [text.get_text() for text in legend.get_texts()]


def test_depth_is_in_order_and_accuracy_in_per_cent():
    (axes,) = figures.metric_against_depth(SERIES, metric="accuracy", chance=0.1).axes
    assert axes.lines[0].get_xdata().tolist() == [1, 2]
    assert axes.lines[0].get_ydata().tolist() == [25, 50]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("depth (layers)", "test accuracy (%)")
    assert axes.get_xticks().tolist() == [1, 2]
    assert labels(axes) == ["one", "two", "chance"]


def test_standard_errors_are_drawn_where_there_are_any():
    (axes,) = figures.metric_against_depth(SERIES, metric="accuracy").axes
    one, two = axes.containers
    heights = [bar[1, 1] - bar[0, 1] for bar in one.lines[2][0].get_segments()]
    assert heights == pytest.approx([0, 20])
    assert two.lines[2] == ()


def test_length_is_a_logarithm_with_a_tick_where_something_was_tested():
    series = {"lru": [(64, 0.9, 0.01), (100, 0.8, 0.01), (1000, 0.7, 0.01)]}
    (axes,) = figures.metric_against_length(series, metric="accuracy", trained=64).axes
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "length (steps)"
    assert [t.get_text() for t in axes.get_xticklabels()] == ["64", "100", "1,000"]
    assert labels(axes) == ["lru", "trained on 64 steps"]


def test_long_powers_of_two_are_written_as_powers_and_thinned():
    series = {"lru": [(2**k, 0.9, NAN) for k in range(6, 21)]}
    (axes,) = figures.metric_against_length(series, metric="accuracy").axes
    words = [t.get_text() for t in axes.get_xticklabels()]
    assert words == [f"$2^{{{k}}}$" for k in range(6, 21, 2)]


@pytest.mark.parametrize(("least", "scale"), [(1e-3, "log"), (0.05, "linear"), (0.0, "linear")])
def test_errors_over_decades_are_drawn_as_logarithms(least, scale):
    series = {"lru": [(64, least, NAN), (128, 0.1, NAN)]}
    (axes,) = figures.metric_against_length(series, metric="mse").axes
    assert axes.get_yscale() == scale
    assert axes.get_ylabel() == "test mse"


def test_times_have_a_unit():
    figure = figures.time_against_length({"lru": [(64, 0.01, NAN), (128, 0.1, NAN)]})
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.yaxis.get_major_formatter()(0.01) == "10 ms"


@pytest.mark.unchecked
def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ArgumentError, match="must have at least one point, got none"):
        figures.metric_against_depth({"lru": []}, metric="mse")
    with pytest.raises(ArgumentError, match="times must be above 0 s, got one that is not"):
        figures.time_against_length({"lru": [(64, 0.0, NAN)]})


def test_a_long_legend_has_room_below_the_plot():
    series = {str(i): [(1, 0.5, NAN)] for i in range(8)}
    short = figures.metric_against_depth({"0": series["0"]}, metric="accuracy")
    figure = figures.metric_against_depth(series, metric="accuracy")
    assert labels(figure.axes[0]) == list(series)
    assert figure.get_figheight() >= short.get_figheight()


def test_a_legend_of_several_panels_has_each_label_once():
    figure = figures.new_figure()
    panels = figure.subplots(1, 2)
    for axes in panels:
        axes.plot([1], [1], "o", label="lru")
        axes.axhline(0, label="chance")
    figures.legend_below(figure, *panels)
    assert labels(panels[0]) == ["lru", "chance"]


@pytest.mark.parametrize(
    ("counts", "words"),
    [([1, 1], "one seed"), ([5], "mean over 5 seeds"), ([3, 1, 2], "mean over 1 to 3 seeds")],
)
def test_a_mean_is_said_where_there_is_one(counts, words):
    assert figures.over_seeds(counts) == words


def test_save_writes_png_numbers_and_the_same_svg_each_time(tmp_path):
    for name in ("lr=0.1", "again"):
        figure = figures.metric_against_depth(SERIES, metric="accuracy")
        figures.save(figure, tmp_path / name)
    endings = ("drawn.csv", "png", "svg")
    names = [f"{name}.{end}" for name in ("again", "lr=0.1") for end in endings]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert imread(tmp_path / "lr=0.1.png").shape[0] > 300
    assert (tmp_path / "lr=0.1.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()


def test_axes_of_several_sizes_have_the_same_bytes_each_time(tmp_path):
    """The solver of the layout orders its constraints as objects lie in memory."""
    pictures, apart = set(), []
    for n in range(12):
        apart.append([object() for _ in range(997 * n)])  # so they lie elsewhere
        figure = figures.new_figure(6.3, 4.2)
        axes = figure.subplots(3, 1, height_ratios=[7, 5, 3])
        for ax, label in zip(axes, ("of long names", "x", "another one"), strict=True):
            ax.barh([f"{label} {i}" for i in range(3)], [0.1 + n / 3 for n in range(3)])
            ax.set(xlabel=label, title=label)
        figures.save(figure, tmp_path / "picture")
        pictures.add((tmp_path / "picture.svg").read_bytes())
    assert len(pictures) == 1
