"""Batches in an order that follows from the seed and the step, so a run can stop anywhere."""

from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    Sampler,
    TensorDataset,
)

from linrnn._process.memory import available
from linrnn.backbone import Model
from linrnn.errors import ArgumentError, DataError
from linrnn.learn import Batch as Batch
from linrnn.learn import unpack as unpack
from linrnn.tasks import BatchDataset, Task
from linrnn.train._outputs import why_not_streamed
from linrnn.train.config import Config
from linrnn.train.seeding import generator


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


class ContiguousBatches(Sampler[list[int]]):
    """Batches in which each row goes on where it ended in the batch before.

    The examples are cut into rows of as many consecutive ones as an epoch has batches. Where the
    last row is shorter, the last batches are without it, so that every example comes once.

    Args:
        size, batch_size, start: as of `EpochBatches`.
    """

    def __init__(self, size: int, batch_size: int, start: int = 0) -> None:
        self.size, self.start = size, start
        self.steps = steps_per_epoch(size, batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.start, self.steps):
            yield list(range(step, self.size, self.steps))

    def __len__(self) -> int:
        return self.steps - self.start


class Spread(Sampler[int]):
    """Some of many examples, in order and evenly far apart; takes no memory.

    Args:
        size: examples in the data set.
        count: how many of them, at most ``size``.

    Example:
        >>> list(Spread(10, 4))
        [0, 2, 5, 7]
    """

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count

    def __iter__(self) -> Iterator[int]:
        return (i * self.size // self.count for i in range(self.count))

    def __len__(self) -> int:
        return self.count


def check_order(config: Config, task: Task, model: Model) -> None:
    """Raise unless data and model suit the order of the batches and a state that is carried.

    Raises:
        ArgumentError: the examples are unrelated or overlap, or the state would grow.
    """
    if config.train.order == "contiguous" and not task.contiguous:
        raise ArgumentError(
            f"Config: train.order and train.carry_state must be 'shuffled' and False where no "
            f"training example goes on where the one before it ended, got them for the task "
            f"{config.task}. The task lm without overlap (--task.stride 0) has such examples."
        )
    if config.train.carry_state:
        reason = why_not_streamed(model)
        if reason:
            raise ArgumentError(
                "Config: train.carry_state must be False for a model whose state has no constant "
                f"size, got True and {reason}. Take a recurrent mixer, or attention with a window."
            )


def check_memory(
    model: Model, task: Task, rows: int, *, steps: int | None = None, examples: int = 0
) -> None:
    """Raise unless there is memory for a batch, and for the order of the examples.

    What is counted is less than what is needed: a batch as the task gives it and as one layer does.

    Args:
        model, task: that fit each other.
        rows: of the batch.
        steps: of a row. Default: those of the longest sequence.
        examples: whose order is drawn.

    Raises:
        ArgumentError: not even those fit.
    """
    steps = task.sequence_length if steps is None else steps
    width = model.d_model + (task.d_input if task.encoder == "linear" else 1)
    needed = rows * task.documents * steps * width * model.head.weight.element_size() + 8 * examples
    if needed > available():
        raise ArgumentError(
            f"Config: a batch and the order of the data must fit into {available():,} bytes of "
            f"memory, got {rows:,} sequences of {steps:,} steps and {examples:,} examples. Lower "
            "--train.batch-size, or the task's length or sizes."
        )


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


def train_loader(
    dataset: Dataset[Any], batch_size: int, seed: int, step: int, *, contiguous: bool = False
) -> DataLoader[Any]:
    """Batches that are left at ``step`` of the epoch it lies in."""
    size = size_of(dataset, "training data")
    epoch, start = divmod(step, steps_per_epoch(size, batch_size))
    if contiguous:
        return _loader(dataset, ContiguousBatches(size, batch_size, start))
    return _loader(dataset, EpochBatches(size, batch_size, seed, epoch, start))


def eval_loader(
    dataset: Dataset[Any],
    batch_size: int,
    examples: int | None = None,
    *,
    contiguous: bool = False,
) -> DataLoader[Any]:
    """Every example once, in order, or that many of them, spread evenly: files may be sorted."""
    size = size_of(dataset, "evaluation data")
    if contiguous:
        return _loader(dataset, ContiguousBatches(size, batch_size))
    count = size if examples is None else min(size, examples)
    return _loader(dataset, BatchSampler(Spread(size, count), batch_size, drop_last=False))


def _loader(dataset: Dataset[Any], batches: Sampler[list[int]]) -> DataLoader[Any]:
    if isinstance(dataset, (TensorDataset, BatchDataset)):
        # index a whole batch at once instead of stacking single examples
        return DataLoader(dataset, sampler=batches, batch_size=None)
    return DataLoader(dataset, batch_sampler=batches)
