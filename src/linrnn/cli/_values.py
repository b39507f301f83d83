"""What the values of an option may be, as its source declares them: nothing is imported."""

import ast
import math
from collections.abc import Callable
from typing import NamedTuple

from linrnn.cli._source import Declared
from linrnn.errors import ArgumentError


class Kind(NamedTuple):
    """One kind of value: a number, a word, one of some texts."""

    what: str
    """For messages; empty for any text."""
    convert: Callable[[str], object]
    """Raises ValueError for a text that is none."""


class Values(NamedTuple):
    """How many values an option takes, and of which kinds each may be."""

    least: float
    most: float
    kinds: tuple[Kind, ...]

    @property
    def what(self) -> str:
        """What a value must be, for messages."""
        return " or ".join(kind.what for kind in self.kinds if kind.what) or "a value"

    def fits(self, text: str) -> bool:
        """Whether a text may be a value."""
        return not self.kinds or any(_converts(kind, text) for kind in self.kinds)


ANY = Values(0, math.inf, ())
"""Of an option of which the source does not say enough."""

_SWITCH = Values(0, 0, ())
_TEXT = Kind("", str)
_SCALARS = {
    "int": Kind("an integer", int),
    "float": Kind("a number", float),
    "str": _TEXT,
    "Path": _TEXT,
}


def values_of(declared: Declared | None) -> Values:
    """What an option takes.

    Example:
        >>> found = values_of(Declared("threads", "int | Literal['auto'] | None", "None"))
        >>> found.least, found.what, found.fits("auto"), found.fits("many")
        (1, 'an integer or auto or None', True, False)
    """
    if declared is None or not declared.annotation:
        return ANY
    if declared.annotation == "bool":
        return _SWITCH if declared.default is not None else ANY
    try:
        parts = _members(ast.parse(declared.annotation, mode="eval").body)
    except SyntaxError:
        return ANY
    if len(parts) == 1 and _is_of(parts[0], "tuple"):
        return _several(parts[0].slice)  # type: ignore[attr-defined]
    kinds = [kind for part in parts for kind in _kinds(part)]
    return Values(1, 1, tuple(kinds)) if all(map(_kinds, parts)) else ANY


def choices(declared: Declared) -> list[str]:
    """The texts that an option takes, where it takes a few; else none.

    Example:
        >>> choices(Declared("order", "Literal['shuffled', 'contiguous']", None))
        ['shuffled', 'contiguous']
    """
    try:
        node = ast.parse(declared.annotation or "None", mode="eval").body
    except SyntaxError:
        return []
    return [str(value) for value in _literals(node)]


def check_value(verb: str, flag: str, values: Values, text: str) -> None:
    """Raise `ArgumentError` for a value of an option that cannot be meant."""
    if not values.most:
        name = flag.rpartition(".")[2]
        off = "" if name.startswith("no-") else f" --{flag[2:].removesuffix(name)}no-{name}"
        raise ArgumentError(
            f"{verb}: {flag} must be given without a value, got {text!r:.80}."
            + (f" Turn it off with{off}." if off else "")
        )
    if not values.fits(text):
        raise ArgumentError(f"{verb}: {flag} must be {values.what}, got {text!r:.80}.")


def check_count(verb: str, flag: str, values: Values, given: list[str]) -> None:
    """Raise `ArgumentError` for too few or too many values of an option.

    Args:
        verb: for messages.
        flag: of the option.
        values: that it takes.
        given: what came.
    """
    if values.least <= len(given) <= values.most:
        return
    if values.most == 1:
        wanted = "one value" if given else values.what
    else:
        wanted = f"{values.most} values, each {values.what}"
    got = f"{' '.join(given)!r:.80}" if given else "nothing after it"
    hint = " Several names have commas between." if flag in ("--mixer", "--learner") else ""
    raise ArgumentError(f"{verb}: {flag} must be {wanted}, got {got}.{hint if given else ''}")


def _converts(kind: Kind, text: str) -> bool:
    try:
        kind.convert(text)
    except ValueError:
        return False
    return True


def _members(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_members(node.left), *_members(node.right)]
    return [node]


def _is_of(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) == name


def _literals(node: ast.expr) -> list[object]:
    if not _is_of(node, "Literal"):
        return []
    found = ast.literal_eval(node.slice)  # type: ignore[attr-defined]
    return list(found) if isinstance(found, tuple) else [found]


def _kinds(node: ast.expr) -> list[Kind]:
    """The kinds of one member of a union; none where it is not known."""
    words = [str(value) for value in _literals(node)]
    if words:
        return [_one_of(words)]
    if isinstance(node, ast.Constant) and node.value is None:
        return [_one_of(["None"])]
    scalar = _SCALARS.get(ast.unparse(node))
    return [] if scalar is None else [scalar]


def _one_of(words: list[str]) -> Kind:
    what = words[0] if len(words) == 1 else f"one of {', '.join(words)}"

    def convert(text: str) -> str:
        return words[words.index(text)]

    return Kind(what, convert)


def _several(inside: ast.expr) -> Values:
    """Of ``tuple[int, ...]`` or ``tuple[float, float]``."""
    parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    kinds = tuple(kind for part in parts for kind in _kinds(part))
    if isinstance(parts[-1], ast.Constant) and parts[-1].value is ...:
        return Values(0, math.inf, kinds)
    return Values(len(parts), len(parts), tuple(dict.fromkeys(kinds)))
