"""Constructors of estimators: wrong names of arguments are errors that suggest the right one."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from linrnn._options.call import check_names

_Init = TypeVar("_Init", bound=Callable[..., None])


def named_arguments(init: _Init) -> _Init:
    """A constructor that compares names and number of its arguments with its signature.

    Values are checked when the estimator is fitted, as scikit-learn wants it.

    Raises:
        UnknownArgumentError: a keyword that the signature lacks, with the nearest one.
        ArgumentTypeError: too many arguments by position.
    """
    signature = inspect.signature(init)
    parameters = dict(list(signature.parameters.items())[1:])

    @functools.wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError:
            check_names(type(self).__name__, parameters, args, kwargs)
            raise
        init(self, *args, **kwargs)

    return cast(_Init, call)
