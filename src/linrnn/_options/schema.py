"""Plain values, as files and command lines give them, against the annotations they must have.

Everything that is read of a stranger's file passes here before it is used: configurations, results,
what a checkpoint counts, headers of states. The caller checks whether a number makes
sense in its place; here it is of its type, finite, and one that 64 bits hold.
"""

import dataclasses
import inspect
import json
import math
import types
from collections.abc import Collection, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from linrnn.errors import ArgumentError, ArgumentTypeError, UnknownNameError, check_in, show

T = TypeVar("T")

AnyFloat: TypeAlias = Annotated[float, "NaN and infinity too"]
"""A measured number, which may have turned out to be none. A plain ``float`` is finite."""


def check_type(where: str, name: str, hint: Any, value: object) -> None:
    """Raise `ArgumentError` unless a value is of an annotated type, where an int is a float.

    Integers are below 2^63 in size, numbers finite unless the annotation is `AnyFloat`, texts such
    that UTF-8 holds them; a bool is no number.

    Raises:
        UnknownNameError: a text that is none of those it may be.

    Example:
        >>> check_type("Config", "optim.betas", tuple[float, float], (0.9, 0.999))
    """
    if _fits(hint, value):
        return
    allowed = get_args(hint) if get_origin(hint) is Literal else ()
    if allowed and all(isinstance(word, str) for word in (*allowed, value)):
        check_in(where, name, value, allowed)
    raise ArgumentError(f"{where}: {name} must be {_rule(hint, value)}, got {show(value)}.")


def check_fields(where: str, record: Any, prefix: str = "") -> None:
    """`check_type` of every field of a dataclass."""
    for name, hint in get_type_hints(type(record), include_extras=True).items():
        check_type(where, prefix + name, hint, getattr(record, name))


def check_options(what: str, cls: type, options: Mapping[str, Any], *leave_out: str) -> None:
    """`check_type` of the options of a class that is constructed by name.

    Args:
        what: the class, for messages: ``mixer 'lru'``.
        cls: its constructor says which options there are.
        options: by name.
        leave_out: arguments that are no options.

    Raises:
        UnknownNameError: there is no such option.
        ArgumentError: one of another type than annotated.
    """
    names = set(inspect.signature(cls).parameters).difference(leave_out)
    hints = get_type_hints(cls.__init__) if options else {}  # type: ignore[misc]
    for option, value in options.items():
        if option not in names:
            raise UnknownNameError(f"option of {what}", option, names)
        check_type(what, option, hints.get(option, Any), value)


def record(
    where: str,
    cls: type[T],
    values: object,
    *,
    prefix: str = "",
    optional: Collection[str] | None = None,
    left_out: Collection[str] = (),
    more: bool = False,
) -> dict[str, Any]:
    """The fields of a dataclass out of a table of JSON, each of its type: ``cls(**fields)``.

    Args:
        where: who asks, for the message.
        cls: the dataclass.
        values: what was read: lists are tuples, whole numbers floats where ``cls`` says so.
        prefix: of the names, for the message.
        optional: fields that may be missing. Default: those with a default.
        left_out: fields that no table has.
        more: whether the table may have names that the class has not; they are not returned.

    Raises:
        ArgumentError: it is no table, a field is missing or of the wrong type.
        UnknownNameError: a name that is none of a field.
    """
    if not isinstance(values, Mapping):
        name = prefix.rstrip(".") or "the content"
        raise ArgumentError(f"{where}: {name} must be a table, got {show(values)}.")
    hints = get_type_hints(cls, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in left_out}  # type: ignore[arg-type]
    cast_values = {}
    for name, value in values.items():
        if name in fields:
            cast_values[name] = cast(hints[name], value)
            check_type(where, f"{prefix}{name}", hints[name], cast_values[name])
        elif not more:
            raise UnknownNameError("option", f"{prefix}{name}", [prefix + k for k in fields])
    if optional is None:
        optional = {name for name, field in fields.items() if _has_default(field)}
    missing = set(fields) - set(cast_values) - set(optional)
    if missing:
        raise ArgumentError(f"{where}: {prefix}{min(missing)} must be given, got nothing.")
    return cast_values


def plain_json(where: str, what: str, value: Mapping[str, Any]) -> str:
    """A dict as JSON from which the same dict is read, lists in place of its tuples.

    Raises:
        ArgumentTypeError: it holds something that JSON lacks, such as NaN or a key that is no text.
    """
    try:
        text = json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentTypeError(
            f"{where}: {what} must be a dict of plain values that JSON has, got {show(value)} "
            f"({error})."
        ) from error
    if not _texts_alone(value):
        raise ArgumentTypeError(
            f"{where}: {what} must have texts as keys of every dict, got {show(value)}."
        )
    return text


def _texts_alone(value: Any) -> bool:
    """Whether all keys of dicts in it are texts: JSON would make texts of others."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _texts_alone(part) for key, part in value.items())
    return all(map(_texts_alone, value)) if isinstance(value, (list, tuple)) else True


def cast(hint: Any, value: Any) -> Any:
    """A JSON value as the annotated type, if it can be: lists become tuples, integers floats.

    Example:
        >>> cast(tuple[float, float], [0, 0.5])
        (0.0, 0.5)
    """
    origin = get_origin(hint)
    if origin is Annotated:
        return cast(get_args(hint)[0], value)
    if origin is tuple and isinstance(value, list):
        return tuple(cast(kind, v) for kind, v in zip(_kinds(hint, value), value, strict=False))
    if hint is float and type(value) is int and _is_number(value):
        return float(value)
    return value


def _fits(hint: Any, value: object) -> bool:
    origin = get_origin(hint)
    if hint is Any or hint == AnyFloat:
        return hint is Any or isinstance(value, float) or _is_number(value)
    if origin is Annotated:
        return _fits(get_args(hint)[0], value)
    if origin is Literal:
        return any(type(value) is type(literal) and value == literal for literal in get_args(hint))
    if origin in (Union, types.UnionType):
        return any(_fits(part, value) for part in get_args(hint))
    if origin is tuple and isinstance(value, tuple):
        kinds = _kinds(hint, value)
        return len(kinds) == len(value) and all(map(_fits, kinds, value))
    if origin is dict and isinstance(value, dict):
        key, kind = get_args(hint)
        return all(_fits(key, k) and _fits(kind, v) for k, v in value.items())
    if hint is float:
        return _is_number(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) < value < 2**63
    if hint is str:
        return isinstance(value, str) and _is_text(value)
    return isinstance(value, origin or hint)


def _kinds(hint: Any, value: Collection[Any]) -> list[Any]:
    """The type of each part of a tuple."""
    kinds = [*get_args(hint)]
    return kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds


def _is_number(value: object) -> bool:
    """Whether a value is a finite number, or an integer that a float can stand for."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of more than 1024 bits
        return False


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, or a file name that is no UTF-8
        return False
    return True


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    no = dataclasses.MISSING
    return field.default is not no or field.default_factory is not no


def _rule(hint: Any, value: object) -> str:
    """The rule that a value breaks, in words."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _rule(get_args(hint)[0], value)
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if hint is int and type(value) is int:
        return "an int below 2^63 in size"
    if hint is float and type(value) in (int, float):
        return "a finite float"
    if hint is str and type(value) is str:
        return "text that UTF-8 can hold"
    if origin in (Union, types.UnionType):
        same = [part for part in get_args(hint) if part in (int, float, str)]
        if any(_rule(part, value) != _rule(part, None) for part in same):
            return " or ".join(_rule(part, value) for part in get_args(hint))
    return hint.__name__ if isinstance(hint, type) and origin is None else str(hint)
