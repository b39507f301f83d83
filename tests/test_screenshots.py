"""The look at the site in a browser finds what is cut off, and leaves alone what scrolls."""

import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = """<!doctype html><body style="margin:0"><div style="width:200px">
<p style="width:900px">far too wide</p>
<pre style="overflow:auto;width:200px"><code style="display:block;width:900px">scrolls</code></pre>
</div></body>"""


def test_what_is_cut_off_is_found_and_what_scrolls_is_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    screenshots = importlib.import_module("screenshots")
    browser = screenshots.chromium()
    if browser is None:
        pytest.skip("there is no Chromium here")
    (tmp_path / "index.html").write_text(PAGE)
    assert screenshots.pages(tmp_path) == [""]
    assert screenshots.complaints(tmp_path, browser, [""]) == [
        "phone: landing: <p> is cut off: far too wide"
    ]
