"""What the catalogues hold, read from the source: no entry is imported but those of other packages.

To import a mixer is to import PyTorch, and lists should be there at once.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

from linrnn._catalogue import registered, stems, studied
from linrnn.cli._source import tree
from linrnn.errors import LinrnnError

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


def summaries(kind: str) -> dict[str, str]:
    """Each name of a catalogue and its summary; of what cannot be used, why."""
    package = package_of(kind)
    found = {name: _summary(_source(package, name), kind) for name in stems(package)}
    for name in registered(package):
        found[name] = _of_class(kind, name, lambda cls: _words(cls, kind), str)
    found |= {name: row.text for name, row in studied(package).items()}
    return dict(sorted(found.items()))


def families() -> dict[str, str]:
    """The family of each mixer that can be used."""
    return _stated("family")


def timed() -> list[str]:
    """The mixers that read the time between steps."""
    return [name for name, stated in _stated("timed").items() if stated == "True"]


def _stated(attribute: str) -> dict[str, str]:
    """What the class of each mixer that can be used states, where it does."""
    package = "linrnn.mixers"
    found = {name: _of_source(_source(package, name), attribute) for name in stems(package)}
    for name in registered(package):
        found[name] = _of_class(
            "mixers", name, lambda cls: str(getattr(cls, attribute)), lambda _: ""
        )
    return {name: text for name, text in sorted(found.items()) if text}


def _of_class(
    kind: str, name: str, read: Callable[[Any], str], otherwise: Callable[[LinrnnError], str]
) -> str:
    """What is read of a registered class, or of the error why it cannot be had."""
    try:
        return read(importlib.import_module(package_of(kind)).load(name))
    except LinrnnError as error:
        return otherwise(error)


def _words(cls: Any, kind: str) -> str:
    summary = getattr(cls, "summary", None) if kind == "tasks" else None
    return str(summary or (cls.__doc__ or "").strip().split("\n")[0])


def _source(package: str, name: str) -> Path:
    found = _found(package, name)
    assert found
    return found


def _found(package: str, name: str) -> Path | None:
    folders = importlib.import_module(package).__path__
    return next((path for f in folders if (path := Path(f, f"{name}.py")).is_file()), None)


def _summary(path: Path, kind: str) -> str:
    """The entry's ``summary`` where it states one, else the first line of its docstring."""
    parsed = tree(path)
    entry = _entry(parsed, CATALOGUES[kind])
    if isinstance(entry, ast.ClassDef):
        stated = _constant(entry, "summary")
        if stated is not None:
            return stated
    return (ast.get_docstring(entry or parsed) or "").split("\n")[0]


def _of_source(path: Path, attribute: str, name: str | None = None) -> str:
    """What a class, by default the public one of a file, or the class it derives from, states."""
    parsed = tree(path)
    classes = [node for node in parsed.body if isinstance(node, ast.ClassDef)]
    wanted = [c for c in classes if c.name == name or (name is None and c.name[0] != "_")]
    for cls in wanted:
        stated = _constant(cls, attribute)
        if stated is not None:
            return stated
        for base in map(ast.unparse, cls.bases):
            origin = _origin(parsed, path, base)
            if origin is not None:
                return _of_source(origin, attribute, base)
    return ""


def _origin(parsed: ast.Module, path: Path, name: str) -> Path | None:
    """The file that a class comes from, if it is one of the mixers' bases."""
    if any(isinstance(node, ast.ClassDef) and node.name == name for node in parsed.body):
        return path
    for node in parsed.body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return _found("linrnn.mixers", (node.module or "").rpartition(".")[2])
    return None


def _constant(entry: ast.ClassDef, name: str) -> str | None:
    for node in entry.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(ast.unparse, targets):
                return str(ast.literal_eval(node.value))
    return None


def _entry(parsed: ast.Module, base: str | None) -> ast.ClassDef | ast.FunctionDef | None:
    return next((node for node in parsed.body if _is_entry(node, base)), None)


def _is_entry(node: ast.stmt, base: str | None) -> TypeGuard[ast.ClassDef | ast.FunctionDef]:
    if base is None:
        return isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    return isinstance(node, ast.ClassDef) and base in map(ast.unparse, node.bases)
