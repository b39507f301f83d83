"""Multi-head latent attention: keys and values of all heads are maps of one small vector."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import RotaryScaling, lecun_normal, rotate
from linrnn.nn.affine import affine_of
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.linear import Linear
from linrnn.ops.attention import attend, positions
from linrnn.state_spec import Part


class LatentAttention(Mixer):
    r"""Multi-head latent attention (MLA): keys and values of all heads from one cached vector.

    Equation:
        c_t = norm(W_c x_t) in R^rank,   r_t = R^t W_r x_t in R^d_rotary     one for all heads
        k_t, v_t = [W_k c_t, r_t], W_v c_t                  in R^{d_head + d_rotary}, R^d_value
        q_t = [the first d_head of W_q x_t, R^t the others]             in R^{d_head + d_rotary}
        p_ts = softmax over s <= t of q_t . k_s / sqrt(d_head + d_rotary)
        y_t = W_o concat over heads of sum_s p_ts v_s
        norm(z) = w * z / sqrt(mean(z^2) + norm_eps), R as in ``attention``. With q_rank W_q x_t is
        W_u norm(W_d x_t). The state holds c and r. A single step maps its queries by W_k^T, and
        what they read of c by W_v, so that it never makes keys or values of earlier ones. With gate
        "head" W_o sees what a head reads sigmoid(w_g x_t) times, w_g one vector a head.
        Initially weights are N(0, 1 / channels in), biases 0, those of norms 1.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head's queries and keys that are not turned. Default: d_model /
            n_heads, rounded up to a multiple of 8.
        d_value: channels of a head's values. Default: d_head.
        d_rotary: channels more, which are turned, an even number. Default: d_head / 2.
        rank: channels of c. Default: 4 d_head.
        q_rank: channels of the bottleneck of queries. Default: a whole matrix.
        rotary: turn those channels; without it R = 1, as in Kimi Linear.
        gate: "none", or "head", see above, as in Ling 3.
        window: steps that can be seen, the current one included. Default: all.
        norm_eps: of the norms.
        scaling, factor, trained_length: slower turns for longer sequences, see
            `linrnn.nn.RotaryScaling`. With "yarn" all scores are multiplied by the square of its
            length, as in DeepSeek-V3, and not the turned channels alone.
        bias: biases in W_c, W_r, W_d and W_o.
        base: the slowest turn is about 1 / base radians per step.

    Departures from the paper:
        Extension beyond the survey. Norms of c and of the bottleneck of queries are those of the
        published models.

    Example:
        >>> layer = LatentAttention(d_model=64, n_heads=4, rank=32)
        >>> y, state = layer(torch.randn(2, 100, 64))
        >>> y.shape, state["k"].shape, state["v"].shape
        (torch.Size([2, 100, 64]), torch.Size([2, 100, 8]), torch.Size([2, 100, 32]))

    Reference:
        DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language
        Model", 2024, arXiv:2405.04434. Key: deepseek2024deepseek.
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
        d_value: int | None = None,
        d_rotary: int | None = None,
        rank: int | None = None,
        q_rank: int | None = None,
        rotary: bool = True,
        gate: Literal["none", "head"] = "none",
        window: int | None = None,
        norm_eps: float = 1e-6,
        scaling: Literal["none", "linear", "ntk", "yarn", "llama3"] = "none",
        factor: float = 1.0,
        trained_length: int = 8192,
        bias: bool = False,
        base: float = 10_000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, where = d_model, "LatentAttention"
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int(where, n_heads=self.n_heads)
        self.d_head = 8 * -(-d_model // (8 * self.n_heads)) if d_head is None else d_head
        check_positive_int(where, d_head=self.d_head)
        self.d_value = self.d_head if d_value is None else d_value
        self.d_rotary = max(2, self.d_head // 4 * 2) if d_rotary is None else d_rotary
        self.rank, self.q_rank = 4 * self.d_head if rank is None else rank, q_rank
        self.rotary, self.window, self.norm_eps = rotary, window, norm_eps
        self.gate = gate
        self.scaling, self.factor, self.trained_length = scaling, factor, trained_length
        self.bias, self.base = bias, base
        self._rescaled = RotaryScaling(scaling, factor, trained_length, base)
        self._check(where)
        if window is not None:  # which bounds cost and state
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        self._add_parts(device=device, dtype=dtype)
        self.reset_parameters()

    def _check(self, where: str) -> None:
        check_positive_int(where, d_value=self.d_value, d_rotary=self.d_rotary, rank=self.rank)
        if self.q_rank is not None:
            check_positive_int(where, q_rank=self.q_rank)
        if self.d_rotary % 2:
            raise ArgumentError(f"{where}: d_rotary must be even, got {self.d_rotary}.")
        check_in(where, "gate", self.gate, ("none", "head"))
        check_sight(where, self.window, self.base)
        check_positive(where, norm_eps=self.norm_eps)
        self._rescaled.check(where)

    def _add_parts(self, **to: Any) -> None:
        width = self.n_heads * (self.d_head + self.d_rotary)
        self.q_down: nn.Linear | None = None
        self.q_norm: nn.RMSNorm | None = None
        if self.q_rank is not None:
            self.q_down = Linear(self.d_model, self.q_rank, bias=self.bias, **to)
            self.q_norm = nn.RMSNorm(self.q_rank, eps=self.norm_eps, **to)
        self.q_proj = Linear(self.q_rank or self.d_model, width, bias=False, **to)
        self.kv_down = Linear(self.d_model, self.rank + self.d_rotary, bias=self.bias, **to)
        self.kv_norm = nn.RMSNorm(self.rank, eps=self.norm_eps, **to)
        up = self.n_heads * (self.d_head + self.d_value)
        self.kv_up = Linear(self.rank, up, bias=False, **to)
        self.o_proj = Linear(self.n_heads * self.d_value, self.d_model, bias=self.bias, **to)
        self.g_proj: nn.Linear | None = None
        if self.gate == "head":
            self.g_proj = Linear(self.d_model, self.n_heads, bias=False, **to)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        linears = (self.q_down, self.q_proj, self.kv_down, self.kv_up, self.o_proj, self.g_proj)
        lecun_normal(*(linear for linear in linears if linear is not None))
        for norm in (self.q_norm, self.kv_norm):
            if norm is not None:
                norm.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: r as "k" and c as "v", and the steps since the last reset."""
        return cache_spec(self.window, {"d_rotary": self.d_rotary}, {"rank": self.rank})

    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        check_cache("LatentAttention", state)
        position = positions(state["position"], x.shape[1], reset)
        u = x.to(self.kv_down.weight.dtype)
        q, at_place = self._queries(u, position)  # (B, T, H, d_head), (B, T, H, d_rotary)
        # (B, T, rank), (B, T, d_rotary)
        c, r = wide(self.kv_down(u)).split([self.rank, self.d_rotary], -1)
        c, r = self._normed(self.kv_norm, c), self._turned(r, position)
        # (B, S, rank), (B, S, d_rotary)
        c, r = torch.cat([state["v"], c], 1), torch.cat([state["k"], r], 1)
        sight = position if self.window is None else position.clamp(max=self.window - 1)
        attention = self._one if x.shape[1] == 1 else self._many
        o = attention(q, at_place, c, r, sight)
        if self.g_proj is not None:
            o = o * wide(self.g_proj(u)).sigmoid()[..., None].to(o.dtype)
        y = self.o_proj(o.flatten(2).to(u.dtype))  # (B, T, d_model)
        return y, cache_of(r, c, position, reset, self.window)

    def _queries(self, u: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_down is not None and self.q_norm is not None:
            u = self._normed(self.q_norm, self.q_down(u)).to(u.dtype)
        q = wide(self.q_proj(u)).unflatten(-1, (self.n_heads, -1)) * self._rescaled.length**2
        q, at_place = q.split([self.d_head, self.d_rotary], -1)
        return q, self._turned(at_place, position)

    def _many(self, q: Tensor, at_place: Tensor, c: Tensor, r: Tensor, sight: Tensor) -> Tensor:
        """Attention to keys and values of every head, (B, T, H, d_value)."""
        dtype = self.kv_up.weight.dtype
        both = self.kv_up(c.to(dtype)).unflatten(-1, (self.n_heads, -1))
        k, v = both.split([self.d_head, self.d_value], -1)  # (B, S, H, ...)
        r = r.to(k.dtype)[:, :, None].expand(-1, -1, self.n_heads, -1)
        q, k = torch.cat([q, at_place], -1).to(dtype), torch.cat([k, r], -1)
        return attend("softmax", q, k, v, sight, window=self.window, whole=False)

    def _one(self, q: Tensor, at_place: Tensor, c: Tensor, r: Tensor, sight: Tensor) -> Tensor:
        """The same of a single step, which reads c itself, as one head of keys and values."""
        weight, _ = affine_of(self.kv_up, c)
        of_keys, of_values = (
            wide(weight)
            .unflatten(0, (self.n_heads, -1))
            .split([self.d_head, self.d_value], 1)  # (H, ..., rank)
        )
        q = torch.cat([torch.einsum("bthk,hkr->bthr", q, of_keys), at_place], -1)
        # scores are divided by the root of what is there now
        size = (q.shape[-1] / (self.d_head + self.d_rotary)) ** 0.5
        k, v = torch.cat([c, r], -1)[:, :, None], c[:, :, None]
        read = attend("softmax", q * size, k, v, sight, window=self.window, whole=False)
        return torch.einsum("bthr,hvr->bthv", read, of_values)

    def _turned(self, x: Tensor, position: Tensor) -> Tensor:
        if not self.rotary:
            return x
        rescale = None if self.scaling == "none" else self._rescaled.turns
        return rotate(x, position, self.base, rescale=rescale)

    def _normed(self, norm: nn.RMSNorm, x: Tensor) -> Tensor:
        return F.rms_norm(wide(x), x.shape[-1:], wide(norm.weight), self.norm_eps)
