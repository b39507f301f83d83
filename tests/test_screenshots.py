"""The look at the site in a browser finds what is cut off, and leaves alone what scrolls."""

import importlib
from pathlib import Path

import pytest

from linrnn import mixers

DOCS = Path(__file__).parents[1] / "docs"
PAGE = """<!doctype html><body style="margin:0"><div style="width:200px">
<p style="width:900px">far too wide</p>
<pre style="overflow:auto;width:200px"><code style="display:block;width:900px">scrolls</code></pre>
</div></body>"""
# Stands still the first time it is started, and is the browser afterwards.
STALLS = """#!/bin/sh
test -e {mark} && exec {browser} "$@"
touch {mark}; exec sleep 600
"""
CUT_OFF = [
    f"phone, {scheme}: landing: <p> is cut off: far too wide" for scheme in ("dark", "light")
]
PALE = """<!doctype html><body style="background: #fff; color: #000">
<div style="background: rgb(0 0 0 / 50%)"><p style="color: #fff">White on grey</p>
<p style="color: #fff; font-size: 30px">Large</p></div><p>Black</p>
<p style="color: #eee; visibility: hidden">Hidden</p>
<style>@media (prefers-color-scheme: dark) { #night { color: #eee } }</style><p id="night">Night</p>
</body>"""


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("screenshots")


@pytest.fixture
def screenshots(module):
    if module.chromium() is None:
        pytest.skip("there is no Chromium here")
    return module


def test_what_is_cut_off_is_found_and_what_scrolls_is_not(tmp_path, screenshots):
    (tmp_path / "index.html").write_text(PAGE)
    assert screenshots.pages(tmp_path) == [""]
    assert screenshots.complaints(tmp_path, screenshots.chromium(), [""]) == CUT_OFF


def test_pale_text_is_found_in_either_scheme(tmp_path, screenshots, monkeypatch):
    monkeypatch.setattr(screenshots, "WIDTHS", {"phone": 390})
    (tmp_path / "index.html").write_text(PALE)
    found = screenshots.complaints(tmp_path, screenshots.chromium(), [""])
    grey = 'contrast 4.00, rgb 255,255,255 on 127,127,127: <p class=""> White on grey'
    night = 'contrast 1.16, rgb 238,238,238 on 255,255,255: <p class=""> Night'
    assert found == [
        f"phone, dark: landing: {grey}",
        f"phone, dark: landing: {night}",
        f"phone, light: landing: {grey}",
    ]


def test_a_picture_drawn_for_another_ground_is_found(tmp_path, screenshots, monkeypatch):
    monkeypatch.setattr(screenshots, "WIDTHS", {"phone": 390})
    line = '<rect width="50" height="9" class="line"/>'
    night = "@media (prefers-color-scheme: dark) { .line { fill: #f0f0f0 } }"
    for name, rules in (("turns", night), ("stays", "")):
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="99" height="99"><style>{rules}</style>'
        )
        (tmp_path / f"{name}.svg").write_text(f"{svg}{line}</svg>")
    images = '<img src="turns.svg"><img src="stays.svg">'
    style = "<style>@media (prefers-color-scheme: dark) { body { background: #1e2129 } }</style>"
    page = f'<!doctype html>{style}<body><div class="md-content">{images}</div></body>'
    (tmp_path / "index.html").write_text(page)
    (found,) = screenshots.complaints(tmp_path, screenshots.chromium(), [""])
    assert found.startswith("phone, dark: landing: ")
    assert found.endswith("/stays.svg is faint, contrast 1.30")


def test_a_browser_that_stands_still_is_started_once_more(
    tmp_path, screenshots, monkeypatch, capfd
):
    (tmp_path / "index.html").write_text(PAGE)
    browser = tmp_path / "browser"
    browser.write_text(STALLS.format(mark=tmp_path / "mark", browser=screenshots.chromium()))
    browser.chmod(0o700)
    monkeypatch.setattr(screenshots, "WIDTHS", {"phone": 390})
    monkeypatch.setattr(screenshots, "START", 8)
    monkeypatch.setattr(screenshots, "PATIENCE", 0)
    assert screenshots.complaints(tmp_path, str(browser), [""]) == CUT_OFF
    assert capfd.readouterr().err == "docs: the browser gave no answers; once more\n"


def test_a_browser_that_hangs_up_is_no_news(tmp_path, screenshots, capsys):
    site = screenshots.Site(tmp_path)
    for error, said in ((BrokenPipeError(), False), (ValueError("a defect"), True)):
        try:
            raise error
        except (BrokenPipeError, ValueError):
            site.handle_error(None, ("127.0.0.1", 1))
        assert bool(capsys.readouterr().err) == said
    site.server_close()


def test_a_page_whose_look_fails_is_a_complaint(tmp_path, screenshots):
    (tmp_path / "index.html").write_text("<script>window.getComputedStyle = null</script>" + PAGE)
    found = screenshots.complaints(tmp_path, screenshots.chromium(), [""])
    assert len(found) == 4
    assert all("not looked at: TypeError" in line for line in found)


def test_a_page_without_a_box_for_searches_is_a_complaint(tmp_path, screenshots):
    (tmp_path / "index.html").write_text(PAGE)
    (found,) = screenshots.unfound(tmp_path, screenshots.chromium(), {"LRU": "mixers/lru/"})
    assert found.startswith("not searched: TypeError")


def test_searches_are_for_the_pages_of_mixers_in_their_own_name(module):
    assert "LRU" in module.SEARCHES
    for words, page in module.SEARCHES.items():
        assert page == f"mixers/{words.lower()}/"
        assert words.lower() in mixers.names()
