"""Help texts of options: each says its default once, and what an empty default stands for."""

import dataclasses
import re
from typing import Annotated, Any, get_origin

UNSET = (None, "", ())
"""Defaults that stand for another value, which the description names after ``Default:``."""
_STATED = re.compile(r"\s*\bDefault: (.+?)\.(?=\s+[A-Z]|\s*$)", re.DOTALL)
_NEEDED = "(required)"


def described(cls: type, values: Any) -> type:
    """A dataclass like ``cls`` whose options tyro describes with their defaults in words.

    Args:
        cls: a dataclass; fields that are dataclasses too are described in turn.
        values: an instance of it, the source of the defaults; ``dataclasses.MISSING`` for those
            of the fields.
    """
    import tyro
    import tyro._docstrings as docs

    fields = []
    for field in dataclasses.fields(cls):
        default, kind = _default(field, values), field.type
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            kind = described(kind, default)
            if default is not dataclasses.MISSING:
                default = _converted(kind, default)
        elif get_origin(kind) is not Annotated:
            text = docs.get_field_docstring(cls, field.name, ()) or ""
            help_text, hint = in_words(text, default)
            kind = Annotated[kind, tyro.conf.arg(help=help_text, help_behavior_hint=hint)]
        settings = {} if default is dataclasses.MISSING else {"default": default}
        fields.append((field.name, kind, dataclasses.field(**settings)))
    like = dataclasses.make_dataclass(cls.__name__, fields, frozen=True, kw_only=True)
    like.__doc__ = docs.get_callable_description(cls)
    return like


def values_of(options: Any) -> dict[str, Any]:
    """The values of a dataclass by name, those of dataclasses in it as dicts.

    Unlike ``dataclasses.asdict`` it copies no value.
    """
    return {
        field.name: values_of(value) if dataclasses.is_dataclass(value) else value
        for field in dataclasses.fields(options)
        for value in [getattr(options, field.name)]
    }


def in_words(text: str, default: Any) -> tuple[str, str | None]:
    """A description without its sentence on the default, and the note that replaces it.

    Args:
        text: the description, which may say ``Default: ...``.
        default: the value of the option if the command line names none.

    Example:
        >>> in_words("Channels of the state. Default: d_model.", None)
        ('Channels of the state.', '(default: d_model)')
        >>> in_words("Channels of the state. Default: d_model.", 64)
        ('Channels of the state.', '(default: 64; None: d_model)')
        >>> in_words("Probability of dropping a channel.", 0.1)
        ('Probability of dropping a channel.', '(default: 0.1)')
    """
    if default is dataclasses.MISSING:
        return text, None
    match = _STATED.search(text)
    unset = any(default is value or default == value for value in UNSET)
    if match is None:
        return text, f"(default: {_shown(default)})"
    text = f"{text[: match.start()]}{text[match.end() :]}".strip()
    words = " ".join(match[1].split())
    if unset:
        return text, _NEEDED if words == "required" else f"(default: {words})"
    return text, f"(default: {_shown(default)}; None: {words})"


def _default(field: Any, values: Any) -> Any:
    if values is not dataclasses.MISSING:
        return getattr(values, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _converted(kind: type, values: Any) -> Any:
    """An instance of another dataclass with the same fields."""
    settings = {}
    for field in dataclasses.fields(kind):
        value = getattr(values, field.name)
        inner = field.type
        is_group = dataclasses.is_dataclass(value) and isinstance(inner, type)
        settings[field.name] = _converted(inner, value) if is_group else value  # type: ignore[arg-type]
    return kind(**settings)


def _shown(value: Any) -> str:
    """A default as one types it."""
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or "none"
    return str(value)
