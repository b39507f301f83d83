"""A linear model of all numbers of a sequence: judged, and where it may win, fitted to all."""

import time
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from linrnn.contest._race import Rival, Scale
from linrnn.contest._sequences import Pool, folds, for_all, marked, spread
from linrnn.frozen import LinearModel
from linrnn.train.data import unpack

MOST_FEATURES = 4096
"""Numbers of a sequence up to which a linear model of them may win."""


def linear(pool: Pool, scale: Scale) -> Rival:
    """A linear model of all numbers.

    It has a model, and may win, where all sequences are equally long, no missing value is marked,
    the times between steps are alike, and a sequence has at most `MOST_FEATURES` numbers.
    """
    begin = time.perf_counter()
    name = "logistic regression" if pool.classes else "ridge regression"
    may_win = not why_not(pool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is judged as it is
        scores = pool.scores(_left_out(pool)).double()
        model = _fitted(pool) if may_win else None
    return Rival(scale.entry(name, "linear" if may_win else "plain", scores, begin), scores, model)


def why_not(pool: Pool) -> str:
    """Why a linear model of all numbers may not win; empty where it may."""
    _, _, lengths, _, dt = unpack(pool.parts)
    if lengths is not None and not bool((lengths == lengths.flatten()[0]).all()):
        return "sequences have different lengths"
    if dt is not None:
        return "the times between steps differ"
    if marked(pool.task):
        return "missing values are marked"
    if pool.flat.shape[1] > MOST_FEATURES:
        return f"a sequence has {pool.flat.shape[1]:,} numbers, more than {MOST_FEATURES:,}"
    return ""


def _pipeline(pool: Pool) -> Pipeline:
    linear = LogisticRegression(max_iter=200) if pool.classes else RidgeCV(np.logspace(-3, 3, 10))
    return make_pipeline(StandardScaler(), linear)


def _left_out(pool: Pool) -> np.ndarray:
    """The answers to each of three parts by the others, as `Pool.scores` takes them."""
    ranked = pool.classes and pool.task.pooled  # a metric of all may need more than the class
    answers: np.ndarray = cross_val_predict(
        _pipeline(pool),
        pool.flat,
        pool.answers,
        cv=folds(pool, 0),
        method="predict_proba" if ranked else "predict",
    )
    return spread(answers, np.unique(pool.answers), pool.task.d_output) if ranked else answers


def _fitted(pool: Pool) -> LinearModel:
    """The model of all sequences."""
    scaler, linear = (step for _, step in _pipeline(pool).fit(pool.flat, pool.answers).steps)
    weight, bias = np.atleast_2d(linear.coef_) / scaler.scale_, np.atleast_1d(linear.intercept_)
    if pool.classes and len(bias) == 1:  # of two classes the first has a score of 0
        weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
    steps, channels = pool.parts[0].shape[1:]
    parts = [weight, bias, scaler.mean_.reshape(steps, channels)]
    weights, biases, centre = (torch.from_numpy(np.ascontiguousarray(part)) for part in parts)
    if pool.classes:
        weights, biases = for_all(weights, biases, linear.classes_, pool.task.d_output)
    return LinearModel(weights, biases, centre)
