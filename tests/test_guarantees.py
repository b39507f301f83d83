"""The page of guarantees and their tests names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guarantees-tests.md").read_text(encoding="utf-8")


def named():
    """File and function of every test on the page; a name alone is in the file before it."""
    file = ""
    for path, name in re.findall(r"`([\w/.]*)::(\w+)`", PAGE):
        file = path or file
        yield file, name


def test_every_test_on_the_page_exists():
    found = list(named())
    assert len(found) > 30
    for file, name in found:
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), (file, name)


def test_every_guarantee_has_a_test_or_no_figure():
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")]
    assert all(len(row) == 3 for row in rows)
    for what, test, figure in rows:
        assert test.strip() or figure.strip() == "-", what
