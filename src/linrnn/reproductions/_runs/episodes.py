"""Recorded episodes for offline learning: D4RL's and Minari's files, and windows of them."""

import importlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from linrnn._files.door import open_file
from linrnn.errors import DataError, LinrnnError

Array = npt.NDArray[Any]
COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts")
"""Arrays of a file of D4RL."""
_MINARI = "main_data.hdf5"
_WHERE = "read_episodes"


class Episode(NamedTuple):
    """An episode: one row a step."""

    observations: Array
    """(time, numbers), each before its action."""
    actions: Array
    rewards: Array
    """(time,)."""

    @property
    def to_go(self) -> Array:
        """Sum of the rewards from each step on (time,)."""
        return self.rewards[::-1].cumsum(dtype=np.float64)[::-1].astype(np.float32)


def h5py() -> Any:
    """The package that reads HDF5.

    Raises:
        LinrnnError: it is not installed.
    """
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise LinrnnError(
            "offline-decisions: the package h5py must be installed, got none. "
            "Install it: pip install h5py"
        ) from error


def read_episodes(path: Path) -> list[Episode]:
    """Read the episodes of a file.

    Args:
        path: ``.hdf5`` in the layout of D4RL version 2 or of Minari, or a folder of Minari, which
            has ``data/main_data.hdf5``. Steps behind the last end of an episode are left out,
            since nobody knows what they would have gained.

    Raises:
        DataError: no such file, or one of another layout; the text says what is missing.
    """
    for below in (Path("data", _MINARI), Path(_MINARI)):
        if (path / below).is_file():
            path = path / below
    with _opened(path) as file:
        if "observations" in file:
            return cut(*(_array(path, file, name) for name in COLUMNS))
        numbered = [(int(m[1]), n) for n in file if (m := re.fullmatch(r"episode_(\d+)", n))]
        if numbered:
            return [_of_minari(path, _part(path, file, name)) for _, name in sorted(numbered)]
        raise _wrong(path, "observations, as in D4RL, or episode_0, as in Minari", list(file))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    library = h5py()
    try:
        binary = open_file(path, inside=None)
    except OSError as error:
        raise DataError(
            f"{_WHERE}: {path} must be a file of episodes, got {error.strerror or error}. "
            "Name a .hdf5 of D4RL, or a folder of Minari."
        ) from error
    with binary:
        try:
            file = library.File(binary, "r")
        except OSError as error:
            raise DataError(
                f"{_WHERE}: {path} must be a whole HDF5 file, got {error}. Get it once more."
            ) from error
        with file:
            yield file


def _wrong(path: Path, what: str, names: Sequence[str]) -> DataError:
    shown = ", ".join(names[:8]) or "nothing"
    return DataError(f"{_WHERE}: {path} must hold {what}, got {shown}. Look at its layout.")


def _part(path: Path, group: Any, name: str) -> Any:
    """A part of a group that lies in this file: a link may lead to another."""
    link = group.get(name, getlink=True)
    if type(link).__name__ != "HardLink":
        raise _wrong(path, f"{name} itself", [*group] if link is None else ["a link"])
    return group[name]


def _array(path: Path, group: Any, name: str) -> Array:
    part = _part(path, group, name)
    if not hasattr(part, "shape") or part.external or part.is_virtual:
        raise _wrong(path, f"{name} as one array in this file", [type(part).__name__])
    return np.asarray(part[()], dtype=np.float32)


def cut(
    observations: Array, actions: Array, rewards: Array, terminals: Array, timeouts: Array
) -> list[Episode]:
    """Cut one long record where an episode came to an end or ran out of time.

    Example:
        >>> ones = np.ones((5, 2), np.float32)
        >>> ends = np.array([0, 1, 0, 1, 0])
        >>> [len(e.rewards) for e in cut(ones, ones, ones[:, 0], ends, 0 * ends)]
        [2, 2]
    """
    ends = ((terminals.ravel() > 0) | (timeouts.ravel() > 0)).nonzero()[0] + 1
    parts = (observations, actions, rewards.ravel())
    lengths = {len(part) for part in (*parts, terminals, timeouts)}
    if len(lengths) > 1 or not len(ends):
        raise DataError(
            f"{_WHERE}: every array must have one row a step, and an episode must end, got rows "
            f"{sorted(lengths)} and {len(ends)} ends. Look at the file's terminals and timeouts."
        )
    begins = [0, *ends[:-1]]
    return [Episode(*(part[a:b] for part in parts)) for a, b in zip(begins, ends, strict=True)]


def _of_minari(path: Path, group: Any) -> Episode:
    """An episode of Minari, which has one observation more than actions."""
    observations, actions, rewards = (_array(path, group, name) for name in COLUMNS[:3])
    if len(observations) != len(rewards) + 1 or len(actions) != len(rewards):
        rows = f"{len(observations)} observations and {len(actions)} actions"
        raise _wrong(path, f"{len(rewards) + 1} observations of {len(rewards)} steps", [rows])
    return Episode(observations[:-1], actions, rewards.ravel())


def as_d4rl(episodes: Sequence[Episode], ended: Sequence[bool]) -> bytes:
    """A file in the layout of D4RL.

    Args:
        episodes: to write.
        ended: whether each came to an end; the others ran out of time.
    """
    lengths = [len(episode.rewards) for episode in episodes]
    last = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros((2, sum(lengths)), dtype=bool)
    terminals[last], timeouts[last] = ended, ~np.asarray(ended)
    columns = [np.concatenate(part).astype(np.float32) for part in zip(*episodes, strict=True)]
    data = io.BytesIO()
    with h5py().File(data, "w") as file:
        for name, column in zip(COLUMNS, (*columns, terminals, timeouts), strict=True):
            file.create_dataset(name, data=column)
    return data.getvalue()


class Windows:
    """Draws windows of episodes, each step as likely to begin one.

    Args:
        episodes: to draw from.
        time: steps of a window; one at an episode's end is shorter, and padded behind.

    Attributes:
        mean, spread: of every number of an observation.
    """

    def __init__(self, episodes: Sequence[Episode], time: int) -> None:
        self.time = time
        rows = [
            (e.observations, e.actions, e.to_go[:, None], np.arange(len(e.rewards))[:, None])
            for e in episodes
        ]
        self._columns = [
            np.concatenate(part).astype(np.float32) for part in zip(*rows, strict=True)
        ]
        lengths = [len(e.rewards) for e in episodes]
        self._ends = np.repeat(np.cumsum(lengths), lengths)
        self.mean = self._columns[0].mean(0)
        self.spread = self._columns[0].std(0) + 1e-6

    def draw(self, count: int, random: np.random.Generator) -> tuple[Array, ...]:
        """Observations, actions, returns to go, places and a mask, each (count, time, ...)."""
        begins = random.integers(len(self._ends), size=count)
        at = begins[:, None] + np.arange(self.time)
        inside = at < self._ends[begins][:, None]
        at = np.minimum(at, self._ends[begins][:, None] - 1)
        return (*(column[at] for column in self._columns), inside)
