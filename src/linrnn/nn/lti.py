"""A time-invariant system of continuous time, in steps of one length that is fixed or learned."""

from collections.abc import Callable, Iterator
from math import log
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.nn.discretise import dense
from linrnn.nn.parameters import KeepsPrecision, bounded_exp
from linrnn.ops import accumulator_dtype

TABLE = 2**20  # numbers in the matrices that are made at a time


class LTISteps(KeepsPrecision):
    """``h_t = a h_{t-1} + b x_t`` of a fixed ``h' = A h + B x``.

    Steps of a fixed length are found once, in double precision, and anew from there where the
    module changes dtype or device; they are buffers.

    Args:
        system: gives A (N, N) and B (N,), float64; called on the CPU, on the meta device too.
        dt: length of a step.
        rule: see `linrnn.nn.discretise.dense`.
        learn: make the logarithm of dt a parameter.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("log_dt",)

    a: Tensor
    b: Tensor

    def __init__(
        self,
        system: Callable[[], tuple[Tensor, Tensor]],
        dt: float,
        rule: str,
        *,
        learn: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._dt, self._rule = dt, rule
        with torch.device("cpu"):
            self._system = A, B = system()
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        self.log_dt = nn.Parameter(torch.empty((), **to)) if learn else None
        if not learn:
            for name, x in (("a", A), ("b", B)):
                self.register_buffer(name, torch.empty(x.shape, **to))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin with the given length of a step."""
        if self.log_dt is not None:
            self.log_dt.fill_(log(self._dt))
            return
        for name, x in zip("ab", dense(*self._system, self._dt, self._rule), strict=True):
            like = self.get_buffer(name)
            x = x.to(like.device, accumulator_dtype(like.dtype))
            setattr(self, name, x.contiguous())  # a solution lies by columns, and is then no weight

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> "LTISteps":
        super()._apply(fn, recurse)
        if self.log_dt is None:
            self.reset_parameters()
        return self

    def forward(self) -> tuple[Tensor, Tensor]:
        """``(a, b)``, (N, N) and (N,), in at least float32."""
        if self.log_dt is None:
            return self.a, self.b
        A, B = (x.to(self.log_dt.device) for x in self._system)
        a, b = dense(A, B, bounded_exp(self.log_dt.double()), self._rule)
        dtype = accumulator_dtype(self.log_dt.dtype)
        return a.to(dtype), b.to(dtype)

    def continuous(self, dt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A, B and the lengths of steps after times dt (...), float64: what `each_step` takes."""
        A, B = (x.to(dt.device) for x in self._system)
        unit = self._dt if self.log_dt is None else bounded_exp(self.log_dt.double())
        return A, B, dt.double() * unit


def each_step(A: Tensor, B: Tensor, dt: Tensor, rule: str) -> Iterator[tuple[Tensor, Tensor]]:
    """``(a, b)`` of every step in turn, (batch, N, N) and (batch, N), float64.

    Matrices are made for a block of steps at a time. By "zoh" a step longer than 2^30 over the norm
    of A is one of that length: as far as double precision squares a matrix, and much longer than a
    stable system of a window remembers.

    Args:
        A, B: a system of continuous time, (N, N) and (N,), float64.
        dt: times of the steps, (batch, time), float64.
        rule: see `linrnn.nn.discretise.dense`.
    """
    if rule == "zoh":
        dt = torch.minimum(dt, 2**30 / A.abs().sum(1).max().clamp(min=1))
    block = max(1, TABLE // max(1, dt.shape[0] * A.numel()))
    for part in dt.split(block, 1):
        yield from zip(*(x.unbind(1) for x in dense(A, B, part, rule)), strict=True)


def pushed(m: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a m + b w`` of memories m (batch, rows, N), each row by itself.

    Args:
        m: memories.
        w: what is read into each, (batch, rows).
        a, b: a step of each batch row, (batch, N, N) and (batch, N).
    """
    return torch.baddbmm(w[..., None] * b[:, None].to(m), m, a.mT.to(m))


def rows_of(count: int, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    """``count`` copies of a system as matrices of a cell: "A", a block for each, and "into".

    Example:
        >>> rows_of(2, torch.ones(1, 1), torch.tensor([3.0]))["into"]
        tensor([[3., 0.],
                [0., 3.]])
    """
    eye = torch.eye(count, dtype=b.dtype, device=b.device)
    return {"A": a.expand(count, -1, -1), "into": torch.kron(eye, b[:, None])}
