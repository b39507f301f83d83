"""Shared by the estimators of series: reading, checks, threads, and a fit that loses nothing."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from joblib import effective_n_jobs  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, check_X_y
from sklearn.utils.validation import check_is_fitted, validate_data

import linrnn.estimators._library  # noqa: F401 - says what to install
from linrnn.errors import ArgumentError, ArgumentTypeError, ShapeError, check_in, show
from linrnn.estimators._choose import choose, readout
from linrnn.estimators._constructor import named_arguments
from linrnn.estimators._inputs import as_numbers, as_target, refuse_scalar, worded
from linrnn.estimators._plain import plain
from linrnn.estimators._saliency import as_given, draw, occluded, window_of
from linrnn.estimators._series import (
    LAYOUTS,
    Series,
    check_rows_rise,
    is_table,
    of_table,
    read_series,
    with_times,
)
from linrnn.estimators._weights import weights_of
from linrnn.estimators._whole import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SERIES = "a table (series, time), an array (series, time, channels) or a list of series"
_MOST_THREADS = 256
"""Or eight times the processors, if that is more: with some 100,000 PyTorch ends the process."""


class RecurrentEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of `RecurrentClassifier` and `RecurrentRegressor`."""

    _numeric_target = False

    # nothing is checked before `fit`, as scikit-learn asks for
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
    ) -> None:
        self.mixer = mixer
        self.n_modes = n_modes
        self.mixer_options = mixer_options
        self.d_model = d_model
        self.n_layers = n_layers
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.layout = layout
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, dt: Any = None, sample_weight: Any = None) -> Any:
        """Fit to training series, from the beginning.

        Args:
            X: a table (series, time) with series of one channel; an array (series, time, channels);
                or a list with an array (time,) or (time, channels) for each series. NaN is a value
                that is missing.
            y: (series,), what is to be told of each; numbers may be several, (series, targets).
            dt: for each series the time since the step before, of every step; None is 1 everywhere.
            sample_weight: (series,), at least 0: how much each series counts beside the others.
                One of weight 0 is left out. None is the same for all.

        Returns:
            The estimator itself. An exception, Ctrl-C too, leaves it as it was before; where a
            mixer is trained, the first Ctrl-C ends the training, and the best weights until then
            are kept.

        Raises:
            ValueError: of scikit-learn and of ours (`linrnn.errors`), which say what does not fit.
        """
        with whole(self) as fitted:
            for name in vars(self):
                if name.endswith("_") and not name.startswith("_"):
                    delattr(fitted, name)
            where = type(self).__name__
            with worded(where, "X", "y"):
                series, y = fitted._read_fit(X, y, dt)
                series, y, importance = fitted._weigh(series, y, sample_weight)
                seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            with self._threads():
                fitted._fit(series, y, seed, importance)
        return self

    def _fit(self, series: Series, y: np.ndarray, seed: int, importance: np.ndarray | None) -> None:
        """Choose, and fit what was chosen."""
        mixer = self.mixer
        if isinstance(mixer, str) and mixer == "bank" and self.mixer_options:
            raise ArgumentError(
                f"{type(self).__name__}: mixer_options must be None with mixer='bank', which has "
                f"none, got {show(self.mixer_options)}."
            )
        if isinstance(mixer, str) and mixer == "auto":
            tasks = {"fit": self._fit_readout, "score": self._score_readout}
            self.scores_ = choose(self, series, y, seed, importance=importance, **tasks)
            mixer = next(iter(self.scores_))
        self.mixer_ = mixer
        self.readout_ = self._fit_readout(readout(self, mixer, seed), series, y, importance)

    def _fit_readout(
        self, one: Any, series: Series, y: np.ndarray, importance: np.ndarray | None
    ) -> Any:
        raise NotImplementedError

    def _score_readout(
        self, one: Any, series: Series, y: np.ndarray, importance: np.ndarray | None
    ) -> float:
        raise NotImplementedError

    def _weigh(
        self, series: Series, y: np.ndarray, sample_weight: Any
    ) -> tuple[Series, np.ndarray, np.ndarray | None]:
        """The series that count, and how much, 1 in the mean; None where all count the same."""
        weight = weights_of(type(self).__name__, sample_weight, y, self._class_weights(y))
        if weight is None:
            return series, y, None
        counts = weight > 0
        return series.rows(counts), y[counts], weight[counts] / weight[counts].mean()

    def _class_weights(self, y: np.ndarray) -> np.ndarray | None:
        """Weight of the class of each series."""
        return None

    def _read_fit(self, X: Any, y: Any, dt: Any, fewest: int = 2) -> tuple[Series, np.ndarray]:
        where = type(self).__name__
        if self.layout is not None:
            check_in(where, "layout", self.layout, LAYOUTS)
        self._check_switches(where)
        refuse_scalar(where, "X", X, _SERIES)
        X = as_numbers(where, "X", X)
        y = as_target(where, y, numeric=self._numeric_target)
        if is_table(X):
            check_rows_rise(where, X)
            checks = {"ensure_all_finite": "allow-nan", "ensure_min_samples": fewest}
            conversions = {"y_numeric": self._numeric_target, "dtype": np.float64}
            conversions["multi_output"] = self._numeric_target
            X, y = validate_data(self, X, y, **checks, **conversions)
            series = of_table(X)
        else:
            series = read_series(where, X, self.layout)
            placeholder = np.zeros((len(series.x), 1))
            checked = {"y_numeric": self._numeric_target, "ensure_min_samples": fewest}
            checked["multi_output"] = self._numeric_target
            _, y = check_X_y(placeholder, y, estimator=self, **checked)
            self.n_features_in_ = series.x.shape[2]
        self.n_channels_in_ = series.x.shape[2]
        self._fitted_table = is_table(X)
        if bool(series.x.isnan().all()):
            raise ShapeError(f"{where}: X must hold a value that is not NaN, got none.")
        return with_times(where, series, dt), y

    def saliency(self, X: Any, dt: Any = None, *, window: Any = None) -> Any:
        """How much of the answer hangs on each step of each channel.

        Windows of one channel are hidden one after the other, as if their values were missing. Each
        step has what is lost in the mean of the windows that it lies in, which overlap by half. A
        classifier loses log odds (nats) of the class that it tells; numbers fall. Below 0 the
        answer became surer without those steps.

        Args:
            X, dt: see `fit`.
            window: steps of a window; None is a fifteenth of the longest series.

        Returns:
            Numbers in the shape of ``X``: a table (series, time), an array of its three axes, or a
            list of arrays. Of several targets these are a last axis.

        Raises:
            ArgumentError: a window of no step, or of more than a series has.
        """
        series = self._read_new(X, dt)
        where = f"{type(self).__name__}.saliency"
        steps = window_of(where, window, int(series.lengths.max()))
        with self._threads():
            lost = occluded(series, self._evidence(series), steps)
        return as_given(X, lost, series.lengths.numpy(), self.layout)

    def plot_saliency(self, x: Any, dt: Any = None, *, window: Any = None) -> "Figure":
        """One series, darker where the answer hangs on it more; see `saliency`.

        Args:
            x: (time,) or (time, channels).
            dt: (time,), see `fit`.
            window: see `saliency`.

        Returns:
            A matplotlib figure with a panel for each channel, of the first twelve.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        where = f"{type(self).__name__}.plot_saliency"
        with worded(where, "x"):
            one = np.asarray(as_numbers(where, "x", x))[None]
        if one.ndim not in (2, 3) or not one.size:
            raise ShapeError(
                f"{where}: x must have shape (time,) or (time, channels), got {one.shape[1:]}."
            )
        times = None if dt is None else [dt]
        series = self._read_new(one, times)
        lost = self.saliency(one, times, window=window).reshape(1, *np.shape(one)[1:], -1)[..., 0]
        if self.layout == "channels_time" and one.ndim == 3:
            lost = np.swapaxes(lost, 1, 2)
        values = series.x[0].numpy()
        answer = self.predict(one, times)[0]
        return draw(values, lost.reshape(values.shape), f"answer: {answer}", self._lost)

    _lost = "lost when hidden"

    def _evidence(self, series: Series) -> Callable[[Series], np.ndarray]:
        """The number, or numbers, of series whose fall says what mattered."""
        return lambda hidden: self.readout_.predict(hidden)

    def _check_switches(self, where: str) -> None:
        for name in ("early_stopping", "verbose"):
            value = getattr(self, name)
            if not isinstance(value, (bool, np.bool_)) and not (
                isinstance(value, (int, np.integer)) and value in (0, 1)
            ):
                raise ArgumentTypeError(
                    f"{where}: {name} must be True or False, got {show(value)}."
                )
        options = self.mixer_options
        if options is not None and not isinstance(options, Mapping):
            raise ArgumentTypeError(
                f"{where}: mixer_options must be a dictionary of options by name or None, got "
                f"{show(options)}."
            )

    def _read_new(self, X: Any, dt: Any) -> Series:
        """Series to be told about, checked against those of `fit`."""
        check_is_fitted(self)
        with worded(type(self).__name__, "X"):
            return self._read_checked(type(self).__name__, X, dt)

    def _read_checked(self, where: str, X: Any, dt: Any) -> Series:
        refuse_scalar(where, "X", X, _SERIES)
        X = as_numbers(where, "X", X)
        if is_table(X):
            check_rows_rise(where, X)
            # where series of any length were fitted, a table may have any width too
            reset = not self._fitted_table
            reader = copy.copy(self) if reset else self
            X = validate_data(
                reader, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan"
            )
            series = of_table(X)
        else:
            # an array of other channels is refused below, one of fewer steps than channels is not
            series = read_series(where, X, self.layout or LAYOUTS[0])
        if series.x.shape[2] != self.n_channels_in_:
            raise ShapeError(
                f"{where}: X must have the {self.n_channels_in_} channels it was fitted to, got "
                f"{series.x.shape[2]}, with layout={self.layout!r}."
            )
        return with_times(where, series, dt)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """As many threads as ``n_jobs``, as scikit-learn counts them, and new models on the CPU."""
        previous_threads = torch.get_num_threads()
        if self.n_jobs is not None:
            torch.set_num_threads(_threads_of(type(self).__name__, self.n_jobs))
        try:
            with torch.device("cpu"):
                yield
        finally:
            torch.set_num_threads(previous_threads)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        tags.target_tags.required = True
        return tags


def _threads_of(where: str, n_jobs: Any) -> int:
    """How many threads ``n_jobs`` means, as joblib counts them."""
    jobs, limit = plain(n_jobs), max(_MOST_THREADS, 8 * (os.cpu_count() or 1))
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs == 0 or jobs > limit:
        raise ArgumentError(
            f"{where}: n_jobs must be None, an integer from 1 to {limit}, or negative to count "
            f"from all processors (-1 is all of them), got {show(n_jobs)}."
        )
    return int(effective_n_jobs(max(jobs, -limit)))
