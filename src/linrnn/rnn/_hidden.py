"""``h_n`` of a recurrent layer: the states of its mixers, in PyTorch's shapes."""

from collections.abc import Sequence
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from linrnn.compute.arguments import check_device
from linrnn.errors import ArgumentError, DTypeError, ShapeError
from linrnn.mixers import Mixer
from linrnn.state_spec import Part, Spec, check_state, real, with_axes
from linrnn.typing import State

_FIX = "Pass what this layer returned, or None."
_PLACE = 1 << 20
"""A counter is two real numbers, its multiples of this and the rest: both exact in float32."""


class Hidden:
    """How the states of a stack's mixers are one tensor, or a pair of them, and back.

    ``vector``  the state is one real vector of the layer's width: h_n is it, as that of a GRU;
    ``pair``    it is h and c, as that of an LSTM: (h_n, c_n), h as wide as the output where the
                recurrence projects it;
    ``rest``    it is anything else: (h_n, c_n), where h_n is the last output and c_n the state as
                real numbers (layers, batch, numbers), a complex one and a counter as two. A state
                that grows with what was read is a tuple of its tensors, and of a stack whose mixers
                or states differ c_n is a tuple over its layers, each with a first axis of 1.

    Args:
        mixers: in the order of h_n.
        hidden_size: channels of a layer.
        output_size: channels of its output.
        mixed: the mixers are of several classes or options.
    """

    def __init__(
        self, mixers: Sequence[Mixer], hidden_size: int, output_size: int, *, mixed: bool
    ) -> None:
        self.layers, self.hidden_size, self.output_size = len(mixers), hidden_size, output_size
        self._specs = [mixer.state_spec() for mixer in mixers]
        self.form, spec = "rest", self._specs[0]
        # those of one class may depend on their place, as TransNormer's do
        self.mixed = mixed = mixed or any(one != spec for one in self._specs)
        if not mixed and not mixers[0].like_lstm and self._fits(spec):
            self.form = "vector"
        if not mixed and isinstance(spec, dict) and spec.keys() == {"h", "c"}:
            fits = self._fits(spec["c"]) and self._fits(spec["h"], hidden_size, output_size)
            self.form = "pair" if fits else "rest"

    def _fits(self, spec: Spec, *sizes: int) -> bool:
        return (
            isinstance(spec, Part)
            and spec.kind == "real"
            and [*spec.axes.values()] in [[size] for size in sizes or (self.hidden_size,)]
        )

    @property
    def h_size(self) -> int:
        """Numbers of h_n a layer and row."""
        if self.form == "rest":
            return self.output_size
        spec: Any = self._specs[0]
        size: int
        (size,) = (spec["h"] if self.form == "pair" else spec).axes.values()
        return size

    @property
    def grows(self) -> bool:
        """Whether the state of a layer has the length of what was read."""
        return any(_grows(spec) for spec in self._specs)

    def size(self) -> int | None:
        """Numbers of c_n a layer and row; None where it is a tuple."""
        if self.form != "rest":
            return self.hidden_size
        return None if self.mixed or self.grows else _numbers(self._specs[0])

    def join(self, last: Sequence[Tensor], states: Sequence[Any]) -> State:
        """``h_n`` of the last outputs (batch, output_size) and the states of all mixers."""
        if self.form == "vector":
            return torch.stack([*states])  # (layers, batch, hidden_size)
        if self.form == "pair":
            return tuple(torch.stack([state[k] for state in states]) for k in "hc")
        flat = [_flat(s, spec) for s, spec in zip(states, self._specs, strict=True)]
        if self.mixed:
            return torch.stack([*last]), tuple(_first_axis(h) for h in flat)
        if isinstance(flat[0], Tensor):
            return torch.stack([*last]), torch.stack(cast(list[Tensor], flat))
        return torch.stack([*last]), tuple(torch.stack(parts) for parts in zip(*flat, strict=True))

    def split(self, hx: Any) -> list[Any]:
        """The state of each mixer: the inverse of `join`, of what `check` has let pass."""
        if self.form == "vector":
            return [*hx]
        if self.form == "pair":
            return [{"h": h, "c": c} for h, c in zip(*hx, strict=True)]
        flat = hx[1]
        if self.mixed:
            cells = [_without_first_axis(h) for h in flat]
        else:
            cells = [*flat] if isinstance(flat, Tensor) else [*zip(*flat, strict=True)]
        return [_tree(h, spec) for h, spec in zip(cells, self._specs, strict=True)]

    def check(self, hx: Any, batch: int | None, device: torch.device, dtype: torch.dtype) -> Any:
        """The caller's ``hx``, cast; None where it is zeros that stand for no state.

        Args:
            hx: what came.
            batch: rows; None where there is no such axis.
            device, dtype: of the layer.

        Raises:
            DTypeError, ShapeError, DeviceError: nothing that `join` returns.
            ArgumentError: numbers of the hidden size for a state that is not of that size.
        """
        axes = {} if batch is None else {"batch": batch}
        rows, expected = self.layers, {"device": device, "dtype": dtype, "first": "layers"}

        def check(name: str, h: object, spec: Spec, rows: int = rows) -> Any:
            outline = with_axes(spec, **axes)
            return check_state("RNN", h, outline, rows, name=name, **cast(Any, expected))

        if self.form == "vector":
            return check("hx", hx, self._specs[0])
        if self.form == "rest" and self._blank(hx, batch, device):
            return None
        if not isinstance(hx, (tuple, list)) or len(hx) != 2:
            raise self._no_pair(hx, batch)
        if self.form == "pair":
            spec = cast(dict[str, Spec], self._specs[0])
            return check("hx[0]", hx[0], spec["h"]), check("hx[1]", hx[1], spec["c"])
        h = check("hx[0]", hx[0], real(output_size=self.output_size))
        if not self.mixed:
            return h, check("hx[1]", hx[1], _outline(self._specs[0]))
        if not isinstance(hx[1], (tuple, list)) or len(hx[1]) != rows:
            raise DTypeError(
                f"RNN: hx[1] must be a tuple of {rows}, got {type(hx[1]).__name__}. "
                "Pass what this layer returned, or None."
            )
        outlines = [_outline(spec) for spec in self._specs]
        named = zip(hx[1], outlines, strict=True)
        return h, tuple(check(f"hx[1][{i}]", c, o, 1) for i, (c, o) in enumerate(named))

    def _no_pair(self, hx: Any, batch: int | None) -> Exception:
        """An error that says what was to come instead of a tensor, or of something else."""
        rule = "a pair (h, c)"
        if self.form == "rest":
            rule += f", or zeros of shape {self._shape(batch)}"
        if not isinstance(hx, Tensor):
            got = type(hx).__name__
            return DTypeError(f"RNN: hx must be {rule}, got {got}. {_FIX}")
        text = f"RNN: hx must be {rule}, got a tensor of shape {tuple(hx.shape)}. {_FIX}"
        # as PyTorch's layers have it: one of another shape is a RuntimeError
        return DTypeError(text) if self.form == "pair" else ShapeError(text)

    def _shape(self, batch: int | None) -> tuple[int, ...]:
        """The shape of a GRU's state."""
        return (self.layers, *(() if batch is None else (batch,)), self.hidden_size)

    def _blank(self, hx: Any, batch: int | None, device: torch.device) -> bool:
        """Whether these are zeros, one or two, of the shape of a GRU's state.

        Programs make them to begin with; the state they stand for has another size.
        """
        shape = self._shape(batch)
        tensors = hx if isinstance(hx, (tuple, list)) else (hx,)
        same_shape = all(isinstance(h, Tensor) and h.shape == shape for h in tensors)
        if (
            not same_shape
            or len(tensors) > 2
            or (len(tensors) == 2 and self.size() == self.hidden_size)
        ):
            return False
        for h in tensors:
            check_device("RNN", "x", device, hx=h)
        if any(bool(h.any()) for h in tensors):
            size = self.size()
            raise ArgumentError(
                "RNN: hx must be what this layer returned, or None or zeros for a new start, since "
                f"its state is not hidden_size={self.hidden_size} numbers a row"
                f"{'' if size is None else f' but {size}'}, got others of that shape."
            )
        return True


def _parts(spec: Spec) -> list[Part]:
    if isinstance(spec, Part):
        return [spec]
    return [p for part in (spec.values() if isinstance(spec, dict) else spec) for p in _parts(part)]


def _leaves(state: Any, spec: Spec) -> list[Tensor]:
    """In the order of `_parts`."""
    if isinstance(spec, Part):
        return [state]
    keys = spec if isinstance(spec, dict) else range(len(spec))
    return [h for key in keys for h in _leaves(state[key], cast(Any, spec)[key])]


def _build(remaining: Any, spec: Spec) -> Any:
    """The tree of a specification of tensors in the order of `_parts`."""
    if isinstance(spec, Part):
        return next(remaining)
    if isinstance(spec, dict):
        return {name: _build(remaining, part) for name, part in spec.items()}
    return type(spec)([_build(remaining, part) for part in spec])


def _grows(spec: Spec) -> bool:
    return any(None in part.axes.values() for part in _parts(spec))


def _doubled(part: Part) -> int:
    return 1 + (part.kind != "real")


def _numbers(spec: Spec) -> int:
    return sum(prod(part.shape) * _doubled(part) for part in _parts(spec))


def _outline(spec: Spec) -> Spec:
    """One layer's part of c_n."""
    return tuple(_parts(spec)) if _grows(spec) else real(numbers=_numbers(spec))


def _flat(state: Any, spec: Spec) -> Tensor | tuple[Tensor, ...]:
    leaves = _leaves(state, spec)
    if _grows(spec):
        return tuple(leaves)
    real_dtypes = [h.real.dtype for h in leaves if h.is_floating_point() or h.is_complex()]
    dtype = (real_dtypes or [torch.float32])[0]  # of counters alone either is exact
    rows = []
    for h in leaves:
        if h.is_complex():
            rows += [h.real, h.imag]
        elif h.is_floating_point():
            rows += [h]
        else:
            rows += [h // _PLACE, h % _PLACE]
    return torch.cat([h.flatten(1) if h.ndim > 1 else h[:, None] for h in map(_to(dtype), rows)], 1)


def _to(dtype: torch.dtype) -> Any:
    return lambda h: h.to(dtype)


def _tree(flat: Any, spec: Spec) -> Any:
    """The inverse of `_flat`."""
    parts = _parts(spec)
    if _grows(spec):
        return _build(iter(flat), spec)
    sizes = [prod(part.shape) for part in parts for _ in range(_doubled(part))]
    pieces, leaves = iter(flat.split(sizes, 1)), []
    for part in parts:  # `len` of a tensor is a number, and would bind an exported graph to it
        h = [next(pieces).reshape(flat.shape[0], *part.shape) for _ in range(_doubled(part))]
        if part.kind == "real":
            leaves += h
        elif part.kind == "complex":
            leaves += [torch.complex(*h)]
        else:
            leaves += [h[0].long() * _PLACE + h[1].long()]
    return _build(iter(leaves), spec)


def _first_axis(flat: Tensor | tuple[Tensor, ...]) -> Any:
    return flat[None] if isinstance(flat, Tensor) else tuple(h[None] for h in flat)


def _without_first_axis(flat: Any) -> Any:
    return flat[0] if isinstance(flat, Tensor) else tuple(h[0] for h in flat)
