"""Batches in an order that follows from the seed and the step, so a run can stop anywhere."""

from collections.abc import Iterator, Sequence, Sized
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    Sampler,
    TensorDataset,
)

from linrnn.errors import DataError
from linrnn.tasks import BatchDataset
from linrnn.train._seeding import generator


class EpochBatches(Sampler[list[int]]):
    """The batches of one epoch from a given one on.

    Args:
        size: examples in the data set.
        batch_size: examples in a batch; the last batch of an epoch may be smaller.
        seed: of the run.
        epoch: its permutation depends on the seed and this alone.
        start: batches to leave out because they were trained on before an interruption.
    """

    def __init__(self, size: int, batch_size: int, seed: int, epoch: int, start: int) -> None:
        self.size, self.batch_size = size, batch_size
        self.seed, self.epoch, self.start = seed, epoch, start

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.size, generator=generator(self.seed, "order", self.epoch))
        for batch in order.split(self.batch_size)[self.start :]:
            yield batch.tolist()

    def __len__(self) -> int:
        return steps_per_epoch(self.size, self.batch_size) - self.start


class Batch(NamedTuple):
    """What a data set gives, by its names."""

    x: Tensor
    target: Tensor
    lengths: Tensor | None
    """(batch,) integers: valid steps of rows that are padded."""
    reset: Tensor | None
    """(batch, time) boolean: a new sequence begins."""


def unpack(batch: Sequence[Tensor]) -> Batch:
    """Tell apart by their dtype what may come after input and target."""
    x, target, *more = batch
    lengths = [extra for extra in more if extra.dtype != torch.bool]
    reset = [extra for extra in more if extra.dtype == torch.bool]
    return Batch(x, target, lengths[0] if lengths else None, reset[0] if reset else None)


def steps_per_epoch(size: int, batch_size: int) -> int:
    """Batches in one pass through ``size`` examples."""
    return -(-size // batch_size)


def size_of(dataset: Dataset[Any], where: str) -> int:
    """Number of examples.

    Raises:
        DataError: there are none.
    """
    size = len(cast(Sized, dataset))
    if size == 0:
        raise DataError(f"{where}: the data set must hold at least one example, got none.")
    return size


def train_loader(dataset: Dataset[Any], batch_size: int, seed: int, step: int) -> DataLoader[Any]:
    """What is left at ``step`` of the epoch it lies in."""
    size = size_of(dataset, "training data")
    epoch, start = divmod(step, steps_per_epoch(size, batch_size))
    return _loader(dataset, EpochBatches(size, batch_size, seed, epoch, start))


def eval_loader(
    dataset: Dataset[Any], batch_size: int, examples: int | None = None
) -> DataLoader[Any]:
    """Every example once, in order, or that many of them, spread evenly: files may be sorted."""
    size = size_of(dataset, "evaluation data")
    count = size if examples is None else min(size, examples)
    order = [i * size // count for i in range(count)]
    return _loader(dataset, BatchSampler(order, batch_size, drop_last=False))


def _loader(dataset: Dataset[Any], batches: Sampler[list[int]]) -> DataLoader[Any]:
    if isinstance(dataset, (TensorDataset, BatchDataset)):
        # index a whole batch at once instead of stacking single examples
        return DataLoader(dataset, sampler=batches, batch_size=None)
    return DataLoader(dataset, batch_sampler=batches)
