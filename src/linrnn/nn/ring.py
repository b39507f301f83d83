"""Decays drawn from a ring in the complex plane, and their check."""

from math import pi

import torch
from torch import Tensor

from linrnn.errors import ArgumentError


def uniform(*shape: int) -> Tensor:
    """Draws in float64, kept 1e-6 away from 0 and 1, where a logarithm would be infinite."""
    return torch.rand(*shape, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)


def ring(u: Tensor, r_min: float, r_max: float) -> Tensor:
    """``-log |lam|`` such that ``|lam|^2`` is uniform on ``[r_min^2, r_max^2]`` where ``u`` is.

    With a uniform angle the numbers are uniform by area on a ring of the complex plane.

    Source: Orvieto et al. 2023, arXiv:2303.06349, Lemma 3.2.

    Example:
        >>> ring(torch.tensor([0.0, 1.0]), 0.5, 1.0).exp()
        tensor([2., 1.])
    """
    return -0.5 * torch.log(u * (r_max**2 - r_min**2) + r_min**2)


def check_ring(where: str, r_min: float, r_max: float) -> None:
    """Raise `ArgumentError` unless ``0 <= r_min < r_max <= 1``."""
    if not 0 <= r_min < r_max <= 1:
        raise ArgumentError(
            f"{where}: r_min and r_max must satisfy 0 <= r_min < r_max <= 1, "
            f"got r_min={r_min}, r_max={r_max}."
        )


def check_phase(where: str, max_phase: float) -> None:
    """Raise `ArgumentError` unless an angle is in (0, 2 pi]."""
    if not 0 < max_phase <= 2 * pi:
        raise ArgumentError(f"{where}: max_phase must be in (0, 2 pi], got {max_phase}.")
