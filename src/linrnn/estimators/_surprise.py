"""How strange the next value of a channel is: errors of a forecast, and which are usual."""

import copy
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

import numpy as np

from linrnn.estimators._unit import place_and_unit, power_of_2
from linrnn.estimators.seasons import candidates

MEMORIES = (20.0, 100.0, 400.0)
"""In steps, of the means from which a value is far where its level has changed."""
_LATELY = 10.0
"""In steps, of the mean error: what is odd for a while, and at no step by much."""
_TOP = 0.05  # share of past numbers whose mean excess says how the tail falls
_FEWEST = 5  # of these; with fewer nothing is claimed beyond the largest
_CLIP = 5.0  # mean absolute errors: what one row may move a forecast or the mean error by
_FAR = 6.0  # the same: a fault for the second reading. NAB scores 45.6, 45.3, 44.6 with 5, 6, 8
_FAULT = 6.0  # rarity of a number that is a fault, and no part of what is usual
_FAULTS = 0.02  # of the past: more faults than that have become usual
_GIVEN_UP = 100  # steps in a row that only the actual values explain
_ON_THE_AXIS = 1e-12  # of an imaginary part
_PENALTY = 1e-2
_HARMONICS = 4
_CYCLES = 4.0  # seasons that a mode of theirs remembers
_DRAWN = 5000  # rows whose features give their scales


class Past:
    """The last numbers of a kind, in order, and how rare another one is among them.

    Args:
        size: how many are kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranked: list[float] = []
        self.queue: deque[float] = deque()
        self.faults = 0.0

    def rarity(self, x: float) -> float:
        """-log10 of the share of numbers as large as x, itself counted: a conformal p-value.

        Beyond the largest twentieth the tail is taken to fall exponentially, by its mean excess.
        """
        n = len(self.ranked)
        top = int(_TOP * n)
        if top >= _FEWEST and x > self.ranked[n - top - 1]:
            limit = self.ranked[n - top - 1]
            excess = sum(self.ranked[n - top :]) / top - limit
            if excess > 0:
                return float(-np.log10(top / n) + (x - limit) / excess / np.log(10))
        as_large = n - bisect_left(self.ranked, x)
        return float(-np.log10((as_large + 1) / (n + 1)))

    def read(self, x: float) -> float:
        """Rarity of the next number, which is one of the past from then on.

        A fault is left out, unless faults are too many: in the tail it would hide the next one. On
        NAB, a share of 0.005, 0.01 and 0.02 scored 44.1, 44.3 and 45.2, with none left out 43.7.
        """
        rarity = self.rarity(x)
        n = len(self.ranked)
        if rarity > _FAULT and self.faults < max(1.0, _FAULTS * n):
            self.faults += 1
        else:
            self.faults -= self.faults / max(n, 50)
            self.add(x)
        return rarity

    def add(self, x: float) -> None:
        """Keep one more, and forget the oldest if they are too many."""
        insort(self.ranked, x)
        self.queue.append(x)
        if len(self.queue) > self.size:
            del self.ranked[bisect_left(self.ranked, self.queue.popleft())]


class Reading:
    """One account of the values so far, from which the next is forecast.

    Args:
        n_modes: how many modes.
        width: how many features they have.
    """

    def __init__(self, n_modes: int, width: int) -> None:
        self.last = 0.0
        self.state = np.zeros(n_modes, dtype=complex)
        self.features = np.zeros(width)
        self.means = np.zeros(len(MEMORIES))
        self.lately = 0.0

    def numbers(self, y: float, error: float, limit: float, steps: int) -> np.ndarray:
        """How far y is from what was expected: |e|, s and |d| of `Channel`."""
        self.lately += (min(abs(error), limit) - self.lately) / min(_LATELY, steps + 1)
        return np.array([abs(error), self.lately, *np.abs(y - self.means)])


class Channel:
    r"""One channel of a stream, and what is strange in it; memory is constant.

    Equation:
        f_t = lam f_{t-1} + lam / (1 - lam) (y_t - y_{t-1})     frozen modes, see `ChangeBank`
        e_t = y_t - y_{t-1} - w_{t-1} . f_{t-1}                 w by recursive least squares
        s_t = mean of |e| over some `_LATELY` steps
        d_t = y_t - m_{t-1},  m_t = m_{t-1} + d_t / memory      for each of `MEMORIES`

    The values are read twice: as they are, and with the forecast in place of values that are far
    from it. Each number is the smaller one of both. After a spike or an outage the second reading
    still knows what is usual; after a change of level the first one learns it, and the second is
    given up for the first when it has been wrong for `_GIVEN_UP` steps.

    Args:
        values: (time,), finite, of the fit: seasons and scales are theirs.
        n_modes: how many modes.
        random: of the modes.
        size: how many past numbers of a kind are kept.
    """

    def __init__(
        self, values: np.ndarray, n_modes: int, random: np.random.Generator, size: int
    ) -> None:
        unit = place_and_unit(values[:, None])[1]
        self.unit = float(unit[0])
        seasons = list(candidates(values[:, None] / power_of_2(unit), len(values) // 3))[:2]
        self.modes = random_modes_of(seasons, n_modes, random, len(values))
        self.gain = self.modes / (1 - self.modes) * np.sqrt(1 - np.abs(self.modes) ** 2)
        self.n_complex = int((self.modes.imag != 0).sum())
        self.scale = self._scales(values[:_DRAWN] / self.unit)
        width = len(self.scale)
        self.inverse, self.weight = np.eye(width) / _PENALTY, np.zeros(width)
        self.typical, self.count = 0.0, 0
        self.past = [Past(size) for _ in range(2 + len(MEMORIES))]
        self.restart()

    def restart(self) -> None:
        """Forget the values that were read, and nothing that was learned."""
        self.actual = Reading(len(self.modes), len(self.scale))
        self.plausible = copy.deepcopy(self.actual)
        self.steps = -1  # changes that were read
        self.far = 0  # steps in a row that are far from the plausible reading

    def update(self, value: float) -> float:
        """The rarity of a value, NaN where it is missing; it is read and learned from."""
        if np.isnan(value):
            return 0.0
        y = value / self.unit
        actual, plausible = self.actual, self.plausible
        if self.steps < 0:
            self.steps = 0
            for reading in (actual, plausible):
                reading.last, reading.means[:] = y, y
            return 0.0
        error, away = self._error(actual, y), self._error(plausible, y)
        limit = self._limit(_CLIP)
        numbers = np.minimum(
            actual.numbers(y, error, limit, self.steps),
            plausible.numbers(y, away, limit, self.steps),
        )
        rarity = max(past.read(x) for past, x in zip(self.past, numbers.tolist(), strict=True))
        closer = actual if abs(error) <= abs(away) else plausible
        self._learn(closer.features, min(error, away, key=abs))
        self.steps += 1
        self._follow(actual, y)
        self.far = self.far + 1 if abs(away) > self._limit(_FAR) else 0
        self._follow(plausible, y - away if self.far else y)
        if self.far >= _GIVEN_UP:
            self.plausible, self.far = copy.deepcopy(actual), 0
        return rarity

    def _error(self, reading: Reading, y: float) -> float:
        return y - reading.last - float(self.weight @ reading.features)

    def _limit(self, errors: float) -> float:
        """A number of usual errors; no limit before any error was not 0."""
        return errors * self.typical or math.inf

    def _follow(self, reading: Reading, y: float) -> None:
        # a mean of the first values is theirs alone
        reading.means += (y - reading.means) / np.minimum(MEMORIES, self.steps + 1)
        reading.state = self.modes * reading.state + self.gain * (y - reading.last)
        reading.features = self._features(reading.state) / self.scale
        reading.last = y

    def _learn(self, features: np.ndarray, error: float) -> None:
        """Recursive least squares; an outlier counts as a smaller one."""
        limit = self._limit(_CLIP)
        error = min(max(error, -limit), limit)
        self.count += 1
        self.typical += (abs(error) - self.typical) / min(self.count, 500)
        along = self.inverse @ features
        gain = along / (1 + features @ along)
        self.weight = self.weight + gain * error
        self.inverse = self.inverse - np.outer(gain, along)

    def _features(self, state: np.ndarray) -> np.ndarray:
        return np.concatenate([state.real, state[: self.n_complex].imag])

    def _scales(self, values: np.ndarray) -> np.ndarray:
        state = np.zeros(len(self.modes), dtype=complex)
        sums = np.zeros(len(self.modes) + self.n_complex)
        for change in np.diff(values):
            state = self.modes * state + self.gain * change
            sums = sums + self._features(state) ** 2
        root = np.sqrt(sums / max(1, len(values) - 1))
        scale: np.ndarray = np.where(root > 0, root, 1.0)
        return scale


def random_modes_of(
    seasons: Iterable[int], n_modes: int, random: np.random.Generator, steps: int
) -> np.ndarray:
    """Harmonics of seasons, random waves, and a third real decays, these last; at least one.

    Args:
        seasons: in steps.
        n_modes: how many modes, one at least.
        random: draws them.
        steps: of the series that they are to read.
    """
    longest = max(4.0, float(steps))
    decays = max(1, n_modes // 3)
    count = n_modes - decays
    tau = np.exp(random.uniform(0, np.log(longest / 3), count + decays))
    period = np.exp(random.uniform(np.log(2), np.log(longest / 2), count))
    modes = np.exp(-1 / tau).astype(complex)
    modes[:count] *= np.exp(2j * np.pi / period)
    harmonics = [
        np.exp(-1 / (_CYCLES * season) + 2j * np.pi * k / season)
        for season in seasons
        for k in range(1, _HARMONICS + 1)
        if 2 * k < season
    ][: count // 2]
    modes[: len(harmonics)] = harmonics
    # waves of two steps are real
    modes[:count][np.abs(modes[:count].imag) < _ON_THE_AXIS] += 1e-6j
    return modes
