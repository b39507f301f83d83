"""The run-time check of annotations at half its price; imported before linrnn, as a side effect.

jaxtyping's import hook wraps every function, whatever its annotations say, in one that binds the
arguments to a signature, remembers the sizes of named axes, and checks the arguments a second time
beside the result. A function without axes is given to the type checker alone here. One with axes is
too, inside of a context in which jaxtyping remembers sizes: arguments and result are checked once,
by the same annotations. Axes that are computed from arguments, in braces, would need the signature.
What is defined inside a function is not checked, for it would be compiled again at every call.
"""

import functools
import types
import typing

import jaxtyping
from beartype.roar import BeartypeCallHintViolation

_jaxtyped = jaxtyping.jaxtyped
_remembered = _jaxtyped("context")


def jaxtyped(fn=None, *, typechecker):
    """`jaxtyping.jaxtyped`, or less where that finds the same."""

    def check(fn):
        if not isinstance(fn, types.FunctionType):
            return _jaxtyped(fn, typechecker=typechecker)
        if "<locals>" in fn.__qualname__:
            return fn
        hints = fn.__annotations__.values()
        classes = fn.__qualname__.split(".")[:-1]  # which are there when a method is called
        if any(_names_another(hint, classes) for hint in hints):
            return _jaxtyped(fn, typechecker=typechecker)
        checked = typechecker(fn)
        return _with_axes(checked) if any(map(_has_axes, hints)) else checked

    return check if fn is None else check(fn)


def _with_axes(checked):
    """The function with sizes of named axes that are the same in all annotations of one call."""

    @functools.wraps(checked)
    def call(*args, **kwargs):
        with _remembered:
            try:
                return checked(*args, **kwargs)
            except BeartypeCallHintViolation as error:
                if error.__traceback__.tb_next.tb_next:  # of a function that this one called
                    raise
                raise jaxtyping.TypeCheckError(str(error)) from error

    return call


def _names_another(hint, classes):
    """Whether a text in a hint is not one of these classes; jaxtyping reads those that it can."""
    if typing.get_origin(hint) is typing.Literal:
        return False
    if isinstance(hint, str):
        return hint not in classes
    return any(_names_another(part, classes) for part in typing.get_args(hint))


def _has_axes(hint):
    """Whether a hint names the axes of an array."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_axes, typing.get_args(hint)))


jaxtyping.jaxtyped = jaxtyped
