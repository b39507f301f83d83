"""Sentences of the pages are short: 20 words on the average of a page, and 35 at most."""

import re
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "tutorials").glob("*.py")),
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "results").rglob("README.md")),
]
NO_PROSE = re.compile(r"^---\n.*?\n---\n|```.*?```|<!--.*?-->", re.DOTALL)
PARAGRAPHS = re.compile(r"\n\s*\n|\n(?=\s*[-*] )|\n(?=\d+\. )")
END = re.compile(r"(?<=[.:!?])\s+(?=[A-Z`\[*])")
CELL = re.compile(r"^# %%", re.MULTILINE)
AVERAGE, MOST = 20, 35
FEW = 5
"""Pages of so few sentences have no average."""


def sentences(text):
    """Each sentence of the paragraphs and lists; code counts as one word."""
    for paragraph in PARAGRAPHS.split(NO_PROSE.sub("", text)):
        if not paragraph.lstrip().startswith(("|", "#", "--8<", "<", "!!!", "$$")):
            plain = re.sub(r"`[^`]*`", "X", re.sub(r"\]\([^)]*\)", "]", paragraph))
            yield from END.split(" ".join(plain.split()))


def prose(page):
    """The text of a page; of a tutorial, that of its cells of Markdown."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if not page.endswith(".py"):
        return text
    cells = [cell for cell in CELL.split(text) if cell.startswith(" [markdown]\n")]
    return "\n\n".join(re.sub(r"^# ?", "", cell.partition("\n")[2], flags=re.M) for cell in cells)


def words(sentence):
    return len(re.findall(r"\w[\w'’/-]*", sentence))


def test_sentences_are_told_apart_and_counted():
    text = "# Title\n\nOne two three. Four `five six`: Seven [eight](x.md).\n\n- Ten.\n- Eleven"
    assert [words(s) for s in sentences(text)] == [3, 2, 2, 1, 1]


def test_the_prose_of_a_tutorial_is_its_cells_of_markdown(monkeypatch, tmp_path):
    text = "# %% [markdown]\n# # Title\n#\n# One two.\n\n# %%\nx = 1  # Three four five.\n"
    (tmp_path / "small.py").write_text(text, encoding="utf-8")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert [s for s in sentences(prose("small.py")) if s] == ["One two."]


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_is_long(page):
    long = [s for s in sentences(prose(page)) if words(s) > MOST]
    assert long == []


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short_on_average(page):
    lengths = [words(s) for s in sentences(prose(page))]
    lengths = [n for n in lengths if n > 2]
    assert len(lengths) <= FEW or mean(lengths) <= AVERAGE
