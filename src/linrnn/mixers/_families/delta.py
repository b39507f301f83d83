"""Base of delta-rule layers: short convolutions, keys of length 1, rates, norm, gate."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.nn import ConvHeads, GatedOut, l2_normalise
from linrnn.nn.conv_heads import check_conv, conv_spec
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.state_spec import Part, real


class ConvDelta(Mixer):
    """The delta rule on queries and keys of length 1 behind a short convolution.

    A subclass sets the sizes below, calls `_make`, and says in `_log_decay` what is forgotten.
    """

    family: ClassVar[str] = "linear-attention"
    n_heads: int
    d_key: int
    d_value: int
    beta_max: float
    d_conv: int | None
    conv_bias: bool

    def _make(
        self,
        key_heads: int,
        out: dict[str, Any],
        *,
        silu: bool = True,
        beta: bool = True,
        **factory: Any,
    ) -> None:
        """The parts; ``out`` are options of `GatedOut`, ``beta`` whether rates are learned."""
        where, H, V = type(self).__name__, self.n_heads, self.d_value
        check_positive_int(where, n_heads=H, d_key=self.d_key, d_value=V, key_heads=key_heads)
        check_conv(where, self.d_conv, self.conv_bias)
        if H % key_heads:
            raise ArgumentError(
                f"{where}: key_heads must divide the n_heads of {H}, got {key_heads}."
            )
        check_rate(where, self.beta_max)
        sizes = (self.d_key, self.d_key, H // key_heads * V)
        conv: Any = {"d_conv": self.d_conv, "conv_bias": self.conv_bias, "silu": silu}
        self.qkv = ConvHeads(self.d_model, key_heads, sizes, **conv, **factory)
        self.beta_proj = nn.Linear(self.d_model, H, bias=False, **factory) if beta else None
        self.out = GatedOut(self.d_model, H, V, **out, **factory)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.qkv, self.beta_proj, self.out):
            if part is not None:
                part.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, and what the convolution of q, k and v saw last."""
        memory = real(n_heads=self.n_heads, d_key=self.d_key, d_value=self.d_value)
        return {"memory": memory, **conv_spec(self.qkv.conv1d)}

    def _activated(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys (B, T, key_heads, K), and values, of what the convolution gives."""
        return l2_normalise(q), l2_normalise(k), v

    def _log_decay(self, x: Tensor) -> Tensor | None:
        """Logarithms of decays, (batch, time, heads) or with d_key behind; None keeps all."""
        return None

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        x = x.to(self.out.out_proj.weight.dtype)
        (q, k, v), past = self.qkv.read(x, state, reset)
        q, k, v = self._activated(wide(q), wide(k), wide(v))
        v = v.reshape(*x.shape[:2], self.n_heads, self.d_value)  # (B, T, H, V)
        if self.beta_proj is None:
            beta = torch.full_like(v[..., 0], self.beta_max)
        else:
            beta = self.beta_max * wide(self.beta_proj(x)).sigmoid()
        g, scale = self._log_decay(x), self.d_key**-0.5
        with without_autocast(x.device):
            o, memory = delta_scan(q, k, v, beta, g, state["memory"], scale=scale, reset=reset)
        return self.out(o, x), {"memory": memory, **past}


def check_rate(where: str, beta_max: float) -> None:
    """Raise `ArgumentError` unless keys of length 1 keep the memory bounded at this rate."""
    if not 0 < beta_max <= 2:
        raise ArgumentError(
            f"{where}: beta_max must be above 0 and at most 2, got {beta_max}. With 2 a memory can "
            "change its sign along a key; beyond, it grows without bound."
        )
