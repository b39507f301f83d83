"""Base of RWKV-5, 6 and 7: heads with a matrix as memory, mixes with the previous step."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import autocast_dtype, in_dtype_of, wide
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.nn import empty_parameters, head_norm
from linrnn.nn.channel_mix import INITS, check_layer, fractions, orthogonal, zigzag
from linrnn.nn.heads import normed_at_once, reads_half
from linrnn.nn.linear import Linear
from linrnn.ops.conv.token_mix import token_mix
from linrnn.ops.gated_norm import gated_norm
from linrnn.state_spec import Part, real

CORRECTION = 0.01  # bound of the first factors of bottlenecks, where these do not start at zero


class MatrixRWKV(Mixer):
    """Receptance, keys and values of heads, a norm of what these read, and the way out.

    A subclass sets ``init``, ``layer`` and ``n_layers``, calls `_make`, and reads.
    """

    family: ClassVar[str] = "linear-attention"
    init: str
    inits: ClassVar[tuple[str, ...]] = INITS
    layer: int
    n_layers: int

    def _make(
        self, n_heads: int | None, d_head: int | None, norm_eps: float, **factory: Any
    ) -> None:
        where, D = type(self).__name__, self.d_model
        check_in(where, "init", self.init, self.inits)
        check_layer(where, self.layer, self.n_layers)
        self.n_heads = max(1, D // 64) if n_heads is None else n_heads
        check_positive_int(where, n_heads=self.n_heads)
        self.d_head = -(-D // self.n_heads) if d_head is None else d_head
        check_positive_int(where, d_head=self.d_head)
        if not norm_eps > 0:
            raise ArgumentError(f"{where}: norm_eps must be positive, got {norm_eps}.")
        self.norm_eps, self.width = norm_eps, self.n_heads * self.d_head
        to = {"bias": False, **factory}
        self.receptance, self.key, self.value = (Linear(D, self.width, **to) for _ in range(3))
        self.output = Linear(self.width, D, **to)
        empty = empty_parameters(**factory)
        self.norm_weight, self.norm_bias = empty(self.width), empty(self.width)

    @property
    def depth(self) -> float:
        """0 in the first layer, 1 in the last."""
        return self.layer / max(self.n_layers - 1, 1)

    @property
    def remaining(self) -> float:
        """1 in the first layer, then less."""
        return 1 - self.layer / self.n_layers

    def _reset_maps(self, gate: nn.Linear) -> None:
        """All maps of RWKV-5 and 6, and the norm."""
        small = 0.1 if self.init == "published" else 1.0
        maps = (self.receptance, 1.0), (self.value, 1.0), (self.key, small), (gate, small)
        for linear, gain in maps:
            orthogonal(linear.weight, gain)
        self._reset_output()

    def _reset_output(self) -> None:
        if self.init != "orthogonal":
            nn.init.zeros_(self.output.weight)
        else:
            orthogonal(self.output.weight)
        nn.init.constant_(self.norm_weight, ((1 + self.layer) / self.n_layers) ** 0.7)
        nn.init.zeros_(self.norm_bias)

    def _reset_first(self, *factors: Tensor) -> None:
        """The first factors of bottlenecks: at zero the second ones have no gradient."""
        for factor in factors:
            bound = CORRECTION if self.init == "orthogonal" else 0.0
            nn.init.uniform_(factor, -bound, bound)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S of every head, and the last input."""
        memory = real(n_heads=self.n_heads, d_key=self.d_head, d_value=self.d_head)
        return {"memory": memory, "shift": real(past=1, d_model=self.d_model)}

    def _mixes(
        self,
        x: Tensor,
        state: Any,
        reset: Tensor | None,
        mu: Tensor,
        moved: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Mixes of each input with the previous one, in the dtype of products."""
        dtype = autocast_dtype(self.key.weight)
        return token_mix(x, state["shift"], mu, moved, reset, dtype=dtype)

    def _heads(self, *z: Tensor) -> tuple[Tensor, ...]:
        """(..., H, d_head), at least float32 unless a memory takes them in bfloat16."""
        return tuple(ready(part).unflatten(-1, (self.n_heads, -1)) for part in z)

    def _gated(
        self, o: Tensor, gate: Tensor, act: str, added: tuple[Tensor, ...] | None = None
    ) -> Tensor:
        """Outputs of the heads (B, T, H, d_head), normed, gated by a function of ``gate``.

        Of ``added``, q, k, v and a weight (..., width), ``sum(weight * q * k) * v`` of each head is
        added before the gate.
        """
        if normed_at_once(o):
            dtype = autocast_dtype(self.output.weight)
            options: Any = {"eps": self.norm_eps, "gate": act, "centre": True, "dtype": dtype}
            options |= {"groups": self.n_heads, "added": added}
            weights = self.norm_weight, self.norm_bias
            y: Tensor = gated_norm(o.flatten(-2), gate, *weights, **options)
            return y
        gate, normed = wide(gate), head_norm(o, "layer", self.norm_eps).flatten(-2)
        normed = torch.addcmul(wide(self.norm_bias), normed, wide(self.norm_weight))
        if added is not None:
            q, k, v, weight = (wide(part).unflatten(-1, o.shape[-2:]) for part in added)
            normed = normed + ((q * k * weight).sum(-1, keepdim=True) * v).flatten(-2)
        return normed * (F.silu(gate) if act == "silu" else gate)

    def _out(self, z: Tensor) -> Tensor:
        y: Tensor = self.output(in_dtype_of(self.output.weight, z))
        return y


def ready(x: Tensor) -> Tensor:
    """As a memory takes it, (batch, time, channels): a sequence of bfloat16 as it is, else wide."""
    return x if reads_half(x) else wide(x)


def initial_bonus(width: int, depth: float) -> Tensor:
    """``time_first`` of RWKV-5 and 6 as published: more in later layers, less in later channels."""
    return depth * (1 - fractions(width)) + 0.1 * zigzag(width)
