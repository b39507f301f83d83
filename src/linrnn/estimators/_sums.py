"""Rows of a ridge that come in parts: kept while they are few, summed when they are many."""

import numpy as np

from linrnn.estimators._bank import BankReadout, class_targets, temperature


class Sums:
    """Data of `RecurrentClassifier.partial_fit` so far.

    Rows are kept in single precision, as the bank gives them, until they outnumber the features.
    Then sums of products stand for them, of constant size, and the penalty stays.

    Args:
        classes: the labels, sorted.
    """

    def __init__(self, classes: np.ndarray) -> None:
        self.classes = classes
        self.count = 0
        self.features: list[np.ndarray] = []
        self.codes: list[np.ndarray] = []
        self.importance: list[np.ndarray] = []
        self.products: np.ndarray | None = None

    def add(self, features: np.ndarray, codes: np.ndarray, importance: np.ndarray) -> "Sums":
        """These and more rows; this one stays as it was.

        Args:
            features, codes, importance: (rows, features), (rows,), (rows,).
        """
        new = Sums(self.classes)
        new.count = self.count + len(codes)
        if self.products is None:
            new.features = [*self.features, features.astype(np.float32)]
            new.codes, new.importance = [*self.codes, codes], [*self.importance, importance]
        else:
            new.shift, new.products = self.shift, self.products.copy()
            new.plain = self.plain.copy()
            new._sum(features, codes, importance)
        return new

    def solve(self, readout: BankReadout) -> None:
        """Fit a read-out to all of them."""
        if self.products is None:
            features = np.concatenate(self.features).astype(np.float64)
            codes, importance = np.concatenate(self.codes), np.concatenate(self.importance)
            targets = class_targets(codes, np.arange(len(self.classes)))
            even = np.ptp(importance) == 0
            weights = None if even else importance / importance.mean()
            rows = None if len(features) <= features.shape[1] else features.copy()
            readout.solve(features, targets, weights)
            readout.temperature = temperature(readout.left_out, targets, weights)
            if rows is None:
                return
            self.shift = rows.mean(0)
            width = rows.shape[1] + targets.shape[1] + 1
            self.products, self.plain = np.zeros((width, width)), np.zeros((2, rows.shape[1]))
            self._sum(rows, codes, importance)
            self.features, self.codes, self.importance = [], [], []
            return
        self._solve_sums(readout, self.products)

    def _sum(self, features: np.ndarray, codes: np.ndarray, importance: np.ndarray) -> None:
        assert self.products is not None
        targets = class_targets(codes, np.arange(len(self.classes)))
        away = features - self.shift
        self.plain += np.stack([away.sum(0), np.square(away).sum(0)])
        rows = np.concatenate([away, targets, np.ones((len(codes), 1))], 1)
        self.products += (rows * importance[:, None]).T @ rows

    def _solve_sums(self, readout: BankReadout, products: np.ndarray) -> None:
        n = len(self.shift)
        total = products[-1, -1]
        mean = products[-1, :-1] / total
        centred = products[:-1, :-1] - total * np.outer(mean, mean)
        # importance is 1 in the mean
        centred *= self.count / total
        middle, squares = self.plain / self.count
        variance = squares - middle**2
        smallest = np.finfo(np.float32).eps ** 2
        constant = variance <= smallest * (squares + (middle + self.shift) ** 2)
        scale = np.where(constant, np.inf, np.sqrt(variance.clip(np.finfo(float).tiny)))
        ends = np.arange(n) >= n - readout.n_modes
        factor = np.where(ends, readout.end_weight, 1.0) / scale
        square = factor[:, None] * centred[:n, :n] * factor
        square[np.diag_indices(n)] += readout.penalty
        along = factor[:, None] * centred[:n, n:]
        readout.centre, readout.intercept = mean[:n] + self.shift, mean[n:]
        readout.coefficients = factor[:, None] * np.linalg.solve(square, along)
