"""List the entries of a catalogue, with one line about each."""

import argparse
import ast
import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import indent
from typing import TypeGuard

from linrnn._catalogue import stems
from linrnn.errors import check_in

#: Each catalogue and the base class of its entries; an entry without one is a function.
CATALOGUES = {
    "mixers": "Mixer",
    "tasks": "Task",
    "learners": "Learner",
    "recipes": None,
    "reproductions": "Reproduction",
}


def package_of(kind: str) -> str:
    """The package that holds a catalogue; all but one are named as what they hold."""
    return f"linrnn.{'learn' if kind == 'learners' else kind}"


def main(argv: Sequence[str]) -> int:
    """Print a catalogue, or all of them."""
    *others, last = CATALOGUES
    parser = argparse.ArgumentParser(prog="linrnn list", description=__doc__)
    parser.add_argument(
        "kind",
        nargs="?",
        metavar="KIND",
        help=f"{', '.join(others)} or {last}; all if left out",
    )
    kind = parser.parse_args(argv).kind
    if kind is not None:
        check_in("linrnn list", "argument", kind, CATALOGUES)
        sys.stdout.write(_recipes() if kind == "recipes" else _table(summaries(kind)))
        return 0
    for heading in CATALOGUES:
        sys.stdout.write(f"{heading}\n{indent(_table(summaries(heading)), '  ')}")
    return 0


def _recipes() -> str:
    """More than the summaries: what to expect of each scale, for which every recipe is made."""
    from linrnn.cli._recipes import table

    return table()


def summaries(kind: str) -> dict[str, str]:
    """Each name of a catalogue and its summary, read from the source: no entry is imported."""
    package = package_of(kind)
    folders = importlib.import_module(package).__path__
    return {name: _summary(_source(folders, name), kind) for name in stems(package)}


def _source(folders: Iterable[str], name: str) -> Path:
    return next(path for f in folders if (path := Path(f, f"{name}.py")).is_file())


def _summary(path: Path, kind: str) -> str:
    """The entry's ``summary`` where it states one, else the first line of its docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    entry = next((node for node in tree.body if _is_entry(node, CATALOGUES[kind])), None)
    if isinstance(entry, ast.ClassDef):
        for node in entry.body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "summary":
                return str(ast.literal_eval(node.value)) if node.value else ""
    return (ast.get_docstring(entry or tree) or "").split("\n")[0]


def _is_entry(node: ast.stmt, base: str | None) -> TypeGuard[ast.ClassDef | ast.FunctionDef]:
    if base is None:
        return isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    return isinstance(node, ast.ClassDef) and base in map(ast.unparse, node.bases)


def _table(rows: dict[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return "".join(f"{name:<{width}}  {summary}\n" for name, summary in rows.items())
