"""Longhorn: a diagonal recurrence that solves one regression per step in closed form."""

from math import ceil
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell, cell_factory, fold, spread
from linrnn.compute.precision import wide
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import CausalConv
from linrnn.nn.linear import Linear
from linrnn.ops import cell_scan
from linrnn.ops.half_linear import half_linear
from linrnn.state_spec import Part, real


@cell_factory
def longhorn(d_inner: int, d_state: int) -> Cell:
    """The step; number ``c * d_state + n`` of the state is S[c, n]."""

    def step(S: Any, eps: Any, x: Any, k: Any, q: Any) -> tuple[Any, Any]:
        keys = spread(k, d_inner)
        error = spread(x, d_state, each=True) - keys * S
        S = S + spread(eps, d_state, each=True) * keys * error
        return fold(S * spread(q, d_inner), d_state, each=True), S

    return Cell(step, state="S", name="longhorn")


class Longhorn(Mixer):
    r"""Longhorn: each step moves the state to the solution of a small regression on its key.

    Equation:
        [u; z] = W_in x                               each in R^{d_inner}, d_inner = expand d_model
        s      = SiLU(conv(u) + b_conv)               depthwise, causal, d_conv taps
        [r; k; q] = W_x s                             R^{dt_rank}, R^{d_state}, R^{d_state}
        beta   = sigmoid(W_beta r + b_beta)           in R^{d_inner}
        eps    = beta / (1 + beta |k|^2)
        S_t[c, n] = (1 - eps[c] k[n]^2) S_{t-1}[c, n] + eps[c] k[n] s[c]
        y      = W_out ((S_t q + D s) * SiLU(z))
        Row c of S is a linear map from keys to numbers. The minimum over S of
        |S - S_{t-1}|^2 + beta (S k - s)^2 has the transition I - eps k k^T, of which this is the
        diagonal. All decays are in (0, 1], so that no parameter is needed to forget.
        Initially D = 1, b_beta = 0, and the rest as torch.nn.Linear and torch.nn.Conv1d.

    Args:
        d_state: numbers of a key, and of the state of each inner channel.
        d_conv: taps of the convolution; 1 sees only the current step.
        expand: inner channels for each outer one.
        dt_rank: width of the bottleneck before beta. Default: d_model / 16, rounded up.
        conv_bias: add b_conv.
        bias: add a bias to the projections W_in and W_out.

    Departures from the paper:
        None in the layer. Its code also divides the initial W_out by the square root of the depth,
        which a layer does not know.

    Example:
        >>> y, state = Longhorn(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["S"].shape, state["conv"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8, 16]), torch.Size([2, 3, 8]))

    Reference:
        Liu et al., "Longhorn: State Space Models Are Amortized Online Learners", 2024,
        arXiv:2407.14207. Key: liu2024longhorn.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("D",)

    family: ClassVar[str] = "ssm"
    choices = Choices(transition="diagonal", gate="input", memory="systems", output="gated")
    widening: ClassVar[bool] = True
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("D",)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        conv_bias: bool = True,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.conv_bias, self.bias = conv_bias, bias
        self.dt_rank = ceil(d_model / 16) if dt_rank is None else dt_rank
        sizes = {"d_state": d_state, "d_conv": d_conv, "expand": expand, "dt_rank": self.dt_rank}
        check_positive_int("Longhorn", **sizes)
        self.d_inner = expand * d_model
        to: Any = {"device": device, "dtype": dtype}
        self.in_proj = Linear(d_model, 2 * self.d_inner, bias=bias, **to)  # u, z
        self.conv1d = CausalConv(self.d_inner, d_conv, bias=conv_bias, silu=True, **to)
        self.x_proj = Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False, **to)  # r, k, q
        self.dt_head = Linear(self.dt_rank, self.d_inner, **to)  # beta
        self.D = nn.Parameter(torch.empty(self.d_inner, **to))
        self.out_proj = Linear(self.d_inner, d_model, bias=bias, **to)
        self.cell = longhorn(self.d_inner, d_state)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.conv1d, self.x_proj, self.dt_head, self.out_proj):
            part.reset_parameters()
        nn.init.zeros_(self.dt_head.bias)
        nn.init.ones_(self.D)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`; "conv" holds u of the last steps, oldest first."""
        memory = real(d_inner=self.d_inner, d_state=self.d_state)
        return {"S": memory, "conv": self.conv1d.state_spec()}

    def _read(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        dtype = self.in_proj.weight.dtype
        u, z = self.in_proj(x.to(dtype)).chunk(2, -1)  # (B, T, d_inner)
        s, past = self.conv1d(u, state["conv"], reset)  # and SiLU
        # (B, T, dt_rank), (B, T, d_state), (B, T, d_state)
        r, k, q = self.x_proj(s).split([self.dt_rank, self.d_state, self.d_state], -1)
        # (B, T, d_state), (B, T, d_inner)
        k, beta = wide(k), wide(half_linear(r, self.dt_head.weight))
        beta = torch.sigmoid(beta + wide(self.dt_head.bias))
        eps = beta / (1 + beta * k.square().sum(-1, keepdim=True))  # (B, T, d_inner)
        inputs: dict[str, Any] = {"eps": eps, "x": wide(s), "k": k, "q": wide(q)}
        # (B, T, d_inner), (B, d_inner d_state)
        o, S = cell_scan(self.cell, **inputs, state=state["S"].flatten(1), reset=reset)
        y = (o + wide(self.D) * wide(s)) * F.silu(wide(z))
        S = S.unflatten(-1, (self.d_inner, self.d_state))  # (B, d_inner, d_state)
        return self.out_proj(y.to(dtype)), {"S": S, "conv": past}
