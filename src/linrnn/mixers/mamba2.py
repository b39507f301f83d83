"""Mamba-2: a selective state-space model whose heads share their state's inputs and outputs."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, check_positive, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.ssd import SSD, head_width
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


class Mamba2(SSD):
    r"""Mamba-2 (SSD): a matrix state per head with one input-dependent decay.

    Equation:
        [z; u; dt] = W_in x                     z in R^{d_inner}, u in R^{d_inner + 2GN}, dt in R^H
        [s; B; C] = SiLU(conv(u) + b_conv)      depthwise, causal, d_conv taps
        dt = clip(softplus(dt + dt_bias), dt_low, dt_high),  A = -exp(A_log)      both of each head
        S_t = exp(dt_t A) S_{t-1} + B_t (dt_t s_t)^T,   o_t = S_t^T C_t + D s_t
        y = W_out (w * rms_norm((o * SiLU(z)) in each group))
        or, with norm_before_gate, y = W_out (w * rms_norm(o in each group) * SiLU(z)), or, without
        rmsnorm, y = W_out (o * SiLU(z))
        d_ssm = d_inner = expand d_model channels are H heads of d_head; N = d_state. B and C are G
        = n_groups vectors of R^N, each shared by H / G heads.
        With d_ssm < d_inner the heads have d_ssm channels, so z and u have d_ssm instead of d_inner
        in each place above, W_in has first the rows of two more vectors z_0, x_0 of
        R^{d_inner - d_ssm}, and W_out reads SiLU(z_0) * x_0 before the others.
        What W_in gives for z, s, B, C and dt may be multiplied by a number each.
        Initially A is uniform on [-A_max, -A_min], D = 1, softplus(dt_bias) log-uniform on
        [dt_min, dt_max] and the rest as in torch.nn.

    Args:
        d_state: rows of a head's memory.
        d_head: channels of a head, a divisor of d_inner. Default: the largest of at most 64.
        n_groups: how many B and C there are, a divisor of the heads.
        d_conv: taps of the convolution; 1 sees only the current step.
        expand: inner channels for each outer one.
        d_inner: inner channels. Default: expand d_model.
        d_ssm: inner channels that the heads have; the others are a gated linear map. Default:
            d_inner.
        A_min, A_max: range of the initial -A, 0 < A_min <= A_max.
        D_has_hdim: a D for each channel, not for each head.
        rmsnorm: norm what the heads have read.
        norm_before_gate: norm before the gate, and not behind it.
        dt_min, dt_max: range of the initial step sizes, 0 < dt_min <= dt_max.
        dt_floor: least initial step size.
        dt_low: smallest step size, at least 0; a step at a bound has no gradient. In the public
            code the two bounds are "dt_limit".
        dt_high: largest step size, at least dt_low. Default: unbounded.
        norm_eps: of the norm.
        z_scale, s_scale, B_scale, C_scale, dt_scale: these numbers, as in Falcon-H1.
        conv_bias: add b_conv.
        bias: add a bias to the projections W_in and W_out.

    Departures from the paper:
        Extension beyond the survey. Names and rows of parameters are those of published
        checkpoints; their conv1d.weight has an axis of size 1 in the middle. The public code's
        own single steps leave out dt_limit; here a step is a sequence of one. The time between
        steps, where it is given, multiplies dt behind its bounds; the convolution counts steps.

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

    choices = Choices(
        transition="scalar", gate="input", memory="matrix", normaliser="norm", output="gated"
    )

    reads_half: ClassVar[bool] = True
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
        d_inner: int | None = None,
        d_ssm: int | None = None,
        A_min: float = 1.0,
        A_max: float = 16.0,
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        dt_floor: float = 1e-4,
        dt_low: float = 0.0,
        dt_high: float | None = None,
        norm_eps: float = 1e-5,
        z_scale: float = 1.0,
        s_scale: float = 1.0,
        B_scale: float = 1.0,
        C_scale: float = 1.0,
        dt_scale: float = 1.0,
        conv_bias: bool = True,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.n_groups = d_model, d_state, n_groups
        self.d_conv, self.expand = d_conv, expand
        self.dt_min, self.dt_max, self.dt_floor = dt_min, dt_max, dt_floor
        self.dt_low, self.dt_high = dt_low, dt_high
        self.A_min, self.A_max, self.D_has_hdim = A_min, A_max, D_has_hdim
        self.rmsnorm, self.norm_before_gate = rmsnorm, norm_before_gate
        self.norm_eps, self.conv_bias, self.bias = norm_eps, conv_bias, bias
        check_positive_int("Mamba2", d_state=d_state, n_groups=n_groups, expand=expand)
        self.d_inner = expand * d_model if d_inner is None else d_inner
        self.d_ssm = self.d_inner if d_ssm is None else d_ssm
        check_positive_int("Mamba2", d_inner=self.d_inner, d_ssm=self.d_ssm)
        self.d_head = head_width(self.d_ssm, d_head)
        check_positive_int("Mamba2", d_head=self.d_head)
        check_positive("Mamba2", A_min=A_min, A_max=A_max)
        if A_min > A_max:
            raise ArgumentError(
                f"Mamba2: A_min must be at most A_max, got A_min={A_min}, A_max={A_max}."
            )
        self.z_scale, self.s_scale, self.B_scale = z_scale, s_scale, B_scale
        self.C_scale, self.dt_scale = C_scale, dt_scale
        scales = {"z_scale": z_scale, "s_scale": s_scale, "B_scale": B_scale, "C_scale": C_scale}
        scales["dt_scale"] = dt_scale
        check_positive("Mamba2", **scales)
        factors = tuple(scales.values())
        self.row_scales = () if set(factors) == {1.0} else factors
        norms: Any = {"rmsnorm": rmsnorm, "norm_eps": norm_eps}
        biases: Any = {"conv_bias": conv_bias, "bias": bias}
        self._make(d_conv=d_conv, **biases, **norms, device=device, dtype=dtype)
        self.reset_parameters()

    def _draw_rates(self) -> Tensor:
        return torch.empty(self.n_heads, dtype=torch.float64).uniform_(self.A_min, self.A_max)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`; "conv" holds u of the last steps, oldest first."""
        memory = real(n_heads=self.n_heads, d_state=self.d_state, d_head=self.d_head)
        return {"memory": memory, "conv": self.conv1d.state_spec()}

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
        o, memory = outer_scan(C, B, v.to(C.dtype), g, state["memory"], reset=reset)
        return o, {"memory": memory}
