"""The part of each batch that one of several processes reads.

Every process is given every batch whole: the same rows in the same order, varied by the same random
numbers, as one process would see them. Rows are dealt out as cards are, so that a row of the
batches stays with a process also where the last batches are shorter, and its state can be carried.
"""

from typing import NamedTuple

from torch import Tensor

from linrnn.learn import Batch
from linrnn.tasks import IGNORE
from linrnn.train._together import Group


class Share(NamedTuple):
    """The rows of a batch that one process reads, and the weight of their loss."""

    batch: Batch
    """Its rows; where nothing is asked in them, one row of all, for nothing."""
    rows: int
    """How many of them are its own."""
    weight: float
    """Factor of its mean loss, so that the mean over the processes is that of the whole batch: the
    number of processes times this process's share of the targets."""


def share_of(batch: Batch, group: Group) -> Share:
    """Take the part of a batch that a process reads.

    Args:
        batch: the whole, at least a row.
        group: the processes.
    """
    rows = len(batch.x)
    if group.size == 1:
        return Share(batch, rows, 1.0)
    counts = asked_of(batch.target)
    own_counts = counts[group.rank :: group.size]
    if float(own_counts.sum()) > 0:
        weight = group.size * float(own_counts.sum()) / float(counts.sum())
        return Share(_rows(batch, slice(group.rank, None, group.size)), len(own_counts), weight)
    # the loss of nothing is NaN, whatever it is multiplied by
    row = int(counts.argmax())
    weight = 0.0 if float(counts.sum()) > 0 else 1.0
    return Share(_rows(batch, slice(row, row + 1)), 0, weight)


def asked_of(target: Tensor) -> Tensor:
    """Targets in each row (batch,): classes that count, or numbers that are not NaN."""
    is_target = ~target.isnan() if target.is_floating_point() else target != IGNORE
    return is_target.reshape(len(target), -1).sum(1)  # (batch,)


def own_rows(h: Tensor, group: Group) -> Tensor:
    """The rows of a carried state that are those of a process."""
    return h if group.size == 1 else h[group.rank :: group.size].clone()


def _rows(batch: Batch, rows: slice) -> Batch:
    parts = (None if part is None else part[rows] for part in batch)
    return Batch(*parts)  # type: ignore[arg-type]


def split_seed(purpose: str, group: Group) -> str:
    """The purpose of random numbers that each process draws for its rows alone."""
    return purpose if group.first else f"{purpose} of process {group.rank}"
