"""The search of a built site is asked, by a script and in a browser; who is not first is named."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
MIXER = "# LRU\n\nA recurrence.\n"
OTHER = "# LRU beside others\n\nThe LRU, the LRU again, and once more the LRU.\n"
LOUD = "---\nsearch:\n  boost: 100\n---\n\n"


@pytest.fixture
def built(tmp_path):
    """The folder of a site of these pages."""

    def build(pages):
        for place, text in pages.items():
            path = tmp_path / "docs" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        settings = "site_name: a site\ntheme: {name: material, font: false}\nplugins: [search]\n"
        (tmp_path / "mkdocs.yml").write_text(settings)
        command = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        return tmp_path / "site"

    return build


@pytest.fixture
def ask(built):
    """Run the script's search on a site of these pages."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here")

    def answer(pages):
        command = [node, str(DOCS / "search.js"), str(built(pages))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    return answer


@pytest.fixture
def type_into(built, monkeypatch):
    """Type words into the search box of a site of these pages; return the errors."""
    monkeypatch.syspath_prepend(str(DOCS))
    screenshots = importlib.import_module("screenshots")
    browser = screenshots.chromium()
    if browser is None:
        pytest.skip("there is no Chromium here")
    return lambda pages, searches: screenshots.unfound(built(pages), browser, searches)


def test_a_mixer_that_is_found_first_is_no_complaint(ask):
    pages = {"mixers/lru.md": MIXER, "index.md": "# Another page\n\nWithout it.\n"}
    assert ask(pages) == (0, "")


def test_a_mixer_that_is_found_second_is_named_by_class_and_by_file(ask):
    lines = "docs: a search for LRU finds other/ before mixers/lru/\n"
    lines += "docs: a search for lru finds other/ before mixers/lru/\n"
    pages = {"mixers/lru.md": MIXER, "other.md": LOUD + OTHER, "index.md": "# Start\n"}
    assert ask(pages) == (1, lines)


def test_a_site_without_mixers_is_a_failure(ask):
    assert ask({"index.md": OTHER}) == (1, "docs: the site has no page of a mixer\n")


def test_what_is_typed_into_the_box_finds_a_page_first(type_into):
    pages = {"mixers/lru.md": MIXER, "mixers/gru.md": "# GRU\n", "index.md": "# Another page\n"}
    assert type_into(pages, {"LRU": "mixers/lru/", "gru": "mixers/gru/"}) == []


def test_what_is_typed_and_not_found_first_is_named(type_into):
    pages = {"mixers/lru.md": MIXER, "other.md": LOUD + OTHER, "index.md": "# Start\n"}
    assert type_into(pages, {"LRU": "mixers/lru/", "zzz": "other/"}) == [
        "a search for LRU finds other/ before mixers/lru/",
        "a search for zzz finds nothing before other/",
    ]
