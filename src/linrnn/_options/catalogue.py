"""A catalogue is a folder: one entry a file, found by being there, named by the file's stem.

Other packages add entries to those that are open by entry points: a group named like the
catalogue's package, a name, and the import path of a class. A study adds recipes by a table: see
`linrnn.recipes`.
"""

import ast
import importlib
import inspect
import os
import pkgutil
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import NamedTuple, TypeVar

from linrnn._files.reading import why
from linrnn.errors import LinrnnError, UnknownNameError

T = TypeVar("T")

OPEN = ("linrnn.mixers", "linrnn.tasks")
"""The catalogues that packages may add to, and the groups of their entry points."""
_RECIPES = "linrnn.recipes"


def stems(package: str) -> list[str]:
    """The entries of a package, sorted: its modules that do not start with ``_``, not imported."""
    folders = tuple(importlib.import_module(package).__path__)
    return [*_stems(folders, tuple(map(_changed, folders)))]


def _changed(folder: str) -> int:
    """When a file was last added or removed; 0 where that is not known, as inside an archive."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=32)
def _stems(folders: tuple[str, ...], changed: tuple[int, ...]) -> tuple[str, ...]:
    modules = pkgutil.iter_modules(folders)
    return tuple(sorted(m.name for m in modules if not m.name.startswith("_")))


def registered(package: str) -> dict[str, list[EntryPoint]]:
    """The entries that other packages register under each name, sorted; imports none of them.

    They are looked up once for each value of ``sys.path``. Names that are no identifiers are left
    out: on the command line commas, colons and dots have a meaning of their own.
    """
    return _registered(package, tuple(sys.path)) if package in OPEN else {}


@lru_cache(maxsize=8)
def _registered(group: str, path: tuple[str, ...]) -> dict[str, list[EntryPoint]]:
    plugins: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=group), key=lambda e: (e.name, e.value)):
        if entry.name.isidentifier() and not entry.name.startswith("_"):
            plugins.setdefault(entry.name, []).append(entry)
    return plugins


class Row(NamedTuple):
    """An entry of a study: the module that has it, and what it is in one line."""

    module: str
    text: str


def studied(package: str) -> dict[str, Row]:
    """The recipes that are rows of a study; none is imported."""
    folders = importlib.import_module(package).__path__ if package == _RECIPES else ()
    return _studied(tuple(folders))


@lru_cache(maxsize=8)
def _studied(folders: tuple[str, ...]) -> dict[str, Row]:
    studies: dict[str, Row] = {}
    for path in sorted(
        path for folder in folders for path in Path(folder).glob("_studies/[!_]*.py")
    ):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RECIPES":
                rows = ast.literal_eval(node.value).items()
                studies.update({name: Row(f"_studies.{path.stem}", text) for name, text in rows})
    return studies


def entries(package: str) -> list[str]:
    """All names of a catalogue, sorted: its files, rows of studies, what packages register."""
    return sorted({*stems(package), *studied(package), *registered(package)})


def load_class(package: str, kind: str, name: str, base: type[T]) -> type[T]:
    """The one subclass of ``base`` in ``<package>/<name>.py``, or the one registered by that name.

    Only the file or package that is asked for is imported.

    Args:
        package: dotted name of the catalogue's package.
        kind: what an entry is called in messages: mixer, task.
        name: the entry.
        base: the abstract class of the catalogue.

    Raises:
        UnknownNameError: no such entry.
        LinrnnError: the file does not define exactly one such class; the name is that of several
            entries; or a package that registers it cannot be imported.
    """
    own_names = stems(package)
    names = [*own_names, *registered(package)]
    if name not in names:
        raise UnknownNameError(kind, name, names)
    plugins = registered(package).get(name, [])
    owners = ["linrnn"] * (name in own_names) + [_owner(plugin) for plugin in plugins]
    if len(owners) > 1:
        raise LinrnnError(
            f"{package}: the name {name!r} must be that of one {kind}, got those of "
            f"{' and '.join(owners)}. Uninstall or rename one of them."
        )
    return _load_plugin(plugins[0], kind, base) if plugins else own_class(package, name, base)


def own_class(package: str, name: str, base: type[T]) -> type[T]:
    """The one subclass of ``base`` in ``<package>/<name>.py``, whatever others register.

    Raises:
        LinrnnError: the file does not define exactly one such class.
    """
    module = importlib.import_module(f"{package}.{name}")
    classes = [
        c
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, base) and c.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise LinrnnError(
            f"{package.replace('.', '/')}/{name}.py: must define exactly one {base.__name__} "
            f"class, got {[c.__name__ for c in classes]}."
        )
    return classes[0]


def _load_plugin(plugin: EntryPoint, kind: str, base: type[T]) -> type[T]:
    where = f"{plugin.group}: the {kind} {plugin.name!r} of {_owner(plugin)}"
    try:
        cls = plugin.load()
    except (Exception, SystemExit) as error:
        raise LinrnnError(
            f"{where} must be importable, got {type(error).__name__}: {why(error)}. Repair or "
            "uninstall that package; all others work."
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise LinrnnError(
            f"{where} must be a class derived from {base.__name__}, got {plugin.value}. Repair or "
            "uninstall that package."
        )
    return cls


def _owner(plugin: EntryPoint) -> str:
    """The package that registers an entry, for messages."""
    package = f"{plugin.dist.name} {plugin.dist.version}" if plugin.dist else "an unknown package"
    return f"{package} ({plugin.value})"
