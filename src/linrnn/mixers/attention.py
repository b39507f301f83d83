"""Causal softmax attention."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.engine.replay.step import recorded_step
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import lecun_normal
from linrnn.nn.heads import check_kv_heads
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.linear import Linear
from linrnn.nn.rotary import check_rotary, rotate_first
from linrnn.nn.rotary_scaling import RotaryScaling
from linrnn.ops.attention import attend, positions
from linrnn.ops.attention.eviction import attend_evicting
from linrnn.ops.attention.sinks import attend_with_sinks, first_entries
from linrnn.state_spec import Part, real

_CHOICE = {"low_precision": "which entry is given up may turn on a rounding, and all after it"}


class Attention(Mixer):
    r"""Causal softmax attention with rotary positions.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t          in R^{d_head} for each head
        p_ts = softmax over s <= t of scale (R^t q_t) . (R^s k_s)
        y_t = W_o concat over heads of sum_s p_ts v_s
        R turns the pair of channels (2i, 2i+1) by base^(-2i/d_head) radians, so scores depend on
        t - s only. Angles are computed in double precision, positions count from the last reset.
        With a window at most that many s, which ``evict`` chooses. With qk_norm q_t and k_t, before
        they are turned, are w * q_t / sqrt(mean(q_t^2) + norm_eps) and the like; with soft_cap
        scores s become soft_cap tanh(s / soft_cap); with gate "sigmoid" W_o sees
        sigmoid(W_g x_t) * concat over heads. Initially all weights are Glorot-uniform, biases 0,
        those of norms 1.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up to a multiple of 8, for
            others PyTorch's kernels are up to 10 times slower.
        n_kv_heads: heads of keys and values, a divisor of n_heads, each for as many neighbouring
            heads of queries; 1 is multi-query attention. Default: n_heads.
        d_rotary: how many of a head's first channels are turned, an even number, which is
            d_head in the exponent; 0 for no positions. Default: d_head.
        window: steps that can be seen, the current one included. Default: all.
        evict: which step is given up where there are more: "window" the oldest; "sinks" the oldest
            but for the first ``sinks`` of a sequence, at most window - 1 of them
            (Xiao et al. 2024, arXiv:2309.17453); "tova" the one that the current step
            looks at least, in the mean over all heads (Oren et al. 2024, arXiv:2401.06104);
            "h2o" for each head of keys the one that was looked at least in all steps together, but
            for the newer half (Zhang et al. 2023, arXiv:2306.14048). The last two read one step
            after another.
        sinks: see ``evict``.
        qk_norm: "head" for the mean over each head and w of d_head numbers, as in Qwen3, "all" over
            all heads of queries, or of keys, as in OLMo, or "none".
        norm_eps: of that norm.
        scale: factor of scores. Default: 1 / sqrt(d_head).
        soft_cap: bound of scores, as in Gemma 2; with evict "window" alone. Default: none.
        gate: "none", or "sigmoid", see above, as in Qwen3-Next.
        scaling, factor, trained_length: slower turns for longer sequences, see
            `linrnn.nn.RotaryScaling`.
        bias: biases in the four projections.
        out_bias: a bias in W_o, in any case.
        base: the slowest turn is about 1 / base radians per step.
        init: "glorot", or "lecun" for N(0, 1 / channels in), as in Griffin.

    Departures from the paper:
        Rotary positions (Su et al., 2021, arXiv:2104.09864) instead of added sinusoids; the pairs
        are neighbouring channels. A reset hides earlier entries and does not shrink the cache;
        a NaN or infinity in a step makes every later one of its sequence NaN, and no other. What is
        kept is turned by its place in the sequence, where the paper of "sinks" counts places anew
        in what is left.

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
    constant_state: ClassVar[tuple[str, ...]] = ("position", "weight")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        d_rotary: int | None = None,
        window: int | None = None,
        evict: Literal["window", "sinks", "h2o", "tova"] = "window",
        sinks: int = 4,
        qk_norm: Literal["none", "head", "all"] = "none",
        norm_eps: float = 1e-6,
        scale: float | None = None,
        soft_cap: float | None = None,
        gate: Literal["none", "sigmoid"] = "none",
        scaling: Literal["none", "linear", "ntk", "yarn", "llama3"] = "none",
        factor: float = 1.0,
        trained_length: int = 8192,
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
        self.evict, self.sinks = evict, sinks
        self.qk_norm, self.norm_eps, self.scale = qk_norm, norm_eps, scale
        self.soft_cap, self.gate = soft_cap, gate
        self.scaling, self.factor, self.trained_length = scaling, factor, trained_length
        self._rescaled = RotaryScaling(scaling, factor, trained_length, base)
        self._check()
        # a cache without bounds gives nothing up
        self._policy = "window" if window is None else evict
        self._sinks = min(sinks, (window or 1) - 1) if self._policy == "sinks" else 0
        if window is not None:  # which bounds cost and state
            self.declared = _CHOICE if evict == "tova" else {}  # type: ignore[misc]
            self.cost = "sequential" if evict in ("h2o", "tova") else "parallel"  # type: ignore[misc]
        inner, kv_inner = (heads * self.d_head for heads in (self.n_heads, self.n_kv_heads))
        self.q_proj, self.k_proj, self.v_proj = (
            Linear(d_model, width, bias=bias, device=device, dtype=dtype)
            for width in (inner, kv_inner, kv_inner)
        )
        self.o_proj = Linear(inner, d_model, bias=bias or out_bias, device=device, dtype=dtype)
        self._add_norms(inner, kv_inner, device=device, dtype=dtype)
        self.g_proj = (
            Linear(d_model, inner, bias=bias, device=device, dtype=dtype)
            if gate == "sigmoid"
            else None
        )
        self.reset_parameters()

    def _add_norms(self, queries: int, keys: int, **to: Any) -> None:
        self.q_norm: nn.RMSNorm | None = None
        self.k_norm: nn.RMSNorm | None = None
        if self.qk_norm != "none":
            widths = (self.d_head,) * 2 if self.qk_norm == "head" else (queries, keys)
            self.q_norm, self.k_norm = (
                nn.RMSNorm(width, eps=self.norm_eps, **to) for width in widths
            )

    def _check(self) -> None:
        where = "Attention"
        check_positive_int(where, d_head=self.d_head)
        check_kv_heads(where, self.n_heads, self.n_kv_heads)
        check_rotary(where, self.d_rotary, self.d_head)
        check_in(where, "init", self.init, ("glorot", "lecun"))
        check_sight(where, self.window, self.base)
        check_in(where, "evict", self.evict, ("window", "sinks", "h2o", "tova"))
        check_positive_int(where, sinks=self.sinks)
        check_in(where, "qk_norm", self.qk_norm, ("none", "head", "all"))
        check_in(where, "gate", self.gate, ("none", "sigmoid"))
        check_positive(where, norm_eps=self.norm_eps)
        if self.scale is not None:
            check_positive(where, scale=self.scale)
        if self.soft_cap is not None:
            check_positive(where, soft_cap=self.soft_cap)
            if self.evict != "window":
                raise ArgumentError(
                    f"{where}: soft_cap must be None with evict={self.evict!r}, got "
                    f"{self.soft_cap}. Use evict='window'."
                )
        self._rescaled.check(where)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.reset_parameters()
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.o_proj, self.g_proj):
            if linear is None:
                continue
            if self.init == "lecun":
                lecun_normal(linear)
                continue
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: turned keys and values, and the steps since the last reset.

        With sinks those of the first steps too; with "h2o" the weight each has had.
        """
        entry = {"n_kv_heads": self.n_kv_heads, "d_head": self.d_head}
        if self._policy == "sinks":
            first = real(sinks=self._sinks, **entry)
            recent = cache_spec(self.window - self._sinks, entry, entry)  # type: ignore[operator]
            return {**recent, "first_k": first, "first_v": first}
        spec = cache_spec(self.window, entry, entry)
        if self._policy == "h2o":
            spec["weight"] = real(entries=self.window - 1, n_kv_heads=self.n_kv_heads)  # type: ignore[operator]
        return spec

    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        check_cache("Attention", state)
        position = positions(state["position"], x.shape[1], reset)
        u = x.to(self.q_proj.weight.dtype)
        q, k, v = self._projected(u, position)  # each (B, T, H, d_head)
        if self._policy in ("h2o", "tova"):
            y, state = self._evicting(q, k, v, state, position)
        else:
            y, state = self._in_window(q, k, v, state, position, reset)
        y = y.flatten(2).to(u.dtype)  # (B, T, H d_head)
        if self.g_proj is not None:
            y = y * self.g_proj(u).sigmoid()
        return self.o_proj(y), state

    def _projected(self, u: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values (B, T, H, K), turned; of one step in one native call."""
        if u.shape[1] == 1:
            tree: Any = {"position": position}
            recorded = recorded_step(self, self._projected_step, u.squeeze(1), tree, "projections")
            if recorded is not None:
                split = [n * self.d_head for n in (self.n_heads, self.n_kv_heads, self.n_kv_heads)]
                parts = recorded[0].split(split, -1)  # (B, H K) each
                return tuple(z.unflatten(-1, (-1, self.d_head)).unsqueeze(1) for z in parts)
        return self._by_operators(u, position)

    def _by_operators(self, u: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (self._heads(p(u)) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self._normed(self.q_norm, q), self._normed(self.k_norm, k)
        if self.scale is not None:  # instead of what the op divides by
            q = q * (self.scale * self.d_head**0.5)
        return self._turned(q, position), self._turned(k, position), v

    def _projected_step(self, u: Tensor, tree: Any) -> tuple[Tensor, Any]:
        parts = self._by_operators(u.unsqueeze(1), tree["position"])
        return torch.cat([z.flatten(1) for z in parts], -1), tree  # (B, (H + 2 G) K)

    def _in_window(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, position: Tensor, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Every step looks at those before it, or at the last of them and the first."""
        time, dtype = q.shape[1], self.q_proj.weight.dtype
        recent = None if self.window is None else self.window - self._sinks
        fresh = state["k"].shape[1] == 0 and reset is None
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        last = cache_of(k, v, position, reset, recent)
        low = q.to(dtype), k.to(dtype), v.to(dtype)
        if self._policy != "sinks":
            sight = position if recent is None else position.clamp(max=recent - 1)
            if self.soft_cap is not None:
                cap = low[0].new_full((1,), self.soft_cap)
                y = attend("capped", *low, sight, window=recent, whole=False, far=cap)
                return y, last
            fully_causal = fresh and (recent is None or recent >= time)
            return attend("softmax", *low, sight, window=recent, whole=fully_causal), last
        assert recent is not None
        firsts = state["first_k"], state["first_v"]
        first_k, first_v = (z.to(dtype) for z in firsts)
        y = attend_with_sinks(*low, first_k, first_v, position, recent)
        at = torch.full_like(position[:, -1], time - 1)
        place = at, position[:, -1]
        for name, first, entries in zip(("first_k", "first_v"), firsts, (k, v), strict=True):
            last[name] = first_entries(first, entries, time, *place)
        return y, last

    def _evicting(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, position: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Every step looks at what was kept, and gives one entry up."""
        grouped = q.unflatten(2, (self.n_kv_heads, -1)).transpose(2, 3)  # (B, T, H / G, G, K)
        weight = state.get("weight", k.new_zeros(k.shape[0], 0, self.n_kv_heads))
        with without_autocast(q.device):
            y, *cache = attend_evicting(
                self.evict, grouped, k, v, state["k"], state["v"], weight, position
            )
        last = dict(zip(("k", "v", "weight"), cache, strict=True))
        if self.evict == "tova":
            del last["weight"]
        return y.transpose(2, 3).flatten(2, 3), {**last, "position": position[:, -1] + 1}

    def _turned(self, x: Tensor, position: Tensor) -> Tensor:
        """Queries or keys, turned by their position."""
        turns = None if self.scaling == "none" else self._rescaled.turns
        rotated = rotate_first(x, self.d_rotary, position, self.base, turns)
        if self._rescaled.length == 1:
            return rotated
        unrotated = rotated[..., self.d_rotary :]
        return torch.cat([rotated[..., : self.d_rotary] * self._rescaled.length, unrotated], -1)

    def _normed(self, norm: nn.RMSNorm, x: Tensor) -> Tensor:
        """Queries or keys (B, T, H, K), normed in each head or over all of them."""
        rows = x if self.qk_norm == "head" else x.flatten(2)  # (B, T, H, K) or (B, T, H K)
        normed = F.rms_norm(rows, rows.shape[-1:], wide(norm.weight), self.norm_eps)
        return normed.view_as(x)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, H, K), at least float32."""
        heads: Tensor = wide(x).unflatten(-1, (-1, self.d_head))
        return heads
