"""YOCO's cross decoder: attention of several layers to one cache of keys and values."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.signals import check_receives
from linrnn.nn.heads import check_kv_heads
from linrnn.nn.kv_cache import ALWAYS_GROWS, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.linear import Linear
from linrnn.nn.rotary import check_rotary, rotate_first
from linrnn.ops.attention import attend, positions
from linrnn.state_spec import Part, integer, real
from linrnn.typing import Signals


class YOCO(Mixer):
    r"""YOCO: cross attention of all layers to the keys and values of the first of them.

    Equation:
        q_t = W_q x_t                                       in R^{d_head} for each head
        p_ts = softmax over s <= t of (R^t q_t) . (R^s k_s) / sqrt(d_head)
        y_t = W_o concat over heads of sum_s p_ts v_s
        k_s, v_s = W_k x_s, W_v x_s of the first layer of a stack alone: the others have neither
        these weights nor a cache. R is that of `linrnn.mixers.Attention`; positions count from the
        last reset. Initially all weights are Glorot-uniform.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up to a multiple of 8.
        n_kv_heads: heads of keys and values, a divisor of n_heads. Default: n_heads.
        d_rotary: how many of a head's first channels are turned, an even number; 0 for no
            positions. Default: d_head.
        base: the slowest turn is about 1 / base radians per step.
        receives: ``("key", "value")`` in a layer that a stack hands them. See `Mixer.receives`.

    Departures from the paper:
        The paper has a separate norm before W_k and W_v; here it is that before the queries of
        the first layer, which the weights make up for. A reset hides earlier entries and does not
        shrink the cache. Below these layers stand others of a fixed state, in a pattern: gated
        retention, "retnet" with decay "input", or "attention" with a window.

    Example:
        >>> layer = YOCO(d_model=8, n_heads=2)
        >>> y, state = layer(torch.randn(2, 100, 8))
        >>> later = YOCO(d_model=8, n_heads=2, receives=("key", "value"))
        >>> state["k"].shape, list(later.init_state(2))
        (torch.Size([2, 100, 2, 8]), ['position'])

    Reference:
        Sun et al., "You Only Cache Once: Decoder-Decoder Architectures for Language Models",
        NeurIPS 2024, arXiv:2405.05254. Key: sun2024yoco.
    """

    family: ClassVar[str] = "attention"
    choices = Choices(transition="none", gate="none", memory="past", normaliser="softmax")
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = ALWAYS_GROWS
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    carries: ClassVar[tuple[str, ...]] = ("key", "value")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        d_rotary: int | None = None,
        base: float = 10_000.0,
        receives: tuple[str, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.base = d_model, base
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int("YOCO", n_heads=self.n_heads)
        eights = -(-d_model // (8 * self.n_heads))
        self.d_head = 8 * eights if d_head is None else d_head
        self.n_kv_heads = self.n_heads if n_kv_heads is None else n_kv_heads
        self.d_rotary = self.d_head if d_rotary is None else d_rotary
        check_positive_int("YOCO", d_head=self.d_head)
        check_kv_heads("YOCO", self.n_heads, self.n_kv_heads)
        check_rotary("YOCO", self.d_rotary, self.d_head)
        check_sight("YOCO", None, base)
        check_receives("YOCO", receives, self.carries)
        self.receives = tuple(receives)
        to: Any = {"bias": False, "device": device, "dtype": dtype}
        inner, kv_inner = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        self.q_proj = Linear(d_model, inner, **to)
        self.k_proj, self.v_proj = (
            None if receives else Linear(d_model, kv_inner, **to) for _ in range(2)
        )
        self.o_proj = Linear(inner, d_model, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)

    def signal_spec(self) -> dict[str, Part]:
        """See `Mixer.signal_spec`: turned keys, and values, of all steps so far."""
        entry = real(entries=None, n_kv_heads=self.n_kv_heads, d_head=self.d_head)
        return {"key": entry, "value": entry}

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: of a layer that is handed keys and values its position alone."""
        if self.receives:
            return {"position": integer()}
        entry = {"n_kv_heads": self.n_kv_heads, "d_head": self.d_head}
        return cache_spec(None, entry, entry)

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, signals: Signals
    ) -> tuple[Tensor, dict[str, Tensor], Signals]:
        position = positions(state["position"], x.shape[1], reset)
        u = x.to(self.q_proj.weight.dtype)
        q = self._turned(self.q_proj(u), position)
        if self.k_proj is None or self.v_proj is None:
            k, v = signals["key"], signals["value"]
            last, outgoing = {"position": position[:, -1] + 1}, {}
        else:
            check_cache("YOCO", state)
            k = torch.cat([state["k"], self._turned(self.k_proj(u), position)], 1)  # (B, S, G, K)
            v = torch.cat([state["v"], self._heads(self.v_proj(u))], 1)  # (B, S, G, K)
            last, outgoing = cache_of(k, v, position, reset, None), {"key": k, "value": v}
        fresh = k.shape[1] == x.shape[1] and reset is None
        low = q.to(u.dtype), k.to(u.dtype), v.to(u.dtype)
        y = attend("softmax", *low, position, window=None, whole=fresh)
        return self.o_proj(y.flatten(2).to(u.dtype)), last, outgoing  # (B, T, d_model)

    def _turned(self, x: Tensor, position: Tensor) -> Tensor:
        """The heads of queries or keys, turned by their place."""
        return rotate_first(self._heads(x), self.d_rotary, position, self.base)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, H, K), at least float32."""
        heads: Tensor = wide(x).unflatten(-1, (-1, self.d_head))
        return heads
