"""Piecewise-linear recurrent network."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.precision import wide
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN, Timed, steady
from linrnn.nn import empty_parameters, lecun_normal
from linrnn.nn.linear import Linear
from linrnn.typing import Float


@cell(state="z", constant="A", matrix="W")
def piecewise_linear(z: Any, u: Any, A: Any, W: Any) -> tuple[Any, Any]:
    """One step."""
    z = A * z + F.linear(torch.relu(z), W) + u
    return z, z


class PLRNN(CellRNN):
    r"""PLRNN: a piecewise-linear RNN for reconstructing dynamical systems.

    Equation:
        z_t = A * z_{t-1} + W max(0, z_{t-1}) + C x_t + h            z in R^{d_state}
        Read out is z, mapped by a linear layer where d_state is not d_model. All fixed points and
        cycles follow from linear equations: `linrnn.dynamics.scyfi`, and
        `linrnn eval RUN --cycles K`. Initially A is uniform on [0.3, 0.7], the entries of W are
        N(0, 1 / (16 d_state)), C is N(0, 1 / d_model) and h is zero, so that the state comes to
        rest without input; nothing keeps it bounded later.

    Args:
        d_state: channels of z. Default: d_model.

    Departures from the paper:
        W has a diagonal, with which a channel may decay faster or slower where it is positive. No
        noise, for training is by gradients and not by expectation and maximisation.

    Example:
        >>> y, state = PLRNN(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Durstewitz, "A state space approach for piecewise-linear recurrent neural networks for
        identifying computational dynamics from neural measurements", PLOS Computational Biology,
        2017, arXiv:1612.07846. Key: durstewitz2017state.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("A",)

    family: ClassVar[str] = "dense"
    timed: ClassVar[bool] = False
    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")
    cells: ClassVar[Mapping[str, Timed]] = steady(piecewise_linear=piecewise_linear)
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A", "W")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N, empty = self._set_sizes(d_model, d_state, to), empty_parameters(device, dtype)
        self.A, self.W = empty(N), empty(N, N)
        self.C = Linear(d_model, N, **to)  # its bias is h
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        nn.init.uniform_(self.A, 0.3, 0.7)
        nn.init.normal_(self.W, std=0.25 * self.d_state**-0.5)
        lecun_normal(self.C)

    def piecewise_linear(self, x_t: Float[Tensor, " d_model"]) -> tuple[Tensor, Tensor, Tensor]:
        """See `Mixer.piecewise_linear`."""
        return wide(self.A), wide(self.W), wide(self.C(x_t))

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        return {"u": self.C(x), "A": wide(self.A), "W": wide(self.W)}
