"""Wave RNN, a recurrent network in which what was read travels around rings."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell, block_linear
from linrnn.compute.precision import wide
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN, Family, Timed, steady
from linrnn.mixers._families.torus import couplings
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear

_ACTS = {"relu": torch.relu, "tanh": torch.tanh, "identity": lambda x: x}
_AT_ONCE = 32  # a product with a matrix of this many channels or fewer computes them together


def _wave(act: str, channels: int | None) -> Timed:
    """One step; by one matrix of all units if ``channels`` is None."""

    def at_once(h: Any, u: Any, W: Any) -> tuple[Any, Any]:
        h = _ACTS[act](F.linear(h, W) + u)
        return h, h

    def around(h: Any, u: Any, before: Any, here: Any, after: Any) -> tuple[Any, Any]:
        n = channels or 0
        last, next_ = block_linear(h, before).roll(n, -1), block_linear(h, after).roll(-n, -1)
        h = _ACTS[act](block_linear(h, here) + last + next_ + u)
        return h, h

    if channels is None:
        return steady(wave=Cell(at_once, state="h", matrix="W", name="wave"))["wave"]
    return steady(wave=Cell(around, state="h", matrix="before here after", name="wave"))["wave"]


class WaveRNN(CellRNN):
    r"""Wave RNN: rings of units with local convolution, so inputs travel as waves.

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
        Its input has one channel; here ring c gets channel c modulo d_model. On short rings the
        convolution is one product, with the matrix that it is.

    Example:
        >>> y, state = WaveRNN(d_model=4, n_units=5)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 20]))

    Reference:
        Keller et al., "Traveling Waves Encode the Recent Past and Enhance Sequence Learning", 2023,
        arXiv:2309.08045. Key: keller2023traveling.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("w",)

    family: ClassVar[str] = "oscillator"
    choices = Choices(transition="local", gate="learned", memory="vector", steps="nonlinear")
    timed: ClassVar[bool] = False
    cells: ClassVar[Family] = Family(_wave)

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
        check_in("WaveRNN", "act", act, _ACTS)
        self.n_channels = C = d_model if n_channels is None else n_channels
        self.n_units, self.act = n_units, act
        check_positive_int("WaveRNN", d_model=d_model, n_channels=C, n_units=n_units)
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, C * n_units, to)
        self.out_proj = Linear(N, d_model, **to)
        self.V = Linear(d_model, N, **to)
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

    def _key(self) -> tuple[Any, ...]:
        rows = -(-self.n_channels // _AT_ONCE)  # of each of three products with a unit's channels
        short = self.n_units * self.n_channels <= 3 * rows * _AT_ONCE
        return self.act, None if short else self.n_channels

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        u = self.V(x) + self.b_w.repeat(self.n_units)
        if self._key()[1] is None:
            return {"u": u, "W": couplings(self.w, 1, self.n_units)}
        taps = wide(self.w).unbind(-1)
        ring = (w.expand(self.n_units, -1, -1) for w in taps)
        return {"u": u, **dict(zip(("before", "here", "after"), ring, strict=True))}
