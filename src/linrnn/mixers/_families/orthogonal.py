"""Shared by recurrences whose matrix is made of orthogonal or unitary ones."""

from collections.abc import Callable
from math import pi
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.errors import ArgumentError, check_in
from linrnn.mixers._families.cell_rnn import steady
from linrnn.nn import uniform

Angles = Literal["henaff", "cayley"]
ANGLES: dict[str, tuple[float, float]] = {"henaff": (-pi, pi), "cayley": (0.0, pi / 2)}
"""Bounds of the initial rotations, drawn uniformly between them as in two papers."""


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


MODRELU = steady(modrelu=REAL)


def check_turns(where: str, init: str, d_state: int) -> None:
    """Raise unless there are such initial rotations, and channels that they turn."""
    check_in(where, "init", init, ANGLES)
    if d_state < 2:
        raise ArgumentError(f"{where}: d_state must be at least 2, got {d_state}.")


def start_modrelu(
    T: nn.Linear,
    b: Tensor,
    entries: Tensor,
    init: str,
    turning: Callable[[Tensor], Tensor] = lambda angles: angles,
) -> None:
    """Draw the map of the input, the bias of the modulus, and a matrix that turns pairs.

    Args:
        T, b: the map and the bias.
        entries: of the matrix, see `skew`.
        init: of the angles, a key of `ANGLES`.
        turning: entries of a matrix that turns by these angles, in radians.
    """
    nn.init.kaiming_normal_(T.weight, nonlinearity="linear")
    nn.init.uniform_(b, -0.01, 0.01)
    (low, high), n = ANGLES[init], b.shape[0]
    angles = low + (high - low) * uniform(n // 2)
    entries.copy_(rotations(turning(angles), n))
