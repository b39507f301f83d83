"""A method built anew over other globals: no source is copied, and nobody else's changes."""

from collections.abc import Callable, Mapping
from types import CellType, FunctionType
from typing import Any


def layers(function: object) -> list[FunctionType]:
    """A function and what it wraps, as `functools.wraps` says, the outermost first."""
    wrapped = []
    while isinstance(function, FunctionType):
        wrapped.append(function)
        function = getattr(function, "__wrapped__", None)
    return wrapped


def names_of(function: object) -> set[str]:
    """Names that a function, or what it wraps, looks up."""
    return {name for layer in layers(function) for name in layer.__code__.co_names}


def rebuilt(function: FunctionType, replaced: Mapping[str, Callable[..., Any]]) -> FunctionType:
    """The function over a copy of its globals, in which some names are others.

    A decorator's wrapper is built anew around what it wraps, so that it goes on doing what it did.
    """
    inner = getattr(function, "__wrapped__", None)
    closure = function.__closure__
    if isinstance(inner, FunctionType):
        new = rebuilt(inner, replaced)
        closure = tuple(
            CellType(new) if _content(cell) is inner else cell for cell in closure or ()
        )
    # without a __name__ torch.compile guards the dictionary, not the module of that name
    space = {x: y for x, y in function.__globals__.items() if x != "__name__"}
    space.update(replaced)
    copy = FunctionType(function.__code__, space, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = function.__annotations__
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    copy.__doc__ = function.__doc__
    copy.__dict__.update(function.__dict__)
    if isinstance(inner, FunctionType):
        copy.__wrapped__ = new  # type: ignore[attr-defined]
    return copy


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a cell that is empty yet
        return None
