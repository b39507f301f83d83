"""A game of Atari as an environment of small grey screens, one frame at a time."""

import importlib
from typing import Any

import numpy as np

from linrnn.errors import LinrnnError
from linrnn.reproductions._runs.environments import Array

FULL = (210, 160)
"""Rows and columns of a screen of Atari."""


class Screens:
    """A game whose observations are grey screens from 0 to 1, made smaller by means of blocks.

    Actions are repeated for four frames, and with a probability of 0.25 the one before is taken
    once more, as Machado et al. 2018, arXiv:1709.06009, recommend. There is no stack of frames.

    Args:
        game: an identifier of gymnasium, such as "ALE/Pong-v5".
        block: rows and columns of a block, which divide 210 and 160.

    Raises:
        LinrnnError: ale-py is not installed.
    """

    def __init__(self, game: str, block: tuple[int, int]) -> None:
        try:
            gymnasium = importlib.import_module("gymnasium")
            gymnasium.register_envs(importlib.import_module("ale_py"))
        except ImportError as error:
            raise LinrnnError(
                f"atari: ale-py must be installed, got {error}. "
                "Install it: pip install gymnasium ale-py"
            ) from error
        if FULL[0] % block[0] or FULL[1] % block[1]:
            raise ValueError(f"Screens: block must divide (210, 160), got {block}.")
        self.block, self.env = block, gymnasium.make(game, obs_type="grayscale")
        size = FULL[0] // block[0], FULL[1] // block[1]
        self.observation_space = gymnasium.spaces.Box(0, 1, size, np.float32)
        self.action_space = self.env.action_space

    def reset(self, *, seed: int | None = None) -> tuple[Array, Any]:
        """Begin a game."""
        screen, info = self.env.reset(seed=seed)
        return self._small(screen), info

    def step(self, action: int) -> tuple[Array, float, bool, bool, Any]:
        """Take an action for four frames."""
        screen, reward, ended, cut, info = self.env.step(action)
        return self._small(screen), float(reward), ended, cut, info

    def close(self) -> None:
        """Close the game."""
        self.env.close()

    def _small(self, screen: Array) -> Array:
        rows, columns = self.block
        blocks = screen.reshape(FULL[0] // rows, rows, FULL[1] // columns, columns)
        small: Array = blocks.mean((1, 3), dtype=np.float32) / 255
        return small
