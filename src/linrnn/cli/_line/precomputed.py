"""Answers that came with the package: of `list`, `show` and the help of `train`.

They need PyTorch only to be computed, so they are computed once, by
``python -m linrnn.cli._verbs.precompute``, where a clone is installed or a release is made. They
hold for the sources they were made of: a seal over every file of the package says which those
were. With other sources, with plug-ins, or in a program that has imported PyTorch, there is none,
and each answer is computed. A build in an isolated environment has no PyTorch, so a wheel gets
the file from the source distribution.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import sys
import typing
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import linrnn
from linrnn._files.door import read_bytes
from linrnn._options.catalogue import OPEN, registered
from linrnn.cli._line.extras import missing

FILE = "_precomputed.json"
_LARGEST = 64 << 20  # bytes
SETTINGS = ("help", "metavar", "help_behavior_hint")
"""Fields of ``tyro.conf.arg``, under their names."""
_NOT_SEALED = ("__pycache__", "_native", FILE)
"""Neither bytecode nor kernels change what these answers say."""


def precomputed(section: str, key: str) -> Any:
    """An answer that came with the package; None if it is to be computed.

    Args:
        section: ``pages``, ``lines``, ``records`` or ``options``.
        key: the name in it.
    """
    if "torch" in sys.modules or os.environ.get("LINRNN_ANSWERS") == "0":
        return None
    if os.environ.get("LINRNN_TRUST") or any(map(registered, OPEN)):
        return None
    value = _table().get(section, {}).get(key)
    if value is None or missing(tuple(value["needs"])):
        return None
    return value["answer"]


def seal() -> str:
    """A digest of every file of this package."""
    digest = hashlib.sha256()
    for folder in linrnn.__path__:
        for name, path in _files(folder):
            digest.update(f"{name}\n".encode())
            digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def _table() -> dict[str, Any]:
    """The file that was made of these sources; nothing if there is none."""
    for folder in map(Path, linrnn.__path__):
        with suppress(OSError, ValueError, KeyError, TypeError):  # there is none, or it is damaged
            # by its whole path, so that `answers` sees that it is a file of this package
            table = json.loads(read_bytes(folder / FILE, inside=None, limit=_LARGEST))
            if table["seal"] == seal():
                return dict(table)
    return {}


def _files(folder: str, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The files of a folder and below: the name from it, and the path."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name in _NOT_SEALED:
            continue
        if entry.is_dir():
            yield from _files(entry.path, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry.path


def show_options(task: str, args: Sequence[str]) -> None:
    """Print the help of a task as tyro does, and exit; nothing if it is to be computed.

    Args:
        task: its name.
        args: what follows it.
    """
    if not args or any(arg not in ("-h", "--help") for arg in args):
        return
    stated = precomputed("options", task)
    if stated is not None:
        print_options(stated)


def print_options(stated: dict[str, Any]) -> None:
    """Print the help of a command that is stated by `linrnn.cli._verbs.precompute`, and exit."""
    import tyro

    tyro.cli(
        _group(stated["fields"], ""),
        args=["--help"],
        prog=stated["prog"],
        description=stated["description"],
    )


def _group(fields: list[dict[str, Any]], doc: str) -> type:
    """A dataclass like the one that was stated."""
    made = []
    for field in fields:
        if "fields" in field:
            kind: Any = _group(field["fields"], field["doc"])
            required = any(f.default is dataclasses.MISSING for f in dataclasses.fields(kind))
            default: Any = dataclasses.MISSING if required else kind()
        else:
            kind, default = _option(field)
        settings = {} if default is dataclasses.MISSING else {"default": default}
        made.append((field["name"], kind, dataclasses.field(**settings)))
    cls = dataclasses.make_dataclass("Options", made, frozen=True, kw_only=True)
    cls.__doc__ = doc
    return cls


def _option(field: dict[str, Any]) -> tuple[Any, Any]:
    """The annotation of an option, and its default."""
    import tyro

    # one's own file: the seal says that it was made of these sources
    names = vars(typing) | {"typing": typing, "pathlib": pathlib, "Path": Path}
    names |= {"PosixPath": Path, "WindowsPath": Path}
    kind, default = eval(field["kind"], names), field["default"]  # noqa: S307
    settings = {key: field[key] for key in SETTINGS if field.get(key)}
    settings |= {"name": field["flag"]} if field.get("flag") else {}
    annotation = Annotated[kind, tyro.conf.arg(**settings)] if settings else kind
    return annotation, dataclasses.MISSING if default is None else eval(default, names)  # noqa: S307
