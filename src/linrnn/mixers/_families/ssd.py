"""Base of layers around the state space of Mamba-2: projection, convolution, skip, gated norm."""

from math import inf
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import spread
from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive
from linrnn.mixers._contract.base import Mixer
from linrnn.nn import CausalConv, HeadNorm, bounded_exp, empty_parameters, softplus_steps
from linrnn.nn.heads import reads_half, whole_sequence
from linrnn.nn.linear import Linear
from linrnn.ops.cell.cell_scan.row_function import RowFunction, row_functions
from linrnn.ops.gated_norm import gated_norm
from linrnn.ops.matrix.scale_heads import scale_heads


class SSD(Mixer):
    """Heads with one decay each, whose keys and queries come in groups.

    A subclass stores its options, then calls `_make`, and says in `_recall` how memories are
    written and read, and in `_draw_rates` where decays start.
    """

    family: ClassVar[str] = "ssm"
    widening: ClassVar[bool] = True
    timed: ClassVar[bool] = True
    #: Whether `_recall` rounds values to the dtype of its keys anyway.
    reads_half: ClassVar[bool] = False

    d_state: int
    d_head: int
    n_groups: int
    d_inner: int
    d_ssm: int
    D_has_hdim: bool
    norm_before_gate: bool
    dt_min: float
    dt_max: float
    dt_floor: float
    dt_low: float = 0.0
    dt_high: float | None = None
    row_scales: tuple[float, ...] = ()
    """Factors of what the projection gives for z, s, B, C and dt; none where all are 1."""

    def _make(
        self,
        *,
        d_conv: int,
        conv_bias: bool,
        bias: bool,
        rmsnorm: bool,
        norm_eps: float,
        more: int = 0,
        **factory: Any,
    ) -> None:
        """Check the sizes and make the parts; each head has ``more`` rows of the projection."""
        heads = self.d_ssm
        self.n_heads, self.d_more = heads // self.d_head, more
        self._check_arguments(rmsnorm, norm_eps)
        self.d_mixed = heads + 2 * self.n_groups * self.d_state
        rows = 2 * self.d_inner - heads + self.d_mixed + (1 + more) * self.n_heads
        self.in_proj = Linear(self.d_model, rows, bias=bias, **factory)
        self.conv1d = CausalConv(self.d_mixed, d_conv, bias=conv_bias, silu=True, **factory)
        empty = empty_parameters(**factory)
        self.A_log, self.dt_bias = empty(self.n_heads), empty(self.n_heads)
        self.D = empty(heads if self.D_has_hdim else self.n_heads)
        groups = (self.n_groups, heads // self.n_groups)
        self.norm = HeadNorm(*groups, eps=norm_eps, **factory) if rmsnorm else None
        self.out_proj = Linear(self.d_inner, self.d_model, bias=bias, **factory)

    def _check_arguments(self, rmsnorm: bool, norm_eps: float) -> None:
        where, heads = type(self).__name__, self.d_ssm
        sizes = {name: getattr(self, name) for name in ("dt_min", "dt_max", "dt_floor")}
        check_positive(where, **sizes, norm_eps=norm_eps)
        if heads % self.d_head or self.n_heads % self.n_groups or self.dt_min > self.dt_max:
            width = "d_inner" if heads == self.d_inner else "d_ssm"
            raise ArgumentError(
                f"{where}: d_head must divide {width}={heads}, n_groups the heads, and dt_min must "
                f"be at most dt_max, got d_head={self.d_head}, n_groups={self.n_groups}, "
                f"dt_min={self.dt_min}, dt_max={self.dt_max}."
            )
        if heads > self.d_inner:
            raise ArgumentError(
                f"{where}: d_ssm must be at most d_inner={self.d_inner}, got {heads}."
            )
        low, high = self.dt_low, inf if self.dt_high is None else self.dt_high
        if not 0 <= low <= high or low == inf:
            raise ArgumentError(
                f"{where}: dt_low and dt_high must satisfy 0 <= dt_low <= dt_high, got "
                f"dt_low={self.dt_low}, dt_high={self.dt_high}."
            )
        if self.norm_before_gate and not rmsnorm:
            raise ArgumentError(
                f"{where}: norm_before_gate must be False for rmsnorm=False, got True."
            )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.conv1d, self.norm, self.out_proj):
            if part is not None:
                part.reset_parameters()
        self.A_log.copy_(self._draw_rates().log())
        self.dt_bias.copy_(softplus_steps(self.n_heads, self.dt_min, self.dt_max, self.dt_floor))
        nn.init.ones_(self.D)

    def _draw_rates(self) -> Tensor:
        """Draw -A of every head, float64."""
        raise NotImplementedError

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
        """Return the reads of heads (B, T, H, d_head), and the state without the convolution's.

        Args:
            C, B: queries and keys (B, T, groups, d_state), which may be bfloat16.
            v: values (B, T, H, d_head), in the dtype of C and B with `reads_half`.
            g: logarithms of decays (B, T, H).
            more: rows of the projection beyond those of Mamba-2, (B, T, H, more), or None.
            state: as `state_spec` says.
            reset: boolean (B, T), or None.
        """
        raise NotImplementedError

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, times: Tensor | None
    ) -> tuple[Tensor, Any]:
        linear = self.d_inner - self.d_ssm  # channels of a gated linear map beside the heads
        widths = [linear, linear] if linear else []
        widths += [self.d_ssm, self.d_mixed, self.n_heads]
        widths += [self.d_more * self.n_heads] if self.d_more else []
        projected = self.in_proj(x.to(self.in_proj.weight.dtype))
        parts = list(projected.split(widths, -1))  # (B, T, width) each
        # (B, T, H, more)
        more = parts.pop().unflatten(-1, (self.n_heads, -1)) if self.d_more else None
        *linear_parts, z, u, dt = parts
        if self.row_scales:
            z, u, dt = self._scaled(z, u, dt)
        mixed, past = self.conv1d(u, state["conv"], reset)  # and SiLU
        shared = self.n_groups * self.d_state
        half = reads_half(mixed)
        # (B, T, d_ssm), (B, T, G N), (B, T, G N)
        s, B, C = (mixed if half else wide(mixed)).split([self.d_ssm, shared, shared], -1)
        B, C = (w.unflatten(-1, (self.n_groups, -1)) for w in (B, C))  # (B, T, groups, d_state)
        with without_autocast(x.device):
            g, v = self._written(s, dt, times)  # (B, T, H) and (B, T, H, d_head)
            o, memories = self._recall(C, B, v, g, more, state, reset)
            # by channel: its gradient, sums over time, then has the same bits with any threads
            D = wide(self.D)
            D = D if self.D_has_hdim else D.repeat_interleave(self.d_head)  # (H,) or (d_ssm,)
            read = self._gated(o.flatten(-2), D, s, z)  # (B, T, d_ssm)
        read = read.to(z.dtype)
        if linear:
            # (B, T, d_inner)
            read = torch.cat([F.silu(linear_parts[0]) * linear_parts[1], read], -1)
        return self.out_proj(read), {**memories, "conv": past}

    def _written(self, s: Tensor, dt: Tensor, times: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logarithms of decays, and values, of inputs (B, T, d_ssm) and steps (B, T, H)."""
        low, high = self.dt_low, self.dt_high
        if times is None and s.dtype is not torch.bfloat16:
            function = _rates(self.d_head, low, high)
            sizes: Any = {"heads": self.n_heads, "width": self.d_head}
            g, v = function(s, dt, self.dt_bias, self.A_log, **sizes)
            return g, v.unflatten(-1, (self.n_heads, -1))
        dt = _steps(wide(dt), wide(self.dt_bias), low, high)
        dt = dt if times is None else times[..., None] * dt
        g, s = -bounded_exp(wide(self.A_log)) * dt, s.unflatten(-1, (self.n_heads, -1))
        half = s.dtype is torch.bfloat16 and self.reads_half
        return g, scale_heads(s, dt) if half else dt[..., None] * s

    def _scaled(self, z: Tensor, u: Tensor, dt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Parts of the projection, each times its factor."""
        of_z, *of_u, of_dt = self.row_scales
        shared = self.n_groups * self.d_state
        mixed = u.split([self.d_ssm, shared, shared], -1)
        scaled = [part * factor for part, factor in zip(mixed, of_u, strict=True)]
        return z * of_z, torch.cat(scaled, -1), dt * of_dt

    def _gated(self, o: Tensor, D: Tensor, s: Tensor, z: Tensor) -> Tensor:
        """Outputs of the heads (..., d_ssm) and ``D * s``, normed and gated by z."""
        norm_first = self.norm_before_gate
        if self.norm is not None and whole_sequence(o):
            options: Any = {"eps": self.norm.eps, "gate": "silu", "dtype": z.dtype}
            options |= {"groups": self.n_groups, "norm_first": norm_first, "skip": (s, D)}
            return gated_norm(o, z, self.norm.weight, **options)
        gate, o = F.silu(wide(z)), torch.addcmul(o, D, s)
        if self.norm is None:
            return o * gate
        heads = o if norm_first else o * gate
        normed: Tensor = self.norm(heads.unflatten(-1, (self.n_groups, -1)))
        return normed * gate if norm_first else normed


def _steps(dt: Any, dt_bias: Any, low: float, high: float | None) -> Any:
    dt = F.softplus(dt + dt_bias)
    return dt if low <= 0 and high is None else dt.clamp(low, high)


@row_functions
def _rates(width: int, low: float, high: float | None) -> RowFunction:
    """Logarithms of decays, and values, of heads of that width."""

    def rates(s: Any, dt: Any, dt_bias: Any, A_log: Any) -> tuple[Any, Any]:
        dt = _steps(dt, dt_bias, low, high)
        return -bounded_exp(A_log) * dt, spread(dt, width) * s

    def by_head(s: Tensor, dt: Tensor, dt_bias: Tensor, A_log: Tensor) -> tuple[Tensor, Tensor]:
        dt = _steps(dt, dt_bias, low, high)
        v = dt[..., None] * s.unflatten(-1, (-1, width))
        return -bounded_exp(A_log) * dt, v.flatten(-2)

    names: Any = {"rows": "s dt", "channels": "dt_bias A_log", "numbers": "dt dt_bias A_log"}
    return RowFunction(rates, "ssd_rates", **names, definition=by_head)


def head_width(channels: int, d_head: int | None) -> int:
    """Channels of a head; None is the largest divisor of all channels that is at most 64."""
    if d_head is not None:
        return d_head
    return next(n for n in range(64, 0, -1) if channels % n == 0)
