"""Couplings of units on a ring or a torus with their neighbours, as matrices."""

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_positive_int


def neighbours(rows: int, columns: int, like: Tensor) -> Tensor:
    """The neighbour at each offset: (taps, units, units), taps 3 on a ring and 9 on a torus.

    Entry (k, i, j) is 1 where unit j is unit i's neighbour k, counted as the taps of
    `torch.nn.functional.conv1d` and ``conv2d`` with circular padding; units lie row after row. A
    ring is a torus of one row.

    Example:
        >>> neighbours(1, 3, torch.zeros(()))[2]
        tensor([[0., 1., 0.],
                [0., 0., 1.],
                [1., 0., 0.]])
    """
    eye = torch.eye(rows * columns, dtype=like.dtype, device=like.device)
    grid = eye.view(-1, rows, columns)  # (units, rows, columns)
    down = (0,) if rows == 1 else (-1, 0, 1)
    shifted = [grid.roll((i, j), (1, 2)).flatten(1) for i in down for j in (-1, 0, 1)]
    return torch.stack(shifted)


def couplings(kernel: Tensor, rows: int, columns: int) -> Tensor:
    """The matrix of a convolution around a ring or torus, in at least float32.

    Args:
        kernel: (channels out, channels in, taps).
        rows, columns: of the units.

    Returns:
        (units * channels out, units * channels in); the channels of a unit lie side by side.
    """
    kernel = wide(kernel)
    who = neighbours(rows, columns, kernel)
    return torch.einsum("kij,abk->iajb", who, kernel).flatten(2).flatten(0, 1)


def check_divides(where: str, whole: int, **values: int) -> None:
    """Raise `ArgumentError` unless every keyword's value divides ``whole`` oscillators."""
    check_positive_int(where, **values)
    for name, value in values.items():
        if whole % value:
            raise ArgumentError(f"{where}: {name} must divide {whole} oscillators, got {value}.")
