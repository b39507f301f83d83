"""A ridge regression; leave-one-out error chooses its penalty and the weight of some features."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


class Ridge(NamedTuple):
    """A regression with an intercept, which is not penalised."""

    coefficients: np.ndarray
    """(features, targets)."""
    intercept: np.ndarray
    """(targets,)."""
    penalty: float
    weight: float
    """Factor of the last features, which multiplies them before they are penalised."""
    left_out: np.ndarray
    """(rows, targets): the predictions for each row by the other rows."""


def choose_ridge(
    x: np.ndarray,
    y: np.ndarray,
    penalties: Sequence[float],
    weights: Sequence[float] = (1.0,),
    last: int = 0,
    importance: np.ndarray | None = None,
) -> Ridge:
    """Fit the ridge with the smallest mean squared leave-one-out error.

    The squares of the features are summed once for all penalties and weights: those of rows, or
    those of features if these are fewer.

    Args:
        x: (rows, features), each column with mean 0, weighted by the importance.
        y: (rows, targets).
        penalties: to choose from.
        weights: of the last features, to choose from.
        last: how many these are.
        importance: (rows,), above 0: what the squared error of each row counts; None is 1.

    Example:
        >>> x = np.linspace(-1, 1, 9)[:, None]
        >>> ridge = choose_ridge(x, 3 * x + 2, [1e-6, 1.0])
        >>> ridge.penalty, (x @ ridge.coefficients + ridge.intercept - 3 * x).mean().round(4).item()
        (1e-06, 2.0)
    """
    root = np.ones(len(x)) if importance is None else np.sqrt(importance)
    intercept = y.mean(0) if importance is None else np.average(y, 0, importance)
    kind = _OfRows if len(x) <= x.shape[1] else _OfColumns
    if importance is not None:
        x = x * root[:, None]
    squares: _Squares = kind(x, (y - intercept) * root[:, None], last, root)
    best, best_error = (0.0, 0.0), np.inf
    residuals = np.zeros_like(y)
    for weight in weights:
        squares.decompose(weight)
        for penalty in penalties:
            candidate = squares.residuals(penalty)
            error = float(np.square(candidate).mean())
            if error < best_error:
                best, best_error, residuals = (weight, penalty), error, candidate
    weight, penalty = best
    squares.decompose(weight)
    left_out = y - residuals / root[:, None]
    return Ridge(squares.solve(penalty), intercept, penalty, weight, left_out)


def ridges(x: np.ndarray, y: np.ndarray, penalties: Sequence[float]) -> np.ndarray:
    """Coefficients (penalties, features, targets) of a ridge for each penalty.

    Args:
        x: (rows, features), each column with mean 0.
        y: (rows, targets), the same.
        penalties: in any order.
    """
    kind = _OfRows if len(x) <= x.shape[1] else _OfColumns
    squares: _Squares = kind(x, y, 0, np.ones(len(x)))
    squares.decompose(1.0)
    return np.stack([squares.solve(penalty) for penalty in penalties])


class _Squares(Protocol):
    """Sums of products of the features, to be decomposed for a weight of the last ones."""

    def decompose(self, weight: float) -> None: ...

    def residuals(self, penalty: float) -> np.ndarray:
        """Errors of leave-one-out predictions, (rows, targets)."""
        ...

    def solve(self, penalty: float) -> np.ndarray:
        """The coefficients of features without a weight, (features, targets)."""
        ...


def _weighted(n: int, last: int, weight: float) -> np.ndarray:
    weights = np.ones(n)
    weights[n - last :] = weight
    return weights


class _OfRows:
    """Products of rows, of which there are no more than features."""

    def __init__(self, x: np.ndarray, y: np.ndarray, last: int, root: np.ndarray) -> None:
        self.x, self.y, self.last, self.weight = x, y, last, np.nan
        self.root = root
        first, last_features = x[:, : x.shape[1] - last], x[:, x.shape[1] - last :]
        self.first, self.rest = first @ first.T, last_features @ last_features.T  # (rows, rows)

    def decompose(self, weight: float) -> None:
        if weight == self.weight:
            return
        products = self.first + weight**2 * self.rest
        # what is constant is taken out of the residuals. Features are blind to it, as to much else
        # if they are few, and only this makes it the last of the vectors
        constant = (np.trace(products) + 1) / (self.root @ self.root)
        products += constant * np.outer(self.root, self.root)
        self.values, self.vectors = np.linalg.eigh(products)
        self.values, self.weight = self.values.clip(0), weight
        self.squares, self.along = self.vectors**2, self.vectors.T @ self.y

    def residuals(self, penalty: float) -> np.ndarray:
        inverse = self._inverse(penalty)
        scale = self.squares @ inverse
        residuals: np.ndarray = self.vectors @ (inverse[:, None] * self.along) / scale[:, None]
        return residuals

    def solve(self, penalty: float) -> np.ndarray:
        dual = self.vectors @ (self._inverse(penalty)[:, None] * self.along)  # (rows, targets)
        weights = _weighted(self.x.shape[1], self.last, self.weight)
        coefficients: np.ndarray = weights[:, None] ** 2 * (self.x.T @ dual)
        return coefficients

    def _inverse(self, penalty: float) -> np.ndarray:
        inverse = 1 / (self.values + penalty)
        inverse[-1] = 0
        return inverse


class _OfColumns:
    """Products of features, of which there are fewer than rows."""

    def __init__(self, x: np.ndarray, y: np.ndarray, last: int, root: np.ndarray) -> None:
        self.x, self.y, self.last, self.weight = x, y, last, np.nan
        self.share = root**2 / (root @ root)  # of the intercept that is each row's own
        self.products, self.targets = x.T @ x, x.T @ y  # (features, features), (features, targets)

    def decompose(self, weight: float) -> None:
        if weight == self.weight:
            return
        weights = _weighted(self.x.shape[1], self.last, weight)
        values, vectors = np.linalg.eigh(weights[:, None] * self.products * weights)
        self.values, self.weight = values.clip(0), weight
        self.vectors = weights[:, None] * vectors
        self.parts, self.along = self.x @ self.vectors, self.vectors.T @ self.targets
        self.squares = self.parts**2  # (rows, features)

    def residuals(self, penalty: float) -> np.ndarray:
        inverse = 1 / (self.values + penalty)
        errors = self.y - self.parts @ (inverse[:, None] * self.along)
        residuals: np.ndarray = errors / (1 - self.share - self.squares @ inverse)[:, None]
        return residuals

    def solve(self, penalty: float) -> np.ndarray:
        inverse = 1 / (self.values + penalty)
        coefficients: np.ndarray = self.vectors @ (inverse[:, None] * self.along)
        return coefficients
