"""AntisymmetricRNN, steps of a differential equation whose transition is skew-symmetric."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.parts import parts
from linrnn.errors import check_not_negative, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import SHORT_STEPS, CellRNN, Timed, timed
from linrnn.mixers._families.lipschitz import symmetric_skew
from linrnn.nn import empty_parameters, lecun_normal
from linrnn.nn.linear import Linear


@cell(state="h", constant="step", matrix="A")
def antisymmetric(h: Any, u: Any, dt: Any, step: Any, A: Any) -> tuple[Any, Any]:
    """One step."""
    h = h + dt * step * torch.tanh(F.linear(h, A) + u)
    return h, h


@cell(state="h", constant="step", matrix="A")
def antisymmetric_gated(h: Any, u: Any, g: Any, dt: Any, step: Any, A: Any) -> tuple[Any, Any]:
    """One step with a gate, whose matrix is the same."""
    recurrent = F.linear(h, A)
    h = h + dt * step * torch.sigmoid(recurrent + g) * torch.tanh(recurrent + u)
    return h, h


class AntisymmetricRNN(CellRNN):
    r"""Antisymmetric RNN: Euler steps along a nearly skew-symmetric matrix, for stability.

    Equation:
        h_t = h_{t-1} + s g_t * tanh(A h_{t-1} + V x_t + b),   s = step_size dt_t
        g_t = sigmoid(A h_{t-1} + V_z x_t + b_z) if gated, else 1
        A = M - M^T - gamma I                            h in R^{d_state}
        Read out is h, mapped by a linear layer where d_state is not d_model.
        Initially M is N(0, sigma^2 / d_state), V and V_z are N(0, 1 / d_model), biases 0.

    Args:
        d_state: channels of h. Default: d_model.
        gated: the gate g, of the same matrix.
        step_size: s where the time between steps is 1; above 0.
        gamma: damping, at least 0: with steps of finite length a skew-symmetric A alone grows.
        sigma: of M, above 0.

    Departures from the paper:
        None. It chooses step_size, gamma and sigma for each task.

    Example:
        >>> y, state = AntisymmetricRNN(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Chang et al., "AntisymmetricRNN: A Dynamical System View on Recurrent Neural Networks",
        2019, arXiv:1902.09689. Key: chang2019antisymmetric.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("M",)

    family: ClassVar[str] = "dense"
    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")
    declared: ClassVar[Mapping[str, str]] = {"trains": SHORT_STEPS}
    overflows: ClassVar[str] = "gradients grow by 0.16 % a step, to 1e46, in float64 as well"
    cells: ClassVar[Mapping[str, Timed]] = timed(plain=antisymmetric, gated=antisymmetric_gated)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        gated: bool = False,
        step_size: float = 0.1,
        gamma: float = 0.01,
        sigma: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive("AntisymmetricRNN", step_size=step_size, sigma=sigma)
        check_not_negative("AntisymmetricRNN", gamma=gamma)
        self.gated, self.step_size, self.gamma, self.sigma = gated, step_size, gamma, sigma
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        self.V = Linear(d_model, 2 * N if gated else N, **to)
        self.M = empty_parameters(device, dtype)(N, N)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        lecun_normal(self.V)
        nn.init.normal_(self.M, std=self.sigma * self.d_state**-0.5)

    def _key(self) -> str:
        return "gated" if self.gated else "plain"

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        inputs = dict(zip(("u", "g"), parts(self.V(x), 1 + self.gated), strict=False))
        return {**inputs, "A": symmetric_skew(self.M, 1.0, self.gamma), "step": self.step_size}
