"""Test metrics of methods without training, for comparison with a model of labelled sequences."""

import time
from collections.abc import Mapping

import numpy as np
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from linrnn import tasks
from linrnn.estimators import RecurrentClassifier, RecurrentRegressor
from linrnn.tasks.table import Table
from linrnn.train import Result
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_task

_MAX_NUMBERS = 2_000_000
"""Numbers up to which the bank is tried: about a minute of two cores."""


def simple_answers(result: Result) -> str:
    """Lines on the nearest training sequence and a frozen bank in the test part of `table`.

    Sequences are as near as all their steps are, scaled and padded as the model reads them; the
    bank is `linrnn.estimators.RecurrentClassifier`, or `RecurrentRegressor`, unchanged. For other
    tasks there are none.
    """
    if tasks.load(result.task) is not Table:
        return ""
    folder = RunFolder(result.folder)
    # what it names was imported to train it
    task = build_task(folder.load_config(trust=True), folder)
    assert isinstance(task, Table)
    classes = task.kind == "classification"
    (rows, y), _, (test_rows, truth) = task.parts()

    def score(answers: np.ndarray) -> float:
        per_row = answers.ravel() == truth if classes else (answers.ravel() - truth) ** 2
        return float(np.mean(per_row))

    near = KNeighborsClassifier(1) if classes else KNeighborsRegressor(1)
    flat, flat_test = (_flat(task, part) for part in (rows, test_rows))
    scores = {"the nearest sequence": score(near.fit(flat, y).predict(flat_test))}
    said = f"without training, test {task.metric}: the nearest sequence"
    said += f" {scores['the nearest sequence']:.4g}"
    if flat.size + flat_test.size <= _MAX_NUMBERS:
        begin = time.perf_counter()
        kind = RecurrentClassifier if classes else RecurrentRegressor
        bank = kind(random_state=0, layout="time_channels")
        try:
            bank_score = scores["a frozen bank of modes"] = score(
                bank.fit(rows, y).predict(test_rows)
            )
            said += (
                f", a frozen bank of modes {bank_score:.4g} ({time.perf_counter() - begin:.1f} s)"
            )
        except ValueError as error:  # the run that was trained is whole whatever the bank says
            said += f"; no bank of modes: {error}"
    return f"{said}\n{verdict(result.test_metric, scores, task.higher_is_better)}"


def verdict(score: float, simple: Mapping[str, float], higher_is_better: bool) -> str:
    r"""A line where the best of the simple answers does better than the model, or as well.

    Example:
        >>> verdict(0.9, {"the nearest sequence": 0.95}, higher_is_better=True)
        'the nearest sequence does better than the model\n'
    """
    best = (max if higher_is_better else min)(simple, key=lambda name: simple[name])
    if score == simple[best]:
        return f"{best} does as well as the model\n"
    better = score > simple[best] if higher_is_better else score < simple[best]
    return "" if better else f"{best} does better than the model\n"


def _flat(task: Table, rows: list[np.ndarray]) -> np.ndarray:
    """Sequences as a model reads them, a row each."""
    flat: np.ndarray = task.padded(rows).flatten(1).numpy()
    return flat
