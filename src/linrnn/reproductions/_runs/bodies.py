"""Bodies of MuJoCo, played in the simulator, and recorded episodes of several qualities."""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from linrnn._files.door import open_file
from linrnn._files.storage import write_atomically
from linrnn.errors import DataError, LinrnnError
from linrnn.reproductions._runs.episodes import Array, Episode, as_d4rl

LIMIT = 1000
"""Steps of an episode, at most."""


class Body(NamedTuple):
    """A body, and what its returns are measured by."""

    environment: str
    """Name in gymnasium, version 5. D4RL's version 2 has other physics in details."""
    random: float
    """Return of chance, by which D4RL normalises."""
    expert: float
    target: float
    """Return that a policy is to reach."""

    def score(self, gained: float) -> float:
        """A return as D4RL reports it: 0 is chance, 100 its expert."""
        return 100 * (gained - self.random) / (self.expert - self.random)


BODIES: Mapping[str, Body] = {
    "Hopper": Body("Hopper-v5", -20.272305, 3234.3, 3600),
    "HalfCheetah": Body("HalfCheetah-v5", -280.178953, 12135.0, 6000),
    "Walker2d": Body("Walker2d-v5", 1.629008, 4592.3, 5000),
}
QUALITIES = ("medium", "medium-replay", "medium-expert")


def make(body: str) -> Any:
    """An environment in the simulator.

    Raises:
        LinrnnError: gymnasium or MuJoCo is not installed.
    """
    try:
        gymnasium = importlib.import_module("gymnasium")
        mujoco = importlib.import_module("mujoco")
    except ImportError as error:
        raise LinrnnError(
            f"offline-decisions: gymnasium and mujoco must be installed, got {error}. "
            "Install them: pip install gymnasium mujoco h5py"
        ) from error
    warn = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)  # each body's file has an attribute of old
    try:
        return gymnasium.make(BODIES[body].environment)
    finally:
        mujoco.set_mju_user_warning(warn)


Policy = Callable[[Array, Array], Array]
"""Observations and the rewards just had, a row for each body, to actions."""


class Played(NamedTuple):
    """Episodes that were played, and whether each came to an end before its time was up."""

    episodes: list[Episode]
    ended: list[bool]

    @property
    def returns(self) -> list[float]:
        """Sum of the rewards of each episode."""
        return [float(episode.rewards.sum()) for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        """Steps of each episode."""
        return [len(episode.rewards) for episode in self.episodes]


def play(body: str, policy: Policy, seeds: Sequence[int], limit: int = LIMIT) -> Played:
    """Play an episode with each seed, all at once."""
    environments = [make(body) for _ in seeds]
    first = [env.reset(seed=seed)[0] for env, seed in zip(environments, seeds, strict=True)]
    observations = np.stack(first)
    low, high = environments[0].action_space.low, environments[0].action_space.high
    rewards = np.zeros(len(seeds))
    alive, ended = np.ones(len(seeds), dtype=bool), np.zeros(len(seeds), dtype=bool)
    steps: list[tuple[Array, Array, Array]] = []
    lengths = np.zeros(len(seeds), dtype=int)
    while alive.any() and len(steps) < limit:
        observed = observations.copy()
        actions = np.clip(policy(observed, rewards), low, high)
        rewards = np.zeros(len(seeds))
        for row in alive.nonzero()[0]:
            observations[row], rewards[row], ended[row], cut, _ = environments[row].step(
                actions[row]
            )
            alive[row] = not (ended[row] or cut)
            lengths[row] += 1
        steps.append((observed, actions, rewards))
    for env in environments:
        env.close()
    columns = [np.stack(part, 1).astype(np.float32) for part in zip(*steps, strict=True)]
    episodes = [Episode(*(c[row, :n] for c in columns)) for row, n in enumerate(lengths)]
    return Played(episodes, [bool(end) for end in ended])


EXPERTS = Path("offline_rl", "mujoco_expert.npz")
"""Below `LINRNN_DATA`: two expert episodes of each body."""


def data_folder() -> Path:
    """The folder of data sets."""
    root = os.environ.get("LINRNN_DATA") or Path.home() / ".cache" / "linrnn"
    return Path(root).expanduser()


def experts(body: str) -> list[Episode]:
    """The episodes of an expert, of UC Berkeley's course CS 285.

    Raises:
        DataError: their file is not there.
    """
    path = data_folder() / EXPERTS
    try:
        with open_file(path, inside=None) as file, np.load(file, allow_pickle=False) as arrays:
            return [
                Episode(*(arrays[f"{body}_{n}_{name}"] for name in _BERKELEY)) for n in range(2)
            ]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(
            f"offline-decisions: {path} must hold the arrays {body}_0_observation, {body}_0_action "
            f"and {body}_0_reward of an expert's episode, and {body}_1_ of another, got "
            f"{getattr(error, 'strerror', None) or error}. numpy.savez makes it of the files "
            "expert_data_*.pkl of github.com/berkeleydeeprlcourse/homework_fall2020; or put files "
            f"of D4RL into {data_folder() / 'd4rl'}, and take --scale d4rl."
        ) from error


_BERKELEY = ("observation", "action", "reward")


class Clone:
    """A small network that imitates, and tells its snapshots along the way.

    Args:
        episodes: to imitate.
        seed: of its weights and batches.
    """

    def __init__(self, episodes: Sequence[Episode], seed: int, width: int = 128) -> None:
        torch.manual_seed(seed)
        observations = np.concatenate([episode.observations for episode in episodes])
        actions = np.concatenate([episode.actions for episode in episodes])
        self.mean, self.spread = observations.mean(0), observations.std(0) + 1e-6
        self.net = nn.Sequential(
            *(nn.Linear(observations.shape[1], width), nn.ReLU()),
            *(nn.Linear(width, width), nn.ReLU()),
            nn.Linear(width, actions.shape[1]),
        )
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3)
        self.x, self.y = self._scaled(observations), torch.from_numpy(actions).float()
        self.steps = 0

    def learn(self, until: int) -> None:
        """Go on to a number of steps of Adam with batches of 256."""
        while self.steps < until:
            rows = torch.randint(len(self.x), (256,))
            loss = (self.net(self.x[rows]) - self.y[rows]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.steps += 1

    def policy(self, noise: float, random: np.random.Generator) -> Policy:
        """Act as now, with normal noise on each action."""

        def act(observations: Array, rewards: Array) -> Array:
            with torch.no_grad():
                action: Array = self.net(self._scaled(observations)).numpy()
            return action + noise * random.standard_normal(action.shape)

        return act

    def _scaled(self, observations: Array) -> Tensor:
        return torch.from_numpy((observations - self.mean) / self.spread).float()


_FULL, _NOISE = 2000, 0.4
_SNAPSHOTS = (0, 100, 200, 400, 1000, 2000)
"""Steps of Adam after which a clone plays a part of "medium-replay", as a learner would."""
_ROWS = 20
_NEAR = 0.8
"""Share of the expert's return from which an episode of a clone stands for one of the expert."""


def record(body: str, quality: str, steps: int, out: Path) -> Path:
    """Make a set of our own in D4RL's layout, unless it is there.

    "medium" is a clone of the expert with noise on its actions, "medium-replay" equal parts of its
    snapshots while it learned. Of "medium-expert" one half is as "medium", and the other
    the expert's episodes and those of the clone without noise that gain nearly as much.

    Args:
        body: one of `BODIES`.
        quality: one of `QUALITIES`.
        steps: of the set, at least; the last episodes are whole.
        out: folder of a page.

    Returns:
        Path of the file.
    """
    path = out / "data" / f"{body.lower()}_{quality.replace('-', '_')}-{steps}.hdf5"
    if path.is_file():
        return path
    with torch.random.fork_rng(devices=[]):
        clone, recorded = Clone(experts(body), seed=0), Played([], [])
        if quality == "medium-replay":
            for number, snapshot in enumerate(_SNAPSHOTS):
                clone.learn(snapshot)
                _add(recorded, body, clone, _NOISE / 2, steps // len(_SNAPSHOTS), 1000 * number)
        else:
            clone.learn(_FULL)
            half = steps // (1 + (quality == "medium-expert"))
            _add(recorded, body, clone, _NOISE, half, 0)
            if quality == "medium-expert":
                best = experts(body)
                recorded.episodes.extend(best)
                recorded.ended.extend([False, False])
                near = _NEAR * min(float(episode.rewards.sum()) for episode in best)
                _add(recorded, body, clone, 0.0, half - 2 * LIMIT, 50_000, near)
    write_atomically(path, as_d4rl(*recorded), inside=out)
    return path


def _add(
    recorded: Played,
    body: str,
    clone: Clone,
    noise: float,
    steps: int,
    seed: int,
    min_return: float = -np.inf,
) -> None:
    """Play until there are some steps more, of episodes that gain enough."""
    random, added = np.random.default_rng(seed), 0
    last = seed + _MOST
    while added < steps and seed < last:
        more = play(body, clone.policy(noise, random), range(seed, seed + _ROWS))
        for episode, ended in zip(*more, strict=True):
            if added < steps and float(episode.rewards.sum()) >= min_return:
                recorded.episodes.append(episode)
                recorded.ended.append(ended)
                added += len(episode.rewards)
        seed += _ROWS


_MOST = 100_000
"""Episodes that are tried at most; a million steps of the shortest take fewer."""
