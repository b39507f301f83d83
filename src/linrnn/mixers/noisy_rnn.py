"""NoisyRNN, a LipschitzRNN with noise while it trains."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.precision import wide
from linrnn.errors import check_in, check_not_negative, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN, Timed, timed
from linrnn.mixers._families.lipschitz import (
    CELLS,
    RIGHT_OF_ZERO,
    check_split,
    slope,
    symmetric_skew,
)
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear


@cell(state="h", constant="step add mult", matrix="A W")
def noisy_em(
    h: Any, u: Any, dB: Any, dt: Any, step: Any, add: Any, mult: Any, A: Any, W: Any
) -> tuple[Any, Any]:
    """One step of Euler and Maruyama; ``dB`` has the variance ``dt * step``."""
    f = slope(h, u, A, W)
    h = h + dt * step * f + (add + mult * f) * dB
    return h, h


@cell(state="h", constant="step", matrix="A W")
def noisy_code(
    h: Any, u: Any, added: Any, times: Any, dt: Any, step: Any, A: Any, W: Any
) -> tuple[Any, Any]:
    """One step of the public code."""
    h = h + dt * step * times * slope(h, u, A, W) + added
    return h, h


class NoisyRNN(CellRNN):
    r"""Noisy RNN: a Lipschitz RNN with noise injected in training as a regulariser.

    Equation:
        F(h) = A h + tanh(W h + V x_t + b), A and W as in LipschitzRNN, s = step_size dt_t:
        em:    h_t = h_{t-1} + s F + sqrt(s) (sigma_add + sigma_mult F) * xi_t,     xi ~ N(0, I)
        code:  h_t = h_{t-1} + dt_t d * m_t * F + a_t,     a ~ N(0, sigma_add^2), and m uniform on
               1 - sigma_mult to 1; d in R^{d_state} is learned, and begins as step_size
        In evaluation xi = a = 0 and m = 1. Read out is h in R^{d_state}, mapped by a linear layer
        where d_state is not d_model. Initial values are those of LipschitzRNN.

    Args:
        d_state: channels of h. Default: d_model.
        step_size: where the time between steps is 1; above 0.
        noise: "em", the scheme of the paper, by Euler and Maruyama, or "code", the public code's.
        sigma_add, sigma_mult: how large it is, at least 0.
        beta_A, beta_W, gamma_A, gamma_W, init_std: as in LipschitzRNN.

    Departures from the paper:
        None. The noise is drawn from torch's global generator, for a whole call at once, so that
        the same seed gives other noise to a sequence that is read in pieces.

    Example:
        >>> y, state = NoisyRNN(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Lim et al., "Noisy Recurrent Neural Networks", 2021, arXiv:2102.04877. Key: lim2021noisy.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("M_A", "M_W")

    family: ClassVar[str] = "dense"
    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")
    overflows: ClassVar[str] = RIGHT_OF_ZERO
    random_training: ClassVar[bool] = True
    cells: ClassVar[Mapping[str, Timed]] = timed(em=noisy_em, code=noisy_code, **CELLS)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        step_size: float = 0.1,
        noise: Literal["em", "code"] = "em",
        sigma_add: float = 0.02,
        sigma_mult: float = 0.02,
        beta_A: float = 0.75,
        gamma_A: float = 0.001,
        beta_W: float = 0.75,
        gamma_W: float = 0.001,
        init_std: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("NoisyRNN", "noise", noise, ("em", "code"))
        check_not_negative("NoisyRNN", sigma_add=sigma_add, sigma_mult=sigma_mult)
        self.noise, self.sigma_add, self.sigma_mult = noise, sigma_add, sigma_mult
        check_positive("NoisyRNN", step_size=step_size, init_std=init_std)
        check_split("NoisyRNN", beta_A=beta_A, gamma_A=gamma_A, beta_W=beta_W, gamma_W=gamma_W)
        self.step_size, self.init_std = step_size, init_std
        self.beta_A, self.gamma_A, self.beta_W, self.gamma_W = beta_A, gamma_A, beta_W, gamma_W
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N, empty = self._set_sizes(d_model, d_state, to), empty_parameters(device, dtype)
        self.V = Linear(d_model, N, **to)
        self.M_A, self.M_W = empty(N, N), empty(N, N)
        self.d = empty(N) if noise == "code" else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        self.V.reset_parameters()
        for M in (self.M_A, self.M_W):
            nn.init.normal_(M, std=self.init_std / self.d_state)
        if self.d is not None:
            self.d.fill_(self.step_size)

    def transitions(self) -> tuple[Tensor, Tensor]:
        """The matrices A and W, (d_state, d_state) each."""
        A = symmetric_skew(self.M_A, self.beta_A, self.gamma_A)
        return A, symmetric_skew(self.M_W, self.beta_W, self.gamma_W)

    def _key(self) -> str:
        return self.noise if self.training else "euler"

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        (A, W), u = self.transitions(), self.V(x)
        step = self.step_size if self.d is None else self.d
        arguments: dict[str, Any] = {"u": u, "A": A, "W": W, "step": step}
        if not self.training:
            return arguments
        like = A.new_empty(u.shape)  # of full width
        if self.noise == "em":
            scale = {"add": self.sigma_add, "mult": self.sigma_mult}
            dB = self.step_size**0.5 * torch.randn_like(like)
            return {
                **arguments,
                **scale,
                "dB": dB if dt is None else dB * _root(wide(dt))[..., None],
            }
        arguments["added"] = self.sigma_add * torch.randn_like(like)
        return {**arguments, "times": 1 - self.sigma_mult * torch.rand_like(like)}


def _root(x: Tensor) -> Tensor:
    """The square root, whose gradient is 0 and not infinite where x is 0."""
    return torch.where(x > 0, torch.where(x > 0, x, 1).sqrt(), 0)
