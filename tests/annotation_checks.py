"""The run-time check of annotations at half its price; imported before linrnn, as a side effect.

jaxtyping's import hook wraps every function, whatever its annotations say, in one that binds the
arguments to a signature and remembers the sizes of named axes. Only axes need that: a function
without them is given to the type checker alone. What is defined inside a function is not checked,
for it would be compiled again at every call.
"""

import types
import typing

import jaxtyping

_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(fn=None, *, typechecker):
    """`jaxtyping.jaxtyped`, or less where that finds the same."""

    def check(fn):
        if not isinstance(fn, types.FunctionType):
            return _jaxtyped(fn, typechecker=typechecker)
        if "<locals>" in fn.__qualname__:
            return fn
        if any(map(_has_axes, fn.__annotations__.values())):
            return _jaxtyped(fn, typechecker=typechecker)
        return typechecker(fn)

    return check if fn is None else check(fn)


def _has_axes(hint):
    """Whether a hint names the axes of an array; a text may."""
    if isinstance(hint, str):
        return True
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_axes, typing.get_args(hint)))


jaxtyping.jaxtyped = jaxtyped
