"""Data sets generated on access, the same in any order and in any worker."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

SPLITS = {"train": 0, "validation": 1, "test": 2}

Uniform = Callable[[int], np.ndarray]
"""``uniform(n)``: (examples, n) numbers in [0, 1); every call gives new ones."""


class BatchDataset(Dataset[tuple[Tensor, ...]], ABC):
    """A data set that is indexed by a list and gives a batch; by a number, one example."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of examples."""

    @abstractmethod
    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Examples, stacked along the first axis of every tensor."""

    def __getitem__(self, index: int | Sequence[int]) -> tuple[Tensor, ...]:
        if isinstance(index, Sequence):
            return self.batch(index)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return tuple(x[0] for x in self.batch([index]))


class Generated(BatchDataset):
    """Examples drawn from random numbers that depend on the split and the index alone.

    Args:
        size: number of examples.
        split: train, validation or test.
        draw: makes a batch out of uniform random numbers, of which it may ask for as many as it
            likes: ``draw(uniform)`` with ``uniform(n)`` of shape (examples, n).
        seed: of the task's data.

    Example:
        >>> import torch
        >>> data = Generated(10, "train", lambda uniform: (torch.from_numpy(uniform(2)),))
        >>> bool((data[[3, 7]][0][1] == data[7][0]).all())
        True
    """

    def __init__(
        self, size: int, split: str, draw: Callable[[Uniform], tuple[Tensor, ...]], seed: int = 0
    ) -> None:
        self.size, self.draw = size, draw
        self.key = seed * len(SPLITS) + SPLITS[split]

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Examples by their numbers: see `BatchDataset.batch`."""
        n_calls = 0

        def uniform(n: int) -> np.ndarray:
            nonlocal n_calls
            n_calls += 1
            return uniforms(self.key, np.asarray(indices), n_calls, n)

        return self.draw(uniform)


def uniforms(key: int, indices: np.ndarray, call: int, n: int) -> np.ndarray:
    """(len(indices), n) numbers in [0, 1), 53 random bits each, without a generator's state.

    Each is a hash of (key, index, call, column): two rounds of the finaliser of SplitMix64
    (Steele, Lea and Flood 2014) over a counter.
    """
    row = mix(mix(np.array([key], np.uint64)) + indices.astype(np.uint64)) + np.uint64(call)
    bits = mix(mix(row)[:, None] + np.arange(n, dtype=np.uint64))
    return (bits >> np.uint64(11)) * 2.0**-53


def mix(x: np.ndarray) -> np.ndarray:
    """A hash of each 64-bit number, one to one."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        z = x * np.uint64(0x9E3779B97F4A7C15)
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed
