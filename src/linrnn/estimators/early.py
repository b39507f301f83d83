"""Answers before a series has ended: `RecurrentClassifier.predict_early` and `stream`."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError, ShapeError, show
from linrnn.estimators._bank import BankReadout, softmax, temperature
from linrnn.estimators._inputs import as_numbers, worded
from linrnn.estimators._series import Series
from linrnn.estimators._time_index import check_rising


class EarlyAnswers(NamedTuple):
    """Answers about each series, and when they came."""

    labels: np.ndarray
    """(series,), the classes."""
    confidence: np.ndarray
    """(series,), the probability of that class when it was answered."""
    steps: np.ndarray
    """(series,), how many steps had been read."""


class Answer(NamedTuple):
    """Answer about one series that goes on."""

    label: Any
    """The likeliest class now."""
    confidence: float
    """Its probability."""
    step: int
    """How many steps were read."""
    stop: bool
    """Whether the rule says, or has said before, that this is enough."""


class EarlyReadout:
    """A read-out for each of some lengths, over the bank of the whole series.

    Args:
        whole: the read-out of whole series.
        ends: after how many steps to answer, ascending.
    """

    def __init__(self, whole: BankReadout, ends: list[int]) -> None:
        self.whole, self.ends, self.bank = whole, ends, whole.bank
        self.parts: list[BankReadout] = []

    def fit(
        self, series: Series, targets: np.ndarray, importance: np.ndarray | None
    ) -> "EarlyReadout":
        """Fit the read-outs, and keep what each says of the series that it has not seen."""
        lengths, codes = series.lengths.numpy(), _codes(targets)
        n_classes = max(2, targets.shape[1])
        probabilities = np.zeros((len(self.ends) + 1, len(codes), n_classes))
        for k, features in enumerate(self._prefixes(series)):
            part = BankReadout(self.whole.n_modes, self.whole.seed)
            part.solve(features.double().numpy(), targets, importance)
            part.temperature = temperature(part.left_out, targets, importance)
            probabilities[k] = _probabilities(part, part.left_out)
            self.parts.append(part)
        probabilities[-1] = _probabilities(self.whole, self.whole.left_out)
        for k, end in enumerate(self.ends):  # a series that has ended is a whole one
            probabilities[k, lengths <= end] = probabilities[-1, lengths <= end]
        self.confidence = probabilities.max(2)  # (checkpoints, rows)
        self.right = probabilities.argmax(2) == codes
        self.last = np.searchsorted(self.ends, lengths)  # where each series is a whole one
        self.importance = importance
        return self

    def threshold(self, tolerance: float) -> float:
        """The smallest confidence that is enough.

        From there up, stopping loses at most ``tolerance`` of the accuracy that whole series have,
        both of read-outs without the series.
        """
        accuracy = np.average(self.right[-1], weights=self.importance)
        enough = math.inf
        for candidate in np.unique(self.confidence.clip(max=1.0))[::-1]:
            at = self.stops(self.confidence, self.last, candidate)
            right = self.right[at, np.arange(len(at))]
            if np.average(right, weights=self.importance) < accuracy - tolerance - 1e-12:
                break
            enough = float(candidate)
        return enough

    @staticmethod
    def stops(confidence: np.ndarray, last: np.ndarray, threshold: float) -> np.ndarray:
        """The first checkpoint of each series that is confident enough, or its last one."""
        enough = confidence >= threshold
        first = np.where(enough.any(0), enough.argmax(0), len(confidence) - 1)
        earlier: np.ndarray = np.minimum(first, last)
        return earlier

    def read(self, series: Series) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities (checkpoints + 1, rows, classes), and which is the last of each row."""
        full_length = _probabilities(self.whole, self.whole.decide(series))
        last = np.searchsorted(self.ends, series.lengths.numpy())
        parts = [
            np.where((last <= k)[:, None], full_length, self.of_features(features, k))
            for k, features in enumerate(self._prefixes(series))
        ]
        return np.stack([*parts, full_length]), last

    def of_features(self, features: Tensor, k: int) -> np.ndarray:
        """Probabilities (rows, classes) by the read-out of a checkpoint."""
        part = self.parts[k] if k < len(self.parts) else self.whole
        scores = (features.double().numpy() - part.centre) @ part.coefficients + part.intercept
        return _probabilities(part, scores)

    def _prefixes(self, series: Series) -> Any:
        """The features (rows, features) of what was read at each checkpoint."""
        state, start = self.bank.init_state(len(series.x)), 0
        for end in self.ends:
            steps = slice(start, min(end, series.x.shape[1]))
            if steps.start < steps.stop:
                dt = None if series.dt is None else series.dt[:, steps]
                state = self.bank.update(series.x[:, steps], state, dt)
            start = end
            yield self.bank.features(state)


class EarlyStream:
    """One series that is still going on, and what is known of it; memory is constant.

    `RecurrentClassifier.stream` makes it.

    Args:
        readout: of a fitted classifier.
        classes: its labels.
        threshold: the confidence that is enough.
        longest: after how many steps there is no more to wait for.
    """

    def __init__(
        self, readout: EarlyReadout, classes: np.ndarray, threshold: float, longest: int
    ) -> None:
        self._readout, self._classes = readout, classes
        self._threshold, self._longest = threshold, longest
        self._state, self._step, self._stopped = readout.bank.init_state(1), 0, False

    def update(self, values: Any, dt: Any = None) -> Answer:
        """Read on, and say what is known now.

        Args:
            values: the next step, a number or (channels,); or the next steps, (time, channels).
                NaN is a value that is missing.
            dt: the time since the step before, of each step; None is 1.

        Raises:
            ShapeError: other channels than the classifier was fitted to.
            ArgumentError: infinity.
        """
        where, channels = "EarlyStream.update", self._readout.bank.d_input
        with worded(where, "values"):
            x = np.array(as_numbers(where, "values", values), dtype=np.float64)
            check_rising(where, "values", values)
        x = x[None] if x.ndim == 1 and len(x) == channels else x.reshape(-1, 1) if x.ndim < 2 else x
        if x.ndim != 2 or x.shape[1] != channels:
            raise ShapeError(
                f"{where}: values must have shape ({channels},) or (time, {channels}), got "
                f"{np.shape(values)}."
            )
        with worded(where, "dt"):
            times = None if dt is None else np.broadcast_to(np.asarray(dt, float), (len(x),))
        for k in range(len(x)):
            step = None if times is None else torch.tensor(times[None, k : k + 1], device="cpu")
            one = torch.from_numpy(x[None, k : k + 1])
            self._state = self._readout.bank.update(one, self._state, step)
            self._step += 1
            if self._step in self._readout.ends or self._step >= self._longest:
                enough = self._now().max() >= self._threshold
                self._stopped |= bool(enough) or self._step >= self._longest
        sure = self._now()
        label = self._classes[int(sure.argmax())]
        return Answer(label, float(sure.max()), self._step, self._stopped)

    def _now(self) -> np.ndarray:
        """Probabilities (classes,) by the read-out of the last checkpoint, or of the first."""
        ends = self._readout.ends
        k = max(0, int(np.searchsorted(ends, self._step, side="right")) - 1)
        if self._step >= self._longest:
            k = len(ends)
        probabilities: np.ndarray = self._readout.of_features(
            self._readout.bank.features(self._state), k
        )[0]
        return probabilities


def checkpoints(where: str, early: Any, longest: int) -> list[int]:
    """Lengths to answer at, evenly spaced below the longest.

    Raises:
        ArgumentError: not an integer of at least 2 and at most ``longest``.
    """
    if isinstance(early, bool) or not isinstance(early, int) or early < 2:
        raise ArgumentError(
            f"{where}: early must be None or an integer of at least 2, how often to answer before "
            f"the end, got {show(early)}."
        )
    if early > longest:
        raise ArgumentError(
            f"{where}: early must be at most {longest}, the steps of the longest series, got "
            f"{show(early)}."
        )
    ends = np.linspace(0, longest, early + 1)[1:-1]
    return sorted({max(1, round(float(end))) for end in ends} - {longest})


def check_tolerance(where: str, tolerance: Any) -> float:
    """A share of accuracy, from 0 to 1.

    Raises:
        ArgumentError: any other.
    """
    share = tolerance.item() if isinstance(tolerance, np.generic) else tolerance
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise ArgumentError(
            f"{where}: tolerance must be a share of accuracy from 0 to 1, got {show(tolerance)}."
        )
    return float(share)


def _codes(targets: np.ndarray) -> np.ndarray:
    codes: np.ndarray = (
        (targets[:, 0] > 0).astype(int) if targets.shape[1] == 1 else targets.argmax(1)
    )
    return codes


def _probabilities(readout: BankReadout, scores: np.ndarray) -> np.ndarray:
    scores = scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores
    return softmax(scores, readout.temperature)
