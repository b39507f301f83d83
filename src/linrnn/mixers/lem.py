"""LEM, long expressive memory: two states with time scales that are learned."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.parts import parts
from linrnn.errors import check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN, Timed, timed
from linrnn.nn.affine import affine_of
from linrnn.nn.linear import Linear
from linrnn.ops.half_linear import half_linear


@cell(state="y z", constant="step", matrix="W1 W2 Wz Wy")
def lem(
    y: Any,
    z: Any,
    u1: Any,
    u2: Any,
    uz: Any,
    uy: Any,
    dt: Any,
    step: Any,
    W1: Any,
    W2: Any,
    Wz: Any,
    Wy: Any,
) -> tuple[Any, Any]:
    """One step; y takes the new z."""
    fast = dt * step * torch.sigmoid(u1 + F.linear(y, W1))
    slow = dt * step * torch.sigmoid(u2 + F.linear(y, W2))
    z = torch.lerp(z, torch.tanh(uz + F.linear(y, Wz)), fast)
    y = torch.lerp(y, torch.tanh(uy + F.linear(z, Wy)), slow)
    return y, (y, z)


class LEM(CellRNN):
    r"""Long expressive memory (LEM): two coupled states with input-dependent time scales.

    Equation:
        s_t = step_size dt_t sigmoid(W_1 y_{t-1} + V_1 x_t + b_1), r_t with W_2, V_2 and b_2
        z_t = (1 - s_t) * z_{t-1} + s_t * tanh(W_z y_{t-1} + V_z x_t + b_z)
        y_t = (1 - r_t) * y_{t-1} + r_t * tanh(W_y z_t + V_y x_t + b_y)
        y and z in R^{d_state}; read out is y, mapped by a linear layer where d_state is not
        d_model. Both stay within +-1 while step_size dt_t <= 1. Initially all are uniform on +-1 /
        sqrt(d_state).

    Args:
        d_state: channels of y, and of z. Default: d_model.
        step_size: the longest step, where the time between steps is 1; above 0.

    Departures from the paper:
        None. As in the public code each bias is there twice, with V and with W.

    Example:
        >>> y, state = LEM(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["z"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Rusch et al., "Long Expressive Memory for Sequence Modeling", 2021, arXiv:2110.04744.
        Key: rusch2021long.
    """

    family: ClassVar[str] = "oscillator"
    choices = Choices(
        transition="dense", gate="state", memory="vector", normaliser="convex", steps="nonlinear"
    )
    cells: ClassVar[Mapping[str, Timed]] = timed(lem=lem)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        step_size: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive("LEM", step_size=step_size)
        self.step_size = step_size
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        self.V = Linear(d_model, 4 * N, **to)  # of s, r, z, y
        self.W, self.W_y = Linear(N, 3 * N, **to), Linear(N, N, **to)  # of s, r, z; of y
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        bound = self.d_state**-0.5
        for parameter in self.parameters():  # that of out_proj is torch.nn.Linear's own as well
            nn.init.uniform_(parameter, -bound, bound)

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        (V, b), (W_h, b_h), (W_y, b_y) = (affine_of(m, x) for m in (self.V, self.W, self.W_y))
        u = parts(half_linear(x, V, b + torch.cat([b_h, b_y])), 4)
        W = W_h.split(self.d_state)
        inputs = dict(zip(("u1", "u2", "uz", "uy"), u, strict=True))
        matrices = dict(zip(("W1", "W2", "Wz"), W, strict=True))
        return {**inputs, **matrices, "Wy": W_y, "step": self.step_size}
