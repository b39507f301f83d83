"""The tutorials are notebooks that the site runs; how it runs, shows and keeps them."""

import ast
import importlib
import json
import sys
from pathlib import Path

import pytest

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


def test_the_gallery_shows_every_picture_of_the_results(load):
    page = load("gallery").page(["tutorials/gaps-1.svg"])
    assert "[gaps](tutorials/gaps.md)" in page
    found = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("results/*/*.svg")]
    assert len(found) > 10
    for name in found:
        assert f"({name}){{ loading=lazy }}" in page
