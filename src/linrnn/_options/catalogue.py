"""A catalogue is a folder: one entry a file, found by being there, named by the file's stem.

An entry that was renamed names its former names in the attribute ``aliases`` of its class. They go
wherever a name does, and into import paths, and are listed nowhere.

Other packages add entries to those that are open by entry points: a group named like the
catalogue's package, a name, and the import path of a class. A study adds recipes by a table: see
`linrnn.recipes`.
"""

import ast
import importlib
import inspect
import os
import pkgutil
import re
import sys
from functools import lru_cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from linrnn._files.reading import why
from linrnn.errors import LinrnnError, UnknownNameError

T = TypeVar("T")

OPEN = ("linrnn.mixers", "linrnn.tasks")
"""The catalogues that packages may add to, and the groups of their entry points."""
_RECIPES = "linrnn.recipes"
_RENAMING = ("linrnn.mixers", "linrnn.learn")
"""The catalogues whose entries may have aliases: those of classes that files name."""


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


def aliases(package: str) -> dict[str, str]:
    """The former names of entries, and the name of each today; none is imported.

    They are read from the sources. A name that is that of an entry, as of another package, is not
    among them.
    """
    if package not in _RENAMING:
        return {}
    folders = tuple(importlib.import_module(package).__path__)
    names = {*stems(package), *registered(package)}
    former = _aliases(folders, tuple(map(_changed, folders)))
    return {alias: name for alias, name in former if alias not in names}


@lru_cache(maxsize=8)
def _aliases(folders: tuple[str, ...], changed: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for path in sorted(path for folder in folders for path in Path(folder).glob("[!_]*.py")):
        text = path.read_text(encoding="utf-8")
        # to parse all files of a catalogue would take a second
        for statement in _of_classes(text) if "aliases: ClassVar" in text else ():
            if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "aliases":
                assert statement.value is not None
                pairs += [(alias, path.stem) for alias in ast.literal_eval(statement.value)]
    return tuple(pairs)


def _of_classes(text: str) -> list[ast.stmt]:
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return [statement for node in classes for statement in node.body]


def todays_name(package: str, name: str) -> str:
    """The name of an entry today, of an alias; any other text as it is.

    Example:
        >>> todays_name("linrnn.mixers", "flash"), todays_name("linrnn.mixers", "lru")
        ('flash_gau', 'lru')
    """
    if name in stems(package):  # without reading the sources
        return name
    return aliases(package).get(name, name)


class _Former(MetaPathFinder, Loader):
    """Finds the modules of entries by their former names, after everybody else found none."""

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package in _RENAMING and name in aliases(package):
            return ModuleSpec(fullname, self)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        return None  # one of the usual kind

    def exec_module(self, module: ModuleType) -> None:
        package, _, alias = module.__name__.rpartition(".")
        today = importlib.import_module(f"{package}.{aliases(package)[alias]}")
        classes = [c for _, c in _classes(today) if alias in vars(c).get("aliases", ())]

        def attribute(name: str) -> Any:
            # a class was named as its file is
            return classes[0] if name.lower() == alias.replace("_", "") else getattr(today, name)

        module.__doc__ = today.__doc__
        module.__getattr__ = attribute  # type: ignore[method-assign]


sys.meta_path.append(_Former())


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

    Only the requested file or package is imported.

    Args:
        package: dotted name of the catalogue's package.
        kind: what an entry is called in messages: mixer, task.
        name: the entry, or an alias of it.
        base: the abstract class of the catalogue.

    Raises:
        UnknownNameError: no such entry.
        LinrnnError: the file does not define exactly one such class; the name is that of several
            entries; or a package that registers it cannot be imported.
    """
    own_names, name = stems(package), todays_name(package, name)
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
    classes = [c for _, c in _classes(module) if issubclass(c, base)]
    if len(classes) != 1:
        raise LinrnnError(
            f"{package.replace('.', '/')}/{name}.py: must define exactly one {base.__name__} "
            f"class, got {[c.__name__ for c in classes]}."
        )
    return classes[0]


def class_names(package: str) -> list[str]:
    """The classes named like their file but for case and ``_``, sorted; none is imported."""
    names = []
    for path in Path(*importlib.import_module(package).__path__).glob("[!_]*.py"):
        defined = re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        names += [name for name in defined if name.lower() == path.stem.replace("_", "")]
    return sorted(names)


def _classes(module: ModuleType) -> list[tuple[str, type]]:
    """The classes that a module defines."""
    members = inspect.getmembers(module, inspect.isclass)
    return [(name, c) for name, c in members if c.__module__ == module.__name__]


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
