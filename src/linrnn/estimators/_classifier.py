"""`RecurrentClassifier`: which class a series belongs to."""

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from linrnn.errors import DataError
from linrnn.estimators._base import RecurrentEstimator
from linrnn.estimators._inputs import worded
from linrnn.estimators._series import Series


class RecurrentClassifier(ClassifierMixin, RecurrentEstimator):  # type: ignore[misc]
    r"""Classes of series, an estimator of scikit-learn.

    A frozen `linrnn.nn.ModeBank` describes each series by six statistics of each of its modes; a
    ridge regression of these, standardised, on -1 and 1 for each class gives the scores. Its
    penalty, and whether where the waves end counts for nothing, as the rest or three times as much,
    are those of the smallest leave-one-out error. Nothing is trained by gradients, unless
    ``mixer`` says so.

    Args:
        mixer: "bank"; the name of a mixer, or what else `linrnn.SequenceModel` takes, which is
            trained end to end and needs Lightning; or "auto", the better of "bank" and "lru" by
            cross-validation in three parts of the training series.
        n_modes: modes of the bank.
        mixer_options, d_model, n_layers: of the `linrnn.SequenceModel` around a trained mixer.
        max_steps: steps of AdamW, over which the learning rate rises and falls.
        batch_size: series in a step.
        learning_rate: the largest.
        early_stopping: hold a part of the training series out, keep the weights with the smallest
            loss there, and end where it did not get smaller for a while. Else the last weights.
        validation_fraction: that part, above 0 and below 1; at least one series is left to train.
        patience: for how many of 40 checks during ``max_steps``.
        layout: of arrays with three axes, "time_channels" for (series, time, channels),
            "channels_time" for (series, channels, time) as of aeon. None is "time_channels", and
            refuses series of more channels than steps, where the axes look exchanged.
        n_jobs: threads, at most 256 or eight times the processors; None is PyTorch's number, -1
            all processors.
        random_state: of all random numbers; an integer gives the same results again.
        verbose: show the progress of training.

    Attributes:
        classes_: the labels.
        n_features_in_: of a table its steps, else the channels.
        n_channels_in_: the channels.
        mixer_, scores_: what "auto" chose, and the scores by which.

    Example:
        >>> import numpy as np
        >>> t = np.arange(60)
        >>> waves = [np.sin(2 * np.pi * t / (8 + k % 2) + k) for k in range(40)]
        >>> y = np.array(["slow" if k % 2 else "fast" for k in range(40)])
        >>> model = RecurrentClassifier(n_modes=200, random_state=0).fit(waves[:20], y[:20])
        >>> model.score(waves[20:], y[20:])
        1.0

    Reference:
        See `linrnn.nn.ModeBank`; a ridge on random features of series is that of Dempster et al.,
        "ROCKET", 2020, arXiv:1910.13051.
    """

    def _fit(self, series: Series, y: np.ndarray, seed: int) -> None:
        with worded(type(self).__name__):
            check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                f"{type(self).__name__}: y must hold at least two classes, got 1 class: "
                f"{self.classes_[0]}."
            )
        super()._fit(series, codes, seed)

    def _fit_readout(self, one: Any, series: Series, y: np.ndarray) -> Any:
        return one.classify(series, y)

    def _score_readout(self, one: Any, series: Series, y: np.ndarray) -> float:
        return float((_codes(one.decide(series)) == y).mean())

    def decision_function(self, X: Any, dt: Any = None) -> np.ndarray:
        """A score for each class, (series, classes); of two classes one, (series,), of the second.

        Args:
            X, dt: see `fit`. If that had a table, a table must have as many steps.
        """
        series = self._read_new(X, dt)
        with self._threads():
            scores: np.ndarray = self.readout_.decide(series)
        return scores

    def predict_proba(self, X: Any, dt: Any = None) -> np.ndarray:
        """Probabilities (series, classes), in the order of ``classes_``.

        They are a softmax of the scores, divided by the number with which left-out training series
        have the smallest cross-entropy.

        Args:
            X, dt: see `decision_function`.
        """
        scores = self.decision_function(X, dt)
        probabilities: np.ndarray = self.readout_.probabilities(scores)
        return probabilities

    def predict(self, X: Any, dt: Any = None) -> np.ndarray:
        """The class of each series.

        Args:
            X, dt: see `decision_function`.
        """
        scores = self.decision_function(X, dt)
        labels: np.ndarray = self.classes_[_codes(scores)]
        return labels


def _codes(scores: np.ndarray) -> np.ndarray:
    """The classes with the best scores, by number."""
    codes: np.ndarray = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
    return codes
