"""Series by a frozen bank of modes, and a ridge regression that reads them out."""

import numpy as np
import torch

from linrnn._process.memory import check_fits
from linrnn.estimators._ridge import choose_ridge
from linrnn.estimators._series import Series
from linrnn.nn.gaps import centre_and_spread, unit
from linrnn.nn.mode_bank import STATISTICS, ModeBank

PENALTIES = np.logspace(-3, 3, 10).tolist()
END_WEIGHTS = (0.0, 1.0, 3.0)
"""Features of where the waves end: the last values of a series, not how often."""
_ROWS = 128  # series whose features are held at once when they are read out
_TEMPERATURES = np.logspace(-2, 1, 121)
_DOUBT = 0.5  # rows that a temperature takes to be of another class, beside those that came


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
        self.temperature = 1.0
        self.unit: np.ndarray | None = None  # of numbers; classes have none
        self.left_out: np.ndarray

    def classify(
        self, series: Series, y: np.ndarray, importance: np.ndarray | None = None
    ) -> "BankReadout":
        """Fit to class labels."""
        targets = class_targets(y, np.unique(y))
        self._fit(series, targets, importance)
        self.temperature = temperature(self.left_out, targets, importance)
        return self

    def regress(
        self, series: Series, y: np.ndarray, importance: np.ndarray | None = None
    ) -> "BankReadout":
        """Fit to numbers, (series,) or (series, targets)."""
        self.flat, numbers = (
            y.ndim == 1,
            torch.tensor(y.copy(), dtype=torch.float64, device="cpu").reshape(len(y), -1),
        )
        # one penalty is for all targets, so their errors count in units of their spread
        self.unit = (unit(numbers) if self.flat else centre_and_spread(numbers[None])[1]).numpy()
        self._fit(series, numbers.numpy() / self.unit, importance)
        self.left_out = self.left_out * self.unit
        return self

    def decide(self, series: Series) -> np.ndarray:
        """A score for each class, or one number for two; positive is the second."""
        scores = self._read(series)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, series: Series) -> np.ndarray:
        """The numbers."""
        assert self.unit is not None
        numbers: np.ndarray = self._read(series) * self.unit
        return numbers[:, 0] if self.flat else numbers

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities of the classes, from their scores."""
        return softmax(scores, self.temperature)

    def linear(self) -> tuple[np.ndarray, np.ndarray]:
        """The read-out as a map of the bank's features: weight (outputs, features) and bias.

        Of classes the outputs are scores, whose softmax gives the probabilities; else the number.
        """
        weight = np.ascontiguousarray(self.coefficients.T)  # (outputs, features)
        bias = self.intercept - weight @ self.centre
        if self.unit is not None:
            return weight * self.unit[:, None], bias * self.unit
        if len(weight) == 1:  # of two classes the first has a score of 0
            weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
        return weight / self.temperature, bias / self.temperature

    def _fit(
        self, series: Series, targets: np.ndarray, importance: np.ndarray | None = None
    ) -> None:
        """Fit bank and ridge."""
        self._check_size(len(series.x))
        self.calibrate(series)
        self.solve(self.describe(series), targets, importance)

    def describe(self, series: Series) -> np.ndarray:
        """The features of series, (rows, features)."""
        features: np.ndarray = self.bank(series.x, series.dt).double().numpy()
        return features

    def solve(
        self, features: np.ndarray, targets: np.ndarray, importance: np.ndarray | None = None
    ) -> None:
        """Fit the ridge to features, which are overwritten, and targets (rows, targets).

        Args:
            features, targets: of the series.
            importance: (rows,), above 0 and 1 in the mean; None is 1.
        """
        self.centre, scale = standardise(features, importance)
        assert STATISTICS[-1] == "end"
        ridge = choose_ridge(features, targets, PENALTIES, END_WEIGHTS, self.n_modes, importance)
        self.penalty, self.end_weight = ridge.penalty, ridge.weight
        self.coefficients = ridge.coefficients / scale[:, None]
        self.intercept = ridge.intercept
        self.left_out = ridge.left_out

    def calibrate(self, series: Series) -> None:
        """Draw the bank, and take its thresholds from series."""
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

    def _check_size(self, rows: int) -> None:
        """The features in both precisions and by the vectors of their products; and these."""
        features = len(STATISTICS) * self.n_modes
        needed = 32 * rows * features + 56 * min(rows, features) ** 2
        check_fits("n_modes", "the features of all series", needed, "Lower n_modes.")

    def _read(self, series: Series) -> np.ndarray:
        """(rows, targets)."""
        results = []
        for k in range(0, max(1, len(series.x)), _ROWS):
            rows = slice(k, k + _ROWS)
            dt = None if series.dt is None else series.dt[rows]
            features = self.bank(series.x[rows], dt).double().numpy()
            features -= self.centre
            results.append(features @ self.coefficients + self.intercept)
        return np.concatenate(results)


def class_targets(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """1 for the class of each row and -1 for the others; of two classes the second, (rows, 1)."""
    targets = np.where(y[:, None] == classes, 1.0, -1.0)  # (rows, classes)
    return targets[:, 1:] if len(classes) == 2 else targets


def standardise(
    x: np.ndarray, importance: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Give each column of x (rows, n) mean 0 and variance 1, in place; return what was taken out.

    The mean is weighted by the importance of the rows, if there is one. The variance is not: what
    is constant in all rows that count for much may still tell them from the others.
    A column is constant if its variance is no more than rounding leaves of one; its scale is 1.

    Returns:
        The means and the scales, (n,) each.
    """
    mean = x.mean(0)
    x -= mean
    variance = np.einsum("ij,ij->j", x, x) / len(x)
    smallest = len(x) * np.finfo(x.dtype).eps
    constant = variance <= smallest * variance + (smallest * mean) ** 2
    scale = np.where(constant, 1.0, np.sqrt(variance))
    if importance is not None:
        shift = np.average(x, 0, importance)
        x -= shift
        mean = mean + shift
    x /= scale
    return mean, scale


def temperature(
    scores: np.ndarray, targets: np.ndarray, importance: np.ndarray | None = None
) -> float:
    """The temperature of the scores whose probabilities have the smallest loss.

    Half a row more counts, on any other class, so no finite number of rows makes anything certain:
    without it, rows that are all right would ask for the smallest temperature.

    Args:
        scores, targets: of rows that the scores were not fitted to; see `class_targets`.
        importance: (rows,), what each counts; None is the same.
    """
    scores = scores[:, 0] if scores.shape[1] == 1 else scores
    right = (targets[:, 0] > 0).astype(int) if targets.shape[1] == 1 else targets.argmax(1)
    weight = np.ones(len(right)) if importance is None else importance
    rows = weight.sum() ** 2 / np.square(weight).sum()  # as many that count the same
    wrong = _DOUBT / (rows + 2 * _DOUBT)
    losses = []
    for candidate in _TEMPERATURES:
        logs = np.log(softmax(scores, candidate).clip(1e-300))
        chosen = logs[np.arange(len(right)), right]
        rival_logs = (logs.sum(1) - chosen) / (logs.shape[1] - 1)
        losses.append(-np.average((1 - wrong) * chosen + wrong * rival_logs, weights=weight))
    return float(_TEMPERATURES[int(np.argmin(losses))])


def softmax(scores: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Probabilities (rows, classes); of one score a row, those of two classes."""
    if scores.ndim == 1:
        scores = np.stack([np.zeros_like(scores), scores], 1)
    powers = np.exp((scores - scores.max(1, keepdims=True)) / temperature)
    probabilities: np.ndarray = powers / powers.sum(1, keepdims=True)
    return probabilities
