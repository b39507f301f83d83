"""A catalogue is a folder: one entry a file, found by being there, named by the file's stem."""

import importlib
import inspect
import pkgutil
from typing import TypeVar

from linrnn.errors import LinrnnError, UnknownNameError

T = TypeVar("T")


def stems(package: str) -> list[str]:
    """The entries of a package, sorted: its modules that do not start with ``_``, not imported."""
    path = importlib.import_module(package).__path__
    return sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))


def load_class(package: str, kind: str, name: str, base: type[T]) -> type[T]:
    """The one subclass of ``base`` defined in ``<package>/<name>.py``; only that file is imported.

    Args:
        package: dotted name of the catalogue's package.
        kind: what an entry is called in messages: mixer, task.
        name: the entry.
        base: the abstract class of the catalogue.

    Raises:
        UnknownNameError: no such entry.
        LinrnnError: the file does not define exactly one such class.
    """
    if name not in stems(package):
        raise UnknownNameError(kind, name, stems(package))
    module = importlib.import_module(f"{package}.{name}")
    found = [
        c
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, base) and c.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise LinrnnError(
            f"{package.replace('.', '/')}/{name}.py: must define exactly one {base.__name__} "
            f"class, got {[c.__name__ for c in found]}."
        )
    return found[0]
