"""Causal softmax attention."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._base import Mixer
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.rotary import rotate
from linrnn.ops import accumulator_dtype
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
        With a window s > t - window besides. Initially all weights are Glorot-uniform.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head, an even number. Default: d_model / n_heads, rounded up to a
            multiple of 8, for others PyTorch's kernels are up to 10 times slower.
        window: steps that can be seen, the current one included. Default: all.
        bias: biases in the four projections.
        base: the slowest turn is about 1 / base radians per step.

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
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = GROWS
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        window: int | None = None,
        bias: bool = False,
        base: float = 10_000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int("Attention", n_heads=self.n_heads)
        eights = -(-d_model // (8 * self.n_heads))
        self.d_head = 8 * eights if d_head is None else d_head
        self.bias = bias
        check_positive_int("Attention", d_head=self.d_head)
        if self.d_head % 2:
            raise ArgumentError(f"Attention: d_head must be even, got {self.d_head}.")
        check_sight("Attention", window, base)
        self.window, self.base = window, base
        if window is not None:  # which bounds cost and state
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        inner = self.n_heads * self.d_head
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(d_model, inner, bias=bias, device=device, dtype=dtype) for _ in range(3)
        )
        self.o_proj = nn.Linear(inner, d_model, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: turned keys and values, and the steps since the last reset."""
        entry = {"n_heads": self.n_heads, "d_head": self.d_head}
        return cache_spec(self.window, entry, entry)

    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        time, window = x.shape[1], self.window
        check_cache("Attention", state)
        position = positions(state["position"], time, reset)
        u = x.to(self.q_proj.weight.dtype)
        q, k, v = (self._heads(p(u)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, position, self.base), rotate(k, position, self.base)
        fresh = state["k"].shape[1] == 0 and reset is None
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        y = attend(
            "softmax",
            q.to(u.dtype),
            k.to(u.dtype),
            v.to(u.dtype),
            position if window is None else position.clamp(max=window - 1),
            window=window,
            whole=fresh and (window is None or window >= time),
        )
        y = self.o_proj(y.flatten(2).to(u.dtype))
        return y, cache_of(k, v, position, reset, window)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, H, K), at least float32."""
        wide = accumulator_dtype(self.q_proj.weight.dtype)
        return x.to(wide).view(*x.shape[:2], self.n_heads, self.d_head)
