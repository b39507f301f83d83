"""Levels of BabyAI: demonstrations of its bot, and episodes that a policy plays."""

import contextlib
import importlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from linrnn._files.door import open_file
from linrnn._files.storage import write_atomically
from linrnn.errors import LinrnnError

Array = npt.NDArray[Any]
VIEW = (7, 7, 3)
"""Cells that an agent sees, each as kind, colour and state."""
ACTIONS = 7

_TWO_VISITS: Mapping[str, Any] = {
    "room_size": 7,
    "num_rows": 1,
    "num_cols": 1,
    "num_dists": 4,
    "locked_room_prob": 0,
    "locations": False,
    "unblocking": False,
    "action_kinds": ["goto"],
    "instr_kinds": ["seq"],
}
LEVELS: Mapping[str, str | Mapping[str, Any]] = {
    "GoToLocal": "BabyAI-GoToLocal-v0",
    "visits in order": _TWO_VISITS,
    "MemoryS7, key above": "MiniGrid-MemoryS7-v0",
    "MemoryS9": "MiniGrid-MemoryS9-v0",
    "GoToSeqS5R2": "BabyAI-GoToSeqS5R2-v0",
    "GoTo": "BabyAI-GoTo-v0",
    "GoToSeq": "BabyAI-GoToSeq-v0",
    "BossLevel": "BabyAI-BossLevel-v0",
}
"""Names in gymnasium, or options of minigrid's generator of levels."""
_KEY_ABOVE = {"MemoryS7, key above"}
"""Levels of a sign and two objects in which the key lies always in the upper place."""


def make(level: str) -> Any:
    """An environment of a level.

    Raises:
        LinrnnError: minigrid is not installed.
    """
    try:
        generator = importlib.import_module("minigrid.envs.babyai.core.levelgen")
        gymnasium = importlib.import_module("gymnasium")
    except ImportError as error:
        raise LinrnnError(
            f"babyai: minigrid must be installed, got {error}. Install it: pip install minigrid"
        ) from error
    options = LEVELS[level]
    if isinstance(options, str):
        return gymnasium.make(options, disable_env_checker=True)
    return generator.LevelGen(**options)


def begin(level: str, env: Any, seed: int) -> Mapping[str, Any]:
    """Begin an episode of a level with a seed; its first observation."""
    observation: Mapping[str, Any] = env.reset(seed=seed)[0]
    while level in _KEY_ABOVE and not _key_above(env.unwrapped):
        observation = env.reset()[0]
    return observation


def _key_above(env: Any) -> bool:
    return bool(env.grid.get(int(env.success_pos[0]), env.height // 2 - 2).type == "key")


class Demonstration(NamedTuple):
    """An episode of the bot."""

    mission: str
    views: Array
    """(time, 7, 7, 3) of bytes."""
    actions: Array
    """(time,) of bytes."""


@contextlib.contextmanager
def _silently() -> Iterator[None]:
    """Drop what minigrid prints while it draws a level."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def demonstrate(level: str, seeds: Sequence[int]) -> list[Demonstration]:
    """Episodes in which the bot reached its goal, one for each seed with which it did."""
    env, demonstrations = make(level), []
    with _silently():
        for seed in seeds:
            observation = begin(level, env, seed)
            bot, action, reward, over = _bot(env.unwrapped), None, 0.0, False
            views, actions = [], []
            while not over:
                action = bot.replan(action)
                views.append(observation["image"])
                actions.append(int(action))
                observation, reward, ended, cut, _ = env.step(action)
                over = ended or cut
            if reward > 0:
                demonstrations.append(
                    Demonstration(
                        observation["mission"], np.stack(views), np.array(actions, np.uint8)
                    )
                )
    env.close()
    return demonstrations


def _bot(env: Any) -> Any:
    """The bot of BabyAI, with a plan for a level of minigrid that has no instructions for it."""
    bots = importlib.import_module("minigrid.utils.baby_ai_bot")
    if hasattr(env, "success_pos"):  # a sign, and later two objects, of which one is like it
        verifier = importlib.import_module("minigrid.envs.babyai.core.verifier")
        env.instrs = verifier.GoToInstr(verifier.ObjDesc("ball"))  # a bot is made of instructions
        bot = bots.BabyAIBot(env)
        column, row = map(int, env.success_pos)  # beside the object, seen from the hallway
        middle = env.height // 2
        places = ((column, 2 * row - middle), (1, middle - 1))  # of the object, and of the sign
        bot.stack = [bots.GoNextToSubgoal(bot, place) for place in places]
        return bot
    return bots.BabyAIBot(env)


def recorded(level: str, count: int, out: Path) -> list[Demonstration]:
    """Demonstrations with the seeds 0 to ``count`` - 1, read from a file where they were made.

    Args:
        level: one of `LEVELS`.
        count: episodes that the bot begins; those that it does not finish are left out.
        out: folder of a page.
    """
    path = out / "data" / f"{level.replace(' ', '-')}-{count}.npz"
    if not path.is_file():
        demonstrations = demonstrate(level, range(count))
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            missions=np.array([d.mission for d in demonstrations]),
            lengths=np.array([len(d.actions) for d in demonstrations]),
            views=np.concatenate([d.views for d in demonstrations]),
            actions=np.concatenate([d.actions for d in demonstrations]),
        )
        write_atomically(path, buffer.getvalue(), inside=out)
    with open_file(path, inside=out) as file, np.load(file, allow_pickle=False) as arrays:
        ends = arrays["lengths"].cumsum()[:-1]
        views, actions = (np.split(arrays[name], ends) for name in ("views", "actions"))
        missions = [str(mission) for mission in arrays["missions"]]
    return [Demonstration(*parts) for parts in zip(missions, views, actions, strict=True)]


class Episodes(NamedTuple):
    """Played episodes, one of each seed."""

    won: list[bool]
    lengths: list[int]


Policy = Callable[[Sequence[int], Array], Array]
"""Numbers of the episodes that go on and their views (rows, 7, 7, 3), to actions (rows,)."""


def play(level: str, ready: Callable[[Sequence[str]], Policy], seeds: Sequence[int]) -> Episodes:
    """Play an episode with each seed, all at once.

    Args:
        level: one of `LEVELS`.
        ready: takes the missions, and returns the policy.
        seeds: of the episodes.
    """
    environments = [make(level) for _ in seeds]
    won, lengths = [False] * len(environments), [0] * len(environments)
    with _silently():
        observations = [
            begin(level, env, seed) for env, seed in zip(environments, seeds, strict=True)
        ]
        policy = ready([one["mission"] for one in observations])
        alive = list(range(len(environments)))
        while alive:
            actions = policy(alive, np.stack([observations[row]["image"] for row in alive]))
            still = []
            for row, action in zip(alive, actions, strict=True):
                observations[row], reward, ended, cut, _ = environments[row].step(int(action))
                won[row] = won[row] or reward > 0
                lengths[row] += 1
                if not (ended or cut):
                    still.append(row)
            alive = still
    for env in environments:
        env.close()
    return Episodes(won, lengths)
