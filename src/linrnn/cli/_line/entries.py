"""Entries of the catalogues, read from the source: only those of other packages are imported.

To import a mixer is to import PyTorch, and lists should be there at once.
"""

import ast
import importlib
from collections.abc import Callable
from typing import Any

from linrnn._options.catalogue import registered, stems, studied
from linrnn.cli._line.source import Class, constant, entry_class, file_of, functions, tree
from linrnn.errors import LinrnnError

#: Each catalogue and the base class of its entries; an entry without one is a function.
CATALOGUES = {
    "mixers": "Mixer",
    "tasks": "Task",
    "learners": "Learner",
    "recipes": None,
    "reproductions": "Reproduction",
}


def package_of(kind: str) -> str:
    """The package that holds a catalogue; all but one are named as what they hold."""
    return f"linrnn.{'learn' if kind == 'learners' else kind}"


def summaries(kind: str) -> dict[str, str]:
    """Each name of a catalogue and its summary; of what cannot be used, why."""
    package = package_of(kind)
    summary_of = {name: _summary(kind, name) for name in stems(package)}
    for name in registered(package):
        summary_of[name] = _of_class(kind, name, lambda cls: _words(cls, kind), str)
    summary_of |= {name: row.text for name, row in studied(package).items()}
    return dict(sorted(summary_of.items()))


def families() -> dict[str, str]:
    """The family of each mixer that can be used."""
    return _stated("family")


def timed() -> list[str]:
    """The mixers that read the time between steps."""
    return [name for name, stated in _stated("timed").items() if stated == "True"]


def _stated(attribute: str) -> dict[str, str]:
    """The value of a class attribute for each usable mixer that states one."""
    package = "linrnn.mixers"
    text_of = {name: _said("mixers", name, attribute) for name in stems(package)}
    for name in registered(package):
        text_of[name] = _of_class(
            "mixers", name, lambda cls: str(getattr(cls, attribute)), lambda _: ""
        )
    return {name: text for name, text in sorted(text_of.items()) if text}


def _of_class(
    kind: str, name: str, read: Callable[[Any], str], otherwise: Callable[[LinrnnError], str]
) -> str:
    """Apply ``read`` to a registered class, or ``otherwise`` to the error of loading it."""
    try:
        return read(importlib.import_module(package_of(kind)).load(name))
    except LinrnnError as error:
        return otherwise(error)


def _words(cls: Any, kind: str) -> str:
    summary = getattr(cls, "summary", None) if kind == "tasks" else None
    return str(summary or (cls.__doc__ or "").strip().split("\n")[0])


def class_of(kind: str, name: str) -> Class | None:
    """The class of an entry of this package; None where there is none, as of a function."""
    path = file_of(package_of(kind), name)
    return entry_class(path, CATALOGUES[kind]) if path else None


def _summary(kind: str, name: str) -> str:
    """The entry's ``summary`` where it states one, else the first line of its docstring."""
    stated = _said(kind, name, "summary")
    if stated:
        return stated
    path = file_of(package_of(kind), name)
    assert path
    cls = class_of(kind, name)
    function = next((f for f in functions(path).values() if not f.name.startswith("_")), None)
    return (ast.get_docstring((cls.node if cls else function) or tree(path)) or "").split("\n")[0]


def attribute_of(kind: str, name: str, attribute: str) -> ast.expr | None:
    """The value of an attribute in the class of an entry or its nearest base that sets it."""
    cls = class_of(kind, name)
    return constant(cls, attribute) if cls else None


def scales_of(reproduction: str) -> list[str]:
    """The scales of a reproduction, in their order; none where its source does not tell."""
    scales = attribute_of("reproductions", reproduction, "scales")
    keys = scales.keys if isinstance(scales, ast.Dict) else []
    return [key.value for key in keys if isinstance(key, ast.Constant)]  # type: ignore[misc]


def properties() -> list[str]:
    """The properties of mixers, in the order in which they are tested; see `linrnn.testing`."""
    path = file_of("linrnn", "testing/_mixer_laws")  # to import the package would import PyTorch
    assert path
    for node in tree(path).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MIXER_PROPERTIES":
            assert isinstance(node.value, ast.DictComp)  # of the functions, by their names
            return [ast.unparse(one) for one in node.value.generators[0].iter.elts]  # type: ignore[attr-defined]
    raise AssertionError(path)


def _said(kind: str, name: str, attribute: str) -> str:
    """The same as text; empty if it is not set."""
    value = attribute_of(kind, name, attribute)
    return "" if value is None else str(ast.literal_eval(value))
