"""The search of a built site is asked as a browser asks it, and who is not found first is named."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SEARCH = Path(__file__).parents[1] / "docs" / "search.js"
MIXER = "# LRU\n\nA recurrence.\n"
OTHER = "# LRU beside others\n\nThe LRU, the LRU again, and once more the LRU.\n"
LOUD = "---\nsearch:\n  boost: 100\n---\n\n"


@pytest.fixture
def ask(tmp_path):
    """What the script says of a site of these pages."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here")

    def answer(pages):
        for place, text in pages.items():
            path = tmp_path / "docs" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        settings = "site_name: a site\ntheme: {name: material, font: false}\nplugins: [search]\n"
        (tmp_path / "mkdocs.yml").write_text(settings)
        build = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
        subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
        command = [node, str(SEARCH), str(tmp_path / "site")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    return answer


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
