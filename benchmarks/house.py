"""How the package is built, in numbers: lines by room, names, comments, functions, classes.

Prints a table; reads the source and imports nothing but the standard library. What must hold, no
import of another room's private module and no cycle, is `tests/test_layering.py`.
"""

import argparse
import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
#: Names that say that one has something, and not what it is for.
VAGUE = frozenset(
    (
        *("found", "given", "known", "kept", "held", "asked", "seen", "wanted", "rest", "some"),
        *("other", "others", "made", "taken", "drawn", "own", "whole", "told", "apart", "alike"),
        *("wide", "plain", "turned", "beside", "here", "there", "least", "most", "before"),
        *("after", "again", "nothing"),
    )
)


def files(folder: Path) -> Iterator[Path]:
    """All sources, in order."""
    yield from sorted(folder.rglob("*.py"))


def bound_names(function: ast.AST) -> set[str]:
    """Names that a function binds: its arguments and variables, with those of inner functions."""
    nodes = list(ast.walk(function))
    variables = {x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    return variables | {x.arg for x in nodes if isinstance(x, ast.arg)}


def comment_lines(source: str) -> tuple[int, int]:
    """Comments on lines of their own, and behind code."""
    lines, counts = source.splitlines(), Counter[bool]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            counts[lines[token.start[0] - 1].lstrip().startswith("#")] += 1
    return counts[True], counts[False]


def private_imports(package: Path) -> int:
    """Imports of a module that is private to another package."""
    count = 0
    for path in files(package):
        room = path.relative_to(package.parent).parts[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package.name):
                parts = node.module.split(".")
                private = next((i for i, x in enumerate(parts) if x.startswith("_")), None)
                count += private is not None and tuple(parts[:private]) != room[:private]
    return count


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's code, without its signature and docstring."""
    first = function.body[0]
    if len(function.body) > 1 and ast.get_docstring(function, clean=False) is not None:
        first = function.body[1]
    return (function.end_lineno or first.lineno) - first.lineno + 1


def row(name: str, paths: Sequence[Path]) -> list[str]:
    """The numbers of some files."""
    sources = [path.read_text() for path in paths]
    functions = [
        node
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    names = [x for function in functions for x in bound_names(function)]
    vague = sum(x.strip("_") in VAGUE for x in names)
    lengths = [(f.end_lineno or f.lineno) - f.lineno + 1 for f in functions] or [0]
    lines = sum(len(source.splitlines()) for source in sources)
    alone = sum(comment_lines(source)[0] for source in sources)
    return [
        name, str(len(paths)), str(lines), f"{100 * vague / max(1, len(names)):.1f} %",
        f"{100 * alone / max(1, lines):.2f} %", f"{statistics.median(lengths):.0f}",
        str(sum(n > 50 for n in lengths)), str(sum(code_lines(f) > 50 for f in functions)),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=SOURCE, help="a folder with linrnn in it")
    package = parser.parse_args(argv).source / "linrnn"
    head = ["room", "files", "lines", "vague names", "comment lines", "median function", "over 50"]
    head.append("code over 50")
    rooms = sorted(x for x in package.iterdir() if x.is_dir() and any(x.rglob("*.py")))
    rows = [row(x.name, list(files(x))) for x in rooms]
    rows.append(row("files of the root", sorted(package.glob("*.py"))))
    rows.append(row("all", list(files(package))))
    for line in [head, ["---"] * len(head), *rows]:
        print("| " + " | ".join(line) + " |")
    print(f"\nimports of modules that are private to another package: {private_imports(package)}")
    entries = [len([x for x in package.iterdir() if x.name[:2] != "__" and x.suffix != ".typed"])]
    print(f"entries of the root: {entries[0]}, of ops: {len(list((package / 'ops').iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
