"""Shares of several answers in one: a regression whose coefficients are a mean's."""

from itertools import combinations

import numpy as np


def shares_of(answers: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Shares (answers,) of least squares, none below 0 and at most 1 together.

    The rest of 1 is the share of an answer that is 0 everywhere. All sets of answers are tried, so
    there should be few.

    Args:
        answers: (answers, rows).
        target: (rows,).

    Reference:
        Breiman 1996, "Stacked regressions".

    Example:
        >>> shares_of(np.array([[1.0, 2.0], [0.0, 4.0]]), np.array([0.5, 2.0])).round(6).tolist()
        [0.5, 0.25]
    """
    products, cross = answers @ answers.T, answers @ target
    best, least = np.zeros(len(answers)), 0.0
    useful = np.flatnonzero(np.diag(products) > 0).tolist()
    for count in range(1, len(useful) + 1):
        for chosen in combinations(useful, count):
            inner, right = products[np.ix_(chosen, chosen)], cross[list(chosen)]
            free = np.linalg.lstsq(inner, right, rcond=1e-10)[0]
            if free.sum() > 1:  # the best on the border
                ones = np.linalg.lstsq(inner, np.ones(count), rcond=1e-10)[0]
                free = free + ones * (1 - free.sum()) / (ones.sum() or 1.0)
            if (free < 0).any() or free.sum() > 1 + 1e-9:
                continue
            error = float(free @ inner @ free - 2 * right @ free)
            if error < least - 1e-12:
                best, least = np.zeros(len(answers)), error
                best[list(chosen)] = free
    return best
