"""Log-linear Mamba-2: a memory for each scale of the past, and weights that the input chooses."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.levels import LevelScales, levels_before, levels_spec, unread
from linrnn.mixers._families.ssd import SSD, head_width
from linrnn.ops.matrix.fenwick_scan import fenwick_scan
from linrnn.state_spec import Part


class LogLinearMamba2(SSD):
    r"""Log-linear Mamba-2: a state per time scale of the past, weighted by the input when read.

    Equation:
        [z; u; dt; l] = W_in x          l in R^{H levels}, the others as in Mamba-2
        [s; B; C] = SiLU(conv(u) + b_conv)      depthwise, causal, d_conv taps
        dt = softplus(dt + dt_bias),  A = -exp(A_log),  lambda = softplus(L * l)
        S_t^i = sum over the steps j of level i of exp(A sum_{j<r<=t} dt_r) B_j (dt_j s_j)^T
        o_t = sum_i lambda_t^i (S_t^i)^T C_t + D s_t
        y = W_out (w * rms_norm((o * SiLU(z)) in each group)), with the variants of Mamba-2
        The level of step j at step t is 0 for j = t, else the number of binary digits of t xor j,
        at most levels - 1; steps are counted from the last reset. All lambda equal is Mamba-2.
        Initially A_log = log 1, ..., log H, L = 1, D = 1, softplus(dt_bias) log-uniform on
        [dt_min, dt_max] and the rest as in torch.nn.

    Args:
        d_state: rows of a head's memories.
        d_head: channels of a head, a divisor of expand d_model. Default: the largest of at most 64.
        levels: memories of a head. The last holds everything before the current 2^(levels - 2)
            steps; the default tells steps apart as published, up to 2^14 of them.
        n_groups: how many B and C there are, a divisor of the heads.
        d_conv: taps of the convolution; 1 sees only the current step.
        expand: inner channels for each outer one.
        D_has_hdim: a D for each channel, not for each head.
        rmsnorm: norm what the heads have read.
        norm_before_gate: norm before the gate, and not behind it.
        dt_min, dt_max: range of the initial step sizes, 0 < dt_min <= dt_max.
        dt_floor: least initial step size.
        norm_eps: of the norm.
        conv_bias: add b_conv.
        bias: add a bias to the projections W_in and W_out.

    Departures from the paper:
        Extension beyond the survey. Published is an error for more steps than there are levels
        for; here the last level takes them. The time between steps, where it is given, multiplies
        dt; levels and the convolution count steps.

    Example:
        >>> layer = LogLinearMamba2(d_model=4, d_head=4, levels=8)
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> y.shape, state["memory"].shape, state["position"]
        (torch.Size([2, 100, 4]), torch.Size([2, 2, 8, 128, 4]), tensor([100, 100]))

    Reference:
        Guo et al., "Log-Linear Attention", 2025, arXiv:2506.04761. Key: guo2025log.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("A_log", "D", "dt_bias")

    choices = Choices(
        transition="scalar", gate="input", memory="matrix", normaliser="norm", output="gated"
    )

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A_log", "D", "dt_bias", "scales.L")
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 128,
        d_head: int | None = None,
        levels: int = 15,
        n_groups: int = 1,
        d_conv: int = 4,
        expand: int = 2,
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        dt_floor: float = 1e-4,
        norm_eps: float = 1e-5,
        conv_bias: bool = True,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.levels, self.n_groups = d_model, d_state, levels, n_groups
        self.d_conv, self.expand, self.D_has_hdim = d_conv, expand, D_has_hdim
        self.rmsnorm, self.norm_before_gate, self.norm_eps = rmsnorm, norm_before_gate, norm_eps
        self.dt_min, self.dt_max, self.dt_floor = dt_min, dt_max, dt_floor
        self.conv_bias, self.bias = conv_bias, bias
        sizes = {"d_state": d_state, "levels": levels, "n_groups": n_groups, "expand": expand}
        check_positive_int("LogLinearMamba2", **sizes)
        self.d_inner = self.d_ssm = expand * d_model
        self.d_head = head_width(self.d_ssm, d_head)
        check_positive_int("LogLinearMamba2", d_head=self.d_head)
        to: Any = {"device": device, "dtype": dtype}
        norms: Any = {"rmsnorm": rmsnorm, "norm_eps": norm_eps}
        biases: Any = {"conv_bias": conv_bias, "bias": bias}
        self._make(d_conv=d_conv, more=levels, **biases, **norms, **to)
        self.scales = LevelScales("LogLinearMamba2", self.n_heads, levels, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        self.scales.reset_parameters()

    def _draw_rates(self) -> Tensor:
        return torch.arange(1, self.n_heads + 1, dtype=torch.float64)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: all levels, steps read, and u of the last steps."""
        levels = levels_spec(self.n_heads, self.levels, rows=self.d_state, d_head=self.d_head)
        return {**levels, "conv": self.conv1d.state_spec()}

    def _start(self, state: Any, x: Tensor, spec: Any) -> Any:
        start = super()._start(state, x, spec)
        return unread(start, x) if state is None else start

    def _recall(
        self,
        C: Tensor,
        B: Tensor,
        v: Tensor,
        g: Tensor,
        more: Tensor | None,
        state: Any,
        reset: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        scales = self.scales(more)
        o, memory, position = fenwick_scan(
            *(wide(C), wide(B), v, g, scales), *levels_before(state), reset=reset
        )
        return o, {"memory": memory, "position": position}
