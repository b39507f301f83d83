"""The arguments of `cell_scan`: checked, in one dtype, of one width, as leaves of the program."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.cells import Cell
from linrnn.compute.arguments import check_device, check_numbers, check_packed, check_reset
from linrnn.compute.layout import accumulator_dtype, previous_state
from linrnn.engine.widths import widths
from linrnn.errors import ArgumentError, DTypeError, ShapeError, check_positive_int

WHERE = "cell_scan"
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {wide: real for real, wide in _COMPLEX.items()}


class Leaves(NamedTuple):
    """The leaves of a program by kind, all real; or their gradients."""

    states: Sequence[Any]
    """Before the first step, (sequences, width), in the dtype that is computed in."""
    inputs: Sequence[Any]
    """(batch, time, width), in any one dtype."""
    parameters: Sequence[Any]
    """(width,), in the dtype that is computed in."""
    matrices: Sequence[Any]
    """(rows, columns) or (heads, rows, columns), in the dtype that is computed in."""

    def flat(self) -> list[Tensor]:
        """All of them in this order."""
        return [*self.states, *self.inputs, *self.parameters, *self.matrices]

    def like(self, flat: Sequence[Any]) -> "Leaves":
        """Group the values of ``flat`` as this one groups its own."""
        groups: list[list[Any]] = []
        start = 0
        for group in self:
            groups.append(list(flat[start : start + len(group)]))
            start += len(group)
        return Leaves(*groups)


class Layout(NamedTuple):
    """How steps follow one another, and what their outputs look like."""

    reset: Tensor | None
    cu_seqlens: Tensor | None
    time: int
    reverse: bool
    starts: Sequence[float]
    """The value of each state after a reset."""
    dtype: torch.dtype
    """The dtype of the outputs."""
    widths: Sequence[int]
    """The widths of the outputs."""
    checkpoint: int | None = None
    """The native kernels store the state of every n-th step, n this number; None: of every step."""
    half_products: bool = False
    """Kernels may round what is multiplied with matrices, which are bfloat16, to bfloat16."""

    def marked(self, reset: Tensor | None, cu_seqlens: Tensor | None) -> "Layout":
        """The same of steps with these marks."""
        if self.reset is reset and self.cu_seqlens is cu_seqlens:
            return self
        return self._replace(reset=reset, cu_seqlens=cu_seqlens)

    def batch(self, states: Sequence[Tensor]) -> int:
        """How many rows the inputs have."""
        return states[0].shape[0] if self.cu_seqlens is None else 1

    def before(self, h: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
        """The states each step starts from, given those after each step, (batch, time, width)."""
        return [self.one_before(i, x, states[i]) for i, x in enumerate(h)]

    def one_before(self, i: int, h: Tensor, initial: Tensor) -> Tensor:
        """The same of the i-th state."""
        marks = (self.reset, self.cu_seqlens, self.reverse)
        return previous_state(h, initial, *marks, empty=self.starts[i])

    def stored(self, outputs: Sequence[Tensor], batch: int) -> list[Tensor]:
        """Outputs of all steps as they are returned."""
        pairs = zip(outputs, self.widths, strict=True)
        # (B, T, width)
        return [y.expand(batch, self.time, width).to(self.dtype) for y, width in pairs]


Results = tuple[list[Tensor], list[Tensor]]
"""Outputs and final states."""


def wide_inputs(leaves: Leaves) -> list[Tensor]:
    """The inputs in the dtype that is computed in."""
    dtype = leaves.states[0].dtype
    return [x.to(dtype) for x in leaves.inputs]


class Call(NamedTuple):
    """A call with everything checked."""

    leaves: Leaves
    layout: Layout
    channels: tuple[int, ...] | None
    """The channel axes of all results; None where each has its own width."""


def prepare(
    cell: Cell,
    arguments: Mapping[str, Any],
    state: Any,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    time: int | None,
) -> Call:
    """Check and convert the arguments of a call."""
    named, states = _named(cell, arguments), _states(cell, state)
    tensors = {**named, **states}
    check_numbers(WHERE, tensors)
    like = (*cell.inputs, *cell.states)[0]
    device = tensors[like].device if like in tensors else None
    if device is not None:
        marks = reset if isinstance(reset, Tensor) else None
        check_device(WHERE, like, device, **tensors, reset=marks)
    rows, steps = _rows_and_steps(cell, tensors, cu_seqlens, time)
    assert device is not None
    seqs = rows if cu_seqlens is None else cu_seqlens.shape[0] - 1
    for name, h in states.items():
        axis = "batch" if cu_seqlens is None else "sequences"
        if h.ndim < 2 or h.shape[0] != seqs:
            raise ShapeError(
                f"{WHERE}: {name} must have shape ({axis}={seqs}, channels), got {tuple(h.shape)}."
            )
    check_reset(WHERE, reset, rows, steps)
    dtype, input_dtype = _dtypes(cell, tensors)
    stored = dtype if any(cell.traced.complex_outputs) else input_dtype
    leading = dict.fromkeys(cell.inputs, 2) | dict.fromkeys(cell.states, 1)
    channels, uniform = _channels(cell, tensors, leading)
    if channels is not None and not uniform:
        tensors = {n: _flat(x, channels, leading.get(n, 0)) for n, x in tensors.items()}
    parts = _leaves(cell, tensors, dtype, input_dtype)
    leaves, sizes = _sized(cell, parts, channels)
    starts = list(cell.starts())
    if not states:
        pairs = zip(starts, sizes[0], strict=True)
        new = [torch.full((seqs, n), h, device=device, dtype=dtype) for h, n in pairs]
        leaves = leaves._replace(states=new)
    layout = Layout(reset, cu_seqlens, steps, reverse, starts, stored, sizes[1])
    if cell.matrices and stored is torch.bfloat16:
        rounded = all([tensors[n].dtype is torch.bfloat16 for n in cell.matrices])
        layout = layout._replace(half_products=rounded)
    return Call(leaves, layout, channels)


def _named(cell: Cell, arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = (*cell.inputs, *cell.constants, *cell.matrices)
    if arguments.keys() != {*names}:
        missing = [name for name in names if name not in arguments]
        extra = [name for name in arguments if name not in names]
        got = f"no {missing[0]}" if missing else extra[0]
        raise ArgumentError(
            f"{WHERE}: the arguments must be those of {cell.name}, {', '.join(names) or 'none'}, "
            f"got {got}. Give each by its name, and the states as state=."
        )
    return {name: arguments[name] for name in names}


def _states(cell: Cell, state: Any) -> dict[str, Tensor]:
    if state is None:
        return {}
    states = tuple(state) if isinstance(state, (tuple, list)) else (state,)
    if len(states) != len(cell.states):
        raise ArgumentError(
            f"{WHERE}: state must hold {', '.join(cell.states)}, got {len(states)} tensors. "
            "Give them as a tuple in this order."
        )
    return dict(zip(cell.states, states, strict=True))


def _rows_and_steps(
    cell: Cell, tensors: Mapping[str, Tensor], cu_seqlens: Tensor | None, time: int | None
) -> tuple[int, int]:
    if not cell.inputs:
        if time is None or cell.states[0] not in tensors:
            raise ArgumentError(
                f"{WHERE}: a cell without inputs must be given time= and state=, got "
                f"{'no time' if time is None else 'no state'}. They say how long it runs."
            )
        if time:
            check_positive_int(WHERE, time=time)
        if cu_seqlens is not None:
            raise ArgumentError(f"{WHERE}: cu_seqlens must be None without inputs, got some.")
        return tensors[cell.states[0]].shape[0], time
    first = cell.inputs[0]
    x = tensors[first]
    for name in cell.inputs:
        y = tensors[name]
        if y.ndim < 3 or y.shape[:2] != x.shape[:2]:
            raise ShapeError(
                f"{WHERE}: {name} must have shape (batch, time, *channels), batch and time those "
                f"of {first}, got {tuple(y.shape)}. Broadcast it with .expand(...)."
            )
    check_packed(WHERE, first, x, cu_seqlens)
    if time is not None and time != x.shape[1]:
        raise ArgumentError(
            f"{WHERE}: time must be that of the inputs, {x.shape[1]}, got {time}. Leave it away."
        )
    return x.shape[0], x.shape[1]


def _dtypes(cell: Cell, tensors: Mapping[str, Tensor]) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype to compute in, and that which all inputs have in common; both real."""
    for name, x in tensors.items():
        if x.is_complex() and name not in cell.is_complex:
            raise DTypeError(
                f"{WHERE}: {name} must be real as declared, got {x.dtype}. "
                f"Declare it: Cell(..., complex={name!r})."
            )
    arguments = (*cell.inputs, *cell.constants, *cell.matrices)
    dtype = accumulator_dtype(_promoted(tensors, arguments or cell.states))
    return dtype, _promoted(tensors, cell.inputs) if cell.inputs else dtype


def _promoted(tensors: Mapping[str, Tensor], names: Sequence[str]) -> torch.dtype:
    """The real dtype that holds the numbers of some arguments."""
    dtype: torch.dtype | None = None
    for name in names:
        # a table, for a compiler does not follow the methods of a dtype
        real = _REAL.get(tensors[name].dtype, tensors[name].dtype)
        dtype = real if dtype is None else torch.promote_types(dtype, real)
    assert dtype is not None
    return dtype


def _leaves(
    cell: Cell, tensors: Mapping[str, Tensor], dtype: torch.dtype, input_dtype: torch.dtype
) -> Leaves:
    """Arguments as leaves, inputs in their own dtype and all others in that of the computation.

    A call without a state has no states among them.
    """
    groups: list[list[Tensor]] = []
    for kind, names in enumerate((cell.states, cell.inputs, cell.constants, cell.matrices)):
        real = input_dtype if kind == 1 else dtype
        group: list[Tensor] = []
        for name in names:
            if name in cell.is_complex and name in tensors:
                group.append(tensors[name].to(_COMPLEX[accumulator_dtype(real)]))
            elif name in tensors:
                group.append(tensors[name].to(real))
        groups.append(cell.parts(kind, group) if group and cell.is_complex else group)
    return Leaves(*groups)


def _channels(
    cell: Cell, tensors: Mapping[str, Tensor], leading: Mapping[str, int]
) -> tuple[tuple[int, ...] | None, bool]:
    """The channel axes that all arguments of an elementwise cell are broadcast to.

    Args:
        cell, tensors: the call's.
        leading: how many axes each has before its channels, 0 unless this says more.

    Returns:
        These axes, and whether there is one, which every argument has already.
    """
    shapes = {n: x.shape[leading.get(n, 0) :] for n, x in tensors.items()}
    if cell.program.mixes:
        for name, shape in shapes.items():
            if name not in cell.matrices and len(shape) > 1:
                raise ShapeError(
                    f"{WHERE}: {name} must have one channel axis in a cell with matrices, got "
                    f"{tuple(shape)}. Flatten them; linrnn.cells.block_linear knows heads."
                )
        return None, False
    different = set(shapes.values())
    if len(different) == 1:  # for others PyTorch imports a computer algebra system
        (shape,) = different
        return tuple(shape), len(shape) == 1
    try:
        return tuple(torch.broadcast_shapes(*different)), False
    except RuntimeError:
        listed = ", ".join(f"{n} {tuple(shape)}" for n, shape in shapes.items())
        raise ShapeError(
            f"{WHERE}: the channel axes of all arguments must fit together, got {listed}. "
            "They are what follows batch and time, or batch in a state."
        ) from None


def _flat(x: Tensor, channels: tuple[int, ...], leading: int) -> Tensor:
    """One channel axis of full width behind the leading ones."""
    ahead = x.shape[:leading]
    if x.shape[leading:] != channels:
        missing = len(channels) - (x.ndim - leading)
        # (*ahead, *channels)
        x = x.reshape(*ahead, *[1] * missing, *x.shape[leading:]).expand(*ahead, *channels)
    return x if len(channels) == 1 else x.reshape(*ahead, prod(channels))  # (*ahead, width)


def _sized(
    cell: Cell, parts: Leaves, channels: tuple[int, ...] | None
) -> tuple[Leaves, tuple[list[int], list[int]]]:
    """Leaves of full width, and the widths of states and outputs."""
    program = cell.program
    if channels is not None:
        n = prod(channels)
        return parts, ([n] * len(program.states), [n] * len(program.outputs))
    vectors = [[tuple(x.shape[-1:]) for x in group] for group in parts[:3]]
    vectors[0] = vectors[0] or [None] * len(program.states)  # type: ignore[list-item]
    shapes = dict(zip(("state", "input", "parameter"), vectors, strict=True))
    matrices = [tuple(w.shape) for w in parts.matrices]
    node_widths = widths(WHERE, program, {**shapes, "matrix": matrices})
    places = [program.leaves[kind] for kind in ("state", "input", "parameter")]
    states, inputs, parameters = (
        [
            x.expand(*x.shape[:leading], node_widths[where[i]]) if i in where else x  # (..., width)
            for i, x in enumerate(group)
        ]
        for group, where, leading in zip(parts[:3], places, (1, 2, 0), strict=True)
    )
    state_widths = [node_widths[x] for x in program.next_states]
    sizes = [node_widths[places[0][i]] if i in places[0] else n for i, n in enumerate(state_widths)]
    full = Leaves(states, inputs, parameters, parts.matrices)
    return full, (sizes, [node_widths[x] for x in program.outputs])
