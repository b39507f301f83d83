"""Fits that leave an estimator as it was, unless they come to their end."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

_Estimator = TypeVar("_Estimator")


@contextmanager
def whole(estimator: _Estimator) -> Iterator[_Estimator]:
    """A copy to be fitted, whose attributes the estimator takes at the end of the block.

    An exception, Ctrl-C too, leaves the estimator as it was.

    Example:
        >>> from types import SimpleNamespace
        >>> estimator = SimpleNamespace(mean=1.0)
        >>> with whole(estimator) as fitted:
        ...     fitted.mean = 2.0
        >>> estimator.mean
        2.0
    """
    fitted = copy.copy(estimator)
    yield fitted
    estimator.__dict__.clear()
    estimator.__dict__.update(vars(fitted))
