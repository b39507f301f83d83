"""The contest for many series in one table."""

import math

import numpy as np

from linrnn.contest._race import Contest, Entry
from linrnn.estimators.panel_run import PLAIN, Fitted

_NAME = "each series' best methods"


def contest_of(fitted: Fitted) -> Contest | None:
    """The forecaster beside plain methods, on the ends of the series; None where none is long.

    Args:
        fitted: of `linrnn.estimators.panel_run.fit`.
    """
    judged = fitted.judged
    if judged is None:
        return None
    names = {"": _NAME} | PLAIN
    entries = [
        Entry(
            name=names[method],
            kind="plain" if method else "bank",
            score=float(errors.mean()),
            standard_error=_error_of(errors),
            seconds=0.0 if method else fitted.seconds,
        )
        for method, errors in judged.mase.items()
        if np.isfinite(errors).all()
    ]
    return Contest(
        metric="MASE",
        higher_is_better=False,
        how=f"the last {judged.horizon} steps of {len(judged.mase['']):,} series, forecast from "
        "what came before",
        entries=tuple(sorted(entries, key=lambda one: one.score)),
        winner="bank",
    )


def _error_of(errors: np.ndarray) -> float:
    return float(errors.std(ddof=1) / math.sqrt(len(errors))) if len(errors) > 1 else math.nan
