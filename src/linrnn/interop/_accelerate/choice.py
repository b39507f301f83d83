"""Which functions of a module or class are ours to replace, and by what."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from linrnn.interop._accelerate.rebuild import layers, names_of
from linrnn.interop._accelerate.table import FUNCTIONS, METHODS, Replacement
from linrnn.interop._accelerate.theirs import Theirs, stood_for

PACKAGE = "transformers.models."


class Choice(NamedTuple):
    """The replacement of a function, and its op; or None, and why the function stays."""

    ours: Callable[..., Any] | None
    label: str


def functions(space: Mapping[str, Any]) -> dict[str, Choice]:
    """For the globals of a module of transformers: what replaces which name."""
    if not str(space.get("__name__", "")).startswith(PACKAGE):
        return {}
    return {
        name: _choice(replacement, stood_for(space[name]))
        for name, replacement in FUNCTIONS.items()
        if callable(space.get(name))
    }


def methods(kind: type) -> Iterator[tuple[str, type, Choice]]:
    """Methods of a class that are replaced as a whole, with the class that defines them."""
    for (module, name, method), replacement in METHODS.items():
        for base in kind.__mro__:
            if (base.__module__, base.__name__) == (module, name):
                theirs = stood_for(inspect.getattr_static(base, method))
                yield method, base, _choice(replacement, theirs)


def callers(kind: type) -> Iterator[tuple[str, Any, dict[str, Choice]]]:
    """Methods of a class that call functions of ours to replace."""
    for name in dir(kind):
        method = stood_for(inspect.getattr_static(kind, name))
        names = names_of(method) & FUNCTIONS.keys()
        if names:
            choices = functions(layers(method)[-1].__globals__)
            yield name, method, {name: one for name, one in choices.items() if name in names}


@functools.cache  # the same function for every model: what torch.compile has compiled stays valid
def _choice(replacement: Replacement, function: Callable[..., Any]) -> Choice:
    theirs = Theirs(function)
    parameters = tuple(inspect.signature(theirs.plain).parameters)
    if parameters != replacement.parameters:
        return Choice(None, f"its arguments are others: {', '.join(parameters)}")
    return Choice(replacement.make(theirs), replacement.op)
