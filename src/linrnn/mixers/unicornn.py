"""UnICORNN, undamped oscillators that are independent of one another."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.errors import check_not_negative, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import SHORT_STEPS, CellRNN, Timed, timed
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear


@cell(state="y z", constant="w c alpha step")
def unicornn(
    y: Any, z: Any, u: Any, dt: Any, w: Any, c: Any, alpha: Any, step: Any
) -> tuple[Any, Any]:
    """One step of symplectic Euler."""
    s = dt * (step * torch.sigmoid(c))
    z = z - s * (torch.tanh(w * y + u) + alpha * y)
    y = y + s * z
    return y, (y, z)


class UnICORNN(CellRNN):
    r"""UnICORNN: undamped, uncoupled oscillators with learned step sizes; preserves volume.

    Equation:
        s = step_size dt_t sigmoid(c)                                      of each channel
        z_t = z_{t-1} - s * (tanh(w * y_{t-1} + V x_t + b) + alpha y_{t-1})
        y_t = y_{t-1} + s * z_t                                  y and z in R^{d_state}
        Read out is y, mapped by a linear layer where d_state is not d_model.
        The step keeps the volume of (y, z), its Jacobian has determinant 1, and it is undone by
        y_{t-1} = y_t - s * z_t and then z_{t-1}. Initially w is uniform on [0, 1], c on +-0.1, V as
        `torch.nn.init.kaiming_uniform_` with a = 8, b is 0.

    Args:
        d_state: oscillators. Default: d_model.
        step_size: above 0; bounded while s^2 (alpha + w) < 4.
        alpha: squared frequency without input, at least 0.

    Departures from the paper:
        One layer. In the published network each layer reads y of the one below, with no norm and no
        skip: SequenceModel(..., mixer="unicornn", block="bare", norm="none", skip=False,
        pool="last"), or `linrnn.RNN`. Steps and alphas of their own for each layer are a pattern,
        mixer=(UnICORNN(32, step_size=2.81e-5), UnICORNN(32, step_size=0.0343)). The first V is
        behind the encoder, with which it is one linear map; dropout is drawn anew at each step.
        The numbers by default are those for permuted MNIST. States are kept, or computed again
        from some of them, and not by going backward, which loses digits.

    Example:
        >>> y, state = UnICORNN(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["z"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Rusch & Mishra, "UnICORNN: A recurrent model for learning very long time dependencies",
        2021, arXiv:2103.05487. Key: rusch2021unicornn.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "oscillator"
    choices = Choices(transition="diagonal", gate="learned", memory="vector", steps="nonlinear")
    declared: ClassVar[Mapping[str, str]] = {"trains": SHORT_STEPS}
    cells: ClassVar[Mapping[str, Timed]] = timed(unicornn=unicornn)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        step_size: float = 0.19,
        alpha: float = 30.65,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive("UnICORNN", step_size=step_size)
        check_not_negative("UnICORNN", alpha=alpha)
        self.step_size, self.alpha = step_size, alpha
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        self.V = Linear(d_model, N, **to)
        self.w, self.c = (empty_parameters(device, dtype)(N) for _ in range(2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        nn.init.kaiming_uniform_(self.V.weight, a=8)
        nn.init.zeros_(self.V.bias)
        nn.init.uniform_(self.w)
        nn.init.uniform_(self.c, -0.1, 0.1)

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        constants = {"w": self.w, "c": self.c, "alpha": self.alpha, "step": self.step_size}
        return {"u": self.V(x), **constants}
