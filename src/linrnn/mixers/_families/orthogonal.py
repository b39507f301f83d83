"""What recurrences share whose matrix is made of orthogonal or unitary ones."""

from math import pi
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.errors import ArgumentError, check_in
from linrnn.mixers._families.cell_rnn import CellRNN, Timed, steady
from linrnn.nn import empty_parameters, uniform

Angles = Literal["henaff", "cayley"]
ANGLES: dict[str, tuple[float, float]] = {"henaff": (-pi, pi), "cayley": (0.0, pi / 2)}
"""Of the initial rotations: uniform between these, as two papers draw them."""


def _real(h: Any, u: Any, b: Any, W: Any) -> tuple[Any, Any]:
    a = u + F.linear(h, W)
    h = torch.sign(a) * torch.relu(torch.abs(a) + b)
    return h, h


def _complex(h: Any, u: Any, b: Any, W: Any) -> tuple[Any, Any]:
    a = u + F.linear(h, W)
    size = torch.abs(a)
    h = a * (torch.relu(size + b) / torch.where(size == 0, 1.0, size))
    return h, h


_declared: dict[str, Any] = {"state": "h", "constant": "b", "matrix": "W"}
REAL = Cell(_real, **_declared, name="modrelu")
COMPLEX = Cell(_complex, **_declared, complex="h u W", name="modrelu_complex")
"""``h = modReLU(u + W h)``: the size of each number is shortened or stretched by b."""


def skew(entries: Tensor) -> Tensor:
    """The skew-symmetric matrix with these entries above its diagonal, row by row.

    Example:
        >>> skew(torch.tensor([1.0, 2, 3]))
        tensor([[ 0.,  1.,  2.],
                [-1.,  0.,  3.],
                [-2., -3.,  0.]])
    """
    n = round((1 + (1 + 8 * entries.shape[0]) ** 0.5) / 2)
    rows, columns = torch.triu_indices(n, n, 1, device=entries.device)
    upper = entries.new_zeros(n, n).index_put((rows, columns), entries)
    return upper - upper.mT


def rotations(angles: Tensor, n: int) -> Tensor:
    """Entries of `skew` whose exponential turns pairs of neighbouring channels by these angles."""
    first = torch.arange(0, n - 1, 2, device=angles.device)  # of each pair
    entries = angles.new_zeros(n * (n - 1) // 2)
    entries[first * (2 * n - first - 1) // 2] = angles[: len(first)]
    return entries


class ModReLURNN(CellRNN):
    """``h_t = modReLU_b(T x_t + W h_{t-1})``; a subclass says in `transition` what W is."""

    family: ClassVar[str] = "orthogonal"
    timed: ClassVar[bool] = False
    cells: ClassVar[dict[str, Timed]] = steady(modrelu=REAL)
    init: Angles

    def _make(self, d_model: int, d_state: int | None, init: str, to: dict[str, Any]) -> int:
        check_in(type(self).__name__, "init", init, ANGLES)
        N = self._set_sizes(d_model, d_state, to)
        if N < 2:
            raise ArgumentError(f"{type(self).__name__}: d_state must be at least 2, got {N}.")
        self.T = nn.Linear(d_model, N, bias=False, **to)
        self.b = empty_parameters(**to)(N)
        self.skew = empty_parameters(**to)(N * (N - 1) // 2)
        return N

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        nn.init.kaiming_normal_(self.T.weight, nonlinearity="linear")
        nn.init.uniform_(self.b, -0.01, 0.01)
        low, high = ANGLES[self.init]
        angles = low + (high - low) * uniform(self.d_state // 2)
        self.skew.copy_(rotations(self._turning(angles), self.d_state))

    def _turning(self, angles: Tensor) -> Tensor:
        """Entries of a skew-symmetric matrix that turn by ``angles``."""
        return angles

    def transition(self) -> Tensor:
        """The matrix W (d_state, d_state), at least float32."""
        raise NotImplementedError

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        return {"u": self.T(x), "b": self.b, "W": self.transition()}
