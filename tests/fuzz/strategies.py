"""Strategies for what ops and mixers are called with: shapes, dtypes, strides, values, layouts."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-40, -1e-310, 1e30, -1e30, 6e-8)


@dataclass(frozen=True)
class Numbers:
    """How the values of a tensor are drawn: a seed, and places where something special is."""

    seed: int
    special: tuple[tuple[int, float], ...] = ()

    def make(self, shape: tuple[int, ...], dtype: torch.dtype, low: float | None = None) -> Tensor:
        """Standard normal numbers, or with ``low`` uniform ones in [low, 1], rounded to ``dtype``.

        The result is in double precision.
        """
        g = torch.Generator().manual_seed(self.seed)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        if low is None:
            x = torch.randn(shape, dtype=wide, generator=g)
        else:
            x = low + (1 - low) * torch.rand(shape, dtype=torch.float64, generator=g)
            if dtype.is_complex:
                x = torch.polar(x, 6.28 * torch.rand(shape, dtype=torch.float64, generator=g))
        if x.numel():
            for place, value in self.special:
                x.view(-1)[place % x.numel()] = value
        return x.to(dtype).to(wide)


def numbers(*values: float) -> SearchStrategy[Numbers]:
    """Numbers of which a few are among ``values``."""
    seeds = st.integers(0, 10_000)
    if not values:
        return seeds.map(Numbers)
    places = st.tuples(st.integers(0, 40), st.sampled_from(values))
    special = st.one_of(st.just(()), st.lists(places, max_size=3).map(tuple))
    return st.builds(Numbers, seeds, special)


@st.composite
def resets(draw: Any, batch: int, time: int) -> Tensor | None:
    """No mask, none set, all set, or some."""
    kind = draw(st.integers(0, 4))
    if kind <= 1:
        return None
    if kind == 2:
        return torch.full((batch, time), draw(st.booleans()))
    g = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    mask = torch.rand(batch, time, generator=g) < 0.3
    return mask if draw(st.booleans()) else mask.t().contiguous().t()


TIMES = (0, 1, 1, 2, 3, 4, 5, 7, 9, 17)


@dataclass(frozen=True)
class Scan:
    """A call of `linear_scan` or `log_linear_scan`: tensors in double precision, and its layout."""

    a: Tensor
    b: Tensor
    initial_state: Tensor | None
    reset: Tensor | None
    cu_seqlens: Tensor | None
    reverse: bool
    dtype: torch.dtype
    backend: str | None
    place: Callable[[Tensor], Tensor] = dataclasses.field(compare=False)
    cut: int = 0

    @property
    def layout(self) -> dict[str, Any]:
        return {"reset": self.reset, "cu_seqlens": self.cu_seqlens, "reverse": self.reverse}

    @property
    def tensors(self) -> dict[str, Tensor]:
        named = {"a": self.a, "b": self.b, "initial_state": self.initial_state}
        return {name: x for name, x in named.items() if x is not None}


@st.composite
def scans(
    draw: Any,
    *,
    decays: SearchStrategy[Numbers],
    inputs: SearchStrategy[Numbers],
    backends: tuple[str | None, ...] = (None,),
    dtypes: tuple[torch.dtype, ...] = REAL + COMPLEX,
    constant: bool | None = None,
    packed: bool | None = None,
    low: float | None = 0.0,
) -> Scan:
    """Everything a scan can be called with, for one channel axis."""
    dtype = draw(st.sampled_from(dtypes))
    time, channels = draw(st.sampled_from(TIMES)), draw(st.sampled_from((0, 1, 2, 3, 5, 16, 17)))
    packed = draw(st.integers(0, 3)) == 0 if packed is None else packed
    batch = 1 if packed else draw(st.sampled_from((0, 1, 2, 3)))
    cu_seqlens, seqs = None, batch
    if packed:
        cuts = draw(st.lists(st.integers(0, time), max_size=4))
        kind = draw(st.sampled_from((torch.int64, torch.int32, torch.int16, torch.uint8)))
        cu_seqlens = torch.tensor([0, *sorted(cuts), time], dtype=kind)
        seqs = len(cu_seqlens) - 1
    constant = draw(st.booleans()) if constant is None else constant
    shape = (channels,) if constant else (batch, time, channels)
    if not constant and draw(st.integers(0, 4)) == 0:  # an axis of size 1 is for all
        axis = draw(st.integers(0, 2))
        shape = tuple(1 if i == axis else n for i, n in enumerate(shape))
    a = draw(decays).make(shape, dtype, low)
    state = torch.float32 if dtype.itemsize == 2 else dtype
    seed, kind = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    return Scan(
        a=a,
        b=draw(inputs).make((batch, time, channels), dtype),
        initial_state=draw(inputs).make((seqs, channels), state) if draw(st.booleans()) else None,
        reset=draw(resets(batch, time)),
        cu_seqlens=cu_seqlens,
        reverse=draw(st.booleans()),
        dtype=dtype,
        backend=draw(st.sampled_from(backends)),
        place=lambda x: placed(x, kind, seed),
        cut=draw(st.integers(0, time)),
    )


def placed(x: Tensor, kind: int, seed: int) -> Tensor:
    """The same numbers elsewhere: axes in another order, a part of more numbers, conjugated."""
    if kind == 0 or x.ndim == 0:
        return x
    if kind == 1:
        order = np.random.RandomState(seed).permutation(x.ndim).tolist()
        back = [order.index(i) for i in range(x.ndim)]
        return x.permute(*order).contiguous().permute(*back)
    if kind == 2:
        return torch.stack([x, torch.full_like(x, float("nan"))], -1)[..., 0]
    if kind == 3:
        wide = torch.full([n + 2 for n in x.shape], float("nan"), dtype=x.dtype)
        return wide[tuple(slice(1, 1 + n) for n in x.shape)].copy_(x)
    if kind == 4 and x.is_complex():
        return x.conj().clone().conj()
    return x.clone()
