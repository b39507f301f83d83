"""Reset masks for mixers that do not hand them to an op."""

from itertools import pairwise

import torch
from torch import Tensor

from linrnn.errors import DTypeError, check_shape


def check_reset(where: str, reset: Tensor | None, x: Tensor) -> None:
    """Raise unless ``reset`` is None or a boolean (batch, time) mask for ``x``."""
    if reset is None:
        return
    if reset.dtype != torch.bool:
        raise DTypeError(f"{where}: reset must be boolean, got {reset.dtype}. Use mask.bool().")
    check_shape(where, "reset", reset.shape, {"batch": x.shape[0], "time": x.shape[1]})


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
