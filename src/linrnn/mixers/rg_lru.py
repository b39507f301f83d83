"""RG-LRU, the real-gated linear recurrence of Hawk and Griffin."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.precision import wide
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import BlockDiagonal, CausalConv, lecun_normal, ring, uniform, unit_gain
from linrnn.nn.linear import Linear
from linrnn.ops import cell_scan
from linrnn.ops.attention import positions
from linrnn.state_spec import Part, integer, real


@cell(state="h first", constant="decay r_bias i_bias", start={"first": 1.0})
def rg_lru(
    h: Any, first: Any, u: Any, r: Any, i: Any, y: Any, decay: Any, r_bias: Any, i_bias: Any
) -> tuple[Any, Any]:
    """One step; ``first`` is 1 before the first step of a sequence, then 0."""
    less = torch.expm1(-8 * F.softplus(decay) * torch.sigmoid(r + r_bias))  # a - 1
    gain = torch.where(first != 0, 1.0, unit_gain(less))
    h = (1 + less) * h + gain * torch.sigmoid(i + i_bias) * u
    return F.gelu(y, approximate="tanh") * h, (h, torch.zeros_like(first))


class RGLRU(Mixer):
    r"""RG-LRU: Hawk's layer, a gated real diagonal recurrence behind a short convolution.

    Equation:
        u_t = conv(W_x x)_t + b                                 depthwise, causal, d_conv taps
        r_t = sigmoid(W_r u_t + b_r),  i_t = sigmoid(W_i u_t + b_i)   in n_heads diagonal blocks
        log a_t = -8 softplus(Lambda) * r_t
        h_t = a_t * h_{t-1} + sqrt(1 - a_t^2) * i_t * u_t       h in R^{d_inner}
        y_t = W_o (gelu(W_y x_t) * h_t)                         gelu by its tanh formula
        The first step of a sequence is not scaled. Initially exp(-2 softplus(Lambda)) is uniform on
        [0.9^2, 0.999^2], weights are N(0, 1 / fan_in), those of conv N(0, 0.01 / d_conv), biases 0.

    Args:
        d_inner: channels of h. Default: d_model.
        n_heads, d_conv: blocks of the gates' maps, a divisor of d_inner; taps of the convolution.

    Departures from the paper:
        The code cuts the slope of sqrt(1 - a^2) off at 1000, and divides W_o by the root of half
        the depth, which a layer does not know.

    Example:
        >>> y, state = RGLRU(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["h"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient
        Language Models", 2024, arXiv:2402.19427. Key: de2024griffin.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("Lambda",)

    family: ClassVar[str] = "gated"
    choices = Choices(
        transition="diagonal", gate="input", memory="vector", normaliser="scaled", output="gated"
    )
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("Lambda",)
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        d_inner: int | None = None,
        n_heads: int = 1,
        d_conv: int = 4,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_inner = d_model, d_model if d_inner is None else d_inner
        check_positive_int("RGLRU", d_inner=self.d_inner, d_conv=d_conv)
        self.n_heads, self.d_conv = n_heads, d_conv
        to: Any = {"device": device, "dtype": dtype}
        self.y_proj, self.x_proj = (Linear(d_model, self.d_inner, **to) for _ in range(2))
        self.conv1d = CausalConv(self.d_inner, d_conv, **to)
        self.r_gate, self.i_gate = (BlockDiagonal(self.d_inner, n_heads, **to) for _ in range(2))
        self.Lambda = nn.Parameter(torch.empty(self.d_inner, **to))
        self.out_proj = Linear(self.d_inner, d_model, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.y_proj, self.x_proj, self.out_proj)
        self.r_gate.reset_parameters()
        self.i_gate.reset_parameters()
        nn.init.normal_(self.conv1d.weight, std=0.1 * self.d_conv**-0.5)
        nn.init.zeros_(self.conv1d.bias)  # type: ignore[arg-type]
        self.Lambda.copy_(torch.expm1(ring(uniform(self.d_inner), 0.9, 0.999)).log())

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: h, inputs of the convolution, steps since the last reset."""
        conv = self.conv1d.state_spec()
        return {"h": real(d_inner=self.d_inner), "conv": conv, "position": integer()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        position = positions(state["position"], x.shape[1], reset)
        x = x.to(self.x_proj.weight.dtype)
        u, past = self.conv1d(self.x_proj(x), state["conv"], reset)
        # biases are added in the scan, which has each number at hand
        inputs = {"u": u, "y": self.y_proj(x), "decay": wide(self.Lambda)}
        for name, gate in (("r", self.r_gate), ("i", self.i_gate)):
            bias = gate.bias
            assert bias is not None
            # bias: (d_state,)
            inputs |= {name: gate.product(u), f"{name}_bias": wide(bias.flatten())}
        # (B, d_state)
        first = (state["position"] == 0)[:, None].expand_as(state["h"]).to(state["h"].dtype)
        start = state["h"], first
        y, (h, _) = cell_scan(rg_lru, **inputs, state=start, reset=reset)
        return self.out_proj(y), {"h": h, "conv": past, "position": position[:, -1] + 1}
