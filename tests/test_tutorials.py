"""The tutorials are notebooks that the site runs; how it runs, shows and keeps them."""

import ast
import importlib
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from linrnn.train.styles import COLOURS, styles

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
SMALL = """# %% [markdown]
# # A title
#
# Words.

# %%
import matplotlib.pyplot as plt

plt.plot([1, 2])
print("said")
1 + 1

# %%
3
x, _ = None, 4
"""


@pytest.fixture(scope="module")
def load():
    """A module of docs/ by name."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("matplotlib")
    sys.path.insert(0, str(DOCS))
    yield importlib.import_module
    sys.path.remove(str(DOCS))


@pytest.fixture
def small(load):
    notebooks = load("notebooks")
    cells = notebooks.read(SMALL)
    notebooks.run(cells, "small.py")
    return dict(notebooks.outputs("small", cells))


def test_a_page_shows_what_its_cells_print_return_and_draw(small):
    page = small["small.md"]
    assert page.startswith("# A title\n")
    assert "Words." in page
    assert "said\n2\n```" in page
    assert "(small-1.svg)" in page
    assert page.count("gives") == 1  # the second cell has nothing to say
    assert small["small-1.svg"].count("<svg ") == 1


def test_a_notebook_holds_the_cells_and_their_outputs(small):
    book = json.loads(small["small.ipynb"])
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    words, first, second = book["cells"]
    assert "".join(words["source"]).startswith("# A title")
    kinds = [output["output_type"] for output in first["outputs"]]
    assert kinds == ["stream", "display_data", "execute_result"]
    assert first["outputs"][2]["data"] == {"text/plain": "2"}
    assert second["outputs"] == []


def test_a_cell_that_fails_ends_the_build(load):
    notebooks = load("notebooks")
    with pytest.raises(ZeroDivisionError):
        notebooks.run(notebooks.read("# %%\n1 / 0\n"), "broken.py")


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_has_a_title_code_and_its_place_in_the_navigation(path, load):
    cells = load("notebooks").read(path.read_text(encoding="utf-8"))
    assert not cells[0].code
    assert cells[0].source.startswith("# ")
    assert any(isinstance(ast.parse(cell.source), ast.Module) for cell in cells if cell.code)
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert nav.count(f" tutorials/{path.stem}.md\n") == 1


def test_the_picture_of_the_first_page_shows_the_committed_times(load):
    draw = load("draw")
    found = draw.times()
    assert set(found) == set(draw.SHOWN.values())
    picture = (DOCS / "assets" / "landing-speed.svg").read_text(encoding="utf-8")
    assert draw.description(found) in picture, "run: python docs/draw.py"
    drawn = re.findall(r"stroke: (#\w+); stroke-width: 1.6", picture)
    looks = styles(list(SYSTEMS))
    assert sorted(drawn) == sorted(look["color"] for look in looks.values())
    assert "prefers-color-scheme: dark" in picture


SHOWN = """# %% [markdown]
# # A picture from elsewhere

# %%
class Picture:
    def _repr_svg_(self):
        return "<svg><defs></defs><path style='fill: #000000'/></svg>"

Picture()
"""


def test_a_value_that_jupyter_shows_is_a_picture(load):
    notebooks = load("notebooks")
    cells = notebooks.read(SHOWN)
    notebooks.run(cells, "shown.py")
    made = dict(notebooks.outputs("shown", cells))
    assert made["shown-1.svg"].startswith("<svg>")
    assert "(shown-1.svg)" in made["shown.md"]
    assert "gives" not in made["shown.md"]
    (output,) = json.loads(made["shown.ipynb"])["cells"][1]["outputs"]
    assert output["data"]["image/svg+xml"] == made["shown-1.svg"]


def test_a_picture_with_a_background_of_its_own_stays_as_it_is(load):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    notebooks = load("notebooks")
    figure, axes = pyplot.subplots()
    axes.plot([1, 2], color="black")
    pictures = []
    for transparent in (False, True):
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=transparent)
        pictures.append(text.getvalue())
    pyplot.close(figure)
    assert notebooks.day_and_night(pictures[0]) == pictures[0]
    assert notebooks.day_and_night(pictures[1]) != pictures[1]


def test_a_tutorial_shows_what_a_metric_costs_and_a_matrix_of_confusions():
    shown = "".join(path.read_text(encoding="utf-8") for path in TUTORIALS)
    for name in ("costs.svg", "confusion.svg"):
        assert re.search(rf'^Picture\(out / .*"{name}"\)$', shown, re.MULTILINE), name


SYSTEMS = {"nn.GRU": "gru", "nn.LSTM": "lstm", "lru": "lru", "mingru": "mingru"}


def look_of(line):
    return {
        "color": line.get_color(),
        "linestyle": line.get_linestyle(),
        "marker": line.get_marker(),
    }


def test_a_system_looks_the_same_in_the_library_on_the_site_and_in_benchmarks(load, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    draw, notebooks = load("draw"), load("notebooks")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    plots = importlib.import_module("_plots")
    kept = []
    monkeypatch.setattr(draw, "save", lambda figure, *_: kept.append(figure))
    draw.draw_times()
    shown = dict(zip(draw.times(), kept[0].axes[0].lines, strict=True))
    made, axes = plots.figure(1)
    plots.draw(axes[0], {name: ([1, 2], [1, 2]) for name in SYSTEMS}, list(SYSTEMS))
    written, other = pyplot.subplots()
    for name in SYSTEMS:
        other.plot([1, 2], [1, 2], label=name)
    other.legend()
    notebooks.wear(written)
    for at, (name, system) in enumerate(SYSTEMS.items()):
        own = styles([system])[system]
        for line in (shown[name], axes[0].lines[at], other.lines[at]):
            assert look_of(line) == {key: own[key] for key in look_of(line)}, name
        assert look_of(other.get_legend().get_lines()[at])["color"] == own["color"]
    for figure in (made, written, *kept):
        pyplot.close(figure)


def test_lines_without_a_system_keep_what_a_tutorial_gave_them(load):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axes = pyplot.subplots()
    axes.plot([1, 2], color="#123456", label="what comes in")
    axes.plot([1, 2], label="lru")
    load("notebooks").wear(figure)
    assert [line.get_color() for line in axes.lines] == ["#123456", styles(["lru"])["lru"]["color"]]
    pyplot.close(figure)


def light(colour):
    """Relative luminance, of WCAG 2.2."""
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [
        0.2126,
        0.7152,
        0.0722,
    ]


def test_every_colour_is_seen_on_a_dark_page(load):
    notebooks = load("notebooks")
    night = [notebooks.NIGHT.get(colour, colour) for colour in COLOURS]
    slate = light("#1e2129")
    assert 1.05 / (light(notebooks.GREY) + 0.05) >= 4.5  # words on an axis are small
    assert (light(notebooks.NIGHT[notebooks.GREY]) + 0.05) / (slate + 0.05) >= 4.5
    assert (light("#ffffff") + 0.05) / (light("#000000") + 0.05) == pytest.approx(21)  # of WCAG
    assert all((light(colour) + 0.05) / (slate + 0.05) >= 3 for colour in night)
    assert len(set(night)) == len(COLOURS)


def test_what_is_black_is_light_on_a_dark_page(load):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    notebooks = load("notebooks")
    with notebooks.matplotlib.rc_context(notebooks.STYLE):
        pyplot.plot([1, 2], color="black", marker="o", label="full")
        pyplot.plot([2, 1], color="black", marker="o", markerfacecolor="white", label="hollow")
        (svg,) = notebooks._figures()
    assert "@media (prefers-color-scheme: dark)" in svg
    assert (
        svg.count('<path class="stroke-000000"') + svg.count('" class="stroke-000000" style') >= 4
    )
    full = 'class="stroke-000000 fill-000000" style="stroke: #000000'
    assert svg.count(full) == 2  # markers of the first line; the faces of others stay white
    grey = notebooks.GREY[1:]
    assert f"stroke-{grey}" in svg
    assert f".stroke-{grey} {{ stroke: {notebooks.NIGHT[notebooks.GREY]} !important }}" in svg


def test_pictures_of_benchmarks_have_their_numbers_beside_them(load):
    offered = load("gallery").numbers()
    pages = {
        name: (DOCS / name).read_text(encoding="utf-8") for name in ("scan.md", "streaming.md")
    }
    for page, name in (
        ("scan.md", "scan-time"),
        ("scan.md", "scan-errors"),
        ("streaming.md", "learn-haul"),
    ):
        assert f"(benchmarks/{name}.csv)" in pages[page]
        assert offered[f"benchmarks/{name}.csv"].exists()


def test_the_gallery_shows_every_picture_of_the_results(load):
    page = load("gallery").page(["tutorials/gaps-1.svg"])
    assert "[A series with gaps](tutorials/gaps.md)" in page
    found = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("results/*/*.svg")]
    assert len(found) > 10
    for name in found:
        assert f"({name}){{ loading=lazy }}" in page
        drawn = name.replace(".svg", ".drawn.csv")
        assert f"([numbers]({drawn}))" in page or not (ROOT / drawn).exists()
    depth = "Depth: test accuracy (%) against depth (layers)"
    assert f"![{depth}](results/minrnn-table-1-cpu/depth.svg)" in page
    assert "](results/minrnn-table-1-cpu/report.md)\n" in page
    assert "([numbers](results/recipes/lengths.csv))" in page
