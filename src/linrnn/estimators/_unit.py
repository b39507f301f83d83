"""The units in which an estimator reads channels: numbers of any size become numbers around 1."""

import numpy as np

_FLAT = 1e-12  # of a spread: a channel that never moved


def place_and_unit(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the spread of each channel; of one that never moved its size.

    Args:
        X: (time, channels), NaN where a value is missing.

    Example:
        >>> place, unit = place_and_unit(np.array([[1e200, 5.0], [3e200, 5.0]]))
        >>> place.tolist(), unit.tolist()
        ([2e+200, 5.0], [1e+200, 4.0])
    """
    largest = np.nanmax(np.abs(X), 0)
    size = power_of_2(np.where(largest > 0, largest, 1.0))
    scaled = X / size  # or the squares of large and small numbers leave the range
    mean, spread = np.nanmean(scaled, 0), np.nanstd(scaled, 0)
    flat = spread <= _FLAT * np.nanmax(np.abs(scaled), 0)
    # the mean of equal numbers is off by a rounding error, which their size makes small
    return mean * size, np.where(flat, 1.0, spread) * size


def power_of_2(numbers: np.ndarray) -> np.ndarray:
    """The largest power of 2 up to each positive number: division by it rounds nothing.

    Example:
        >>> power_of_2(np.array([1.0, 7.0, 0.3])).tolist()
        [1.0, 4.0, 0.25]
    """
    powers: np.ndarray = np.ldexp(1.0, np.frexp(numbers)[1] - 1)
    return powers
