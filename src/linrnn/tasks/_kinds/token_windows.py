"""Windows of a long row of tokens; the target of each token is the next one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError, check_positive_int
from linrnn.tasks._kinds.generated import BatchDataset


class TokenWindows(BatchDataset):
    """Stretches of a text, each with the same stretch one token later as its target.

    Args:
        tokens: (tokens,) ids, perhaps on disk.
        starts: places, rising, at which a document begins.
        length: tokens of a window.
        stride: from one window to the next; tokens at the end that fill none are left out.
    """

    def __init__(self, tokens: np.ndarray, starts: np.ndarray, length: int, stride: int) -> None:
        self.tokens, self.starts = tokens, starts
        self.length, self.stride = length, stride

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1 - self.length) // self.stride + 1)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Input and target (windows, length); with documents also where one begins, boolean."""
        firsts = np.asarray(indices, np.int64) * self.stride
        rows = np.stack([self.tokens[i : i + self.length + 1] for i in firsts.tolist()])
        ids = torch.from_numpy(rows.astype(np.int64))
        x, target = ids[:, :-1], ids[:, 1:]
        if not len(self.starts):
            return x, target
        reset = torch.zeros(len(rows), self.length, dtype=torch.bool)
        bounds = np.searchsorted(self.starts, (firsts, firsts + self.length))
        for row, (first, begin, end) in enumerate(zip(firsts, *bounds, strict=True)):
            reset[row, self.starts[begin:end] - first] = True
        return x, target, reset


def check_parts(where: str, options: Any) -> None:
    """Raise unless ``length``, ``stride``, ``validation`` and ``test`` cut a row of tokens.

    Raises:
        ArgumentError: a size below 1, a part outside (0, 1), nothing left for training.
    """
    check_positive_int(where, length=options.length)
    if isinstance(options.stride, bool) or options.stride < 0:
        raise ArgumentError(
            f"{where}: stride must be an integer of at least 0, got {options.stride!r}."
        )
    for name, low in (("validation", options.validation > 0), ("test", options.test >= 0)):
        if not (low and getattr(options, name) < 1):
            raise ArgumentError(
                f"{where}: {name} must be a part of the tokens in (0, 1), got "
                f"{getattr(options, name)}."
            )
    if options.validation + options.test >= 1:
        raise ArgumentError(
            f"{where}: validation and test must leave a part for training, got "
            f"{options.validation} and {options.test}."
        )
