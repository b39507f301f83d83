"""Recurrent network with tanh."""

from typing import ClassVar, Literal

import torch
from torch import nn

from linrnn.errors import check_in, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.dense import DenseRNN
from linrnn.nn.channel_mix import orthogonal
from linrnn.nn.starts import check_periods, start_rotations


class TanhRNN(DenseRNN):
    r"""Elman RNN with tanh and a full recurrent matrix.

    Equation:
        h_t = tanh(A h_{t-1} + B x_t + b)            h in R^{d_state}
        y_t = C h_t + D * x_t                        y in R^{d_model}
        |h_t| < 1, so the layer cannot diverge. Each step needs the last one's result, so time
        cannot be parallelised. Initially A, B and C are Glorot-normal, the entries of A
        N(0, 1 / d_state), and b is zero. With init="orthogonal" A is a random orthogonal matrix
        instead, and with init="limit_cycle"

        A = diag(gain R(2 pi / T_1), gain R(2 pi / T_2), ...),   B ~ N(0, 0.01 / d_model)

        with R(w) the rotation of two channels by w, and log T_i uniform between the logarithms of
        min_period and max_period; an odd last channel begins with zeros. Without input two such
        channels turn for ever, one Lyapunov exponent being 0 and the other negative, so that a
        gradient neither vanishes nor explodes along the turn. From h = 0, which is unstable, the
        input moves them away.

    Args:
        d_state: channels of h. Default: d_model.
        bias: the vector b.
        init: how A and B begin, "glorot", "orthogonal" or "limit_cycle".
        gain: of the rotations, above 0; above 1 they turn for ever, below they come to rest.
        min_period, max_period: of the rotations, in steps, above 2. They turn a little slower the
            larger the gain is.
        n_heads: A has this many diagonal blocks, a divisor of d_state, each of which begins as
            above; the parameter has them on top of each other, (d_state, d_state / n_heads). As in
            FlashRNN (Poeppel et al., 2024, arXiv:2412.07752).

    Departures from the paper:
        The output layer C h + D * x and the initialisation are those of the LRU study
        (arXiv:2303.06349), in which this layer is a baseline; without b it is that layer. The
        limit cycles are those of Park et al., "Persistent learning signals and working memory
        without continuous attractors", 2023, arXiv:2308.12585.

    Example:
        >>> y, state = TanhRNN(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Elman, "Finding Structure in Time", Cognitive Science, 1990. Key: elman1990finding.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C",)

    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")

    nonlinearity: ClassVar[Literal["tanh", "relu"]] = "tanh"

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        bias: bool = True,
        init: Literal["glorot", "orthogonal", "limit_cycle"] = "glorot",
        gain: float = 1.1,
        min_period: float = 8.0,
        max_period: float = 128.0,
        n_heads: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, d_state, bias, device, dtype, n_heads)
        check_in("TanhRNN", "init", init, ("glorot", "orthogonal", "limit_cycle"))
        check_positive("TanhRNN", gain=gain)
        check_periods("TanhRNN", min_period, max_period)
        self.init, self.gain = init, gain
        self.min_period, self.max_period = min_period, max_period
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        if self.init == "orthogonal":
            for A in self._blocks():
                orthogonal(A, 1.0)
        elif self.init == "limit_cycle":
            for A in self._blocks():
                start_rotations(A, self.gain, self.min_period, self.max_period)
            nn.init.normal_(self.B, std=0.1 * self.d_model**-0.5)
