"""How strange the next value of a channel is: errors of a forecast, and which are usual."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

import numpy as np

from linrnn.estimators.seasons import candidates

MEMORIES = (20.0, 100.0, 400.0)
"""In steps, of the means from which a value is far where its level has changed."""
_LATELY = 10.0
"""In steps, of the mean error: what is odd for a while, and at no step by much."""
_TOP = 0.05  # share of past numbers whose mean excess says how the tail falls
_FEWEST = 5  # of these; with fewer nothing is claimed beyond the largest
_CLIP = 5.0  # mean absolute errors: what one row may move a forecast or the mean error by
_FLAT = 1e-12  # of a spread: a channel that never moved
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

    def add(self, x: float) -> None:
        """Keep one more, and forget the oldest if they are too many."""
        insort(self.ranked, x)
        self.queue.append(x)
        if len(self.queue) > self.size:
            del self.ranked[bisect_left(self.ranked, self.queue.popleft())]


class Channel:
    r"""One channel of a stream, and what is strange in it; memory is constant.

    Equation:
        f_t = lam f_{t-1} + lam / (1 - lam) (y_t - y_{t-1})     frozen modes, see `ChangeBank`
        e_t = y_t - y_{t-1} - w_{t-1} . f_{t-1}                 w by recursive least squares
        s_t = mean of |e| over some `_LATELY` steps
        d_t = y_t - m_{t-1},  m_t = m_{t-1} + d_t / memory      for each of `MEMORIES`

    Args:
        values: (time,), finite, of the fit: seasons and scales are theirs.
        n_modes: how many modes.
        random: of the modes.
        size: how many past numbers of a kind are kept.
    """

    def __init__(
        self, values: np.ndarray, n_modes: int, random: np.random.Generator, size: int
    ) -> None:
        spread = float(np.std(values))
        self.unit = spread if spread > _FLAT * float(np.abs(values).max(initial=0.0)) else 1.0
        seasons = list(candidates(values[:, None], len(values) // 3))[:2]
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
        self.last: float | None = None
        self.state = np.zeros(len(self.modes), dtype=complex)
        self.features = np.zeros(len(self.scale))
        self.means, self.read = np.zeros(len(MEMORIES)), 0
        self.lately = 0.0

    def update(self, value: float) -> float:
        """The rarity of a value, NaN where it is missing; it is read and learned from."""
        if np.isnan(value):
            return 0.0
        y = value / self.unit
        if self.last is None:
            self.last, self.means[:] = y, y
            return 0.0
        change, away = y - self.last, y - self.means
        error = change - float(self.weight @ self.features)
        size = min(abs(error), _CLIP * self.typical) if self.count else abs(error)
        self.lately += (size - self.lately) / min(_LATELY, self.read + 1)
        numbers = [abs(error), self.lately, *np.abs(away).tolist()]
        rarity = max(past.rarity(x) for past, x in zip(self.past, numbers, strict=True))
        for past, x in zip(self.past, numbers, strict=True):
            past.add(x)
        self._learn(error)
        self.read += 1
        # a mean of the first values is theirs alone
        self.means += away / np.minimum(MEMORIES, self.read + 1)
        self.last = y
        self.state = self.modes * self.state + self.gain * change
        self.features = self._features(self.state) / self.scale
        return rarity

    def _learn(self, error: float) -> None:
        """Recursive least squares; an outlier counts as a smaller one."""
        if self.count:
            error = float(np.clip(error, -_CLIP * self.typical, _CLIP * self.typical))
        self.count += 1
        self.typical += (abs(error) - self.typical) / min(self.count, 500)
        along = self.inverse @ self.features
        gain = along / (1 + self.features @ along)
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
    modes[:count][np.abs(modes[:count].imag) < _FLAT] += 1e-6j
    return modes
