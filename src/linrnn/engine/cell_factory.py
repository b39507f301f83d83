"""`cell_factory`: cells whose step depends on sizes or options of a layer."""

import functools
from collections.abc import Callable, Hashable

from linrnn.engine.cell import Cell


def cell_factory(make: Callable[..., Cell]) -> Callable[..., Cell]:
    """Decorate a function that makes a cell from sizes or options: each cell is made once.

    Call the result in the constructor of a layer, and store the cell. Such a cell can be copied and
    pickled with its layer, although its step is a local function. A call inside of code that
    `torch.compile` traces works only after the same call outside of it.

    Args:
        make: a function of a module; its positional arguments are hashable.

    Example:
        >>> import torch
        >>> from linrnn.cells import Cell, fold
        >>> @cell_factory
        ... def sums(n):
        ...     def step(h, x):
        ...         h = h + x
        ...         return fold(h, n), h
        ...
        ...     return Cell(step, state="h")
        >>> sums(2) is sums(2)
        True
        >>> sums(2)(torch.zeros(4), torch.tensor([1.0, 2, 3, 4]))[0]
        tensor([4., 6.])
    """
    cells: dict[tuple[Hashable, ...], Cell] = {}

    @functools.wraps(make)
    def factory(*arguments: Hashable) -> Cell:
        cell = cells.get(arguments)
        if cell is None:
            cell = make(*arguments)
            cell.recipe = (factory, arguments)
            cells[arguments] = cell
        return cell

    return factory
