"""`RecurrentClassifier`: which class a series belongs to."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from linrnn.errors import ArgumentError, DataError, ShapeError, UnknownNameError, show
from linrnn.estimators._bank import BankReadout, class_targets
from linrnn.estimators._base import RecurrentEstimator
from linrnn.estimators._choose import readout
from linrnn.estimators._constructor import named_arguments
from linrnn.estimators._inputs import as_target, worded
from linrnn.estimators._plain import plain
from linrnn.estimators._series import Series
from linrnn.estimators._sums import Sums
from linrnn.estimators._weights import weights_of
from linrnn.estimators._whole import whole
from linrnn.estimators.early import (
    EarlyAnswers,
    EarlyReadout,
    EarlyStream,
    check_tolerance,
    checkpoints,
)


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
        class_weight: what a series of each class counts: a dictionary by class, in which others
            count 1; or "balanced", inversely to how frequent the class is. None is the same.
        early: at how many lengths of a series there is a separate read-out for what was read
            until then: for `predict_early` and `stream`, which need a bank. None is for neither.

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

    @named_arguments
    def __init__(
        self,
        *,
        mixer: Any = "bank",
        n_modes: Any = 3000,
        mixer_options: Any = None,
        d_model: Any = 64,
        n_layers: Any = 2,
        max_steps: Any = 1000,
        batch_size: Any = 32,
        learning_rate: Any = 3e-3,
        early_stopping: Any = True,
        validation_fraction: Any = 0.2,
        patience: Any = 10,
        layout: Any = None,
        n_jobs: Any = None,
        random_state: Any = None,
        verbose: Any = False,
        class_weight: Any = None,
        early: Any = None,
    ) -> None:
        super().__init__(
            mixer=mixer,
            n_modes=n_modes,
            mixer_options=mixer_options,
            d_model=d_model,
            n_layers=n_layers,
            max_steps=max_steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            layout=layout,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight
        self.early = early

    def _fit(self, series: Series, y: np.ndarray, seed: int, importance: np.ndarray | None) -> None:
        with worded(type(self).__name__, "y"):
            check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                f"{type(self).__name__}: y must hold at least two classes, got 1 class: "
                f"{self.classes_[0]}."
            )
        longest = int(series.lengths.max())
        early = plain(self.early)
        ends = None if early is None else checkpoints(type(self).__name__, early, longest)
        super()._fit(series, codes, seed, importance)
        if ends is not None:
            self._check_bank("early")
            targets = class_targets(codes, np.arange(len(self.classes_)))
            self.early_ = EarlyReadout(self.readout_, ends).fit(series, targets, importance)
            self.longest_ = longest

    def _class_weights(self, y: np.ndarray) -> np.ndarray | None:
        if self.class_weight is None:
            return None
        where = type(self).__name__
        with worded(f"{where}: class_weight must be None, 'balanced' or a dictionary by class"):
            weights: np.ndarray = compute_sample_weight(self.class_weight, y)
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise ArgumentError(
                f"{where}: class_weight must hold finite numbers of at least 0, got "
                f"{self.class_weight}."
            )
        return weights

    def _fit_readout(
        self, one: Any, series: Series, y: np.ndarray, importance: np.ndarray | None
    ) -> Any:
        return one.classify(series, y, importance)

    def _score_readout(
        self, one: Any, series: Series, y: np.ndarray, importance: np.ndarray | None
    ) -> float:
        return float(np.average(_codes(one.decide(series)) == y, weights=importance))

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, dt: Any = None, sample_weight: Any = None
    ) -> "RecurrentClassifier":
        """Fit to some more series; the answers are those of one fit to all of them.

        The first call draws the bank and takes its thresholds from its series, so it should have
        some tens. Later ones add to sums, from which the ridge is solved anew, and what is left out
        chooses the penalty again. The features of each series are kept, 24 bytes a mode, until
        there are more series than features. From then on sums of products stand for them and
        memory stays as it is, and so do penalty and temperature.

        Args:
            X, y, dt, sample_weight: see `fit`; a later call may have a single series.
            classes: all labels that will come; needed in the first call.

        Returns:
            The estimator itself, which an exception leaves as it was before.

        Raises:
            ArgumentError: no ``classes`` in the first call, or others later; after `fit`, which
                keeps no series; with ``early``, a ``class_weight`` of "balanced", or a mixer.
            UnknownNameError, ValueError: a label that is no class; see `fit`.
        """
        where = f"{type(self).__name__}.partial_fit"
        with whole(self) as fitted:
            fitted._begin_parts(where, classes)
            first = not hasattr(self, "sums_")
            with worded(where, "X", "y"):
                if first:
                    series, y = fitted._read_fit(X, y, dt, fewest=1)
                    seed = int(check_random_state(self.random_state).randint(2**31 - 1))
                else:
                    series = fitted._read_new(X, dt)
                    y = column_or_1d(as_target(where, y, numeric=False))
                codes = fitted._codes_of(where, y, len(series.x))
                series, codes, importance = fitted._weigh_part(series, y, codes, sample_weight)
            with self._threads():
                if first:
                    fitted.readout_ = readout(self, "bank", seed)
                    fitted.readout_.calibrate(series)
                else:
                    fitted.readout_ = copy.copy(self.readout_)
                features = fitted.readout_.describe(series)
                fitted.sums_ = fitted.sums_.add(features, codes, importance)
                fitted.sums_.solve(fitted.readout_)
        return self

    def _begin_parts(self, where: str, classes: Any) -> None:
        """Check what cannot be done in parts, and the classes."""
        if not (isinstance(self.mixer, str) and self.mixer == "bank"):
            raise ArgumentError(f"{where}: mixer must be 'bank', got {show(self.mixer)}.")
        if self.early is not None or isinstance(self.class_weight, str):
            raise ArgumentError(
                f"{where}: early must be None and class_weight None or a dictionary, for later "
                f"series would change both, got early={show(self.early)} and "
                f"class_weight={show(self.class_weight)}."
            )
        with worded(where, "classes"):
            labels = np.unique([] if classes is None else classes)
        if hasattr(self, "sums_"):
            if classes is not None and not np.array_equal(labels, self.classes_):
                raise ArgumentError(
                    f"{where}: classes must be those of the first call, {show(self.classes_)}, got "
                    f"{show(classes)}."
                )
            return
        if hasattr(self, "readout_"):
            raise ArgumentError(
                f"{where}: must not follow fit, which keeps no series, got a fitted estimator. Use "
                "sklearn.base.clone(model).partial_fit from the first series on."
            )
        if len(labels) < 2:
            raise ArgumentError(
                f"{where}: classes must have all labels that will come, two at least, in the "
                f"first call, got {show(classes)}."
            )
        self.classes_ = labels
        self.mixer_, self.sums_ = "bank", Sums(self.classes_)

    def _codes_of(self, where: str, y: np.ndarray, rows: int) -> np.ndarray:
        if len(y) != rows:
            raise ShapeError(
                f"{where}: y must have a label for each of the {rows} series, got {len(y)}."
            )
        unknown = [label for label in np.unique(y).tolist() if label not in self.classes_.tolist()]
        if unknown:
            raise UnknownNameError(f"{where} class", str(unknown[0]), [*map(str, self.classes_)])
        codes: np.ndarray = np.searchsorted(self.classes_, y)
        return codes

    def _weigh_part(
        self, series: Series, y: np.ndarray, codes: np.ndarray, sample_weight: Any
    ) -> tuple[Series, np.ndarray, np.ndarray]:
        of_class = self._class_weights(y)
        weight = weights_of(type(self).__name__, sample_weight, y, of_class, raw=True)
        if weight is None:
            return series, codes, np.ones(len(codes))
        counts = weight > 0
        return series.rows(counts), codes[counts], weight[counts]

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

        They are a softmax of the scores, divided by the number with which training series that were
        left out have the smallest cross-entropy, and half a series more of another class. Of a
        trained mixer those are the series held out for early stopping; without any, 1 divides.

        Args:
            X, dt: see `decision_function`.
        """
        scores = self.decision_function(X, dt)
        probabilities: np.ndarray = self.readout_.probabilities(scores)
        return probabilities

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of series whose class is told right.

        Args:
            X: see `fit`.
            y: (series,), the true labels.
            sample_weight: (series,), how much each counts; None is the same for all.
        """
        with worded(f"{type(self).__name__}.score", "X", "y", "sample_weight"):
            return float(super().score(X, y, sample_weight))

    def predict(self, X: Any, dt: Any = None) -> np.ndarray:
        """The class of each series.

        Args:
            X, dt: see `decision_function`.
        """
        scores = self.decision_function(X, dt)
        labels: np.ndarray = self.classes_[_codes(scores)]
        return labels

    _lost = "log odds lost when hidden"

    def _evidence(self, series: Series) -> Callable[[Series], np.ndarray]:
        """Log odds of the class that the model gives to the whole series."""
        codes = _codes(self.readout_.decide(series))
        rows = np.arange(len(codes))

        def log_odds(hidden: Series) -> np.ndarray:
            scores = self.readout_.decide(hidden)
            scores = np.stack([np.zeros_like(scores), scores], 1) if scores.ndim == 1 else scores
            rival_scores = scores / self.readout_.temperature
            class_scores = rival_scores[rows, codes]
            rival_scores[rows, codes] = -np.inf
            odds: np.ndarray = class_scores - np.logaddexp.reduce(rival_scores, 1)
            return odds

        return log_odds

    def predict_early(
        self, X: Any, dt: Any = None, tolerance: float | np.floating[Any] = 0.01
    ) -> EarlyAnswers:
        """The class of each series as soon as it is sure enough, and when that was.

        At each of the lengths of ``early`` a separate read-out says how likely the classes are.
        The first that is as sure as a threshold answers, else the whole series. The threshold is
        the smallest from which up, on the training series, each left out in turn, stopping costs at
        most ``tolerance`` of the accuracy.

        Args:
            X, dt: see `decision_function`.
            tolerance: accuracy that may be lost on the training series, from 0 to 1.

        Raises:
            ArgumentError: `fit` had no ``early``, or a tolerance outside its range.
        """
        threshold = self._early_threshold("predict_early", tolerance)
        series = self._read_new(X, dt)
        with self._threads():
            probabilities, last = self.early_.read(series)
        sure = probabilities.max(2)
        at = self.early_.stops(sure, last, threshold)
        rows = np.arange(len(at))
        labels = self.classes_[probabilities[at, rows].argmax(1)]
        ends = np.array([*self.early_.ends, np.iinfo(np.int64).max])
        steps = np.minimum(ends[at], series.lengths.numpy())
        return EarlyAnswers(labels, sure[at, rows], steps)

    def stream(self, tolerance: float | np.floating[Any] = 0.01) -> EarlyStream:
        """A series that comes step by step, with an answer and a confidence after each.

        Args:
            tolerance: see `predict_early`; when to stop follows from it.

        Raises:
            ArgumentError: see `predict_early`.
        """
        threshold = self._early_threshold("stream", tolerance)
        return EarlyStream(self.early_, self.classes_, threshold, self.longest_)

    def _early_threshold(self, what: str, tolerance: Any) -> float:
        where = f"{type(self).__name__}.{what}"
        check_is_fitted(self)
        if not hasattr(self, "early_"):
            raise ArgumentError(
                f"{where}: early must be set before fit, got None. Use "
                f"{type(self).__name__}(early=20)."
            )
        return self.early_.threshold(check_tolerance(where, tolerance))

    def _check_bank(self, what: str) -> None:
        if not isinstance(self.readout_, BankReadout):
            raise ArgumentError(
                f"{type(self).__name__}: {what} must be None where a mixer is trained, got "
                f"{show(getattr(self, what))}. Use mixer='bank'."
            )


def _codes(scores: np.ndarray) -> np.ndarray:
    """The classes with the best scores, by number."""
    codes: np.ndarray = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
    return codes
