"""Specification of a state: names, shapes and kinds, by which states are created and checked.

A state of zeros is the state before the first step, whatever a layer begins from: programs write
``h * (1 - done)`` and ``torch.zeros_like(h)``. Where a layer begins from another number, a state
has 0 for it, and the layer computes with `opened`; what comes out is `closed`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from linrnn._process.memory import check_fits
from linrnn.compute.arguments import check_not_traced, check_tensor
from linrnn.compute.modes import may_look
from linrnn.errors import ArgumentError, DeviceError, DTypeError, LinrnnError, ShapeError
from linrnn.ops import accumulator_dtype
from linrnn.typing import State

__all__ = [
    "Part",
    "Spec",
    "check_start",
    "check_state",
    "closed",
    "complex_",
    "describe",
    "initial",
    "integer",
    "of_state",
    "opened",
    "real",
    "with_axes",
]


def __dir__() -> list[str]:
    return sorted(__all__)


_PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FIX = "Pass what this layer returned for the same batch, or None."


class Part(NamedTuple):
    """One tensor of a state. Made by `real`, `complex_` or `integer`."""

    kind: Literal["real", "complex", "integer"]
    """Real and complex parts have at least the precision of float32."""
    axes: Mapping[str, int | None]
    """Name and size of each axis after the batch; None where it grows with what was read."""
    start: float | Tensor = 0.0
    """The number in every place before the first step, or numbers of the axes after the batch.

    A state has 0 for it: see `opened`.
    """
    double: bool = False
    """Whether it has the precision and range of float64, whatever the parameters have."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes after the batch, before the first step."""
        sizes: tuple[Any, ...] = tuple(self.axes.values())
        return tuple([n or 0 for n in sizes]) if None in sizes else sizes

    def dtype(self, real: torch.dtype) -> torch.dtype:
        """The dtype of the tensor, for parameters or a requested real dtype ``real``."""
        if self.kind == "integer":
            return torch.int64
        real_dtype = torch.float64 if self.double else accumulator_dtype(real)
        if self.kind == "real":
            return real_dtype
        return torch.complex128 if real_dtype == torch.float64 else torch.complex64


Spec: TypeAlias = Part | tuple[Any, ...] | list[Any] | dict[str, Any]
"""A `Part`, or a plain tree of them, which the state follows."""


def real(*, start: float = 0.0, **axes: int | None) -> Part:
    """A real part of a state; the axes after the batch by name, in order.

    Example:
        >>> real(d_inner=8, d_state=16).shape
        (8, 16)
    """
    return Part("real", axes, start)


def complex_(*, double: bool = False, **axes: int | None) -> Part:
    """A complex part of a state; complex128 in every layer if ``double``.

    Example:
        >>> complex_(modes=4, double=True).dtype(torch.float32)
        torch.complex128
    """
    return Part("complex", axes, double=double)


def integer(**axes: int | None) -> Part:
    """A part that counts, int64."""
    return Part("integer", axes)


def initial(
    where: str,
    spec: Spec,
    batch_size: int,
    like: Tensor,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """The state before the first step, zeros.

    Args:
        where: the layer, for messages.
        spec: what it is made of.
        batch_size: rows.
        like: a parameter, which says device and dtype where these are None.
        device, dtype: as in `linrnn.mixers.Mixer.init_state`.

    Raises:
        ArgumentError: no number of rows, more than fit into memory, or nothing that names a device;
            inside `torch.jit.trace`.
        DTypeError: no real dtype of 16 to 64 bits.
    """
    check_start(where, batch_size, device, dtype)
    where_to = like.device if device is None else torch.device(device)
    if where_to.type == "cpu" and not torch.compiler.is_compiling() and type(batch_size) is int:
        fix = "Lower batch_size, or the sizes of the layer."
        numbers = 0  # of a row, each of at least 4 bytes
        for part in _parts(spec):
            numbers += math.prod(part.shape)
        check_fits(where, "the state", 4 * batch_size * numbers, fix)
    if dtype is None:  # integers have no precision to go by
        dtype = like.dtype if like.dtype in _PRECISIONS else torch.float32
    return _fill(spec, batch_size, where_to, dtype)


def _parts(spec: Spec) -> list[Part]:
    """All parts, in order."""
    if isinstance(spec, Part):
        return [spec]
    parts: list[Part] = []
    for part in spec.values() if isinstance(spec, dict) else spec:
        parts += [part] if isinstance(part, Part) else _parts(part)
    return parts


def _fill(spec: Spec, batch: int, device: torch.device | str, dtype: torch.dtype) -> Any:
    if isinstance(spec, Part):
        return torch.zeros((batch, *spec.shape), device=device, dtype=spec.dtype(dtype))
    if isinstance(spec, dict):
        return {name: _fill(part, batch, device, dtype) for name, part in spec.items()}
    return type(spec)([_fill(part, batch, device, dtype) for part in spec])


def opened(state: Any, spec: Spec) -> Any:
    """The numbers a layer computes with: 0 becomes where a part starts, others stay as they are.

    A shift of all numbers would round: of ``h - 1/2`` a small h is gone, and of ``log n`` no shift
    makes the logarithm of nothing 0. So a state holds the numbers themselves, and 0 is set apart.
    """
    if not _starts(spec):
        return state
    return _begun(state, spec.start) if isinstance(spec, Part) else _each(opened, state, spec)


def closed(state: Any, spec: Spec) -> Any:
    """The inverse of `opened`: what comes to exactly 0 is kept as the least normal number.

    It is 1e-38 in float32: a factor of 1 for a logarithm, an underflow for a positive number.
    """
    if not _starts(spec):
        return state
    if isinstance(spec, Part):
        return _begun(state, torch.finfo(state.dtype).tiny)
    return _each(closed, state, spec)


def _begun(h: Tensor, start: float | Tensor) -> Tensor:
    """``h`` with ``start`` where it is 0; both have a gradient there."""
    if may_look(h) and bool(h.all()):  # as most often: a step feels every operator
        return h
    start = start.to(h) if isinstance(start, Tensor) else start
    # of complex numbers part by part, for which exporters have rules
    at_zero = (h.real == 0) & (h.imag == 0) if h.is_complex() else h == 0
    return torch.where(at_zero, h + start, h)


def _starts(spec: Spec) -> bool:
    """Whether a part starts from another number than 0."""
    return any([isinstance(part.start, Tensor) or part.start != 0 for part in _parts(spec)])


def _each(function: Callable[[Any, Any], Any], state: Any, spec: Any) -> Any:
    if isinstance(spec, dict):
        return {name: function(state[name], part) for name, part in spec.items()}
    return type(spec)([function(h, part) for h, part in zip(state, spec, strict=True)])


def check_start(where: str, batch_size: object, device: object, dtype: object) -> None:
    """Raise unless these are a number of rows, a device and a precision of a state.

    Raises:
        ArgumentError: no number of rows, or nothing that names a device; inside `torch.jit.trace`.
        DTypeError: no real dtype of 16 to 64 bits.
    """
    check_not_traced(where)
    is_integer = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    # the size of a traced tensor fits, and a comparison would bind the graph to a range
    traced = isinstance(batch_size, torch.SymInt) or torch.compiler.is_compiling()
    if not traced and not (is_integer and 0 <= batch_size < 2**63):  # type: ignore[operator]
        raise ArgumentError(
            f"{where}: batch_size must be an integer of at least 0, got {batch_size!r:.60}."
        )
    # an array that is compared with a dtype gives no truth value
    is_precision = isinstance(dtype, torch.dtype) and dtype in _PRECISIONS
    if dtype is not None and not is_precision:
        raise DTypeError(f"{where}: dtype must be a real floating-point one, got {dtype!r:.60}.")
    if isinstance(device, str):
        try:
            torch.device(device)
        except RuntimeError as error:
            raise ArgumentError(
                f"{where}: device must be one PyTorch knows, got {device!r:.60}."
            ) from error
    elif device is not None and not isinstance(device, torch.device):
        raise ArgumentError(f"{where}: device must be a device or its name, got {device!r:.60}.")


def check_state(
    where: str,
    state: object,
    spec: Spec,
    rows: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    name: str = "state",
    first: str = "batch",
) -> Any:
    """The caller's state, cast to the dtypes a layer computes with. What fits is not copied.

    Args:
        where: the layer, for messages.
        state: what came.
        spec: what was expected.
        rows: size of the first axis.
        device: of the input.
        dtype: real dtype of the parameters.
        name: of this part of the tree, for messages.
        first: name of the first axis.

    Raises:
        DTypeError: another tree, or complex for real or the reverse.
        ShapeError: another shape.
        DeviceError: another device.
    """
    if isinstance(spec, Part):
        dtype = spec.dtype(dtype)
        if _is_right(state, (rows, *spec.axes.values()), dtype, device):
            return state
        is_dense = isinstance(state, Tensor) and not state.is_nested
        shape = cast(Tensor, state).shape if is_dense else ()
        if not shape or shape[0] != rows or not _fits(shape[1:], spec):
            raise _misfit(where, state, spec, f"{first}={rows}", name)
        return _check_kind(where, cast(Tensor, state), device, dtype, name)
    if isinstance(spec, dict):
        if not isinstance(state, dict) or state.keys() != spec.keys():
            raise DTypeError(f"{where}: {name} must be {_tree(spec)}, got {_tree(state)}. {_FIX}")
        entries = [(f"[{key!r}]", state[key], part) for key, part in spec.items()]
    else:
        if not isinstance(state, (tuple, list)) or len(state) != len(spec):
            raise DTypeError(f"{where}: {name} must be {_tree(spec)}, got {_tree(state)}. {_FIX}")
        entries = [(f"[{i}]", s, part) for i, (s, part) in enumerate(zip(state, spec, strict=True))]
    parts = [
        check_state(where, s, part, rows, device, dtype, name=name + key, first=first)
        for key, s, part in entries
    ]
    return dict(zip(spec, parts, strict=True)) if isinstance(spec, dict) else type(spec)(parts)


def with_axes(spec: Spec, **axes: int) -> Spec:
    """Every part with more leading axes.

    Example:
        >>> with_axes(real(d_state=4), batch=2).shape
        (2, 4)
    """
    if isinstance(spec, Part):
        return spec._replace(axes={**axes, **spec.axes})
    if isinstance(spec, dict):
        return {name: with_axes(part, **axes) for name, part in spec.items()}
    return type(spec)([with_axes(part, **axes) for part in spec])


def _is_right(
    state: object, shape: tuple[int | None, ...], dtype: torch.dtype, device: torch.device
) -> bool:
    """Nothing to complain of or to cast: found in a third of the time of the words."""
    return (
        isinstance(state, Tensor)
        and state.dtype is dtype
        and state.layout is torch.strided
        and not state.is_nested
        and state.shape == shape
        and state.device == device
    )


def _fits(shape: Sequence[int], part: Part) -> bool:
    sizes = part.axes.values()
    return len(shape) == len(sizes) and all(
        [want is None or want == got for want, got in zip(sizes, shape, strict=True)]
    )


def _misfit(where: str, state: object, part: Part, first: str, name: str) -> LinrnnError:
    axes = [axis if size is None else f"{axis}={size}" for axis, size in part.axes.items()]
    shape = f"({', '.join([first, *axes])})"
    if not isinstance(state, Tensor):
        return DTypeError(
            f"{where}: {name} must be a tensor of shape {shape}, got {_tree(state)}. {_FIX}"
        )
    check_tensor(where, name, state)  # a nested one has no shape to speak of
    return ShapeError(f"{where}: {name} must have shape {shape}, got {tuple(state.shape)}. {_FIX}")


def _check_kind(
    where: str, state: Tensor, device: torch.device, dtype: torch.dtype, name: str
) -> Tensor:
    check_tensor(where, name, state)
    if state.is_complex() != dtype.is_complex:
        raise DTypeError(f"{where}: {name} must be {dtype}, got {state.dtype}. {_FIX}")
    if state.device != device:
        raise DeviceError(
            f"{where}: {name} must be on {device} like x, got {state.device}. "
            f"Move it with .to({str(device)!r})."
        )
    return state if state.dtype is dtype else state.to(dtype)


def _tree(state: Any) -> str:
    """The outline of a state or of what it should be, short."""
    if isinstance(state, dict):
        return f"a dict with {sorted(state)}"
    if isinstance(state, (tuple, list)):
        return f"a {type(state).__name__} of {len(state)}"
    return type(state).__name__


def of_state(state: State) -> Spec:
    """The specification that fits a state, with axes that have numbers for names.

    An axis of length 0 is taken for one that grows.
    """
    if isinstance(state, Tensor):
        kind: Any = "integer" if not state.is_floating_point() else "real"
        axes = {f"axis_{i}": n or None for i, n in enumerate(state.shape[1:], 1)}
        return Part("complex" if state.is_complex() else kind, axes)
    if isinstance(state, dict):
        return {name: of_state(part) for name, part in state.items()}
    return type(state)([of_state(part) for part in state])


def describe(spec: Spec, name: str = "state") -> list[str]:
    """A line for each tensor: its name, shape by the names of its axes, and kind.

    Example:
        >>> describe({"h": complex_(d_state=4), "shift": real(past=1, d_model=2)})
        ["state['h']: (batch, d_state) complex", "state['shift']: (batch, past, d_model) real"]
    """
    if isinstance(spec, Part):
        return [f"{name}: ({', '.join(['batch', *spec.axes])}) {spec.kind}"]
    parts = spec.items() if isinstance(spec, dict) else enumerate(spec)
    return [line for key, part in parts for line in describe(part, f"{name}[{key!r}]")]
