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
from linrnn.nn import HeadNorm, empty_parameters, softplus_steps
from linrnn.nn.linear import Linear
from linrnn.ops.cell.cell_scan.row_function import RowFunction, row_functions
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.ops.matrix.turns import phases, turned
from linrnn.state_spec import Part, real


class Mamba3(Mixer):
    r"""Mamba-3: Mamba-2 with trapezoidal discretisation and input-dependent rotations of keys.

    Equation:
        z_t, x_t, B_t, C_t, d_t, a_t, m_t, theta_t = W u_t       u the input, x_t of each head
        dt_t = softplus(d_t + dt_bias),  A_t = -max(f(a_t), decay_floor),  lambda_t = sigmoid(m_t)
        f(a) = 1 + a for a >= 0, 1 / (1 - a) for a < 0;  or softplus(a)      with decay "softplus"
        phi_t = phi_{t-1} + pi tanh(theta_t) dt_t                in each head, one of every pair
        B'_t, C'_t = norm(B_t) + B_bias, norm(C_t) + C_bias, pairs of channels then turned by phi_t
        h_t = exp(A_t dt_t) (h_{t-1} + (1 - lambda_t) dt_t x_{t-1} B'_{t-1}^T)
              + lambda_t dt_t x_t B'_t^T                         (d_head, d_state)
        y_t = W_o ((h_t C'_t + D x_t) * silu(z_t))
        With rank r > 1 B_t and C_t have r rows each, and x_ti = X_i * x_t for i = 1..r:
        h_t is written all B'_ti^T with x_ti, in both sums, and with C'_ti
        y_t = W_o sum over i of O_i * (h_t C'_ti + D x_ti) * silu(Z_i * z_t)
        norm is an RMS norm with weights. With out_norm what is read passes one more, in each head,
        before its gate. Initially biases, D, Z and weights of norms are 1, X and O 1 / r,
        softplus(dt_bias) is log-uniform on [dt_min, dt_max], and maps are as in torch.nn.Linear.

    Args:
        d_state: channels of B and C, shared by the heads of a group.
        d_head: channels of a head. Default: the largest divisor of d_inner of at most 64.
        n_groups: groups of heads that have B and C of their own, but for the biases.
        rank: writes, and reads, of a head in a step: 1, or 4 in the published form of several
            inputs and outputs (MIMO).
        expand: d_inner / d_model.
        turned: the part of the channels of B and C that turns, above 0 and at most 1.
        decay: f, see above: "heavy_tail" as in the authors' code, "softplus" as first released.
        decay_floor: the least f.
        out_norm: see above.
        dt_min, dt_max, dt_floor: of the initial dt, and its least.
        norm_eps: of the norms.

    Departures from the paper:
        Extension beyond the survey. With a rank, neighbouring channels are turned as without;
        kernels of the authors' turn channels i and i + d_state / 2 then.

    Example:
        >>> y, state = Mamba3(d_model=8, d_state=4, d_head=8)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["cos"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 8]), torch.Size([2, 2, 1]))

    Reference:
        Lahoti et al., "Mamba-3: Improved Sequence Modeling using State Space Principles", ICLR
        2026, arXiv:2603.15569. Key: lahoti2026mamba.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = (
        *("B_bias", "C_bias", "D", "dt_bias"),
        *("mimo_x", "mimo_z", "mimo_o"),
    )

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
        rank: int = 1,
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
        self.d_model, self.d_state, self.n_groups, self.rank = d_model, d_state, n_groups, rank
        self.expand, self.turned, self.decay, self.decay_floor = expand, turned, decay, decay_floor
        self.dt_min, self.dt_max, self.dt_floor = dt_min, dt_max, dt_floor
        self.out_norm, self.norm_eps = out_norm, norm_eps
        self._set_sizes(d_head)
        to: Any = {"device": device, "dtype": dtype}
        inner, shared, H = self.d_inner, rank * n_groups * d_state, self.n_heads
        self.widths = [inner, inner, shared, shared, H, H, H, self.pairs]
        self.in_proj = Linear(d_model, sum(self.widths), bias=False, **to)
        self.B_norm, self.C_norm = (
            HeadNorm(1, d_state, norm="rms", eps=norm_eps, **to) for _ in range(2)
        )
        empty = empty_parameters(device, dtype)
        rows = (H, rank) if rank > 1 else (H,)
        self.B_bias, self.C_bias, self.D = empty(*rows, d_state), empty(*rows, d_state), empty(H)
        self.dt_bias = empty(H)
        self.mimo_x, self.mimo_z, self.mimo_o = (
            empty(*rows, self.d_head) if rank > 1 else None for _ in range(3)
        )
        self.norm = HeadNorm(H, self.d_head, eps=norm_eps, **to) if out_norm else None
        self.out_proj = Linear(inner, d_model, bias=False, **to)
        self.reset_parameters()

    def _set_sizes(self, d_head: int | None) -> None:
        """Check the options, and set what follows from them."""
        at_least_1 = {"d_state": self.d_state, "n_groups": self.n_groups, "rank": self.rank}
        check_positive_int("Mamba3", **at_least_1, expand=self.expand)
        positive = ("decay_floor", "norm_eps", "turned", "dt_min", "dt_max", "dt_floor")
        check_positive("Mamba3", **{name: getattr(self, name) for name in positive})
        check_in("Mamba3", "decay", self.decay, ("heavy_tail", "softplus"))
        self.d_inner = inner = self.expand * self.d_model
        self.d_head = (
            next(n for n in range(64, 0, -1) if inner % n == 0) if d_head is None else d_head
        )
        check_positive_int("Mamba3", d_head=self.d_head)
        self.n_heads = inner // self.d_head
        self.pairs = int(self.d_state * self.turned) // 2 if self.turned <= 1 else 0
        if inner % self.d_head or self.n_heads % self.n_groups or self.dt_min > self.dt_max:
            raise ArgumentError(
                f"Mamba3: d_head must divide d_inner={inner}, n_groups the heads, and dt_min must "
                f"be at most dt_max, got d_head={self.d_head}, n_groups={self.n_groups}, "
                f"dt_min={self.dt_min}, dt_max={self.dt_max}."
            )
        if not self.pairs:
            raise ArgumentError(
                "Mamba3: turned must be at most 1, and leave a pair of the channels d_state, got "
                f"turned={self.turned} of d_state={self.d_state}."
            )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.B_norm, self.C_norm, self.norm, self.out_proj):
            if part is not None:
                part.reset_parameters()
        for parameter in (self.B_bias, self.C_bias, self.D, self.mimo_z):
            if parameter is not None:
                nn.init.ones_(parameter)
        for parameter in (self.mimo_x, self.mimo_o):
            if parameter is not None:
                nn.init.constant_(parameter, 1 / self.rank)
        self.dt_bias.copy_(softplus_steps(self.n_heads, self.dt_min, self.dt_max, self.dt_floor))

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: h transposed; B', x and how phi turns, of the last step."""
        heads = {"n_heads": self.n_heads}
        rows = {"rank": self.rank} if self.rank > 1 else {}
        return {
            "memory": real(**heads, d_state=self.d_state, d_head=self.d_head),
            "key": real(**rows, **heads, d_state=self.d_state),
            "value": real(**heads, d_head=self.d_head),
            "cos": real(**heads, pairs=self.pairs, start=1.0),
            "sin": real(**heads, pairs=self.pairs),
        }

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        # (B, T, width) each
        z, *parts = self.in_proj(x.to(self.in_proj.weight.dtype)).split(self.widths, -1)
        s, B, C, dt, a, trapezoid, theta = map(wide, parts)
        s = s.unflatten(-1, (self.n_heads, -1))  # (B, T, H, d_head)
        B, C = (
            self._of_heads(B, self.B_norm, self.B_bias),
            self._of_heads(C, self.C_norm, self.C_bias),
        )
        rows = [None if m is None else _by_row(m) for m in (self.mimo_x, self.mimo_z, self.mimo_o)]
        with without_autocast(x.device):
            rates = _rates(self.decay, self.decay_floor)
            dt, g, late, now = rates(dt, a, trapezoid, self.dt_bias)  # (B, T, H) each
            step = pi * theta.tanh().unsqueeze(-2) * dt.unsqueeze(-1)  # (B, T, H, pairs)
            cos, sin = turns(step, state, reset)
            # (B, T, H, pairs) or (B, T, 1, H, pairs)
            of_rows = [part if rows[0] is None else part.unsqueeze(2) for part in (cos, sin)]
            B, C = turned(B, *of_rows), turned(C, *of_rows)
            o, memory = trapezoidal(B, C, s, late, now, g, state, reset, rows[0])
            o = self._gated(o, s, wide(z), rows)
        return self.out_proj(o.to(z.dtype)), {
            "memory": memory,
            "key": B[:, -1],
            "value": s[:, -1],
            "cos": cos[:, -1],
            "sin": sin[:, -1],
        }

    def _of_heads(self, x: Tensor, norm: HeadNorm, bias: Tensor) -> Tensor:
        """B or C of every head: (batch, time, heads, d_state), or with the rank before heads."""
        rows = (self.rank,) if self.rank > 1 else ()
        groups = x.unflatten(-1, (*rows, self.n_groups, 1, -1))  # (B, T, .., groups, 1, d_state)
        normed = wide(norm(groups)).repeat_interleave(self.n_heads // self.n_groups, -2)
        return normed + (_by_row(bias) if rows else wide(bias))

    def _gated(self, o: Tensor, s: Tensor, z: Tensor, rows: list[Tensor | None]) -> Tensor:
        """The outputs of heads, with inputs added, normed and gated: (B, T, d_inner)."""
        of_x, of_z, of_o = rows
        if of_x is not None and of_z is not None:
            s, z = s.unsqueeze(2) * of_x, z.unsqueeze(2) * of_z.flatten(1)  # (B, T, rank, ...)
        D = wide(self.D).repeat_interleave(self.d_head)  # (d_inner,)
        o, s = o.flatten(-2), s.flatten(-2)  # (B, T, .., d_inner) each
        if of_o is None and self.norm is None:
            return _GATE(o, s, z, D)[0]
        o = o + D * s
        if self.norm is not None:
            o = wide(self.norm(o.unflatten(-1, (self.n_heads, -1))))  # (B, T, .., d_inner)
        o = o * F.silu(z)
        return o if of_o is None else (o * of_o.flatten(1)).sum(2)


def _by_row(weights: Tensor) -> Tensor:
    """Weights (heads, rank, channels) as (rank, heads, channels), in wide numbers."""
    return wide(weights).transpose(0, 1)


def heavy_tail(a: Any) -> Any:
    """``1 + a`` for a >= 0 and ``1 / (1 - a)`` below: positive, with a continuous slope."""
    return a.clamp(min=0) + 1 / (1 - a.clamp(max=0))


@row_functions
def _rates(decay: str, floor: float) -> RowFunction:
    """Steps, logarithms of decays, and weights of the two writes of a step."""

    def rates(dt: Any, a: Any, trapezoid: Any, dt_bias: Any) -> tuple[Any, ...]:
        dt, share = F.softplus(dt + dt_bias), torch.sigmoid(trapezoid)
        f = F.softplus(a) if decay == "softplus" else heavy_tail(a)
        return dt, -f.clamp(min=floor) * dt, (1 - share) * dt, share * dt

    return RowFunction(rates, "mamba3_rates", rows="dt a trapezoid", channels="dt_bias")


_GATE = RowFunction(
    lambda o, s, z, D: ((o + D * s) * F.silu(z),), "mamba3_gate", rows="o s z", channels="D"
)


def turns(step: Tensor, state: dict[str, Tensor], reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cosines and sines of angles (B, T, H, pairs) that grow by ``step`` from those of the state.

    Angles of a call are summed in float64, for one of a thousand turns has three digits in float32.
    """
    phase, _ = phases(step, reset)  # since the call began, or a reset
    # onnxruntime has no atan in double precision, so one in single precision is made right once
    cos, sin = state["cos"].double(), state["sin"].double()  # (B, H, pairs) each
    start = torch.atan2(sin.float(), cos.float()).double()
    start = (start + sin * start.cos() - cos * start.sin()).unsqueeze(1)  # (B, 1, H, pairs)
    if reset is not None:
        # (B, T, H, pairs)
        start = torch.where((reset.cumsum(1) == 0)[..., None, None], start, 0)
    phase = phase + start
    return phase.cos().to(step.dtype), phase.sin().to(step.dtype)


def trapezoidal(
    B: Tensor,
    C: Tensor,
    s: Tensor,
    late: Tensor,
    now: Tensor,
    g: Tensor,
    state: dict[str, Tensor],
    reset: Tensor | None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs ``C h``, and the last h transposed, of one walk over the memory.

    What step t writes now and what step t + 1 adds of it decay alike from t + 1 on. So the memory
    takes both at once, and is read before the write: no output depends on the step after it. The
    product of C_t with what step t writes now is added. The last step writes only that.

    Args:
        B, C: (B, T, H, d_state), or (B, T, rank, H, d_state).
        s: (B, T, H, d_head).
        late, now: weights of the inputs of the step before and of the step, (B, T, H).
        g: logarithms of decays, (B, T, H).
        state: ``memory``, ``key`` and ``value`` before the first step.
        reset: boolean (B, T).
        rows: what the values of a step's writes are ``s`` times, (rank, H, d_head).
    """
    late, now = late.unsqueeze(-1), now.unsqueeze(-1)  # (B, T, H, 1) each
    key, value = state["key"], state["value"].unsqueeze(1)  # value: (B, 1, H, d_head)
    if rows is None:
        key = key.unsqueeze(1)  # (B, 1, H, N)
    else:
        value = value * rows  # (B, rank, H, d_head)
    memory = state["memory"]
    if C.shape[1] == 1:
        memory = (memory + _outer(key, late * value)) * g.exp().mT[..., None]
        if reset is not None:
            memory = torch.where(reset[..., None, None], 0, memory)  # (B, H, N, d_head)
        return _one(B, C, now * s, memory, rows)
    both = now + torch.cat([late[:, 1:], torch.zeros_like(late[:, :1])], 1)  # (B, T, H, 1)
    memory = memory + _outer(key, late[:, :1] * value)  # (B, H, N, d_head)
    if rows is None:
        own = (C * B).sum(-1, keepdim=True) * now * s  # (B, T, H, d_head)
    else:
        s, both = s.unsqueeze(2) * rows, both.unsqueeze(2)  # (B, T, rank or 1, H, ...)
        scores = torch.einsum("btihk,btrhk->bthir", C, B) * now.unsqueeze(-1)
        own = torch.einsum("bthir,btrhv->btihv", scores, s)  # (B, T, rank, H, d_head)
    o, memory = outer_scan(C, B, both * s, g, memory, read="before", reset=reset)
    return o + own, memory


def _one(
    B: Tensor, C: Tensor, s: Tensor, memory: Tensor, rows: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A single step as the equation has it: write to what has decayed, and read."""
    if rows is not None:
        B, C, s = B[:, 0], C[:, 0], s * rows  # (B, rank, H, ...) each
    memory = memory + _outer(B, s)
    o = (C.transpose(1, 2) @ memory).transpose(1, 2)  # (B, rank, H, d_head)
    return o if rows is None else o.unsqueeze(1), memory


def _outer(k: Tensor, v: Tensor) -> Tensor:
    """The sum over writes, (B, rank, H, N) and (B, rank, H, d_head), of their outer products."""
    k, v = k.transpose(1, 2).mT, v.transpose(1, 2)  # (B, H, N, rank), (B, H, rank, d_head)
    return k * v if v.shape[2] == 1 else k @ v  # (B, H, N, d_head)
