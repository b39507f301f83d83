"""The output of a verb: its answer, as text or as JSON, and remarks on the way.

The answer goes to standard output. Remarks do as well, so that they stand among the lines that they
are about, but with ``--json`` they go to standard error, and with ``-q`` nowhere.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from linrnn.cli._line.program import runnable
from linrnn.errors import printable


@dataclasses.dataclass
class Manner:
    """How the command that runs is to speak."""

    quiet: bool = False
    """Say the answer alone."""
    verbose: bool = False
    """Also where an error comes from."""
    json: bool = False
    """Answer as JSON."""


MANNER = Manner()
"""Settings of the running command; each command begins with the defaults."""


def begin() -> None:
    """Speak as commands do that say nothing of it."""
    for field in dataclasses.fields(Manner):
        setattr(MANNER, field.name, field.default)


def note(text: str) -> None:
    """A remark, or progress: whole lines."""
    text = printable(text, keep="\n\t")
    if not MANNER.quiet:
        write = sys.stderr if MANNER.json else sys.stdout
        write.write(runnable(text))
        write.flush()  # a log file is read while the command goes on


def row(text: str) -> None:
    """A part of the answer in words, as soon as it is there; nothing where JSON is wanted.

    A terminal gets what it may show; a file or a program gets what there is, for it may be data.
    """
    if sys.stdout.isatty():
        text = printable(text, keep="\n\t")
    if not MANNER.json:
        sys.stdout.write(text)
        sys.stdout.flush()


def write(text: bytes) -> None:
    """Lines of an answer that is written as it comes, for a terminal as `row` does."""
    if sys.stdout.isatty():
        text = printable(text.decode(errors="replace"), keep="\n\t").encode()
    sys.stdout.buffer.write(text)
    sys.stdout.flush()


def answer(value: "Callable[[], Any]") -> None:
    """The whole answer where JSON is wanted; else it was said by `row`, and nothing is computed."""
    if MANNER.json:
        sys.stdout.write(json_text(value()) + "\n")
        sys.stdout.flush()


def joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """One record of several, no two with a field of one name: the one would hide the other.

    Example:
        >>> joined({"file": "a.csv"}, {"rows": 2})
        {'file': 'a.csv', 'rows': 2}
    """
    record: dict[str, Any] = {}
    for part in parts:
        twice = record.keys() & part.keys()
        assert not twice, f"two parts of an answer have {', '.join(sorted(twice))}"
        record |= part
    return record


def json_text(value: Any, indent: int | None = 2) -> str:
    """A value as JSON: records by their fields, paths as texts.

    What JSON has no number for is a text: ``"inf"``, ``"-inf"`` or ``"nan"``.

    Example:
        >>> json_text({"a": (1, float("inf"))}, indent=None)
        '{"a": [1, "inf"]}'
    """
    text = json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)
    if text.isascii() and "\x7f" not in text:
        return text  # whose other control characters JSON has written out
    return "".join(c if printable(c, keep="\n") == c else json.dumps(c)[1:-1] for c in text)


def plain(value: Any) -> Any:
    """A value made of what JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        named = getattr(value, "_asdict", None)
        return plain(named()) if named else [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)
