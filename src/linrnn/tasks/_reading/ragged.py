"""Sequences of different lengths, one after the other in a single array."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from linrnn.tasks._kinds.generated import BatchDataset


class Ragged(BatchDataset):
    """Padded batches of sequences that lie in memory without padding.

    Args:
        values: all sequences, one after the other.
        ends: where each ends.
        target: (sequences,) classes.
        pad: makes (x, length) of the values of one sequence; x has the same shape for all.
    """

    def __init__(
        self,
        values: np.ndarray,
        ends: np.ndarray,
        target: np.ndarray,
        pad: Callable[[np.ndarray], tuple[Tensor, int]],
    ) -> None:
        self.values, self.ends, self.pad = values, ends, pad
        self.target = torch.from_numpy(target.astype(np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Padded sequences, classes and lengths."""
        rows, lengths = zip(*(self.pad(self._row(i)) for i in indices), strict=True)
        return torch.stack(rows), self.target[list(indices)], torch.tensor(lengths)

    def _row(self, index: int) -> np.ndarray:
        begin = self.ends[index - 1] if index else 0
        return self.values[begin : self.ends[index]]

    def take(self, rows: np.ndarray) -> "Ragged":
        """Some of the sequences."""
        parts = [self._row(i) for i in rows.tolist()]
        return join(parts, self.target.numpy()[rows], self.pad)


def join(
    parts: Sequence[np.ndarray],
    target: np.ndarray,
    pad: Callable[[np.ndarray], tuple[Tensor, int]],
) -> Ragged:
    """A `Ragged` of sequences that are arrays of their own."""
    ends = np.cumsum([len(part) for part in parts])
    return Ragged(np.concatenate(parts), ends, target, pad)
