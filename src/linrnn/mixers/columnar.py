"""A columnar network: LSTMs of one number each, of which none sees another."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.columns import Columns
from linrnn.nn.linear import Linear


class Columnar(Columns):
    r"""Columnar LSTM: one-unit LSTMs, so exact real-time gradients cost no more than a step.

    Equation:
        i_t = sigmoid(W_i x_t + r_i * h_{t-1} + b_i)
        f_t = sigmoid(W_f x_t + r_f * h_{t-1} + b_f)
        g_t = tanh(W_g x_t + r_g * h_{t-1} + b_g)
        o_t = sigmoid(W_o x_t + r_o * h_{t-1} + b_o)
        c_t = f_t * c_{t-1} + i_t * g_t                    c in R^{d_state}
        h_t = o_t * tanh(c_t)                              h in R^{d_state}
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        An LSTM whose recurrent matrices are diagonal: a column sees the input and itself, so two
        traces a parameter, of h and of c, are its real-time recurrent learning: see the learner
        ``diagonal_rtrl``. Initially W is uniform within d_model^(-1/2), r on [-1, 1], b = 0 but
        b_f = 1.

    Args:
        d_state: columns. Default: d_model.
        learn_initial: learn the state that a sequence begins from.

    Departures from the paper:
        Columns are not normalised by running statistics: |h| < 1 as it is. How parameters start is
        ours, as is W_out where what follows has to be as wide as the input.

    Example:
        >>> y, state = Columnar(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state["c"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Javed, Shah, Sutton and White, "Scalable Real-Time Recurrent Learning Using
        Columnar-Constructive Networks", JMLR 24, 2023, arXiv:2302.05326. Key: javed2023scalable.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    choices = Choices(
        transition="diagonal", gate="state", memory="vector", steps="nonlinear", output="gated"
    )

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        learn_initial: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        to: Any = {"device": device, "dtype": dtype}
        size = d_model if d_state is None else d_state
        super().__init__(d_model, size, learn_initial=learn_initial, **to)
        self.out_proj: nn.Module = nn.Identity()
        if size != d_model:
            self.out_proj = Linear(size, d_model, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        if isinstance(self.out_proj, nn.Linear):
            self.out_proj.reset_parameters()

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        h, last = super()._read(x, state, reset)
        out = self.out_proj
        return out(h.to(out.weight.dtype)) if isinstance(out, nn.Linear) else h, last
