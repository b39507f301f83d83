"""coRNN, coupled oscillators that the input drives."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.errors import check_in, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import SHORT_STEPS, CellRNN, Timed, timed
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear


@cell(state="y z", constant="step gamma eps", matrix="W W_hat")
def co_rnn(
    y: Any, z: Any, u: Any, dt: Any, step: Any, gamma: Any, eps: Any, W: Any, W_hat: Any
) -> tuple[Any, Any]:
    """One step, whose damping is that of the velocity before."""
    force = torch.tanh(F.linear(y, W) + F.linear(z, W_hat) + u) - gamma * y - eps * z
    z = z + dt * step * force
    y = y + dt * step * z
    return y, (y, z)


@cell(state="y z", constant="step gamma eps", matrix="W W_hat")
def co_rnn_implicit(
    y: Any, z: Any, u: Any, dt: Any, step: Any, gamma: Any, eps: Any, W: Any, W_hat: Any
) -> tuple[Any, Any]:
    """One step, whose damping is that of the velocity after."""
    force = torch.tanh(F.linear(y, W) + F.linear(z, W_hat) + u) - gamma * y
    z = (z + dt * step * force) / (1 + dt * step * eps)
    y = y + dt * step * z
    return y, (y, z)


class CoRNN(CellRNN):
    r"""coRNN: coupled, damped oscillators driven by the input; gradients stay bounded.

    Equation:
        y'' = tanh(W y + W_hat y' + V x + b) - gamma y - eps y', in steps of s = step_size dt_t:
        z_t = z_{t-1} + s (tanh(W y_{t-1} + W_hat z_{t-1} + V x_t + b) - gamma y_{t-1} - eps z_*)
        y_t = y_{t-1} + s z_t                                          y and z in R^{d_state}
        Read out is y, mapped by a linear layer where d_state is not d_model. Initially all weights
        are uniform on +-1 / sqrt(d_model + 2 d_state), as of one linear layer of x, z and y.

    Args:
        d_state: oscillators. Default: d_model.
        step_size: s where the time between steps is 1.
        gamma, eps: squared frequency and damping; above 0.
        damping: z_* is z_{t-1}, "explicit", as in the public code, or z_t, "implicit", for which
            the paper proves |y|^2 + |z|^2 <= d_state times the time since a start at 0, with
            gamma = eps = 1 and s <= 1.

    Departures from the paper:
        None. The numbers by default are those for sequential MNIST; for permuted MNIST they are
        0.076, 0.4 and 8.

    Example:
        >>> y, state = CoRNN(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["z"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Rusch & Mishra, "Coupled Oscillatory Recurrent Neural Network (coRNN): An accurate and
        (gradient) stable architecture for learning long time dependencies", 2020,
        arXiv:2010.00951. Key: rusch2020coupled.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("W", "W_hat")

    family: ClassVar[str] = "oscillator"
    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")
    declared: ClassVar[Mapping[str, str]] = {"trains": SHORT_STEPS}
    cells: ClassVar[Mapping[str, Timed]] = timed(explicit=co_rnn, implicit=co_rnn_implicit)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        step_size: float = 0.042,
        gamma: float = 2.7,
        eps: float = 4.7,
        damping: Literal["explicit", "implicit"] = "explicit",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive("CoRNN", step_size=step_size, gamma=gamma, eps=eps)
        check_in("CoRNN", "damping", damping, self.cells)
        self.step_size, self.gamma, self.eps, self.damping = step_size, gamma, eps, damping
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        self.V = Linear(d_model, N, **to)
        self.W, self.W_hat = (empty_parameters(device, dtype)(N, N) for _ in range(2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        bound = (self.d_model + 2 * self.d_state) ** -0.5
        for weight in (*self.V.parameters(), self.W, self.W_hat):
            nn.init.uniform_(weight, -bound, bound)

    def _key(self) -> str:
        return self.damping

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        matrices = {"W": self.W, "W_hat": self.W_hat}
        numbers = {"step": self.step_size, "gamma": self.gamma, "eps": self.eps}
        return {"u": self.V(x), **matrices, **numbers}
