"""Mamba: a selective state-space model behind a short convolution."""

from math import ceil
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import autocast_dtype, in_dtype_of, wide
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import CausalConv, bounded_exp, softplus_steps
from linrnn.nn.affine import affine_of
from linrnn.nn.linear import Linear
from linrnn.ops import selective_scan
from linrnn.ops.half_linear import half_cast, half_linear
from linrnn.state_spec import Part, real


class Mamba(Mixer):
    r"""Mamba (S6): a diagonal state-space model with input-dependent step size, B and C.

    Equation:
        [u; z] = W_in x                               each in R^{d_inner}, d_inner = expand d_model
        s      = SiLU(conv(u) + b_conv)               depthwise, causal, d_conv taps
        [r; B; C] = W_x s                             R^{dt_rank}, R^{d_state}, R^{d_state}
        dt     = softplus(W_dt r + b_dt)              in R^{d_inner}, step sizes, in units of the
                                                      time since the step before, by default 1
        h_t[c, n] = exp(dt[c] A[c, n]) h_{t-1}[c, n] + w[c, n] B[n] s[c],    A = -exp(A_log)
        y      = W_out ((sum_n C[n] h_t[:, n] + D s) * SiLU(z))
        w = dt ("euler"), or (exp(dt A) - 1) / A ("zoh").
        With bcdt_norm, r, B and C of a step are divided by their root mean squares first.
        What is not selective is a parameter: dt = softplus(b_dt), B, or C. With none of the three
        selective, a channel of s is an S4D of real modes with the B and C of all.
        Every decay is in (0, 1), so the state cannot diverge; float32 rounds it to 1 below
        dt |A| = 3e-8 and to 0 above dt |A| = 88.
        Initially A[c, n] = -(n + 1), D = 1, and dt at s = 0 is log-uniform on [dt_min, dt_max]; a
        B that is a parameter is 1, such a C standard normal, as in S4D.

    Args:
        d_state: modes of each inner channel.
        d_conv: taps of the convolution; 1 sees only the current step.
        expand: inner channels for each outer one.
        dt_rank: width of the bottleneck the step sizes pass. Default: d_model / 16, rounded up.
        dt_min, dt_max: range of the initial step sizes, in input steps, 0 < dt_min <= dt_max.
        dt_floor: least initial step size.
        b_disc: how the input is discretised: "euler", or exactly ("zoh", zero-order hold).
        selective_dt, selective_B, selective_C: let the input choose them, as in the rows of the
            paper's ablation.
        bcdt_norm: RMS norms of r, B and C as far as these are selective: "none", "rms" (without
            weights, as in Falcon-Mamba) or "weighted" (with a weight a channel, as in Jamba).
        norm_eps: of these norms, added to the mean square under the root.
        conv_bias: add b_conv.
        bias: add a bias to the projections W_in and W_out.

    Departures from the paper:
        The paper prints the zero-order hold for both A and B; its code, every published
        checkpoint and our default use dt B instead. The code also divides the initial W_out by
        the square root of the depth, which a layer does not know. Neither knows the time between
        steps, which multiplies the step sizes; the convolution counts steps. The norms came later:
        Jamba (Lieber et al., 2024, arXiv:2403.19887), Falcon-Mamba (Zuo et al., 2024,
        arXiv:2410.05355).

    Example:
        >>> y, state = Mamba(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["h"].shape, state["conv"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8, 16]), torch.Size([2, 3, 8]))

    Reference:
        Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
        arXiv:2312.00752. Key: gu2023mamba.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("A_log", "D", "dt_bias")

    family: ClassVar[str] = "ssm"
    choices = Choices(transition="diagonal", gate="input", memory="systems", output="gated")
    widening: ClassVar[bool] = True
    timed: ClassVar[bool] = True
    recurrent_parameters: ClassVar[tuple[str, ...]] = (
        *("A_log", "D", "dt_proj.bias", "dt_bias", "B"),
    )

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        dt_floor: float = 1e-4,
        b_disc: Literal["euler", "zoh"] = "euler",
        selective_dt: bool = True,
        selective_B: bool = True,
        selective_C: bool = True,
        bcdt_norm: Literal["none", "rms", "weighted"] = "none",
        norm_eps: float = 1e-6,
        conv_bias: bool = True,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        check_positive_int("Mamba", d_state=d_state, d_conv=d_conv, expand=expand)
        self.d_inner = expand * d_model
        self.dt_rank = ceil(d_model / 16) if dt_rank is None else dt_rank
        self.dt_min, self.dt_max, self.dt_floor = dt_min, dt_max, dt_floor
        self.b_disc, self.conv_bias, self.bias = b_disc, conv_bias, bias
        check_positive_int("Mamba", dt_rank=self.dt_rank)
        check_in("Mamba", "b_disc", b_disc, ("euler", "zoh"))
        _check_step_sizes(dt_min, dt_max, dt_floor)
        check_in("Mamba", "bcdt_norm", bcdt_norm, ("none", "rms", "weighted"))
        check_positive("Mamba", norm_eps=norm_eps)
        self.bcdt_norm, self.norm_eps = bcdt_norm, norm_eps

        to: Any = {"device": device, "dtype": dtype}
        inner = self.d_inner
        self.in_proj = Linear(d_model, 2 * inner, bias=bias, **to)
        self.conv1d = CausalConv(inner, d_conv, bias=conv_bias, silu=True, **to)
        self.selective_dt, self.selective_B, self.selective_C = (
            selective_dt, selective_B, selective_C
        )  # fmt: skip
        chosen = selective_dt, selective_B, selective_C
        sizes = zip(chosen, (self.dt_rank, d_state, d_state), strict=True)
        self.widths = [size if selective else 0 for selective, size in sizes]
        self.x_proj = Linear(inner, sum(self.widths), bias=False, **to) if any(chosen) else None
        self.dt_proj = Linear(self.dt_rank, inner, **to) if selective_dt else None
        self.dt_bias = None if selective_dt else nn.Parameter(torch.empty(inner, **to))
        self.dt_layernorm, self.b_layernorm, self.c_layernorm = (  # as in checkpoints of Jamba
            nn.RMSNorm(width, norm_eps, bcdt_norm == "weighted", **to)
            if width and bcdt_norm != "none"
            else None
            for width in self.widths
        )
        self.B = None if selective_B else nn.Parameter(torch.empty(d_state, **to))
        self.C = None if selective_C else nn.Parameter(torch.empty(d_state, **to))
        self.A_log = nn.Parameter(torch.empty(inner, d_state, **to))
        self.D = nn.Parameter(torch.empty(inner, **to))
        self.out_proj = Linear(inner, d_model, bias=bias, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.conv1d, self.x_proj, self.out_proj):
            if part is not None:
                part.reset_parameters()
        for norm in (self.dt_layernorm, self.b_layernorm, self.c_layernorm):
            if norm is not None:
                norm.reset_parameters()
        if self.dt_proj is not None:
            bound = self.dt_rank**-0.5
            nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        steps = softplus_steps(self.d_inner, self.dt_min, self.dt_max, self.dt_floor)
        self._bias_of_steps().copy_(steps)
        self.A_log.copy_(torch.arange(1.0, self.d_state + 1, dtype=torch.float64).log())
        nn.init.ones_(self.D)
        if self.B is not None:
            nn.init.ones_(self.B)
        if self.C is not None:
            nn.init.normal_(self.C)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`; "conv" holds u of the last steps, oldest first."""
        h = real(d_inner=self.d_inner, d_state=self.d_state)
        return {"h": h, "conv": self.conv1d.state_spec()}

    def _read(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        x = half_cast(x, autocast_dtype(self.in_proj.weight))  # once for both products
        # two products: the gradients of one product's halves would have to be joined again
        W, b = affine_of(self.in_proj, x)
        halves = zip(W.chunk(2), (None, None) if b is None else b.chunk(2), strict=True)
        u, z = (half_linear(x, weight, b) for weight, b in halves)  # (B, T, d_inner)
        s, past = self.conv1d(u, state["conv"], reset)  # and SiLU
        steps, B, C = self._chosen(s)  # (B, T, d_inner), (B, T, d_state), (B, T, d_state)
        bias_of_steps = self._bias_of_steps()  # (d_inner,)
        if dt is not None:  # else the scan computes them on the way
            steps = dt[..., None] * F.softplus(wide(steps) + wide(bias_of_steps))
        y, h = selective_scan(
            s,
            steps,
            -bounded_exp(self.A_log.to(state["h"].dtype)),
            B,
            C,
            self.D,
            state["h"],
            z=z,
            dt_bias=bias_of_steps if dt is None else None,
            dt_softplus=dt is None,
            b_disc=self.b_disc,
            reset=reset,
        )
        return self.out_proj(in_dtype_of(W, y)), {"h": h, "conv": past}

    def _chosen(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step sizes without their bias, B and C at every step, each (B, T, ...)."""
        projected = s[..., :0] if self.x_proj is None else self.x_proj(s)
        r, B, C = projected.split(self.widths, -1)
        norms = self.dt_layernorm, self.b_layernorm, self.c_layernorm
        r, B, C = (x if n is None else _normed(n, x) for n, x in zip(norms, (r, B, C), strict=True))
        if self.dt_proj is None:
            steps = s.new_zeros(()).expand(s.shape)
        else:
            steps = half_linear(r, affine_of(self.dt_proj, r)[0])  # (B, T, d_inner)
        B, C = (
            x if constant is None else constant.expand(*s.shape[:-1], -1)
            for x, constant in ((B, self.B), (C, self.C))
        )
        return steps, B, C

    def _bias_of_steps(self) -> Tensor:
        return cast(Tensor, self.dt_bias if self.dt_proj is None else self.dt_proj.bias)


def _normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """``norm(x)``, computed in at least float32, in the dtype of ``x``."""
    weight = None if norm.weight is None else wide(norm.weight)
    return F.rms_norm(wide(x), x.shape[-1:], weight, norm.eps).to(x.dtype)


def _check_step_sizes(dt_min: float, dt_max: float, dt_floor: float) -> None:
    """Raise `ArgumentError` unless the bounds of the initial step sizes are positive and rise."""
    if not 0 < dt_min <= dt_max < float("inf"):
        raise ArgumentError(
            f"Mamba: dt_min and dt_max must satisfy 0 < dt_min <= dt_max, "
            f"got dt_min={dt_min}, dt_max={dt_max}."
        )
    if not 0 < dt_floor < float("inf"):
        raise ArgumentError(f"Mamba: dt_floor must be positive, got {dt_floor}.")
