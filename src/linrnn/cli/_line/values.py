"""The values that an option may take, as its source declares them: nothing is imported."""

import ast
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from linrnn.cli._line.names import canonical
from linrnn.cli._line.source import Declared
from linrnn.errors import ArgumentError


class Kind(NamedTuple):
    """One kind of value: a number, a word, one of some texts."""

    what: str
    """For messages."""
    takes: Callable[[str], bool]
    """Whether a text is one."""
    words: tuple[str, ...] = ()
    """All there are, where there are a few."""


class Values(NamedTuple):
    """How many values an option takes, and of which kinds each may be."""

    least: float
    most: float
    kinds: tuple[Kind, ...]

    @property
    def what(self) -> str:
        """The rule that a value must keep, for messages."""
        return " or ".join(kind.what for kind in self.kinds)

    def fits(self, text: str) -> bool:
        """Whether a text may be a value."""
        return not self.kinds or any(kind.takes(text) for kind in self.kinds)

    def meant(self, text: str) -> str:
        """A text, or the word that it is in another case or with ``-`` for ``_``.

        Example:
            >>> values_of(Declared("norm", "Literal['layer', 'rms'] | None", "None")).meant("RMS")
            'rms'
        """
        if self.fits(text):
            return text
        return canonical(text, (word for kind in self.kinds for word in kind.words))


ANY = Values(0, math.inf, ())
"""Values of an option without stated bounds."""


def _is(convert: Callable[[str], object], text: str) -> bool:
    try:
        convert(text)
    except ValueError:
        return False
    return True


_SWITCH = Values(0, 0, ())
_TEXT = Kind("a value", lambda _: True)
_SCALARS = {
    "int": Kind("an integer", partial(_is, int)),
    "float": Kind("a number", partial(_is, float)),
    "str": _TEXT,
    "Path": Kind("a path", lambda text: bool(text.strip())),
}


def values_of(declared: Declared | None) -> Values:
    """The values that an option takes.

    Example:
        >>> found = values_of(Declared("threads", "int | Literal['auto'] | None", "None"))
        >>> found.least, found.what, found.fits("auto"), found.fits("many")
        (1, 'an integer or auto or None', True, False)
    """
    if declared is None or not declared.annotation:
        return ANY
    if declared.annotation == "bool":
        return _SWITCH if declared.default is not None else ANY
    parts = _members(declared)
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
    parts = _members(declared) if declared.annotation else []
    return [str(value) for value in _literals(parts[0])] if len(parts) == 1 else []


def check_values(verb: str, flag: str, values: Values, texts: Sequence[str]) -> None:
    """Raise `ArgumentError` for values that an option cannot have.

    Args:
        verb: for messages.
        flag: of the option.
        values: that it takes.
        texts: what came.
    """
    for place, text in enumerate(texts):
        if not values.most:
            raise _no_value(verb, flag, text)
        if place < values.most and not values.fits(text):
            raise ArgumentError(f"{verb}: {flag} must be {values.what}, got {text!r:.80}.")
    if values.least <= len(texts) <= values.most:
        return
    if values.most == 1:
        rule = "one value" if texts else values.what
    else:
        rule = f"{values.most} values, each {values.what}"
    got = f"{' '.join(texts)!r:.80}" if texts else "nothing after it"
    hint = " Several names have commas between." if flag in ("--mixer", "--learner") else ""
    raise ArgumentError(f"{verb}: {flag} must be {rule}, got {got}.{hint if texts else ''}")


def _no_value(verb: str, flag: str, text: str) -> ArgumentError:
    section, _, name = flag.rpartition(".")
    off = "" if name.startswith("no-") else f" Turn it off with {section}.no-{name}."
    return ArgumentError(f"{verb}: {flag} must be given without a value, got {text!r:.80}.{off}")


def _members(declared: Declared) -> list[ast.expr]:
    """The members of the union that an annotation is; of another it is the only one."""
    members, left = list[ast.expr](), ast.parse(declared.annotation, mode="eval").body
    while isinstance(left, ast.BinOp) and isinstance(left.op, ast.BitOr):
        members.insert(0, left.right)
        left = left.left
    return [left, *members]


def _is_of(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) == name


def _literals(node: ast.expr) -> list[object]:
    if not _is_of(node, "Literal"):
        return []
    literals = ast.literal_eval(node.slice)  # type: ignore[attr-defined]
    return list(literals) if isinstance(literals, tuple) else [literals]


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
    return Kind(what, words.__contains__, tuple(words))


def _several(inside: ast.expr) -> Values:
    """The values of ``tuple[int, ...]`` or ``tuple[float, float]``."""
    parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    kinds = tuple(kind for part in parts for kind in _kinds(part))
    if isinstance(parts[-1], ast.Constant) and parts[-1].value is ...:
        return Values(0, math.inf, kinds)
    return Values(len(parts), len(parts), tuple(dict.fromkeys(kinds)))
