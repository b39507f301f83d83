"""Band-limited noise, which memories without training read."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from linrnn.tasks import uniforms, white_signal


def signals(
    length: int, frequency: float, places: Sequence[int], seed: int = 0, *, rolled: bool = False
) -> Tensor:
    """Signals (places, length), float64: see `linrnn.tasks.white_signal`.

    Args:
        length: in steps.
        frequency: the highest, in cycles per step.
        places: of the signals among all of a seed.
        seed: of all.
        rolled: signals begin with their value closest to 0 instead of being shifted.
    """
    calls, index = iter((1, 2)), np.array(places)
    return torch.from_numpy(
        white_signal(
            lambda n: uniforms(seed, index, next(calls), n), length, frequency, rolled=rolled
        )
    )
