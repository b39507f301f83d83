"""Causal softmax attention."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._base import Mixer
from linrnn.mixers._choices import Choices
from linrnn.nn import lecun_normal
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.rotary import check_rotary, rotate_first
from linrnn.ops._precision import wide
from linrnn.ops.attention import attend, positions
from linrnn.state_spec import Part


class Attention(Mixer):
    r"""Causal softmax attention with rotary positions: every step looks at all earlier ones.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t          in R^{d_head} for each head
        p_ts = softmax over s <= t of (R^t q_t) . (R^s k_s) / sqrt(d_head)
        y_t = W_o concat over heads of sum_s p_ts v_s
        R turns the pair of channels (2i, 2i+1) by base^(-2i/d_head) radians, so scores depend on
        t - s only. Angles are computed in double precision, positions count from the last reset.
        With a window s > t - window besides. Initially all weights are Glorot-uniform, biases 0.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up to a multiple of 8, for
            others PyTorch's kernels are up to 10 times slower.
        n_kv_heads: heads of keys and values, a divisor of n_heads, each for as many neighbouring
            heads of queries; 1 is multi-query attention. Default: n_heads.
        d_rotary: of the channels of a head the first so many are turned, an even number, which is
            d_head in the exponent; 0 for no positions. Default: d_head.
        window: steps that can be seen, the current one included. Default: all.
        bias: biases in the four projections.
        out_bias: a bias in W_o, in any case.
        base: the slowest turn is about 1 / base radians per step.
        init: "glorot", or "lecun" for N(0, 1 / channels in), as in Griffin.

    Departures from the paper:
        Rotary positions (Su et al., 2021, arXiv:2104.09864) instead of added sinusoids; the pairs
        are neighbouring channels. A reset hides earlier entries and does not shrink the cache;
        a NaN or infinity in a step makes every later one of its sequence NaN, and no other.

    Example:
        >>> layer = Attention(d_model=8, n_heads=2)
        >>> y, state = layer(torch.randn(2, 100, 8))
        >>> y.shape, state["k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 100, 2, 8]))

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, arXiv:1706.03762.
        Key: vaswani2017attention.
    """

    family: ClassVar[str] = "attention"
    choices = Choices(transition="none", gate="none", memory="past", normaliser="softmax")
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = GROWS
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        d_rotary: int | None = None,
        window: int | None = None,
        bias: bool = False,
        out_bias: bool = False,
        base: float = 10_000.0,
        init: Literal["glorot", "lecun"] = "glorot",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int("Attention", n_heads=self.n_heads)
        eights = -(-d_model // (8 * self.n_heads))
        self.d_head = 8 * eights if d_head is None else d_head
        self.n_kv_heads = self.n_heads if n_kv_heads is None else n_kv_heads
        self.d_rotary = self.d_head if d_rotary is None else d_rotary
        self.bias, self.out_bias = bias, out_bias
        self.init, self.window, self.base = init, window, base
        self._check()
        if window is not None:  # which bounds cost and state
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        inner, kept = (heads * self.d_head for heads in (self.n_heads, self.n_kv_heads))
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(d_model, width, bias=bias, device=device, dtype=dtype)
            for width in (inner, kept, kept)
        )
        self.o_proj = nn.Linear(inner, d_model, bias=bias or out_bias, device=device, dtype=dtype)
        self.reset_parameters()

    def _check(self) -> None:
        where, heads = "Attention", self.n_heads
        check_positive_int(where, d_head=self.d_head, n_kv_heads=self.n_kv_heads)
        if heads % self.n_kv_heads:
            raise ArgumentError(
                f"{where}: n_kv_heads must divide n_heads={heads}, got {self.n_kv_heads}."
            )
        check_rotary(where, self.d_rotary, self.d_head)
        check_in(where, "init", self.init, ("glorot", "lecun"))
        check_sight(where, self.window, self.base)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            if self.init == "lecun":
                lecun_normal(linear)
                continue
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: turned keys and values, and the steps since the last reset."""
        entry = {"n_kv_heads": self.n_kv_heads, "d_head": self.d_head}
        return cache_spec(self.window, entry, entry)

    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        time, window = x.shape[1], self.window
        check_cache("Attention", state)
        position = positions(state["position"], time, reset)
        u = x.to(self.q_proj.weight.dtype)
        q, k, v = (self._heads(p(u)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (rotate_first(z, self.d_rotary, position, self.base) for z in (q, k))
        fresh = state["k"].shape[1] == 0 and reset is None
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        y = attend(
            "softmax",
            q.to(u.dtype),
            self._shared(k.to(u.dtype)),
            self._shared(v.to(u.dtype)),
            position if window is None else position.clamp(max=window - 1),
            window=window,
            whole=fresh and (window is None or window >= time),
        )
        y = self.o_proj(y.flatten(2).to(u.dtype))
        return y, cache_of(k, v, position, reset, window)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, H, K), at least float32."""
        heads: Tensor = wide(x).unflatten(-1, (-1, self.d_head))
        return heads

    def _shared(self, z: Tensor) -> Tensor:
        """Keys or values as every head of queries sees them."""
        times = self.n_heads // self.n_kv_heads
        return z if times == 1 else z.repeat_interleave(times, 2)
