"""Mamba-2: a selective state-space model whose heads share their state's inputs and outputs."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import CausalConv, HeadNorm, bounded_exp, empty_parameters, softplus_steps
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


class Mamba2(Mixer):
    r"""Mamba-2 (SSD): a matrix a head with one decay, chosen by the input as its inputs are.

    Equation:
        [z; u; dt] = W_in x                     z in R^{d_inner}, u in R^{d_inner + 2GN}, dt in R^H
        [s; B; C] = SiLU(conv(u) + b_conv)      depthwise, causal, d_conv taps
        dt = softplus(dt + dt_bias),  A = -exp(A_log)        one of each in every head
        S_t = exp(dt_t A) S_{t-1} + B_t (dt_t s_t)^T,   o_t = S_t^T C_t + D s_t
        y = W_out (w * rms_norm((o * SiLU(z)) in each group))
        d_inner = expand d_model channels are H heads of d_head; N = d_state. B and C are G =
        n_groups vectors of R^N, each shared by H / G heads.
        Initially A is uniform on [-16, -1], D = 1, softplus(dt_bias) log-uniform on
        [dt_min, dt_max] and the rest as in torch.nn.

    Args:
        d_state: rows of a head's memory.
        d_head: channels of a head, a divisor of d_inner. Default: the largest of at most 64.
        n_groups: how many B and C there are, a divisor of the heads.
        d_conv: taps of the convolution; 1 sees only the current step.
        expand: inner channels for each outer one.
        dt_min, dt_max: range of the initial step sizes, 0 < dt_min <= dt_max.
        dt_floor: least initial step size.
        norm_eps: of the norm.
        conv_bias: add b_conv.
        bias: add a bias to the projections W_in and W_out.

    Departures from the paper:
        Extension beyond the survey. Names and rows of parameters are those of published
        checkpoints; their conv1d.weight has an axis of size 1 in the middle. The time between
        steps, where it is given, multiplies dt; the convolution counts steps.

    Example:
        >>> y, state = Mamba2(d_model=4, d_head=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 2, 128, 4]), torch.Size([2, 3, 264]))

    Reference:
        Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
        Structured State Space Duality", 2024, arXiv:2405.21060. Key: dao2024transformers.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("A_log", "D", "dt_bias")

    family: ClassVar[str] = "ssm"
    choices = Choices(
        transition="scalar", gate="input", memory="matrix", normaliser="norm", output="gated"
    )
    widening: ClassVar[bool] = True
    timed: ClassVar[bool] = True
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A_log", "D", "dt_bias")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 128,
        d_head: int | None = None,
        n_groups: int = 1,
        d_conv: int = 4,
        expand: int = 2,
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
        self.d_model, self.d_state, self.n_groups = d_model, d_state, n_groups
        check_positive_int("Mamba2", d_state=d_state, n_groups=n_groups, expand=expand)
        check_positive("Mamba2", dt_min=dt_min, dt_max=dt_max, dt_floor=dt_floor, norm_eps=norm_eps)
        self.d_conv, self.expand, self.d_inner = d_conv, expand, expand * d_model
        self.dt_min, self.dt_max, self.dt_floor = dt_min, dt_max, dt_floor
        self.norm_eps, self.conv_bias, self.bias = norm_eps, conv_bias, bias
        inner = self.d_inner
        self.d_head = (
            next(n for n in range(64, 0, -1) if inner % n == 0) if d_head is None else d_head
        )
        check_positive_int("Mamba2", d_head=self.d_head)
        self.n_heads = inner // self.d_head
        if inner % self.d_head or self.n_heads % n_groups or dt_min > dt_max:
            raise ArgumentError(
                f"Mamba2: d_head must divide d_inner={inner}, n_groups the heads, and dt_min must "
                f"be at most dt_max, got d_head={self.d_head}, n_groups={n_groups}, "
                f"dt_min={dt_min}, dt_max={dt_max}."
            )
        to: Any = {"device": device, "dtype": dtype}
        self.d_mixed = inner + 2 * n_groups * d_state
        self.in_proj = nn.Linear(d_model, inner + self.d_mixed + self.n_heads, bias=bias, **to)
        self.conv1d = CausalConv(self.d_mixed, d_conv, bias=conv_bias, silu=True, **to)
        empty = empty_parameters(device, dtype)
        self.A_log, self.D, self.dt_bias = (empty(self.n_heads) for _ in range(3))
        self.norm = HeadNorm(n_groups, inner // n_groups, eps=norm_eps, **to)
        self.out_proj = nn.Linear(inner, d_model, bias=bias, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.conv1d, self.norm, self.out_proj):
            part.reset_parameters()
        self.A_log.copy_(torch.empty(self.n_heads, dtype=torch.float64).uniform_(1, 16).log())
        self.dt_bias.copy_(softplus_steps(self.n_heads, self.dt_min, self.dt_max, self.dt_floor))
        nn.init.ones_(self.D)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`; "conv" holds u of the last steps, oldest first."""
        memory = real(n_heads=self.n_heads, d_state=self.d_state, d_head=self.d_head)
        return {"memory": memory, "conv": self.conv1d.state_spec()}

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, times: Tensor | None
    ) -> tuple[Tensor, Any]:
        widths = [self.d_inner, self.d_mixed, self.n_heads]
        z, u, dt = self.in_proj(x.to(self.in_proj.weight.dtype)).split(widths, -1)
        mixed, past = self.conv1d(u, state["conv"], reset)  # and SiLU
        shared = self.n_groups * self.d_state
        s, B, C = wide(mixed).split([self.d_inner, shared, shared], -1)
        s = s.unflatten(-1, (self.n_heads, -1))
        B, C = (w.unflatten(-1, (self.n_groups, -1)) for w in (B, C))
        dt = F.softplus(wide(dt) + wide(self.dt_bias))
        if times is not None:
            dt = times[..., None] * dt
        with without_autocast(x.device):
            g = -bounded_exp(wide(self.A_log)) * dt
            o, memory = outer_scan(C, B, dt[..., None] * s, g, state["memory"], reset=reset)
            # by channel: its gradient, sums over time, then has the same bits with any threads
            D = wide(self.D).repeat_interleave(self.d_head)
            gated = (o.flatten(-2) + D * s.flatten(-2)) * F.silu(wide(z))
            normed = self.norm(gated.unflatten(-1, (self.n_groups, -1)))
        return self.out_proj(normed.to(z.dtype)), {"memory": memory, "conv": past}
