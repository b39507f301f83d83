"""The Neural Wave Machine, oscillators that are coupled with their neighbours on a torus."""

from collections.abc import Mapping
from math import isqrt, log
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN, Timed, timed
from linrnn.mixers._families.torus import check_divides, couplings
from linrnn.mixers.co_rnn import co_rnn
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear


class WaveMachine(CellRNN):
    r"""coRNN with local couplings: oscillators on tori that carry travelling waves.

    Equation:
        z_t = z_{t-1} + s (tanh(w_y * y_{t-1} + w_z * z_{t-1} + V x_t + b)
                           - relu(spring) y_{t-1} - relu(drag) z_{t-1})
        y_t = y_{t-1} + s z_t                       s = sigmoid(delta) dt_t
        w * y is the convolution with a kernel of 3 x 3 taps around both axes of a torus, in each of
        n_channels for itself, and of 3 taps around a ring. Read out is y, mapped by a linear layer
        where d_state is not d_model. Initially V, b and the kernels are as `torch.nn.Linear` and
        `torch.nn.Conv2d`; delta, spring and drag are one number each.

    Args:
        d_state: oscillators of all channels. Default: d_model.
        n_channels: tori, a divisor of d_state.
        rows: of a torus, a divisor of its oscillators; 1 makes it a ring. Default: the one nearest
            below their root.
        shared: one kernel for all channels.
        step_size, gamma, eps: sigmoid(delta), below 1, spring and drag at the start; above 0.

    Departures from the paper:
        It is the recurrence alone, without the decoder and the norm of the published autoencoder.
        The convolution is a product with the matrix that it is, of d_state^2 numbers, as in coRNN.

    Example:
        >>> y, state = WaveMachine(d_model=12)(torch.randn(2, 100, 12))
        >>> y.shape, state["z"].shape
        (torch.Size([2, 100, 12]), torch.Size([2, 12]))

    Reference:
        Keller & Welling, "Neural Wave Machines: Learning Spatiotemporally Structured
        Representations with Locally Coupled Oscillatory Recurrent Neural Networks", 2023.
        Key: keller2023neural.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("w_y", "w_z")
    single_precision: ClassVar[tuple[str, ...]] = ("delta",)

    family: ClassVar[str] = "oscillator"
    choices = Choices(transition="local", gate="learned", memory="vector", steps="nonlinear")
    cells: ClassVar[Mapping[str, Timed]] = timed(wave_machine=co_rnn)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        n_channels: int = 1,
        rows: int | None = None,
        shared: bool = False,
        step_size: float = 0.125,
        gamma: float = 1.0,
        eps: float = 0.5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive("WaveMachine", step_size=step_size, gamma=gamma, eps=eps)
        if step_size >= 1:
            raise ArgumentError(f"WaveMachine: step_size must be below 1, got {step_size}.")
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        check_divides("WaveMachine", N, n_channels=n_channels)
        units = N // n_channels
        near = next(n for n in range(isqrt(units), 0, -1) if units % n == 0)
        self.rows = near if rows is None else rows
        check_divides("WaveMachine", units, rows=self.rows)
        self.n_channels, self.shared, self.step_size = n_channels, shared, step_size
        self.gamma, self.eps = gamma, eps
        self.V, empty = Linear(d_model, N, **to), empty_parameters(device, dtype)
        kernel = 1 if shared else n_channels, 3 if self.rows == 1 else 9
        self.w_y, self.w_z = empty(*kernel), empty(*kernel)
        self.delta, self.spring, self.drag = empty(1), empty(1), empty(1)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        self.V.reset_parameters()
        for w in (self.w_y, self.w_z):
            nn.init.uniform_(w, -(w.shape[1] ** -0.5), w.shape[1] ** -0.5)
        start = log(self.step_size / (1 - self.step_size)), self.gamma, self.eps
        for p, value in zip((self.delta, self.spring, self.drag), start, strict=True):
            p.fill_(value)

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        columns = self.d_state // self.n_channels // self.rows
        kernels = (w.expand(self.n_channels, -1).mT for w in (self.w_y, self.w_z))
        each = (torch.diag_embed(k).permute(1, 2, 0) for k in kernels)  # no channel reads another
        W, W_hat = (couplings(k, self.rows, columns) for k in each)
        numbers = {"step": wide(self.delta).sigmoid(), "gamma": self.spring.relu()}
        return {"u": self.V(x), "W": W, "W_hat": W_hat, **numbers, "eps": self.drag.relu()}
