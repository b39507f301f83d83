"""Series by a frozen bank of modes, and a ridge regression that reads them out."""

from typing import Any

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifierCV, RidgeCV
from sklearn.preprocessing import LabelBinarizer, StandardScaler

from linrnn._process.memory import check_fits
from linrnn.estimators._series import Series
from linrnn.nn.gaps import unit
from linrnn.nn.mode_bank import STATISTICS, ModeBank

ALPHAS = np.logspace(-3, 3, 10)
END_WEIGHTS = (0.0, 1.0, 3.0)
"""Of where the waves end: what a series says by its last values, and not by how often."""
_TEMPERATURES = np.logspace(-2, 1, 121)


class BankReadout:
    """A bank, the scale of its features, and a ridge that reads them.

    Leave-one-out error chooses its penalty, and the weight that ``end`` has beside the statistics
    of a whole series: none, theirs, or three times theirs.

    Args:
        n_modes: of the bank.
        seed: of its random numbers.

    Attributes:
        left_out: what the ridge without a series says of it, a row for each: scores of the classes
            (of two classes of the second), or the number.
    """

    def __init__(self, n_modes: int, seed: int) -> None:
        self.n_modes, self.seed = n_modes, seed
        self.scaler = StandardScaler()
        self.temperature = 1.0

    def classify(self, series: Series, y: np.ndarray) -> "BankReadout":
        """Fit to class labels."""
        features = self._fit(RidgeClassifierCV, self._prepare(series), y)
        targets = LabelBinarizer(neg_label=-1).fit_transform(y).astype(np.float64)
        self.left_out = leave_one_out(features, targets, self.ridge.alpha_)
        self.temperature = temperature(self.left_out, targets)
        return self

    def regress(self, series: Series, y: np.ndarray) -> "BankReadout":
        """Fit to numbers."""
        self.unit = float(unit(torch.tensor(y, dtype=torch.float64)[:, None]))
        targets = y / self.unit
        features = self._fit(RidgeCV, self._prepare(series), targets)
        left_out = leave_one_out(features, targets[:, None], self.ridge.alpha_)
        self.left_out = left_out * self.unit
        return self

    def decide(self, series: Series) -> np.ndarray:
        """A score for each class, or one number for two; positive is the second."""
        scores: np.ndarray = self.ridge.decision_function(self._read(series))
        return scores

    def predict(self, series: Series) -> np.ndarray:
        """The numbers."""
        numbers: np.ndarray = self.ridge.predict(self._read(series)) * self.unit
        return numbers

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Of the classes, from their scores."""
        return softmax(scores, self.temperature)

    def linear(self) -> tuple[np.ndarray, np.ndarray]:
        """The read-out as a map of the bank's features: weight (outputs, features) and bias.

        Of classes the outputs are scores, whose softmax gives the probabilities; else the number.
        """
        coefficients = np.atleast_2d(self.ridge.coef_)
        weight = self._weighted(coefficients, self.end_weight) / self.scaler.scale_
        bias = np.atleast_1d(self.ridge.intercept_) - weight @ self.scaler.mean_
        if isinstance(self.ridge, RidgeCV):
            return weight * self.unit, bias * self.unit
        if len(weight) == 1:  # of two classes the first has a score of 0
            weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
        return weight / self.temperature, bias / self.temperature

    def _fit(self, ridge: Any, features: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The features that the best of the weights leaves for its ridge."""
        fitted = {w: ridge(ALPHAS).fit(self._weighted(features, w), y) for w in END_WEIGHTS}
        self.end_weight = max(fitted, key=lambda w: fitted[w].best_score_)
        self.ridge: Any = fitted[self.end_weight]
        return self._weighted(features, self.end_weight)

    def _weighted(self, features: np.ndarray, weight: float) -> np.ndarray:
        by_statistic = features.reshape(len(features), len(STATISTICS), -1)  # (rows, statistics, n)
        weights = np.where(np.array(STATISTICS) == "end", weight, 1.0)
        weighted: np.ndarray = (by_statistic * weights[:, None]).reshape(features.shape)
        return weighted

    def _prepare(self, series: Series) -> np.ndarray:
        self._check_size(len(series.x))
        generator = torch.Generator().manual_seed(self.seed)
        length = float(series.lengths.max() if series.dt is None else series.dt.sum(1).max())
        self.bank = ModeBank(
            series.x.shape[2],
            self.n_modes,
            length=max(1, round(length)),
            generator=generator,
            dtype=torch.float32,
        )
        self.bank.calibrate(series.x, series.dt, generator=generator)
        scaled: np.ndarray = self.scaler.fit_transform(self._features(series))
        return scaled

    def _check_size(self, rows: int) -> None:
        """The features in both precisions, scaled, weighted and centred; and their products."""
        features = len(STATISTICS) * self.n_modes
        needed = 44 * rows * features + 16 * min(rows, features) ** 2
        check_fits("n_modes", "the features of all series", needed, "Lower n_modes.")

    def _read(self, series: Series) -> np.ndarray:
        features = self.scaler.transform(self._features(series))
        return self._weighted(features, self.end_weight)

    def _features(self, series: Series) -> np.ndarray:
        features: np.ndarray = self.bank(series.x, series.dt).double().numpy()
        return features


def leave_one_out(features: np.ndarray, targets: np.ndarray, alpha: float) -> np.ndarray:
    """Leave-one-out predictions of a ridge regression with an intercept.

    Args:
        features: (rows, n), each column with mean 0.
        targets: (rows, m).
        alpha: the penalty.
    """
    products = features @ features.T  # (rows, rows)
    # the intercept is not penalised: what is constant is taken out of the residuals. Features are
    # blind to it, as to much else if they are few, and only this makes it the last of the vectors
    values, vectors = np.linalg.eigh(products + (np.trace(products) + 1) / len(products))
    weights = 1 / (values.clip(0) + alpha)
    weights[-1] = 0
    residuals = vectors @ (weights[:, None] * (vectors.T @ targets))
    predictions: np.ndarray = targets - residuals / (vectors**2 @ weights)[:, None]
    return predictions


def temperature(scores: np.ndarray, targets: np.ndarray) -> float:
    """The temperature of the scores whose probabilities have the smallest loss."""
    scores = scores[:, 0] if scores.shape[1] == 1 else scores
    right = (targets[:, 0] > 0).astype(int) if targets.shape[1] == 1 else targets.argmax(1)
    losses = []
    for candidate in _TEMPERATURES:
        chosen = softmax(scores, candidate)[np.arange(len(right)), right]
        losses.append(-np.log(chosen.clip(1e-300)).mean())
    return float(_TEMPERATURES[int(np.argmin(losses))])


def softmax(scores: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Probabilities (rows, classes); of one score a row, those of two classes."""
    if scores.ndim == 1:
        scores = np.stack([np.zeros_like(scores), scores], 1)
    powers = np.exp((scores - scores.max(1, keepdims=True)) / temperature)
    probabilities: np.ndarray = powers / powers.sum(1, keepdims=True)
    return probabilities
