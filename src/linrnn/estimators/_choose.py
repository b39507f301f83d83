"""Which model reads the series: the bank, a trained mixer, or the better of both."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.model_selection import KFold, StratifiedKFold

from linrnn.errors import ArgumentError, check_positive, check_positive_int, show
from linrnn.estimators._bank import BankReadout
from linrnn.estimators._plain import plain
from linrnn.estimators._series import Series

CANDIDATES = ("bank", "lru")
_FOLDS = 3


def readout(estimator: Any, mixer: Any, seed: int) -> Any:
    """The read-out to fit: `BankReadout`, or `TrainedReadout` where a mixer is named."""
    where = type(estimator).__name__
    if isinstance(mixer, str) and mixer == "bank":
        n_modes = plain(estimator.n_modes)
        check_positive_int(where, n_modes=n_modes)
        return BankReadout(n_modes, seed)
    from linrnn.estimators._trained import TrainedReadout, Training

    names = [name for name in Training._fields if name != "mixer"]
    chosen = Training(mixer, **{name: plain(getattr(estimator, name)) for name in names})
    counts = ("d_model", "n_layers", "max_steps", "batch_size", "patience")
    check_positive_int(where, **{name: getattr(chosen, name) for name in counts})
    check_positive(where, learning_rate=chosen.learning_rate)
    _check_fraction(where, chosen.validation_fraction)
    return TrainedReadout(chosen, seed)


def _check_fraction(where: str, fraction: Any) -> None:
    if not isinstance(fraction, float) or not 0 < fraction < 1:
        raise ArgumentError(
            f"{where}: validation_fraction must be a number between 0 and 1, both excluded, got "
            f"{show(fraction)}. early_stopping=False holds nothing out."
        )


def choose(
    estimator: Any,
    series: Series,
    y: np.ndarray,
    seed: int,
    *,
    importance: np.ndarray | None,
    fit: Callable[[Any, Series, np.ndarray, np.ndarray | None], Any],
    score: Callable[[Any, Series, np.ndarray, np.ndarray | None], float],
) -> dict[str, float]:
    """The cross-validated score of each of `CANDIDATES` on training series, best first.

    Args:
        estimator: whose settings they take.
        series, y: what it is fitted to.
        seed: of folds and fits.
        importance: what each series counts in both, None for all the same.
        fit: fits a readout.
        score: of a fitted one; larger is better.
    """
    counts = np.unique(y, return_counts=True)[1]
    stratified = y.ndim == 1 and len(counts) < len(y) and counts.min() >= 2
    kind = StratifiedKFold if stratified else KFold
    folds = min(_FOLDS, int(counts.min()) if stratified else len(y))
    strata = y if stratified else None
    splits = list(kind(folds, shuffle=True, random_state=seed).split(np.zeros(len(y)), strata))
    score_of = {}
    for name in CANDIDATES:
        scores = []
        for train, test in splits:
            weights = [None if importance is None else importance[part] for part in (train, test)]
            one = fit(readout(estimator, name, seed), series.rows(train), y[train], weights[0])
            scores.append(score(one, series.rows(test), y[test], weights[1]))
        score_of[name] = float(np.mean(scores))
    return dict(sorted(score_of.items(), key=lambda item: -item[1]))
