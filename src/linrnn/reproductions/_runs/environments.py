"""Several environments of gymnasium as one: rows of numbers, begun anew at once, in processes."""

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Stepped(NamedTuple):
    """Results of a step of all environments, a row for each."""

    seen: Array
    """Observations (environments, numbers); of the next episode where one is over."""
    reward: Array
    ended: Array
    """Where an episode came to its end."""
    cut: Array
    """Where it was cut off by time."""
    last: Array
    """As ``seen``, but the last observation of an episode where one is over."""


class Columns:
    """How an observation or an action is a row of numbers, and what a network reads of it.

    Args:
        space: of gymnasium: Discrete, MultiDiscrete, MultiBinary, Box, or Tuple and Dict of these.

    Attributes:
        sizes: of each number how many values it has; 0 where it is any real number.
        width: channels for a network: one for each value of a choice, and one for a real number.
    """

    def __init__(self, space: Any) -> None:
        self.sizes = _sizes(space)
        widths = np.array([size or 1 for size in self.sizes], dtype=int)
        ends = widths.cumsum()
        self.width = int(ends[-1])
        chosen = np.array([size > 0 for size in self.sizes])
        self._chosen, self._real = chosen.nonzero()[0], (~chosen).nonzero()[0]
        self._offsets = (ends - widths)[chosen]
        self._places = (ends - widths)[~chosen]

    def channels(self, numbers: Array) -> Array:
        """Rows of numbers as rows of channels: a choice is a one among zeros."""
        out = np.zeros((len(numbers), self.width), dtype=np.float32)
        if len(self._chosen):
            places = self._offsets + numbers[:, self._chosen].astype(int)
            out[np.arange(len(numbers))[:, None], places] = 1
        if len(self._real):
            out[:, self._places] = numbers[:, self._real]
        return out


def _sizes(space: Any) -> list[int]:
    """How many values each number of an observation has, 0 for a real one."""
    kind = type(space).__name__
    if kind in {"Tuple", "Dict"}:
        parts = space.spaces.values() if kind == "Dict" else space.spaces
        return [size for part in parts for size in _sizes(part)]
    if kind == "Discrete":
        return [int(space.n)]
    if kind == "MultiDiscrete":
        return [int(n) for n in space.nvec.ravel()]
    if kind == "MultiBinary":
        return [2] * int(np.prod(space.shape))
    return [0] * int(np.prod(space.shape))


def _numbers(observation: Any) -> Array:
    """An observation as a row."""
    if isinstance(observation, dict):
        observation = tuple(observation.values())
    if isinstance(observation, tuple):
        return np.concatenate([_numbers(part) for part in observation])
    return np.asarray(observation, dtype=np.float32).reshape(-1)


class Rows:
    """Environments of one process, stepped in turn."""

    def __init__(self, make: Callable[[], Any], count: int) -> None:
        self.made = [make() for _ in range(count)]
        space = self.made[0].action_space
        self._shape, self._dtype = space.shape, space.dtype

    def reset(self, seed: int) -> Array:
        """Begin all, the first with this seed and the others with those after it."""
        return np.stack([_numbers(env.reset(seed=seed + i)[0]) for i, env in enumerate(self.made)])

    def step(self, actions: Array) -> Stepped:
        """Take an action in each: rows of numbers."""
        observations, last, outcomes = [], [], []
        for env, row in zip(self.made, actions, strict=True):
            action = row.astype(self._dtype).reshape(self._shape)
            following, reward, ended, cut, _ = env.step(action if self._shape else int(action))
            last.append(_numbers(following))
            over = ended or cut
            observations.append(_numbers(env.reset()[0]) if over else last[-1])
            outcomes.append((reward, ended, cut and not ended))
        reward, ended, cut = (np.array(column) for column in zip(*outcomes, strict=True))
        return Stepped(
            np.stack(observations), reward.astype(np.float32), ended, cut, np.stack(last)
        )

    def close(self) -> None:
        """Close all."""
        for env in self.made:
            env.close()


def _serve(pipe: Any, make: Callable[[], Any], count: int) -> None:
    """Answer to the calls of `Environments` until there are none."""
    rows = Rows(make, count)
    try:
        while (call := pipe.recv()) is not None:
            name, argument = call
            pipe.send(getattr(rows, name)(argument))
    except (EOFError, KeyboardInterrupt):  # the other end is gone
        pass
    finally:
        rows.close()


class Environments:
    """Several environments, in this process or shared out to others.

    Args:
        make: makes one; for other processes it has to be a function of a module.
        count: how many.
        workers: processes; 0 for this one alone.

    Attributes:
        observations, actions: `Columns`.
    """

    def __init__(self, make: Callable[[], Any], count: int, workers: int = 0) -> None:
        first = make()
        self.observations = Columns(first.observation_space)
        self.actions = Columns(first.action_space)
        bounds = [getattr(first.action_space, name, None) for name in ("low", "high")]
        self._bounds = [None if bound is None else bound.ravel() for bound in bounds]
        first.close()
        self.count = count
        self._rows = Rows(make, count) if not workers else None
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        self._parts = [len(part) for part in np.array_split(np.arange(count), max(workers, 1))]
        context = multiprocessing.get_context("spawn")
        for part in self._parts if workers else ():
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make, part), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def reset(self, seed: int) -> Array:
        """Begin all; observations (environments, numbers)."""
        if self._rows is not None:
            return self._rows.reset(seed)
        begins = np.cumsum([0, *self._parts[:-1]])
        answers = self._asked("reset", [seed + int(begin) for begin in begins])
        return np.concatenate(answers)

    def step(self, actions: Array) -> Stepped:
        """Take an action in each: (environments, numbers)."""
        if self._rows is not None:
            return self._rows.step(actions)
        answers = self._asked("step", np.split(actions, np.cumsum(self._parts)[:-1]))
        return Stepped(*(np.concatenate(column) for column in zip(*answers, strict=True)))

    def allowed(self, actions: Array) -> Array:
        """Actions within their bounds."""
        low, high = self._bounds
        return actions if low is None else np.clip(actions, low, high)

    def _asked(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        for pipe, argument in zip(self._pipes, arguments, strict=True):
            pipe.send((name, argument))
        return [pipe.recv() for pipe in self._pipes]

    def close(self) -> None:
        """Close the environments, and end the processes."""
        if self._rows is not None:
            self._rows.close()
        for pipe in self._pipes:
            pipe.send(None)
            pipe.close()
        for process in self._processes:
            process.join()
