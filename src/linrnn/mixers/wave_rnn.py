"""Wave RNN, a recurrent network in which what was read travels around rings."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._cell_rnn import CellRNN, Timed, steady
from linrnn.mixers._torus import couplings
from linrnn.nn import empty_parameters


def _wave(act: Any, name: str) -> Cell:
    def step(h: Any, u: Any, W: Any) -> tuple[Any, Any]:
        h = act(F.linear(h, W) + u)
        return h, h

    return Cell(step, state="h", matrix="W", name=name)


WAVES = {
    "relu": _wave(torch.relu, "wave_relu"),
    "tanh": _wave(torch.tanh, "wave_tanh"),
    "identity": _wave(lambda x: x, "wave_identity"),
}
"""One step by the nonlinearity."""


class WaveRNN(CellRNN):
    r"""A recurrent network of rings of units, on which what was read travels as a wave.

    Equation:
        h_t = act(w * h_{t-1} + b_w + V x_t + b)             h in R^{n_units, n_channels}
        (w * h)_i = sum over k in -1, 0, 1 of w_k h_{i+k}    indices around the ring, w_k a matrix
        Read out is a linear layer of all of h. Initially w_1 = I, w_0 = w_{-1} = 0, so that each
        step moves what is on a ring by one unit; V is 0 but for weights of 1 from one channel of
        the input into unit 0 of each channel, b is 0, and b_w is uniform on +-1/sqrt(3 n_channels).

    Args:
        n_channels: rings. Default: d_model.
        n_units: units of each, so that a wave comes round after as many steps.
        act: "relu", "tanh" or "identity".

    Departures from the paper:
        Its input has one channel; here ring c gets channel c modulo d_model. The convolution is a
        product with the matrix that it is, of (n_units * n_channels)^2 numbers.

    Example:
        >>> y, state = WaveRNN(d_model=4, n_units=5)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 20]))

    Reference:
        Keller et al., "Traveling Waves Encode the Recent Past and Enhance Sequence Learning", 2023,
        arXiv:2309.08045. Key: keller2023traveling.
    """

    family: ClassVar[str] = "oscillator"
    timed: ClassVar[bool] = False
    cells: ClassVar[Mapping[str, Timed]] = steady(**WAVES)

    def __init__(
        self,
        d_model: int,
        *,
        n_channels: int | None = None,
        n_units: int = 8,
        act: Literal["relu", "tanh", "identity"] = "relu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("WaveRNN", "act", act, self.cells)
        self.n_channels = C = d_model if n_channels is None else n_channels
        self.n_units, self.act = n_units, act
        check_positive_int("WaveRNN", d_model=d_model, n_channels=C, n_units=n_units)
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, C * n_units, to)
        self.out_proj = nn.Linear(N, d_model, **to)
        self.V = nn.Linear(d_model, N, **to)
        self.w, self.b_w = empty_parameters(**to)(C, C, 3), empty_parameters(**to)(C)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        for p in (self.w, self.V.weight, self.V.bias):
            nn.init.zeros_(p)
        C = self.n_channels
        self.w[:, :, 2].fill_diagonal_(1)
        rings = torch.arange(C, device=self.w.device)
        self.V.weight[rings, rings % self.d_model] = 1
        nn.init.uniform_(self.b_w, -((3 * C) ** -0.5), (3 * C) ** -0.5)

    def _cells(self) -> Timed:
        return self.cells[self.act]

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        u = self.V(x) + self.b_w.repeat(self.n_units)
        return {"u": u, "W": couplings(self.w, 1, self.n_units)}
