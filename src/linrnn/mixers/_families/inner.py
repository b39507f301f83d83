"""Cells whose step is a few iterations, each with its own step size."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from linrnn.cells import Cell
from linrnn.mixers._families.cell_rnn import Timed, timed


def iterated(name: str, step: Callable[..., Any], count: int, **declared: str) -> Timed:
    """The cell of ``step(..., etas)``, whose last argument is ``count`` numbers, learned or not.

    They are its constants ``eta_0``, ``eta_1``, ...; `etas` names them.

    Args:
        name: of the cell, of one step alone.
        step: as `linrnn.cells.Cell` takes it, but for its last argument.
        count: of iterations.
        declared: ``state``, ``constant`` and ``matrix`` of `linrnn.cells.Cell`.
    """
    names = list(inspect.signature(step).parameters)[:-1]
    numbers = [f"eta_{i}" for i in range(count)]

    def unrolled(*arguments: Any) -> Any:
        return step(*arguments[: len(names)], arguments[len(names) :])

    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    unrolled.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(x, kinds) for x in (*names, *numbers)]
    )
    constant = " ".join([declared.pop("constant", ""), *numbers])
    unrolled_cell = Cell(unrolled, constant=constant, name=f"{name}_{count}", **declared)  # type: ignore[arg-type]
    return timed(only=unrolled_cell)["only"]


def etas(numbers: Tensor) -> dict[str, Tensor]:
    """The step sizes (count,) as the constants of `iterated`."""
    values: Sequence[Tensor] = numbers.split(1)
    return {f"eta_{i}": x for i, x in enumerate(values)}
