"""Recurrent network with tanh."""

from typing import ClassVar, Literal

import torch

from linrnn.mixers._choices import Choices
from linrnn.mixers._dense import ElmanRNN


class TanhRNN(ElmanRNN):
    r"""Recurrent network with tanh and a full real matrix, step after step.

    Equation:
        h_t = tanh(A h_{t-1} + B x_t + b)            h in R^{d_state}
        y_t = C h_t + D * x_t                        y in R^{d_model}
        |h_t| < 1, so the layer cannot diverge. Each step needs the last one's result, so time
        cannot be parallelised. Initially A, B and C are Glorot-normal, the entries of A
        N(0, 1 / d_state), and b is zero.

    Args:
        d_state: channels of h. Default: d_model.
        bias: the vector b.

    Departures from the paper:
        The output layer C h + D * x and the initialisation are those of the LRU study
        (arXiv:2303.06349), in which this layer is a baseline; without b it is that layer.

    Example:
        >>> y, state = TanhRNN(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Elman, "Finding Structure in Time", Cognitive Science, 1990. Key: elman1990finding.
    """

    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")

    nonlinearity: ClassVar[Literal["tanh", "relu"]] = "tanh"

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, d_state, bias, device, dtype)
        self.reset_parameters()
