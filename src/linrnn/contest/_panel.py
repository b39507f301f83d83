"""The contest for many series in one table."""

import numpy as np

from linrnn.contest._race import Contest, Entry, Kind
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
    entries = []
    for method, errors in judged.mase.items():
        if np.isfinite(errors).all():
            score, error = judged.score(method)
            kind: Kind = "plain" if method else "bank"
            seconds = 0.0 if method else fitted.seconds
            entries.append(
                Entry(
                    name=names[method],
                    kind=kind,
                    score=score,
                    standard_error=error,
                    seconds=seconds,
                )
            )
    return Contest(
        metric="MASE",
        higher_is_better=False,
        how=f"the last {judged.horizon} steps of {len(judged.mase['']):,} series, forecast from "
        "what came before",
        entries=tuple(sorted(entries, key=lambda one: one.score)),
        winner="bank",
    )
