"""Compute the answers that come with the package, and write them into its folder.

    python -m linrnn.cli._verbs.precompute [FOLDER]

`linrnn.cli._line.precomputed` reads them. ``make quickstart`` and ``make install`` run this, and
``make dist`` for the sources that it packs.
"""

import ast
import contextlib
import dataclasses
import inspect
import io
import json
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin
from unittest.mock import patch

import linrnn
from linrnn import tasks
from linrnn._files.door import folder_at
from linrnn._options.catalogue import OPEN, entries, registered
from linrnn.cli import list as list_verb
from linrnn.cli import show
from linrnn.cli._line import answers
from linrnn.cli._line.entries import CATALOGUES, package_of
from linrnn.cli._line.extras import missing
from linrnn.cli._line.options import parse_train
from linrnn.cli._line.precomputed import FILE, SETTINGS, print_options, seal
from linrnn.cli.train import starting_config
from linrnn.errors import LinrnnError

_WIDTH = "80"
"""Width of a terminal at which the help of a task must equal tyro's, to be stored."""
_METAVARS = {int: "INT", float: "FLOAT", str: "STR"}


def main(argv: Sequence[str]) -> int:
    """Write the file; the exit code is 1 where plug-ins would be in it."""
    if any(map(registered, OPEN)):
        sys.stderr.write(
            "precompute: entries of other packages are installed; nothing is written\n"
        )
        return 1
    # of an editable install the first is where the kernels are, and not the sources
    place = Path(argv[0] if argv else linrnn.__path__[0])
    data = json.dumps(table(), separators=(",", ":")).encode()
    with folder_at(place) as folder:
        temporary, handle = folder.create(FILE)
        try:
            os.write(handle, data)  # one that was cut off is not believed
        finally:
            os.close(handle)
        folder.replace(temporary, FILE)
    return 0


def table() -> dict[str, Any]:
    """Every answer that is a function of the sources alone, by section and name."""
    before = seal()
    sections: dict[str, Any] = {
        "pages": _pages(),
        "lines": _of_kinds("lines", CATALOGUES),
        "table": _of_kinds("table", ["recipes"]),
        "records": _of_kinds("records", CATALOGUES),
        "options": {
            name: {"answer": stated, "needs": []}
            for name, stated in options_of_tasks(tasks.names())
        },
    }
    return sections | {"seal": before}


def _of_kinds(section: str, kinds: Iterable[str]) -> dict[str, Any]:
    read = list_verb.SECTIONS[section]
    return {kind: {"answer": read(kind), "needs": []} for kind in kinds}


def _pages() -> dict[str, Any]:
    """The pages of `show`, but those that depend on files elsewhere."""
    pages: dict[str, Any] = {}
    for kind in CATALOGUES:
        for name in entries(package_of(kind)):
            # a task shows an example, for which some need scikit-learn
            plain = page(kind, name, without="sklearn") if kind == "tasks" else None
            shown = page(kind, name)
            if shown is not None:
                needs = ["sklearn"] if kind == "tasks" and plain != shown else []
                pages[f"{kind}/{name}"] = {"answer": shown, "needs": needs}
    return pages


def page(kind: str, name: str, without: str = "") -> list[Any] | None:
    """The pages of an entry, as they are where a module is not installed."""
    present = [m for m in sys.modules if without and m.partition(".")[0] == without]
    saved = {module: sys.modules.pop(module) for module in present}
    absent: dict[str, Any] = {without: None} if without else {}
    sys.modules.update(absent)
    try:
        with answers.recorded() as record:
            pages = [page._asdict() for page in show.pages(kind, name)]
    finally:
        for module in absent:
            del sys.modules[module]
        sys.modules.update(saved)
    return pages if record.complete else None


def options_of_tasks(names: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The options of `train` for tasks, where the same help can be made of what is stated."""
    if missing():
        return
    for task in names:
        with contextlib.suppress(ValueError, SyntaxError, TypeError, LinrnnError):
            stated, real = stated_options(task)
            if printed(partial(print_options, stated), _WIDTH) == printed(real, _WIDTH):
                yield task, stated


def stated_options(task: str) -> tuple[dict[str, Any], Callable[[], Any]]:
    """The command line of a task in words that JSON has, and what prints its help."""
    start = starting_config(task, ["--help"])
    calls: list[Any] = []

    def keep(command: type, **settings: Any) -> Any:
        calls.append((command, settings))
        raise SystemExit

    with patch("tyro.cli", keep), contextlib.suppress(SystemExit):
        parse_train(["--help"], start)
    ((command, settings),) = calls
    stated = {key: settings[key] for key in ("prog", "description")} | {
        "fields": _as_text(_fields(command))
    }
    return stated, lambda: parse_train(["--help"], start)


def _fields(cls: type) -> list[dict[str, Any]]:
    """The fields of a dataclass and of those in it."""
    import tyro._docstrings as docs

    stated = []
    for field in dataclasses.fields(cls):
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        kind: Any = field.type
        if dataclasses.is_dataclass(kind):
            values = type(value)
            inner = _of_values(_fields(kind), value)  # type: ignore[arg-type]
            assert value is dataclasses.MISSING or values is kind
            doc = docs.get_callable_description(kind)  # type: ignore[arg-type]
            stated.append({"name": field.name, "doc": doc, "fields": inner})
            continue
        words = docs.get_field_docstring(cls, field.name, ())
        more: dict[str, Any] = {}
        if get_origin(kind) is Annotated:
            kind, *rest = get_args(kind)
            for one in rest:
                stating = {key: getattr(one, key) for key in SETTINGS} | {"flag": one.name}
                more |= {key: value for key, value in stating.items() if value is not None}
        default = None if value is dataclasses.MISSING else _literal(value)
        option = {"name": field.name, "kind": _kind(kind), "default": default, "help": words}
        stated.append(option | more | _of_tuple(kind))
    return stated


def _kind(kind: Any) -> str:
    """An annotation as it is written; a union by its name, of which tyro needs no typeguard."""
    if isinstance(kind, types.UnionType):
        return f"Union[{', '.join(map(_kind, get_args(kind)))}]"
    return inspect.formatannotation(kind).replace("NoneType", "None")


def _of_tuple(kind: Any) -> dict[str, str]:
    """Text of tyro about the values of a tuple."""
    if get_origin(kind) is not tuple:
        return {}
    first, *others = (_METAVARS.get(one, "") for one in get_args(kind))
    return {
        "metavar": f"[{first} [{first} ...]]"
        if ... in get_args(kind)
        else " ".join([first, *others])
    }


def _as_text(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fields whose tuples are texts: tyro looks at tuples by typeguard, whose import takes long."""
    for field in fields:
        if "fields" in field:
            _as_text(field["fields"])
        elif field["kind"].startswith("tuple[") and field["default"] is not None:
            field |= {"kind": "str", "default": "''"}
    return fields


def _of_values(fields: list[dict[str, Any]], value: Any) -> list[dict[str, Any]]:
    """Fields with the values of a dataclass as defaults."""
    if value is dataclasses.MISSING:
        return fields
    for field in fields:
        inner = getattr(value, field["name"])
        if "fields" in field:
            _of_values(field["fields"], inner)
        else:
            field["default"] = _literal(inner)
    return fields


def _literal(value: Any) -> str:
    text = repr(value)
    if not isinstance(value, Path):
        ast.literal_eval(text)
    return text


def printed(show_help: Callable[[], Any], width: str) -> str:
    """The help that a function prints in a terminal of a width."""
    text = io.StringIO()
    columns, to_text = patch.dict(os.environ, {"COLUMNS": width}), contextlib.redirect_stdout(text)
    with columns, to_text, contextlib.suppress(SystemExit):
        show_help()
    return text.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
