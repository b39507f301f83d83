"""Layers whose cell depends on their options, such as how many steps a solver takes."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from linrnn.mixers._families.cell_rnn import CellRNN, Timed


class Family:
    """Cells by what they depend on, each made once."""

    def __init__(self, make: Callable[..., Timed]) -> None:
        self.make = make
        self.made: dict[tuple[Any, ...], Timed] = {}

    def member(self, key: tuple[Any, ...]) -> Timed:
        """The cell of these options; those of a layer are made with it."""
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = self.make(*key)
        return found


class FamilyRNN(CellRNN):
    """A `CellRNN` whose cell is one of a family, the one that ``_key`` says."""

    family_of_cells: ClassVar[Family]

    def _key(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def _cells(self) -> Timed:
        return self.family_of_cells.member(self._key())

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self._cells()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self._cells()  # here and not where it is needed: no compiler looks into how it is made
        super().reset_parameters()
