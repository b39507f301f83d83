"""LipschitzRNN, a linear part and a Lipschitz one whose symmetric parts are held down."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import check_in, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import SHORT_STEPS, CellRNN, Timed, timed
from linrnn.mixers._families.lipschitz import (
    CELLS,
    GATED_CELLS,
    RIGHT_OF_ZERO,
    check_split,
    symmetric_skew,
)
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear


class LipschitzRNN(CellRNN):
    r"""Lipschitz RNN: a linear term plus tanh, with matrices parametrised for stability.

    Equation:
        h' = F(h) = A h + tanh(W h + V x_t + b), in steps of s = step_size dt_t:
        euler:     h_t = h_{t-1} + s F(h_{t-1})                            h in R^{d_state}
        midpoint:  h_t = h_{t-1} + s F(h_{t-1} + s/2 F(h_{t-1}))           x_t held
        or, gated, F(h) = (A h + tanh(W h + V x_t + b)) * sigmoid(W h + V_g x_t + b_g)
        A = alpha ((1 - beta_A) (M_A + M_A^T) + beta_A (M_A - M_A^T) - gamma_A I), W likewise of
        M_W, without alpha.
        Read out is h, mapped by a linear layer where d_state is not d_model. All trajectories come
        together where the largest singular value of W is below the least of (A + A^T) / 2 and the
        eigenvalues of that are negative. Initially M are N(0, (init_std / d_state)^2), V, b, V_g
        and b_g as `torch.nn.Linear`.

    Args:
        d_state: channels of h. Default: d_model.
        step_size: s where the time between steps is 1; above 0.
        solver: "euler" or "midpoint", of second order at twice the cost.
        beta_A, beta_W: from 0, symmetric, to 1, skew: eigenvalues are on the real line or beside
            the imaginary one.
        gamma_A, gamma_W: what is taken from the real parts of the eigenvalues, at least 0.
        init_std: of the entries of M, times d_state; above 0.
        gated: multiply F by the gate, as above: "LipschitzRNN_gated" of the public code.
        alpha: factor on A; above 0.

    Departures from the paper:
        The public code multiplies rows by A and W, which are the transposes of those here.

    Example:
        >>> y, state = LipschitzRNN(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Erichson et al., "Lipschitz Recurrent Neural Networks", 2020, arXiv:2006.12070.
        Key: erichson2020lipschitz.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("M_A", "M_W")

    family: ClassVar[str] = "dense"
    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")
    overflows: ClassVar[str] = RIGHT_OF_ZERO
    declared: ClassVar[Mapping[str, str]] = {"trains": SHORT_STEPS}
    cells: ClassVar[Mapping[str, Timed]] = timed(**CELLS, **GATED_CELLS)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        step_size: float = 0.03,
        solver: Literal["euler", "midpoint"] = "euler",
        beta_A: float = 0.75,
        gamma_A: float = 0.001,
        beta_W: float = 0.75,
        gamma_W: float = 0.001,
        init_std: float = 1.0,
        gated: bool = False,
        alpha: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("LipschitzRNN", "solver", solver, CELLS)
        self.solver, self.gated, self.alpha = solver, gated, alpha
        check_positive("LipschitzRNN", step_size=step_size, init_std=init_std, alpha=alpha)
        check_split("LipschitzRNN", beta_A=beta_A, gamma_A=gamma_A, beta_W=beta_W, gamma_W=gamma_W)
        self.step_size, self.init_std = step_size, init_std
        self.beta_A, self.gamma_A, self.beta_W, self.gamma_W = beta_A, gamma_A, beta_W, gamma_W
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N, empty = self._set_sizes(d_model, d_state, to), empty_parameters(device, dtype)
        self.V = Linear(d_model, N, **to)
        self.V_g = Linear(d_model, N, **to) if gated else None
        self.M_A, self.M_W = empty(N, N), empty(N, N)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        for V in (self.V, self.V_g):
            if V is not None:
                V.reset_parameters()
        for M in (self.M_A, self.M_W):
            nn.init.normal_(M, std=self.init_std / self.d_state)

    def transitions(self) -> tuple[Tensor, Tensor]:
        """The matrices A and W, (d_state, d_state) each."""
        A = self.alpha * symmetric_skew(self.M_A, self.beta_A, self.gamma_A)
        return A, symmetric_skew(self.M_W, self.beta_W, self.gamma_W)

    def _key(self) -> str:
        return "gated_" * self.gated + self.solver

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        A, W = self.transitions()
        inputs = {"u": self.V(x), "A": A, "W": W, "step": self.step_size}
        return inputs if self.V_g is None else inputs | {"g": self.V_g(x)}
