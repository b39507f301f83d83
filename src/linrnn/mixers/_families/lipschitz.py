"""Matrices whose symmetric part is held down, and the layer that two of them make."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_not_negative, check_positive
from linrnn.mixers._families.cell_rnn import CellRNN
from linrnn.nn import empty_parameters


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


_declared: dict[str, Any] = {"state": "h", "constant": "step", "matrix": "A W"}
CELLS = {
    "euler": Cell(_euler, **_declared, name="lipschitz_euler"),
    "midpoint": Cell(_midpoint, **_declared, name="lipschitz_midpoint"),
}
"""One step of ``h' = A h + tanh(W h + u)``."""


_SPLIT = ("beta_A", "gamma_A", "beta_W", "gamma_W")


class Lipschitz(CellRNN):
    """``h' = A h + tanh(W h + V x + b)``; a subclass says how its steps are made."""

    beta_A: float
    gamma_A: float
    beta_W: float
    gamma_W: float

    def _make(
        self,
        d_model: int,
        d_state: int | None,
        step_size: float,
        split: tuple[float, float, float, float],
        init_std: float,
        to: dict[str, Any],
    ) -> None:
        """Parameters, and checked numbers; ``split`` is in the order of `_SPLIT`."""
        where = type(self).__name__
        check_positive(where, step_size=step_size, init_std=init_std)
        self.step_size, self.init_std = step_size, init_std
        for name, value in zip(_SPLIT, split, strict=True):
            setattr(self, name, value)
        check_not_negative(where, **{x: getattr(self, x) for x in _SPLIT})
        if max(self.beta_A, self.beta_W) > 1:
            raise ArgumentError(
                f"{where}: beta_A and beta_W must be at most 1, got {self.beta_A}, {self.beta_W}."
            )
        N = self._set_sizes(d_model, d_state, to)
        self.V = nn.Linear(d_model, N, **to)
        self.M_A, self.M_W = (empty_parameters(**to)(N, N) for _ in range(2))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        self.V.reset_parameters()
        for M in (self.M_A, self.M_W):
            nn.init.normal_(M, std=self.init_std / self.d_state)

    def transitions(self) -> tuple[Tensor, Tensor]:
        """The matrices A and W, (d_state, d_state) each."""
        A = symmetric_skew(self.M_A, self.beta_A, self.gamma_A)
        return A, symmetric_skew(self.M_W, self.beta_W, self.gamma_W)

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        A, W = self.transitions()
        return {"u": self.V(x), "A": A, "W": W, "step": self.step_size}
