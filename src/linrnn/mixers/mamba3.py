"""Mamba-3: a state space read by the trapezoidal rule, whose state turns as the input says."""

from math import pi
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import HeadNorm, empty_parameters, recall, softplus_steps
from linrnn.ops import linear_scan
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


class Mamba3(Mixer):
    r"""Mamba-3: Mamba-2 with the trapezoidal rule, a decay by input, and keys that turn.

    Equation:
        z_t, x_t, B_t, C_t, d_t, a_t, m_t, theta_t = W u_t       u the input, x_t of each head
        dt_t = softplus(d_t + dt_bias),  A_t = -max(f(a_t), decay_floor),  lambda_t = sigmoid(m_t)
        f(a) = 1 + a for a >= 0, 1 / (1 - a) for a < 0;  or softplus(a)      with decay "softplus"
        phi_t = phi_{t-1} + pi tanh(theta_t) dt_t                in each head, one of every pair
        B'_t, C'_t = norm(B_t) + B_bias, norm(C_t) + C_bias, pairs of channels then turned by phi_t
        h_t = exp(A_t dt_t) (h_{t-1} + (1 - lambda_t) dt_t x_{t-1} B'_{t-1}^T)
              + lambda_t dt_t x_t B'_t^T                         (d_head, d_state)
        y_t = W_o ((h_t C'_t + D x_t) * silu(z_t))
        norm is an RMS norm with weights. With out_norm what is read passes one more, in each head,
        before its gate. Initially biases, D and weights of norms are 1, softplus(dt_bias) is
        log-uniform on [dt_min, dt_max], and maps are as in torch.nn.Linear.

    Args:
        d_state: channels of B and C, shared by the heads of a group.
        d_head: channels of a head. Default: the largest divisor of d_inner of at most 64.
        n_groups: groups of heads that have B and C of their own, but for the biases.
        expand: d_inner / d_model.
        turned: the part of the channels of B and C that turns, above 0 and at most 1.
        decay: f, see above: "heavy_tail" as in the authors' code, "softplus" as first released.
        decay_floor: the least f.
        out_norm: see above.
        dt_min, dt_max, dt_floor: of the initial dt, and its least.
        norm_eps: of the norms.

    Departures from the paper:
        Extension beyond the survey. One input and output a head; the form of several, MIMO, is not
        there.

    Example:
        >>> y, state = Mamba3(d_model=8, d_state=4, d_head=8)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["cos"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 8]), torch.Size([2, 2, 1]))

    Reference:
        Lahoti et al., "Mamba-3: Improved Sequence Modeling using State Space Principles", ICLR
        2026, arXiv:2603.15569. Key: lahoti2026mamba.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("B_bias", "C_bias", "D", "dt_bias")

    family: ClassVar[str] = "ssm"
    choices = Choices(
        transition="scalar", gate="input", memory="matrix", steps="staged", output="gated"
    )
    widening: ClassVar[bool] = True
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("D", "dt_bias")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 128,
        d_head: int | None = None,
        n_groups: int = 1,
        expand: int = 2,
        turned: float = 0.5,
        decay: Literal["heavy_tail", "softplus"] = "heavy_tail",
        decay_floor: float = 1e-4,
        out_norm: bool = False,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        dt_floor: float = 1e-4,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.n_groups = d_model, d_state, n_groups
        check_positive_int("Mamba3", d_state=d_state, n_groups=n_groups, expand=expand)
        check_positive("Mamba3", decay_floor=decay_floor, norm_eps=norm_eps, turned=turned)
        check_positive("Mamba3", dt_min=dt_min, dt_max=dt_max, dt_floor=dt_floor)
        check_in("Mamba3", "decay", decay, ("heavy_tail", "softplus"))
        self.expand, self.turned, self.decay, self.decay_floor = expand, turned, decay, decay_floor
        self.dt_min, self.dt_max, self.dt_floor = dt_min, dt_max, dt_floor
        self.out_norm, self.norm_eps = out_norm, norm_eps
        self.d_inner = inner = expand * d_model
        self.d_head = (
            next(n for n in range(64, 0, -1) if inner % n == 0) if d_head is None else d_head
        )
        check_positive_int("Mamba3", d_head=self.d_head)
        self.n_heads = inner // self.d_head
        self.pairs = int(d_state * turned) // 2 if turned <= 1 else 0
        if inner % self.d_head or self.n_heads % n_groups or dt_min > dt_max:
            raise ArgumentError(
                f"Mamba3: d_head must divide d_inner={inner}, n_groups the heads, and dt_min must "
                f"be at most dt_max, got d_head={self.d_head}, n_groups={n_groups}, "
                f"dt_min={dt_min}, dt_max={dt_max}."
            )
        if not self.pairs:
            raise ArgumentError(
                "Mamba3: turned must be at most 1, and leave a pair of the channels d_state, got "
                f"turned={turned} of d_state={d_state}."
            )
        to: Any = {"device": device, "dtype": dtype}
        shared, H = n_groups * d_state, self.n_heads
        self.widths = [inner, inner, shared, shared, H, H, H, self.pairs]
        self.in_proj = nn.Linear(d_model, sum(self.widths), bias=False, **to)
        self.B_norm, self.C_norm = (
            HeadNorm(1, d_state, norm="rms", eps=norm_eps, **to) for _ in range(2)
        )
        empty = empty_parameters(device, dtype)
        self.B_bias, self.C_bias, self.D = empty(H, d_state), empty(H, d_state), empty(H)
        self.dt_bias = empty(H)
        self.norm = HeadNorm(H, self.d_head, eps=norm_eps, **to) if out_norm else None
        self.out_proj = nn.Linear(inner, d_model, bias=False, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.B_norm, self.C_norm, self.norm, self.out_proj):
            if part is not None:
                part.reset_parameters()
        for parameter in (self.B_bias, self.C_bias, self.D):
            nn.init.ones_(parameter)
        self.dt_bias.copy_(softplus_steps(self.n_heads, self.dt_min, self.dt_max, self.dt_floor))

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: h transposed; B', x and how phi turns, of the last step."""
        heads = {"n_heads": self.n_heads}
        return {
            "memory": real(**heads, d_state=self.d_state, d_head=self.d_head),
            "key": real(**heads, d_state=self.d_state),
            "value": real(**heads, d_head=self.d_head),
            "cos": real(**heads, pairs=self.pairs, start=1.0),
            "sin": real(**heads, pairs=self.pairs),
        }

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        z, *parts = self.in_proj(x.to(self.in_proj.weight.dtype)).split(self.widths, -1)
        s, B, C, dt, a, trapezoid, theta = map(wide, parts)
        s = s.unflatten(-1, (self.n_heads, -1))  # (B, T, H, d_head)
        B, C = (
            self._of_heads(B, self.B_norm, self.B_bias),
            self._of_heads(C, self.C_norm, self.C_bias),
        )
        dt = F.softplus(dt + wide(self.dt_bias))  # (B, T, H)
        f = F.softplus(a) if self.decay == "softplus" else heavy_tail(a)
        with without_autocast(x.device):
            step = pi * theta.tanh().unsqueeze(-2) * dt.unsqueeze(-1)  # (B, T, H, pairs)
            cos, sin = turns(step, state, reset)
            B, C = turned(B, cos, sin), turned(C, cos, sin)
            g = -f.clamp(min=self.decay_floor) * dt
            o, memory = trapezoidal(B, C, s, dt, trapezoid.sigmoid(), g, state, reset)
            D = wide(self.D).repeat_interleave(self.d_head)  # (H d_head,)
            o = o.flatten(-2) + D * s.flatten(-2)  # (B, T, H d_head)
            if self.norm is not None:
                o = wide(self.norm(o.unflatten(-1, (self.n_heads, -1))))  # (B, T, H d_head)
            o = o * F.silu(wide(z))
        return self.out_proj(o.to(z.dtype)), {
            "memory": memory,
            "key": B[:, -1],
            "value": s[:, -1],
            "cos": cos[:, -1],
            "sin": sin[:, -1],
        }

    def _of_heads(self, x: Tensor, norm: HeadNorm, bias: Tensor) -> Tensor:
        """B or C of every head: (batch, time, heads, d_state)."""
        groups = x.unflatten(-1, (self.n_groups, 1, -1))  # (B, T, groups, 1, d_state)
        normed = wide(norm(groups)).repeat_interleave(self.n_heads // self.n_groups, -2)
        return normed + wide(bias)


def heavy_tail(a: Tensor) -> Tensor:
    """``1 + a`` for a >= 0 and ``1 / (1 - a)`` below: positive, with a continuous slope."""
    return a.clamp(min=0) + 1 / (1 - a.clamp(max=0))


def turns(step: Tensor, state: dict[str, Tensor], reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cosines and sines of angles (B, T, H, pairs) that grow by ``step`` from those of the state.

    Angles of a call are summed in float64, for one of a thousand turns has three digits in float32.
    """
    keeps = step.new_ones(step.shape[2:], dtype=torch.float64)
    phase, _ = linear_scan(keeps, step.double(), reset=reset)  # since the call began, or a reset
    cos, sin = phase.cos().to(step.dtype), phase.sin().to(step.dtype)
    cos_0, sin_0 = state["cos"].unsqueeze(1), state["sin"].unsqueeze(1)  # (B, 1, H, pairs)
    if reset is not None:
        begun = (reset.cumsum(1) > 0)[..., None, None]  # (B, T, 1, 1)
        cos_0, sin_0 = torch.where(begun, 1, cos_0), torch.where(begun, 0, sin_0)
    cos, sin = cos * cos_0 - sin * sin_0, sin * cos_0 + cos * sin_0
    scale = (cos * cos + sin * sin).rsqrt()  # or rounding adds up over calls
    return cos * scale, sin * scale


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The first pairs of neighbouring channels of (..., d_state) turned, as (..., pairs) say."""
    count = 2 * cos.shape[-1]
    even, odd = x[..., 0:count:2], x[..., 1:count:2]
    pairs = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
    return torch.cat([pairs, x[..., count:]], -1)


def trapezoidal(
    B: Tensor,
    C: Tensor,
    s: Tensor,
    dt: Tensor,
    share: Tensor,
    g: Tensor,
    state: dict[str, Tensor],
    reset: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Outputs ``C h``, and the last h transposed: every step is written twice, now and later.

    One write would do, of a step and what the next adds of it together; but then an output depends
    on the step after it.

    Args:
        B, C: (B, T, H, d_state).
        s: (B, T, H, d_head).
        dt, share, g: step, weight of its end, and logarithm of decay, (B, T, H).
        state: ``memory``, ``key`` and ``value`` before the first step.
        reset: boolean (B, T).
    """
    past = {name: state[name].flatten(1).unsqueeze(1) for name in ("key", "value")}
    key = recall(B.flatten(2), past["key"], 1).view_as(B)  # of the step before
    value = recall(s.flatten(2), past["value"], 1, reset).view_as(s)
    late = ((1 - share) * dt * g.exp()).unsqueeze(-1) * value
    now = (share * dt).unsqueeze(-1) * s
    o, memory = outer_scan(C, B, now, g, state["memory"], reset=reset)
    o_late, memory_late = outer_scan(C, key, late, g, reset=reset)
    return o + o_late, memory + memory_late
