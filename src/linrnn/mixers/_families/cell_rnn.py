"""Base of the layers that are one cell between a map of the input and one of the output."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.nn.linear import Linear
from linrnn.ops import cell_scan
from linrnn.state_spec import Part, real

MOST_WRITTEN_OUT = 64
"""Limit on repetitions inside a step, each of which the program contains once."""

SHORT_STEPS = "8 steps of the length by default hardly move a state; longer ones train"


class Timed(NamedTuple):
    """A step in which ``dt``, the time since the step before, is an input, or 1 everywhere."""

    uneven: Cell
    even: Cell


def timed(**cells: Cell) -> dict[str, Timed]:
    """Each cell with an input ``dt``, and the same without it.

    Example:
        >>> leak = Cell(lambda h, x, dt: (h + dt * (x - h),) * 2, state="h", name="leak")
        >>> timed(leak=leak)["leak"].even.inputs
        ('x',)
    """
    return {name: Timed(x, _without_time(x)) for name, x in cells.items()}


def steady(**cells: Cell) -> dict[str, Timed]:
    """Each cell, of layers that count steps and know no time."""
    return {name: Timed(x, x) for name, x in cells.items()}


class Family:
    """Cells by options of their layers, such as how many steps a solver takes; each made once."""

    def __init__(self, make: Callable[..., Timed]) -> None:
        self.make = make
        self.made: dict[tuple[Any, ...], Timed] = {}

    def __getitem__(self, key: tuple[Any, ...]) -> Timed:
        cell = self.made.get(key)
        if cell is None:
            cell = self.made[key] = self.make(*key)
        return cell

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.made)


def _without_time(cell: Cell) -> Cell:
    place = cell.arguments.index("dt")

    def step(*arguments: Any) -> Any:
        return cell.function(*arguments[:place], 1.0, *arguments[place:])

    names = [name for name in cell.arguments if name != "dt"]
    kinds = [inspect.Parameter(x, inspect.Parameter.POSITIONAL_OR_KEYWORD) for x in names]
    step.__signature__ = inspect.Signature(kinds)  # type: ignore[attr-defined]
    declared: dict[str, Any] = {
        "state": cell.states,
        "constant": cell.constants,
        "matrix": cell.matrices,
    }
    return Cell(step, **declared, start=cell.start, name=f"{cell.name}, even steps")


class CellRNN(Mixer):
    """``y_t`` is a cell's output of d_state channels, mapped to d_model where that is another size.

    A subclass has its cells, says in `_given` what they are given, and by `_key` which of them it
    is where there are several.
    """

    timed: ClassVar[bool] = True
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    cells: ClassVar[Mapping[str, Timed] | Family]

    def _set_sizes(self, d_model: int, d_state: int | None, to: dict[str, Any]) -> int:
        """Note the sizes down and make the map of the output; returns d_state."""
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        check_positive_int(type(self).__name__, d_state=self.d_state)
        self.out_proj: nn.Module = nn.Identity()
        if self.d_state != d_model:
            self.out_proj = Linear(self.d_state, d_model, **to)
        return self.d_state

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self._cells()  # here and not where it is needed: no compiler looks into how it is made
        if isinstance(self.out_proj, nn.Linear):
            self.out_proj.reset_parameters()

    def state_spec(self) -> Part | dict[str, Part]:
        """See `Mixer.state_spec`."""
        names, part = self._cells().even.states, real(d_state=self.d_state)
        return part if len(names) == 1 else dict.fromkeys(names, part)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self._cells()

    def _key(self) -> Any:
        return next(iter(self.cells))

    def _cells(self) -> Timed:
        return self.cells[self._key()]

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        """Inputs but ``dt``, constants and matrices of the cell; a number is for all channels.

        A tensor is best of full width and contiguous: one of another width keeps the machine from
        the record of an earlier call, and a step takes three times as long.
        """
        raise NotImplementedError

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, dt: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        dtype = self._parameter().dtype
        inputs, cells = self._given(x.to(dtype), dt), self._cells()
        with without_autocast(x.device):
            y, state = scan(cells, inputs, state, reset, dt)
        return self.out_proj(y.to(dtype)), state


def scan(
    cells: Timed, inputs: Mapping[str, Any], state: Any, reset: Tensor | None, dt: Tensor | None
) -> tuple[Tensor, Any]:
    """`cell_scan` from and to a state as `CellRNN.state_spec` says, in at least float32."""
    names = cells.even.states
    start = tuple(state[x] for x in names) if isinstance(state, dict) else (state,)
    width = start[0].shape[-1:]  # of numbers too, for a call of several widths is no record
    arguments: dict[str, Any] = {
        name: wide(x) if isinstance(x, Tensor) else start[0].new_full(width, x)
        for name, x in inputs.items()
    }
    cell = cells.even
    if dt is not None:
        cell, arguments["dt"] = cells.uneven, dt[..., None].to(start[0].dtype)
    y, last = cell_scan(cell, **arguments, state=start, reset=reset)
    return y, dict(zip(names, last, strict=True)) if isinstance(state, dict) else last
