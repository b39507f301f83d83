"""Errors of a forecaster of many series at the end of each, beside plain methods."""

from typing import Any, NamedTuple

import numpy as np

from linrnn.estimators._panel.batch import change_scale
from linrnn.estimators._panel.contestants import forecasts

PLAIN = {
    "naive": "the last value",
    "seasonal naive": "the season before",
    "theta": "theta",
    "ets": "exponential smoothing",
}
_LEAST = 4
"""Values that are left of a series whose end is judged."""
_COVERAGE = 0.8


class Judged(NamedTuple):
    """Errors of the last steps of each series, forecast from what came before."""

    mase: dict[str, np.ndarray]
    """By method, (series that were judged,); "" is the forecaster."""
    held: float
    """Share of the values that bands of 80 per cent held."""
    horizon: int

    def score(self, method: str) -> tuple[float, float]:
        """The mean of a method over series, and its standard error; NaN of a single one."""
        errors = self.mase[method]
        n = len(errors)
        return float(errors.mean()), float(errors.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan


def judge(forecaster: Any, rows: Any, static: Any, horizon: int) -> Judged | None:
    """Fit to all but the ends, and forecast them; None where no series is long enough.

    Args:
        forecaster: a `PanelForecaster`; it is not changed.
        rows, static: as it is fitted to.
        horizon: steps that are judged.
    """
    ids, time, value = _columns(forecaster)
    ordered = rows.sort_values(time)
    long = ordered.groupby(ids)[value].transform("size") >= horizon + _LEAST
    if not long.any():
        return None
    ordered = ordered[long]
    end = ordered.groupby(ids).cumcount(ascending=False) < horizon
    past, came = ordered[~end], ordered[end]
    if static is not None:
        static = static.merge(past[ids].drop_duplicates(), on=ids)
    fitted = type(forecaster)(**forecaster.get_params() | {"horizon": horizon}).fit(past, static)
    known = list(forecaster.known)
    later = came[[*ids, time, *known]] if known else None
    said = fitted.predict_interval(coverage=_COVERAGE, X=later)
    panel = fitted._panel
    naive = forecasts(
        panel.batch,
        fitted.season_,
        horizon,
        np.zeros(len(panel.keys), dtype=int),
        only=frozenset(PLAIN),
    )
    if fitted.season_ == 1:
        del naive["seasonal naive"]
    answers = {f"_{name}": values for name, values in naive.items()}
    scale = np.repeat(change_scale(panel.batch, fitted.season_)[:, None], horizon, 1)
    answer_table = panel.table({**answers, "_scale": scale}, horizon)
    answer_table["_said"], answer_table["_low"] = said[value], said[f"{value}_lower"]
    answer_table["_high"] = said[f"{value}_upper"]
    return _compared(answer_table, came, ids, time, value, horizon)


def _compared(
    answer_table: Any, came: Any, ids: list[str], time: str, value: str, horizon: int
) -> Judged:
    both = answer_table.merge(came[[*ids, time, value]].dropna(), on=[*ids, time])
    size = {"": (both["_said"] - both[value]).abs() / both["_scale"]}
    for name in PLAIN:
        if f"_{name}" in both:
            size[name] = (both[f"_{name}"] - both[value]).abs() / both["_scale"]
    keys = [both[name] for name in ids]
    mase = {name: errors.groupby(keys).mean().to_numpy() for name, errors in size.items()}
    covered = ((both["_low"] <= both[value]) & (both[value] <= both["_high"])).mean()
    return Judged(mase, float(covered), horizon)


def _columns(forecaster: Any) -> tuple[list[str], str, str]:
    ids = [forecaster.id] if isinstance(forecaster.id, str) else list(forecaster.id)
    return ids, forecaster.time, forecaster.value
