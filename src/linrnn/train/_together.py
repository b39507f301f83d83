"""Communication between the processes that train one run."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

T = TypeVar("T")


class Group:
    """The processes that train together, as one of them sees them; a single process sends nothing.

    Every one of them must make the same calls in the same order.

    Args:
        rank: of this process, from 0. The first one alone writes and reports.
        size: how many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.rank == 0

    def sums(self, *values: float) -> list[float]:
        """Each of some numbers, added up over the processes: the same bits on all."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def decided(self, wish: bool) -> bool:
        """Return the wish of the first process."""
        return self.sums(float(wish and self.first))[0] > 0

    def gathered(self, value: T) -> list[T]:
        """Gather the value of each process, in their order: with tensors on the CPU."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def in_order(self, rows: Tensor) -> Tensor:
        """The rows of all processes, on the CPU, in the order of the batch they were dealt from."""
        every = [part for part in self.gathered(rows) if len(part)]
        return _in_turn(every) if every else rows

    def rows(self, flat: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows of a state in the order of the batch, of which each process has its share.

        Args:
            flat: the state of its rows by names, the rows on the first axis; empty without any.
        """
        every = self.gathered({name: h.cpu() for name, h in flat.items()})
        parts = [part for part in every if part]
        names = parts[0] if parts else ()
        return {name: _in_turn([part[name] for part in parts]) for name in names}


class NeverUsed(nn.Module):
    """A parameter beside a model, in no checkpoint.

    DDP has to be told to look for parameters that a batch does not come to, and says once, on the
    terminal and past every filter, that there were none. With this one there is one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.zeros(()))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        pass

    def _load_from_state_dict(self, *args: Any) -> None:
        pass


ALONE = Group()
"""One process."""


def _in_turn(parts: list[Tensor]) -> Tensor:
    """Rows dealt out as cards are, in one pile again."""
    rows = parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:])
    for place, part in enumerate(parts):
        rows[place :: len(parts)] = part
    return rows
