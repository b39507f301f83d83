"""The menus above a table, in a browser: which rows each of their values leaves."""

import importlib
import re
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = """<!doctype html><body>
<div class="linrnn-filter" data-columns="name,length at least,state at most 500 2000"></div>
<table><thead><tr><th>name</th><th>length</th><th>state</th></tr></thead><tbody>
<tr><td>a</td><td>16</td><td>96</td></tr>
<tr><td>b</td><td>128</td><td>1,985</td></tr>
<tr><td>c</td><td>2,048</td><td>grows</td></tr>
<tr><td>d</td><td></td><td></td></tr></tbody></table>
<script src="{script}"></script>
<script>
function choose(menu, value) {{
  menu.value = value;
  menu.dispatchEvent(new Event("change"));
}}
function shown() {{
  const rows = [...document.querySelectorAll("tbody tr")].filter((row) => !row.hidden);
  return rows.map((row) => row.cells[0].textContent).join("");
}}
document.addEventListener("DOMContentLoaded", () => {{
  const said = [];
  for (const menu of document.querySelectorAll("select")) {{
    said.push(menu.parentNode.firstChild.textContent);
    for (const option of menu.options) {{
      choose(menu, option.value);
      said.push(`${{option.value}}: ${{shown()}}`);
    }}
    choose(menu, "all");
  }}
  document.title = said.join("; ");
}});
</script></body>"""


@pytest.fixture
def browser(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    found = importlib.import_module("screenshots").chromium()
    if found is None:
        pytest.skip("there is no Chromium here")
    return found


def test_menus_keep_equal_cells_and_numbers_within_a_bound(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(PAGE.format(script=(DOCS / "assets" / "filter.js").as_uri()))
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert re.search("<title>(.*)</title>", done.stdout)[1].split("; ") == [
        *("name", "all: abcd", "a: a", "b: b", "c: c", "d: d"),
        *("length at least", "all: abcd", "16: abc", "128: bc", "2,048: c"),
        *("state at most", "all: abcd", "500: a", "2,000: ab"),
    ]
