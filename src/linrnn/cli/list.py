"""List the mixers, tasks or recipes there are, with one line about each."""

import argparse
import ast
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

import linrnn
from linrnn.errors import check_in

KINDS = ("mixers", "tasks", "recipes")


def main(argv: Sequence[str]) -> int:
    """Print a catalogue, or all of them."""
    parser = argparse.ArgumentParser(prog="linrnn list", description=__doc__)
    parser.add_argument(
        "kind", nargs="?", metavar="KIND", help="mixers, tasks or recipes; all three if left out"
    )
    kind = parser.parse_args(argv).kind
    if kind is not None:
        check_in("linrnn list:", "kind", kind, KINDS)
        sys.stdout.write(_table(summaries(kind)))
        return 0
    for heading in KINDS:
        sys.stdout.write(f"{heading}\n{indent(_table(summaries(heading)), '  ')}")
    return 0


def names(kind: str) -> list[str]:
    """Every name of one kind, sorted: the public files of ``linrnn/<kind>/``."""
    found = pkgutil.iter_modules([str(_folder(kind))])
    return sorted(module.name for module in found if not module.name.startswith("_"))


def summaries(kind: str) -> dict[str, str]:
    """Each name of one kind and its summary, read from the source: nothing is imported."""
    return {name: _summary(_folder(kind) / f"{name}.py") for name in names(kind)}


def _folder(kind: str) -> Path:
    return Path(linrnn.__path__[0], kind)


def _summary(path: Path) -> str:
    """First line of the docstring of the file's public class or function, else of the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = (
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    )
    docstrings = (ast.get_docstring(node) for node in (*public, tree))
    return next((text.split("\n")[0] for text in docstrings if text), "")


def _table(rows: dict[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return "".join(f"{name:<{width}}  {summary}\n" for name, summary in rows.items())
