"""A mkdocs hook: the tutorials, notebooks that are run while the site is built.

A tutorial is a script in cells (``# %%``), as editors and Jupytext open it. Its cells run in one
process, one after the other, with a seed; what they print, the value of a last line and every
figure become part of the page; a value that Jupyter shows as SVG is a figure too. A cell that fails
ends the build. Beside the page lies the notebook, with these outputs, for Jupyter.

As a program, ``notebooks.py TUTORIAL`` runs one tutorial and prints its files as JSON.
"""

import ast
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from mkdocs.structure.files import File, Files

from linrnn.train.styles import cycle, place_of, styles

FOLDER = Path(__file__).with_name("tutorials")
MARK = re.compile(r"^# %%(?P<markdown> \[markdown\])?[^\n]*\n", re.MULTILINE)
GREY = "#6a6a6a"  # has a contrast of 5.4 to white; NIGHT has what it is on a dark page
STYLE = {
    "figure.figsize": (7, 3),
    "figure.constrained_layout.use": True,
    "savefig.transparent": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": matplotlib.cycler(**cycle()),
    "legend.frameon": False,
    "svg.hashsalt": "linrnn",
} | dict.fromkeys(
    ["axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"], GREY
)
NIGHT = {"#000000": "#f0f0f0", "#c03000": "#e84028", "#600078": "#c060a0", GREY: "#a0a0a0"}
"""Colours that cannot be told from a dark page, and what they are on one."""


@dataclass
class Cell:
    """A piece of a tutorial and, of code, what came of it."""

    source: str
    code: bool
    printed: str = ""
    value: str = ""
    figures: list[str] = field(default_factory=list)


def on_files(files: Files, config: Any) -> Files:
    """Run every tutorial and add its page, its pictures and its notebook."""
    # Each process has one thread: what tutorials compute is too small for two to be faster.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for contents in pool.map(in_process, sorted(FOLDER.glob("*.py"), key=_first_to_run)):
            for name, content in contents.items():
                files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def _first_to_run(path: Path) -> tuple[bool, str]:
    """Put the tutorial first that takes as long as all others together."""
    return path.stem != "maze", path.stem


def in_process(path: Path) -> dict[str, str]:
    """The files of a tutorial that a process of its own has run.

    Raises:
        CalledProcessError: a cell failed; its traceback is on standard error.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, path]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    contents: dict[str, str] = json.loads(done.stdout)
    return contents


def contents_of(path: Path) -> dict[str, str]:
    """Run a tutorial; its files under tutorials/ by name."""
    cells = read(path.read_text(encoding="utf-8"))
    run(cells, path.name)
    return dict(outputs(path.stem, cells))


def read(text: str) -> list[Cell]:
    """The cells of a script."""
    marks = list(MARK.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    cells = []
    for mark, end in zip(marks, ends, strict=True):
        body = text[mark.end() : end].strip("\n")
        if mark["markdown"]:
            body = re.sub(r"^# ?", "", body, flags=re.MULTILINE)
        cells.append(Cell(body, code=mark["markdown"] is None))
    return cells


def run(cells: list[Cell], name: str) -> None:
    """Fill in what the cells of code print, return and draw."""
    import torch

    torch.manual_seed(0)
    space: dict[str, Any] = {"__name__": "__main__"}
    with matplotlib.rc_context(STYLE):
        for number, cell in enumerate(cells, 1):
            if cell.code:
                _run_cell(cell, space, f"{name}, cell {number}")


def _run_cell(cell: Cell, space: dict[str, Any], where: str) -> None:
    tree = ast.parse(cell.source, where)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):  # kept under the name that a prompt of Python keeps it under
        name = ast.copy_location(ast.Name("_", ast.Store()), last)
        tree.body[-1] = ast.copy_location(ast.Assign([name], last.value), last)
    space["_"] = None
    stream = io.StringIO()
    with redirect_stdout(stream):
        exec(compile(tree, where, "exec"), space)
    value = space["_"] if isinstance(last, ast.Expr) else None  # a cell may use that name itself
    # A call that draws gives back what it drew; what is read then is the picture.
    drawn = type(value).__module__.startswith("matplotlib")
    own = getattr(value, "_repr_svg_", None)
    cell.value = "" if value is None or drawn or own else repr(value)
    cell.printed = stream.getvalue().rstrip("\n")
    cell.figures = [*_figures(), *([day_and_night(own())] if own else [])]


def _figures() -> Iterator[str]:
    """Every open figure as SVG; they are closed."""
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        text, figure = io.StringIO(), pyplot.figure(number)
        wear(figure)
        figure.savefig(text, format="svg", metadata={"Date": None})
        yield day_and_night(text.getvalue())
    pyplot.close("all")


def wear(figure: Figure) -> None:
    """Give each line that is labelled as a system the look it has in all figures."""
    for axes in figure.axes:
        named = {str(line.get_label()): line for line in axes.lines}
        looks = styles([label for label in named if place_of(label) is not None])
        for label, look in looks.items():
            named[label].set(**look)
        if looks and axes.get_legend() is not None:
            axes.legend()


def day_and_night(svg: str) -> str:
    """A picture whose lines are seen on a white page and on a dark one.

    One that has a background stays as it is. An image takes the colour scheme of the page
    it is on, which the theme sets; a browser that does not know this takes that of the system.
    """
    if re.search(r'<g id="patch_1">\s*<path [^>]*style="fill: #ffffff', svg):
        return svg
    rules = "".join(
        f"\n   .{what}-{day[1:]} {{ {what}: {night} !important }}"
        for day, night in NIGHT.items()
        for what in ("stroke", "fill")
    )
    style = f"<style>\n  @media (prefers-color-scheme: dark) {{{rules}\n  }}\n  </style>\n "
    marked = re.sub(r'<(\w+)([^<>]*? )style="([^"]*)"', _marked, svg)
    return marked.replace("</defs>", f" {style}</defs>", 1)


def _marked(tag: re.Match[str]) -> str:
    """A tag of SVG with a class for each colour that changes at night."""
    found = [f"{what}-{c}" for what, c in re.findall(r"(stroke|fill): #(\w+)", tag[3])]
    # a marker's face that matplotlib draws in black is not said
    found += ["fill-000000"] if tag[1] == "use" and "fill:" not in tag[3] else []
    classes = " ".join(name for name in found if f"#{name[-6:]}" in NIGHT)
    return f'<{tag[1]}{tag[2]}class="{classes}" style="{tag[3]}"' if classes else tag[0]


def outputs(name: str, cells: list[Cell]) -> Iterator[tuple[str, str]]:
    """The files of a tutorial under tutorials/: its page, pictures, notebook."""
    page, count = [], 0
    title, _, rest = cells[0].source.partition("\n")
    page += [title, f"[:material-download: notebook]({name}.ipynb)\n{{ .notebook }}", rest]
    for cell in cells[1:]:
        if not cell.code:
            page.append(cell.source)
            continue
        page.append(f"```python\n{cell.source}\n```")
        said = "\n".join(text for text in (cell.printed, cell.value) if text)
        if said:
            page.append(f'```text title="gives"\n{said}\n```')
        for figure in cell.figures:
            count += 1
            yield f"{name}-{count}.svg", figure
            page.append(f"![what the code above draws]({name}-{count}.svg)")
    yield f"{name}.md", "\n\n".join(page) + "\n"
    yield f"{name}.ipynb", notebook(cells)


def notebook(cells: list[Cell]) -> str:
    """The cells and their outputs in Jupyter's format, version 4.5."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    body = [_as_json(cell, f"cell-{number}") for number, cell in enumerate(cells, 1)]
    whole = {"cells": body, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


def _as_json(cell: Cell, name: str) -> dict[str, Any]:
    common = {"id": name, "metadata": {}, "source": cell.source.splitlines(keepends=True)}
    if not cell.code:
        return {"cell_type": "markdown", **common}
    made: list[dict[str, Any]] = []
    if cell.printed:
        made.append({"output_type": "stream", "name": "stdout", "text": cell.printed + "\n"})
    for figure in cell.figures:
        data = {"image/svg+xml": figure, "text/plain": "<Figure>"}
        made.append({"output_type": "display_data", "data": data, "metadata": {}})
    if cell.value:
        result = {"output_type": "execute_result", "execution_count": None, "metadata": {}}
        made.append({**result, "data": {"text/plain": cell.value}})
    return {"cell_type": "code", **common, "execution_count": None, "outputs": made}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(contents_of(Path(sys.argv[1]))))
