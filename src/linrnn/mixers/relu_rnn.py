"""Recurrent network with ReLU."""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.dense import DenseRNN
from linrnn.typing import Float


class ReLURNN(DenseRNN):
    r"""Elman RNN with ReLU and a full recurrent matrix.

    Equation:
        h_t = max(0, A h_{t-1} + B x_t + b)          h in R^{d_state}
        y_t = C h_t + D * x_t                        y in R^{d_model}
        Nothing bounds h: where A amplifies some positive vector the state grows exponentially
        and overflows. Nothing is clipped. Each step needs the last one's result, so time cannot
        be parallelised. Initially B and C are Glorot-normal and b is zero.

    Args:
        d_state: channels of h. Default: d_model.
        bias: the vector b.
        init: of A: "glorot", entries N(0, 1 / d_state) as in the LRU study; or "identity", which
            keeps what it has read (the IRNN of the paper).

    Departures from the paper:
        The output layer C h + D * x and the default initialisation are those of the LRU study
        (arXiv:2303.06349), in which this layer is a baseline; without b it is that layer. Under
        init="identity" only A and b start as in the IRNN, whose B is N(0, 1e-6).

    Example:
        >>> y, state = ReLURNN(d_model=4, d_state=8, init="identity")(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Le, Jaitly and Hinton, "A Simple Way to Initialize Recurrent Networks of Rectified Linear
        Units", 2015, arXiv:1504.00941. Key: le2015simple.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C",)

    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")

    nonlinearity: ClassVar[Literal["tanh", "relu"]] = "relu"

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        bias: bool = True,
        init: Literal["glorot", "identity"] = "glorot",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, d_state, bias, device, dtype)
        self.init = init
        check_in("ReLURNN", "init", init, ("glorot", "identity"))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        if self.init == "identity":
            nn.init.eye_(self.A)

    def piecewise_linear(self, x_t: Float[Tensor, " d_model"]) -> tuple[Tensor, Tensor, Tensor]:
        """See `Mixer.piecewise_linear`; z is what the ReLU is of, ``h_t = max(0, z_t)``."""
        u = F.linear(x_t, self.B, self.b)
        return wide(torch.zeros_like(u)), wide(self.A), wide(u)
