"""Gated short convolution: the layer between the attention layers of LFM2."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import CausalConv
from linrnn.nn.linear import Linear
from linrnn.state_spec import Part


class ShortConv(Mixer):
    r"""Gated short convolution: a causal convolution of a few taps between two gates.

    Equation:
        (B_t, C_t, u_t) = W_in x_t + b_in
        v_t = B_t * u_t
        z_t = sum_{j < d_conv} w_j * v_{t-j} + b_conv        each channel alone, no activation
        y_t = W_out (C_t * z_t) + b_out
        The state holds the last d_conv - 1 values v, so nothing is remembered for longer. There
        are no b without ``bias``. Starts as torch.nn.Linear and torch.nn.Conv1d.

    Args:
        d_conv: taps w of the convolution, at least 1.
        bias: the vectors b, of both maps and of the convolution.

    Departures from the paper:
        None. Parameters have the names of the public code, whose ``conv.weight`` has an axis of
        length one more, (d_model, 1, d_conv).

    Example:
        >>> y, state = ShortConv(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["conv"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 2, 4]))

    Reference:
        Amini et al., "LFM2 Technical Report", 2025, arXiv:2511.23404. Key: amini2025lfm2.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "convolution"
    choices = Choices(transition="none", gate="none", memory="window", output="gated")

    def __init__(
        self,
        d_model: int,
        *,
        d_conv: int = 3,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_conv, self.bias = d_model, d_conv, bias
        check_positive_int("ShortConv", d_conv=d_conv)
        to: Any = {"bias": bias, "device": device, "dtype": dtype}
        self.in_proj = Linear(d_model, 3 * d_model, **to)  # B, C, u
        self.conv = CausalConv(d_model, d_conv, **to)
        self.out_proj = Linear(d_model, d_model, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.conv, self.out_proj):
            part.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: the last v, oldest first."""
        return {"conv": self.conv.state_spec()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        dtype = self.in_proj.weight.dtype
        # the product of three is at least float32: in half precision it leaves the range
        B, C, u = wide(self.in_proj(x.to(dtype))).chunk(3, -1)  # (B, T, d_model) each
        z, past = self.conv(B * u, state["conv"], reset)
        return self.out_proj((C * z).to(dtype)), {"conv": past}
