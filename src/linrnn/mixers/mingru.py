"""minGRU: a GRU whose gate does not look at the state."""

from typing import ClassVar, Literal

import torch

from linrnn.mixers._min_gated import MinGated


class MinGRU(MinGated):
    r"""minGRU: a GRU whose gate and candidate depend on the input alone, so that it is a scan.

    Equation:
        z_t = sigmoid(W_z x_t)                          one gate, in (0, 1)
        v_t = g(W_h x_t), or W_h x_t where positive is False
        h_t = (1 - z_t) * h_{t-1} + z_t * v_t           h in R^{d_inner}
        g(a) = a + 1/2 for a >= 0, sigmoid(a) for a < 0: positive and continuous
        h_0 = g(0) = 1/2 in every channel, 0 where positive is False
        W_h and W_z are the rows of one matrix, in this order, drawn as torch.nn.Linear draws.

    Shapes:
        x      (batch, time, d_model)   real
        y      (batch, time, d_model)   real, dtype of x; h, or W_o h where expansion is not 1
        state  (batch, d_inner)         h: float32, float64 for float64; d_inner = expansion *
                                        d_model, rounded down

    Args:
        d_model: channels in and out.
        expansion: width of the recurrence over d_model, dimensionless. Other than 1, a second
            projection W_o leads back.
        positive: apply g, which keeps h positive. Two different models: False is the paper's
            first form, True the one it trains.
        bias: give the projections a bias, as in torch.nn.Linear.
        form: how a sequence is computed, with the same numbers: "scan", or, where positive,
            "log", the paper's sum of logarithms, for comparison.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        ArgumentError: a size below 1; "log" where positive is False.
        UnknownNameError: an unknown form.
        ShapeError: the last axis of x is not d_model, or state does not fit.

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

    gates: ClassVar[int] = 1

    def __init__(
        self,
        d_model: int,
        *,
        expansion: float = 1.0,
        positive: bool = True,
        bias: bool = False,
        form: Literal["scan", "log"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            d_model,
            expansion=expansion,
            positive=positive,
            normalise=True,
            bias=bias,
            form=form,
            device=device,
            dtype=dtype,
        )

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        return (
            f"d_model={self.d_model}, expansion={self.expansion}, positive={self.positive}, "
            f"bias={self.bias}, form={self.form!r}"
        )
