"""The arguments of `cell_scan`: checked, in one dtype, of one width, as leaves of the program."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
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
        ends = list(accumulate(map(len, self)))
        return Leaves(*[list(flat[a:b]) for a, b in pairwise((0, *ends))])


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
    inputs = {name: named[name] for name in cell.inputs}
    rows, steps = _rows_and_steps(cell, inputs, states, cu_seqlens, time)
    assert device is not None
    seqs = rows if cu_seqlens is None else cu_seqlens.shape[0] - 1
    for name, h in states.items():
        axis = "batch" if cu_seqlens is None else "sequences"
        if h.ndim < 2 or h.shape[0] != seqs:
            raise ShapeError(
                f"{WHERE}: {name} must have shape ({axis}={seqs}, channels), got {tuple(h.shape)}."
            )
    check_reset(WHERE, reset, rows, steps)
    dtype, input_dtype = _dtypes(cell, named, states)
    stored = dtype if any(cell.traced.complex_outputs) else input_dtype
    channels, uniform = _channels(cell, named, states)
    if channels is not None and not uniform:
        named = {n: _flat(x, channels, 2 if n in inputs else 0) for n, x in named.items()}
        states = {n: _flat(h, channels, 1) for n, h in states.items()}
    parts = Leaves(
        _of(states, cell, 0, dtype) if states else [],
        _of(named, cell, 1, input_dtype),
        _of(named, cell, 2, dtype),
        _of(named, cell, 3, dtype),
    )
    leaves, sizes = _sized(cell, parts, channels)
    starts = list(cell.starts())
    if not states:
        pairs = zip(starts, sizes[0], strict=True)
        new = [torch.full((seqs, n), h, device=device, dtype=dtype) for h, n in pairs]
        leaves = leaves._replace(states=new)
    layout = Layout(reset, cu_seqlens, steps, reverse, starts, stored, sizes[1])
    if cell.matrices and stored is torch.bfloat16:
        rounded = all([named[n].dtype is torch.bfloat16 for n in cell.matrices])
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
    cell: Cell,
    inputs: Mapping[str, Tensor],
    states: Mapping[str, Tensor],
    cu_seqlens: Tensor | None,
    time: int | None,
) -> tuple[int, int]:
    if not inputs:
        if time is None or not states:
            raise ArgumentError(
                f"{WHERE}: a cell without inputs must be given time= and state=, got "
                f"{'no time' if time is None else 'no state'}. They say how long it runs."
            )
        if time:
            check_positive_int(WHERE, time=time)
        if cu_seqlens is not None:
            raise ArgumentError(f"{WHERE}: cu_seqlens must be None without inputs, got some.")
        return next(iter(states.values())).shape[0], time
    first, x = next(iter(inputs.items()))
    for name, y in inputs.items():
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


def _dtypes(
    cell: Cell, named: Mapping[str, Tensor], states: Mapping[str, Tensor]
) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype to compute in, and that which all inputs have in common; both real."""
    for name, x in {**named, **states}.items():
        if x.is_complex() and name not in cell.is_complex:
            raise DTypeError(
                f"{WHERE}: {name} must be real as declared, got {x.dtype}. "
                f"Declare it: Cell(..., complex={name!r})."
            )
    inputs = [named[name] for name in cell.inputs]
    every = [*named.values(), *(states.values() if not named else ())]
    dtype = accumulator_dtype(_promoted(every))
    return dtype, _promoted(inputs) if inputs else dtype


def _promoted(tensors: Sequence[Tensor]) -> torch.dtype:
    # tables, for a compiler does not follow the methods of a dtype
    kinds = [_REAL.get(x.dtype, x.dtype) for x in tensors]
    dtype = kinds[0]
    for kind in kinds[1:]:
        dtype = torch.promote_types(dtype, kind)
    return dtype


def _of(tensors: Mapping[str, Tensor], cell: Cell, kind: int, dtype: torch.dtype) -> list[Tensor]:
    """Arguments of a kind as leaves, in a dtype of that precision."""
    names = (cell.states, cell.inputs, cell.constants, cell.matrices)[kind]
    if not cell.is_complex:
        return [tensors[name].to(dtype) for name in names]
    wide = _COMPLEX[accumulator_dtype(dtype)]
    converted = [tensors[name].to(wide if name in cell.is_complex else dtype) for name in names]
    return cell.parts(kind, converted)


def _channels(
    cell: Cell, named: Mapping[str, Tensor], states: Mapping[str, Tensor]
) -> tuple[tuple[int, ...] | None, bool]:
    """The channel axes that all arguments of an elementwise cell are broadcast to.

    Returns:
        These axes, and whether there is one, which every argument has already.
    """
    shapes = {n: x.shape[2 if n in cell.inputs else 0 :] for n, x in named.items()}
    shapes |= {n: h.shape[1:] for n, h in states.items()}
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
