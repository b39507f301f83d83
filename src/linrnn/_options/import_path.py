"""Classes named by an import path, ``pkg.module:Mine``, and whose word is taken for importing one.

To import a module is to run its code. Where the user names the path, in Python or on the command
line, that is the intention. Where a file names it, which may be a stranger's, the module must
be imported already, or the user must have said that it may be.
"""

import importlib
import inspect
import os
import sys
from typing import TypeVar

from linrnn._files.reading import why
from linrnn.errors import ArgumentError, UntrustedError, show

T = TypeVar("T")


def is_import_path(name: object) -> bool:
    """Whether a name is an import path and not one of a catalogue.

    Example:
        >>> is_import_path("pkg.module:Mine"), is_import_path("lru")
        (True, False)
    """
    return isinstance(name, str) and ":" in name


def import_class(kind: str, path: str, base: type[T]) -> type[T]:
    """The class at an import path; imports its module.

    Args:
        kind: what it is, for messages: mixer.
        path: ``pkg.module:Mine``.
        base: what it must be derived from.

    Raises:
        ArgumentError: the path is not of that form, does not lead to such a class, or its module
            cannot be imported.
    """
    where = f"{kind} {show(path)}"
    module_name, attributes = _parts(path)
    try:
        target = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            target = getattr(target, attribute)
    except Exception as error:
        raise ArgumentError(
            f"{where}: {module_name} must be a module that can be imported and has {attributes}, "
            f"got {type(error).__name__}: {why(error)}."
        ) from error
    return check_class(where, target, base)


def look_here() -> None:
    """Let modules of the folder that a command is typed in be imported, where none else is meant.

    It comes last: a file there must not shadow an installed package.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def check_class(where: str, cls: object, base: type[T]) -> type[T]:
    """``cls``, if it is a class derived from ``base`` that can be constructed.

    Raises:
        ArgumentError: it is not.
    """
    abstract = cls is base or inspect.isabstract(cls)
    if not (isinstance(cls, type) and issubclass(cls, base)) or abstract:
        kind = "an abstract class" if abstract else show(cls)
        raise ArgumentError(
            f"{where}: it must be a class derived from {base.__name__}, with all its methods, got "
            f"{kind}."
        )
    return cls


def import_path(cls: type) -> str:
    """The import path that leads to a class.

    Raises:
        ArgumentError: none does: it was made in a function, in a script or in a notebook.
    """
    module, name = cls.__module__, cls.__qualname__
    target: object = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    if target is not cls or module == "__main__":
        raise ArgumentError(
            f"{name}: what is stored must be a class at the top of a module that can be imported, "
            f"got one made in {module}{'' if module == '__main__' else f' as {name}'}. Put it into "
            "a separate file and import it from there."
        )
    return f"{module}:{name}"


def check_trusted(where: str, path: str) -> None:
    """Raise unless a file may name this import path.

    It may be if the module was imported before, or if ``LINRNN_TRUST`` lists the path.

    Args:
        where: the file, for the message.
        path: what it names.

    Raises:
        UntrustedError: nobody said so.
        ArgumentError: it is no import path.
    """
    module, _ = _parts(path)
    trusted = os.environ.get("LINRNN_TRUST", "").split(",")
    if module not in sys.modules and path not in (part.strip() for part in trusted):
        raise UntrustedError(
            f"{where}: the mixer must be of a module that you import or trust, got {path}, and "
            f"to import {module} runs its code. If you know what it does, import it "
            f"before, or give --trust {path}, or set LINRNN_TRUST={path}."
        )


def _parts(path: str) -> tuple[str, str]:
    """The module and what is in it."""
    module, _, attributes = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attributes.split("."))):
        raise ArgumentError(
            f"mixer: an import path must be of the form pkg.module:Mine, got {show(path)}."
        )
    return module, attributes
