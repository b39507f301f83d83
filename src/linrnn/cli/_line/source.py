"""Declarations of this package's classes and functions, read from source; none is imported.

To import a mixer is to import PyTorch, and lists, completions and errors should be there at once.
"""

import ast
import functools
import gc
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import linrnn


class Declared(NamedTuple):
    """An argument of a constructor, or a field of a dataclass."""

    name: str
    annotation: str
    """As it is written, or the ``Literal`` that it names; empty where there is none."""
    default: str | None
    """As it is written; None where it must be given."""


class Class(NamedTuple):
    """A class and the file that it is in."""

    path: Path
    node: ast.ClassDef


@functools.cache
def tree(path: Path) -> ast.Module:
    """The syntax of a file."""
    collected = gc.isenabled()
    gc.disable()  # a tree is all kept: looking for garbage in it takes as long as parsing
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if collected:
            gc.enable()


def file_of(package: str, name: str) -> Path | None:
    """The file of a module of a package that can be imported, if it has one."""
    folders = importlib.import_module(package).__path__
    return next((path for f in folders if (path := Path(f, f"{name}.py")).is_file()), None)


@functools.cache
def class_named(path: Path, name: str) -> Class | None:
    """A class of this package by the name that a file has for it, defined there or imported."""
    for node in _statements(path):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Class(path, node)
        origin = _imported(node, name)
        if origin is not None:
            return class_named(*origin)
    return None


def _imported(node: ast.stmt, name: str) -> tuple[Path, str] | None:
    """The file of this package that a statement has a name from, and what it is called there."""
    if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("linrnn.")):
        return None
    named = [alias.name for alias in node.names if (alias.asname or alias.name) == name]
    path = _module(node.module or "") if named else None
    return None if path is None else (path, named[0])


def _statements(path: Path) -> Iterator[ast.stmt]:
    """The statements of a file, those for type checkers included: a package may name its own so."""
    for node in tree(path).body:
        yield from node.body if isinstance(node, ast.If) else [node]


def public_classes(path: Path) -> list[Class]:
    """The classes of a file whose names do not begin with ``_``."""
    nodes = [node for node in tree(path).body if isinstance(node, ast.ClassDef)]
    return [Class(path, node) for node in nodes if not node.name.startswith("_")]


@functools.cache
def entry_class(path: Path, base: str | None) -> Class | None:
    """The class of a catalogue's entry: of those of its file the one that derives from the base.

    Args:
        path: file of the entry.
        base: name of the class that all entries derive from; None where they are functions.
    """
    classes = public_classes(path) if base else []
    return next((c for c in classes if any(one.node.name == base for one in lineage(c))), None)


def lineage(cls: Class) -> Iterator[Class]:
    """A class, and those it derives from as far as they are of this package, nearest first."""
    yield cls
    for base in cls.node.bases:
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        parent = class_named(cls.path, name)
        if parent is not None:
            yield from lineage(parent)


def constant(cls: Class, name: str) -> ast.expr | None:
    """The value of a name in the body of a class or of its nearest base that sets it."""
    for one in lineage(cls):
        for node in one.node.body:
            targets = node.targets if isinstance(node, ast.Assign) else ()
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            if name in map(ast.unparse, targets):
                value: ast.expr | None = node.value  # type: ignore[attr-defined]
                if value is not None:
                    return value
    return None


def arguments(cls: Class) -> list[Declared]:
    """The arguments of the constructor of a class, its own or the nearest."""
    for one in lineage(cls):
        for node in one.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return _arguments(one.path, node.args)
    return []


def fields(cls: Class) -> list[Declared]:
    """The fields of a dataclass, those of its bases first."""
    field_of: dict[str, Declared] = {}
    for one in reversed(list(lineage(cls))):
        for node in one.node.body:
            if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
                name = ast.unparse(node.target)
                field_of[name] = _declared(one.path, name, node.annotation, node.value)
    return list(field_of.values())


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a file by name."""
    return {node.name: node for node in tree(path).body if isinstance(node, ast.FunctionDef)}


def _arguments(path: Path, signature: ast.arguments) -> list[Declared]:
    first = [*signature.posonlyargs, *signature.args][1:]  # without self
    none: list[ast.expr | None] = [None] * (len(first) - len(signature.defaults))
    pairs = [*zip(first, [*none, *signature.defaults], strict=True)]
    pairs += zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
    return [_declared(path, arg.arg, arg.annotation, default) for arg, default in pairs]


def _declared(
    path: Path, name: str, annotation: ast.expr | None, default: ast.expr | None
) -> Declared:
    kind = "" if annotation is None else ast.unparse(_spelt_out(path, annotation))
    return Declared(name, kind, None if default is None else ast.unparse(default))


def _spelt_out(path: Path, annotation: ast.expr) -> ast.expr:
    """An annotation, or the ``Literal`` that it is another name of."""
    if not isinstance(annotation, ast.Name):
        return annotation
    for node in _statements(path):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == annotation.id:
            return node.value if ast.unparse(node.value).startswith("Literal[") else annotation
        origin = _imported(node, annotation.id)
        if origin is not None:
            return _spelt_out(origin[0], ast.Name(origin[1]))
    return annotation


def _module(dotted: str) -> Path | None:
    """The file of a module below ``linrnn``, or the ``__init__.py`` of a package."""
    parts = dotted.split(".")[1:]
    for folder in map(Path, linrnn.__path__):
        for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts)):
            file = path / "__init__.py" if path.is_dir() else path
            if file.is_file():
                return file
    return None
