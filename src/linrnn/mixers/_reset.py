"""Reset masks for mixers that do not hand them to an op."""

from itertools import pairwise

import torch
from torch import Tensor

from linrnn.ops import _arguments


def check_reset(where: str, reset: Tensor | None, x: Tensor) -> None:
    """Raise unless ``reset`` is None or a boolean (batch, time) mask for ``x``."""
    _arguments.check_reset(where, reset, x.shape[0], x.shape[1])
    _arguments.check_device(where, "x", x.device, reset=reset)


def stretches(reset: Tensor | None, time: int) -> list[tuple[int, int]]:
    """The spans (begin, end) of time inside which no row of a batch starts anew.

    A traced graph cannot depend on the values of the mask, so there every step is its own span.

    Example:
        >>> stretches(torch.tensor([[False, False, True], [False, False, False]]), 3)
        [(0, 2), (2, 3)]
    """
    if reset is None:
        cuts = [0]
    elif torch.compiler.is_compiling():
        cuts = list(range(time))
    else:
        cuts = [0, *(t for t in reset.any(0).nonzero().flatten().tolist() if t)]
    return list(pairwise([*cuts, time]))
