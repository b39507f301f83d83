"""The options that a constructor declares: names, types, defaults and descriptions.

A constructor and its docstring are the one place where an option stands. The command line, the
configuration of a run and that of a model of ``transformers`` are made of what is read here.
"""

import copy
import dataclasses
import inspect
import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, get_type_hints

PLACE = ("layer", "n_layers", "receives")

SET_BY_THE_STACK = ("d_model", *PLACE, "device", "dtype")
"""Arguments of a mixer that a stack gives it; all others are its options."""

SET_BY_THE_TASK = ("d_input", "d_output", "encoder", "documents")
"""Arguments of `SequenceModel` that follow from the data. All others but the mixer's are options of
a model: the command line, the configuration of a run and that of ``transformers`` are made of
them."""

OF_THE_MODEL = (*(*SET_BY_THE_TASK, "mixer", "mixer_options", "block_options", "device", "dtype"),)
"""Arguments of `SequenceModel` that are none of its options."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Option(NamedTuple):
    """An argument of a constructor."""

    name: str
    hint: Any
    default: Any
    """``inspect.Parameter.empty`` where it must be given."""
    help: str


def declared(cls: type, leave_out: Collection[str] = ()) -> list[Option]:
    """The options of a class, in the order of its constructor.

    Args:
        cls: its docstring describes them under ``Args:``.
        leave_out: arguments that are no options.

    Example:
        >>> from linrnn.nn import GLU
        >>> [(o.name, o.hint) for o in declared(GLU, ("device", "dtype"))]
        [('d_model', <class 'int'>)]
    """
    hints: dict[str, Any] = get_type_hints(cls.__init__)  # type: ignore[misc]
    words = argument_docs(cls.__doc__ or "")
    options = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in leave_out or parameter.kind not in _NAMED:
            continue
        default = parameter.default
        has_value = default is not None and default is not parameter.empty
        hint = hints.get(name, type(default) if has_value else str)
        text = words.get(name, "").replace("``", "")
        options.append(Option(name, hint, default, text))
    return options


def dataclass_of(name: str, doc: str, options: Iterable[Option], *, frozen: bool = True) -> type:
    """A dataclass with a field for each option, whose docstring describes them.

    Example:
        >>> made = dataclass_of("Sizes", "Of a box.", [Option("height", int, 3, "In cm.")])
        >>> made(), made.__doc__.splitlines()[-1]
        (Sizes(height=3), '    height: In cm.')
    """
    options = list(options)
    fields = [(o.name, o.hint, _field(o.default)) for o in options]
    cls = dataclasses.make_dataclass(name, fields, frozen=frozen, kw_only=True)
    cls.__doc__ = "\n".join([doc, "", "Args:", *(f"    {o.name}: {o.help}" for o in options)])
    return cls


def argument_docs(docstring: str) -> dict[str, str]:
    """The text on each argument in the ``Args:`` section of a docstring.

    Example:
        >>> argument_docs('''One line.
        ...
        ...     Args:
        ...         a, b: first
        ...             line.
        ...         c: last.
        ...
        ...     Raises:
        ...         Nothing.
        ... ''')
        {'a': 'First line.', 'b': 'First line.', 'c': 'Last.'}
    """
    section = re.search(r"\n *Args:\n(.*?)(?:\n *\n|\Z)", inspect.cleandoc(docstring), re.DOTALL)
    entries = re.split(r"\n(?=    \w)", "\n" + section[1]) if section else []
    doc_of: dict[str, str] = {}
    for entry in filter(str.strip, entries):
        names, _, text = entry.partition(":")
        words = " ".join(text.split())
        doc_of |= {name.strip(): words[:1].upper() + words[1:] for name in names.split(",")}
    return doc_of


def _field(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return dataclasses.field()
    if isinstance(default, list | dict | set):
        return dataclasses.field(default_factory=lambda: copy.copy(default))
    return dataclasses.field(default=default)
