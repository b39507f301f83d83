"""minGRU: a GRU whose gate does not look at the state."""

from typing import ClassVar, Literal

import torch

from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.minimal import MinimalRNN


class MinGRU(MinimalRNN):
    r"""minGRU: a GRU whose gate and candidate depend on the input only; a parallel scan.

    Equation:
        z_t = sigmoid(W_z x_t)                          one gate, in (0, 1)
        v_t = g(W_h x_t), or W_h x_t where positive is False
        h_t = (1 - z_t) * h_{t-1} + z_t * v_t           h in R^{d_inner}
        g(a) = a + 1/2 for a >= 0, sigmoid(a) for a < 0: positive and continuous
        h_0 = g(0) = 1/2 in every channel, for which a state has 0; 0 where positive is False
        W_h and W_z are the rows of one matrix, in this order, drawn as torch.nn.Linear draws.

    Args:
        expansion: width of the recurrence over d_model, dimensionless. Other than 1, a second
            projection W_o leads back.
        positive: apply g, which keeps h positive. Two different models: False is the paper's
            first form, True the one it trains.
        bias: give the projections a bias, as in torch.nn.Linear.
        form: how a sequence is computed, with the same numbers: "scan", or, where positive,
            "log", the paper's sum of logarithms, for comparison.
        gates: how the forget gate 1 - z starts, and whether another, of the last rows, refines it,
            as `linrnn.nn.starts` says.
        t_max: longest initial memory, in steps; gates="chrono" needs it. Default: none.

    Departures from the paper:
        No logarithms by default: positive terms cancel nothing, so their plain sum is as stable
        and more accurate. The state of a finished call is h itself; g is not applied to it
        again.

    Example:
        >>> y, state = MinGRU(d_model=4, expansion=2)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Feng et al., "Were RNNs All We Needed?", 2024, arXiv:2410.01201. Key: feng2024were.
    """

    choices = Choices(transition="diagonal", gate="input", memory="vector", normaliser="convex")
    n_gates: ClassVar[int] = 1

    def __init__(
        self,
        d_model: int,
        *,
        expansion: float = 1.0,
        positive: bool = True,
        bias: bool = False,
        form: Literal["scan", "log"] = "scan",
        gates: Literal["plain", "chrono", "uniform", "refine", "ur"] = "plain",
        t_max: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, expansion, positive, bias, form, gates, t_max, device, dtype)
