"""Python's numbers for NumPy's, which searches over settings pass."""

from typing import Any, TypeAlias

import numpy as np

Whole: TypeAlias = int | np.integer[Any]
Number: TypeAlias = float | np.floating[Any] | Whole


def plain(value: Any) -> Any:
    """The number, truth value or text that a scalar of NumPy is; anything else as it came.

    Settings meet grids of NumPy (``{"n_modes": np.array([20, 50])}``), and what is behind an
    estimator takes Python's numbers alone.

    Example:
        >>> plain(np.int64(20)), plain(np.float32(0.25)), plain("lru")
        (20, 0.25, 'lru')
    """
    if isinstance(value, np.floating):
        return float(value)  # `item` of a long double is one again
    return value.item() if isinstance(value, np.generic) else value
