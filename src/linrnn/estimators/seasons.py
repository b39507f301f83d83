"""Lengths of seasons that a series may have; which of them help is for a validation to say."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

_MAX_CANDIDATES = 5
_CLEAR = 0.98
"""A season is taken if it brings the validation error below this share of that without it."""
_STRONG = 0.3
"""The first whose correlation is above this is taken if the error stays below `_NO_WORSE` of it."""
_NO_WORSE = 1.02
_TIE = 1.02
"""Errors of seasons that differ by no more are alike, and the likelier season is taken."""
_CUT_SCALES = 5.0  # scales from the median at which outliers are cut


def candidates(values: np.ndarray, longest: int) -> dict[int, float]:
    """Lengths in steps from 2 to ``longest``, likeliest first, and how likely they are, to 1.

    The autocorrelation of the changes of all channels, and that of their values less a line, are
    looked at for lags at which they are larger than at all lags nearby; the largest peaks of the
    periodogram are taken as well. Outliers are cut to five robust standard deviations before.

    Args:
        values: (time, channels), finite.
        longest: no longer season is looked for.
    """
    longest = min(longest, len(values) // 2 - 1)
    if longest < 2:
        return {}
    height_of: dict[int, float] = {}
    steps = np.arange(len(values))
    line = np.polynomial.polynomial.polyfit(steps, values, 1)
    level = values - line[0] - steps[:, None] * line[1]
    for series in (np.diff(values, axis=0), level):
        for lag, height in _peaks(_autocorrelation(_cut(series), longest), len(series)):
            height_of[lag] = max(height, height_of.get(lag, 0.0))
    for lag, share in _cycles(_cut(level), longest):
        height_of[lag] = max(share, height_of.get(lag, 0.0))
    likely = sorted(height_of, key=lambda lag: -height_of[lag])
    distinct: list[int] = []
    for lag in likely:
        if not any(_same(height_of, lag, one) for one in distinct):
            distinct.append(lag)
    return {lag: height_of[lag] for lag in distinct[:_MAX_CANDIDATES]}


def _same(height_of: Mapping[int, float], lag: int, rival: int) -> bool:
    """Whether a lag says what another one does: a multiple that is no clearer than the one before.

    The hours of a week are a multiple of those of a day, and clearer than those of six days.
    """
    if abs(lag - rival) <= 1 + rival // 10:
        return True
    times = round(lag / rival)
    near = min(1 + lag // 50, rival // 4)
    if times <= 1 or abs(lag - times * rival) > near:
        return False
    previous = (height_of[x] for x in height_of if abs(x - (times - 1) * rival) <= near)
    return height_of[lag] <= max(previous, default=0.0)


def _cut(series: np.ndarray) -> np.ndarray:
    """Centred, of scale 1, without outliers; a channel that never moves is 0."""
    middle = np.median(series, 0)
    scale = 1.4826 * np.median(np.abs(series - middle), 0)
    scale = np.where(scale > 0, scale, series.std(0))
    cut = np.clip((series - middle) / np.where(scale > 0, scale, 1), -_CUT_SCALES, _CUT_SCALES)
    return np.asarray(cut - cut.mean(0))


def _autocorrelation(series: np.ndarray, longest: int) -> np.ndarray:
    """(longest + 2,), the mean of those channels that move."""
    spectrum = np.fft.rfft(series, 2 * len(series), axis=0)
    products = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[: longest + 2]
    moves = products[0] > 0
    if not moves.any():
        return np.zeros(longest + 2)
    return np.asarray((products[:, moves] / products[0, moves]).mean(1))


def _peaks(correlation: np.ndarray, n_steps: int) -> list[tuple[int, float]]:
    """Lags from 2 whose correlation is above those of all lags within a tenth, and above noise.

    On both sides the correlation must fall from there by more than noise, before the lag and before
    half of it again behind: neither the slow fall of a random walk nor noise alone is a season.
    """
    noise = max(0.05, 4 / n_steps**0.5)
    peaks = []
    for lag in range(2, len(correlation) - 1):
        reach = max(1, lag // 10)
        near = correlation[max(1, lag - reach) : lag + reach + 1]
        dips = correlation[1:lag].min(), correlation[lag : lag + lag // 2 + 2].min()
        if correlation[lag] >= near.max() and correlation[lag] > noise + max(0.0, *dips):
            peaks.append((lag, float(correlation[lag])))
    return peaks


def _cycles(series: np.ndarray, longest: int) -> list[tuple[int, float]]:
    """Periods of the largest peaks of the periodogram above noise, and their share of it all."""
    power = (np.abs(np.fft.rfft(series * np.hanning(len(series))[:, None], axis=0)) ** 2).mean(1)
    power[0] = 0
    if not power.any():
        return []
    order = np.argsort(-power)[: 3 * _MAX_CANDIDATES]
    periods = ((round(len(series) / k), float(power[k] / power.sum())) for k in order if k)
    noise = 4 * np.log(len(series)) / len(series)
    return [(p, share) for p, share in periods if 2 <= p <= longest and share > noise]


def find_seasons(
    likely: Mapping[int, float], judge: Callable[[tuple[float, ...]], float]
) -> tuple[float, ...]:
    """The seasons that help, at most two, added one by one.

    Args:
        likely: candidates, likeliest first, and their correlations.
        judge: validation error with some seasons.
    """
    seasons: tuple[float, ...] = ()
    best = judge(seasons)
    while len(seasons) < 2:
        tried = {p: judge((*seasons, float(p))) for p in likely if p not in seasons}
        share = {p: _NO_WORSE if likely[p] > _STRONG and not seasons else _CLEAR for p in tried}
        better = [p for p in tried if tried[p] < share[p] * best]
        if not better:
            break
        limit = _TIE * min(tried[p] for p in better)
        winner = next(p for p in better if tried[p] <= limit)
        seasons, best = (*seasons, float(winner)), tried[winner]
    return tuple(sorted(seasons))


def naive_season(values: np.ndarray, lags: Iterable[float]) -> int:
    """The lag whose values are nearest to those that follow, in the mean square; 1 without lags."""
    errors = {
        lag: float(np.mean((values[lag:] - values[:-lag]) ** 2))
        for lag in (max(1, round(lag)) for lag in lags)
        if lag < len(values)
    }
    return min(errors, key=lambda lag: errors[lag], default=1)
