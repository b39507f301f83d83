"""Matrices whose symmetric part is held down, and the steps that two of them make."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.cells import Cell
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_not_negative


def symmetric_skew(M: Tensor, beta: float, gamma: float) -> Tensor:
    """``(1 - beta) (M + M^T) + beta (M - M^T) - gamma I``, in at least float32.

    Example:
        >>> symmetric_skew(torch.tensor([[1.0, 2], [4, 8]]), 1.0, 0.5)
        tensor([[-0.5000, -2.0000],
                [ 2.0000, -0.5000]])
    """
    M = wide(M)
    eye = torch.eye(M.shape[0], dtype=M.dtype, device=M.device)
    return M + (1 - 2 * beta) * M.mT - gamma * eye


def slope(h: Any, u: Any, A: Any, W: Any) -> Any:
    """``A h + tanh(W h + u)``; in a cell too."""
    return F.linear(h, A) + torch.tanh(F.linear(h, W) + u)


def _euler(h: Any, u: Any, dt: Any, step: Any, A: Any, W: Any) -> tuple[Any, Any]:
    h = h + dt * step * slope(h, u, A, W)
    return h, h


def _midpoint(h: Any, u: Any, dt: Any, step: Any, A: Any, W: Any) -> tuple[Any, Any]:
    middle = h + 0.5 * dt * step * slope(h, u, A, W)
    h = h + dt * step * slope(middle, u, A, W)
    return h, h


def gated_slope(h: Any, u: Any, g: Any, A: Any, W: Any) -> Any:
    """``(A h + tanh(W h + u)) * sigmoid(W h + g)``; in a cell too."""
    mixed = F.linear(h, W)
    return (F.linear(h, A) + torch.tanh(mixed + u)) * torch.sigmoid(mixed + g)


def _gated_euler(h: Any, u: Any, g: Any, dt: Any, step: Any, A: Any, W: Any) -> tuple[Any, Any]:
    h = h + dt * step * gated_slope(h, u, g, A, W)
    return h, h


def _gated_midpoint(h: Any, u: Any, g: Any, dt: Any, step: Any, A: Any, W: Any) -> tuple[Any, Any]:
    middle = h + 0.5 * dt * step * gated_slope(h, u, g, A, W)
    h = h + dt * step * gated_slope(middle, u, g, A, W)
    return h, h


_declared: dict[str, Any] = {"state": "h", "constant": "step", "matrix": "A W"}
RIGHT_OF_ZERO = "as it begins, eigenvalues lie right of zero: 1e40 in float64 as well"
"""Within 65,536 steps."""
CELLS = {
    "euler": Cell(_euler, **_declared, name="lipschitz_euler"),
    "midpoint": Cell(_midpoint, **_declared, name="lipschitz_midpoint"),
}
"""One step of ``h' = A h + tanh(W h + u)``."""
GATED_CELLS = {
    "gated_euler": Cell(_gated_euler, **_declared, name="lipschitz_gated_euler"),
    "gated_midpoint": Cell(_gated_midpoint, **_declared, name="lipschitz_gated_midpoint"),
}
"""The same times ``sigmoid(W h + g)``."""


def check_split(
    where: str, *, beta_A: float, gamma_A: float, beta_W: float, gamma_W: float
) -> None:
    """Raise unless `symmetric_skew` takes these numbers of the matrices A and W."""
    check_not_negative(where, beta_A=beta_A, gamma_A=gamma_A, beta_W=beta_W, gamma_W=gamma_W)
    if max(beta_A, beta_W) > 1:
        raise ArgumentError(
            f"{where}: beta_A and beta_W must be at most 1, got {beta_A}, {beta_W}."
        )
