"""Base of delta-rule layers: short convolutions, keys of length 1, rates, norm, gate."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._families.preconditioner import Preconditioner
from linrnn.nn import ConvHeads, GatedOut, l2_normalise
from linrnn.nn.conv_heads import check_conv, conv_spec
from linrnn.nn.heads import for_each_head, whole_sequence
from linrnn.nn.linear import Linear
from linrnn.nn.memories import erase_scan
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.state_spec import Part, real


class ConvDelta(Mixer):
    """The delta rule on queries and keys of length 1 behind a short convolution.

    A subclass sets the sizes below and calls `_make`. It then sets ``decay`` where memories forget,
    and ``preconditioner`` where keys are scaled before they are written. Another rule than the
    delta rule is its `_recall`.
    """

    family: ClassVar[str] = "linear-attention"
    n_heads: int
    d_key: int
    d_value: int
    beta_max: float = 1.0
    writes: int = 1
    d_conv: int | None
    conv_bias: bool
    #: Whether `_recall` takes q, k and v of bfloat16 as they are; else they are widened before.
    reads_half: ClassVar[bool] = False
    decay: Any  # (batch, time, d_model) to logarithms, or None
    preconditioner: Preconditioner | None

    def _make(
        self,
        key_heads: int,
        out: dict[str, Any],
        *,
        silu: bool = True,
        beta: bool = True,
        beta_heads: int | None = None,
        **factory: Any,
    ) -> None:
        """The parts; ``out`` are options of `GatedOut`, ``beta`` whether rates are learned.

        There are as many keys, values and rates of a step as it has ``writes``. Heads may share
        rates: then there are only ``beta_heads`` of them.
        """
        where, H, V = type(self).__name__, self.n_heads, self.d_value
        check_positive_int(where, n_heads=H, d_key=self.d_key, d_value=V, key_heads=key_heads)
        check_conv(where, self.d_conv, self.conv_bias)
        if H % key_heads:
            raise ArgumentError(
                f"{where}: key_heads must divide the n_heads of {H}, got {key_heads}."
            )
        check_rate(where, self.beta_max)
        sizes = (self.d_key, self.d_key, H // key_heads * V)
        counts = (key_heads, self.writes * key_heads, self.writes * key_heads)
        conv: Any = {"d_conv": self.d_conv, "conv_bias": self.conv_bias, "silu": silu}
        self.qkv = ConvHeads(self.d_model, counts, sizes, **conv, **factory)
        rates = self.writes * (H if beta_heads is None else beta_heads)
        self.beta_proj = Linear(self.d_model, rates, bias=False, **factory) if beta else None
        self.out = GatedOut(self.d_model, H, V, **out, **factory)
        self.decay = self.preconditioner = None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        parts: Any = (self.qkv, self.beta_proj, self.out, self.decay, self.preconditioner)
        for part in parts:
            if part is not None:
                part.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, and what the convolution of q, k and v saw last.

        And the squares of keys that are scaled.
        """
        memory = real(n_heads=self.n_heads, d_key=self.d_key, d_value=self.d_value)
        squares = self.preconditioner and {"squares": self.preconditioner.state_spec()}
        return {"memory": memory, **conv_spec(self.qkv.conv1d), **(squares or {})}

    def _activated(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys (B, T, key_heads, K), and values, of what the convolution gives."""
        return l2_normalise(q), l2_normalise(k), v

    def _log_decay(self, x: Tensor) -> Tensor | None:
        """Logarithms of decays, (batch, time, heads) or with d_key behind; None keeps all."""
        return None if self.decay is None else self.decay(x)

    def _rate(self, x: Tensor, v: Tensor) -> Tensor:
        """How much of a difference is written, (batch, time, heads)."""
        if self.beta_proj is None:
            return torch.full_like(wide(v[..., 0]), self.beta_max)
        return for_each_head(self.beta_max * wide(self.beta_proj(x)).sigmoid(), v.shape[2])

    def _recall(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the reads (B, T, H, V), and the state without the convolution's.

        Args:
            x: (B, T, d_model).
            q, k: of the convolution, (B, T, key_heads, K), in at least float32 unless
                `reads_half`.
            v: alike, (B, T, H, V).
            state: as `state_spec` says.
            reset: boolean (B, T), or None.
        """
        q, k, v = self._activated(q, k, v)
        beta, g, scale = self._rate(x, v), self._log_decay(x), self.d_key**-0.5
        if self.preconditioner is not None:
            q, k, v = wide(q), wide(k), wide(v)
            k = for_each_head(k, self.preconditioner.n_heads)
            written, squares = self.preconditioner(x, k, state["squares"], reset)
            start = state["memory"]
            o, memory = erase_scan(q, written, v, k, beta, g, start, scale=scale, reset=reset)
            return o, {"memory": memory, "squares": squares}
        with without_autocast(x.device):
            o, memory = delta_scan(q, k, v, beta, g, state["memory"], scale=scale, reset=reset)
        return o, {"memory": memory}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        return self._around(self._recall, x, state, reset)

    def _around(
        self, recall: Callable[..., Any], x: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, Any]:
        """Read a sequence, its memories by `_recall` or another function like it."""
        x = x.to(self.out.out_proj.weight.dtype)
        (q, k, v), past = self.qkv.read(x, state, reset)
        v = v.reshape(*x.shape[:2], self.writes * self.n_heads, self.d_value)  # (B, T, H, V)
        if not (self.reads_half and q.dtype is torch.bfloat16 and x.is_cpu and whole_sequence(x)):
            q, k, v = wide(q), wide(k), wide(v)
        o, memories = recall(x, q, k, v, state, reset)
        return self.out(o, x), {**memories, **past}


def check_rate(where: str, beta_max: float, name: str = "beta_max") -> None:
    """Raise `ArgumentError` unless keys of length 1 keep the memory bounded at this rate."""
    if not 0 < beta_max <= 2:
        raise ArgumentError(
            f"{where}: {name} must be above 0 and at most 2, got {beta_max}. With 2 a memory can "
            "change its sign along a key; beyond, it grows without bound."
        )


def wide_sizes(
    where: str,
    d_model: int,
    n_heads: int | None,
    d_key: int | None,
    d_value: int | None,
    *,
    share: tuple[int, int] = (3, 4),
) -> tuple[int, int, int]:
    """Heads, and the channels of their keys and values: a share of d_model, and twice as many.

    None is the default: as many heads as have about 256 channels of keys.
    """
    part, whole = share
    heads = max(1, round(part / whole * d_model / 256)) if n_heads is None else n_heads
    check_positive_int(where, n_heads=heads)
    keys = -(-part * d_model // (whole * heads)) if d_key is None else d_key
    return heads, keys, 2 * keys if d_value is None else d_value


def square_sizes(
    where: str,
    d_model: int,
    n_heads: int | None,
    d_key: int | None,
    d_value: int | None,
    *,
    width: int = 128,
    values: int = 1,
) -> tuple[int, int, int]:
    """Heads, and the channels of their keys and values: d_model in all, and ``values`` times that.

    None is the default: as many heads as have ``width`` channels of keys.
    """
    heads = max(1, d_model // width) if n_heads is None else n_heads
    check_positive_int(where, n_heads=heads)
    keys = -(-d_model // heads) if d_key is None else d_key
    return heads, keys, values * keys if d_value is None else d_value
