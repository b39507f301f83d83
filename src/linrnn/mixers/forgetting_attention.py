"""Forgetting attention: softmax attention whose scores decay by a gate of every step."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, HeadNorm, Heads, last_inputs, recall
from linrnn.nn.heads import check_kv_heads
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.linear import Linear
from linrnn.nn.rotary import check_rotary, rotate_first
from linrnn.ops.attention import attend, positions, remember
from linrnn.ops.attention.forgetting import forgotten
from linrnn.state_spec import Part, real


class ForgettingAttention(Mixer):
    r"""Forgetting attention (FoX): softmax attention with a forget gate per head.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                       in R^{d_head} for each head
        G_t = sum of log sigmoid(W_f x_r + b_f) over r <= t             one number for each head
        p_ts = softmax over s <= t of q_t . k_s / sqrt(d_head) + G_t - G_s
        y_t = W_o concat over heads of sum_s p_ts v_s
        With a window at most that many s. With shift k_t is a W_k x_{t-1} + (1 - a) W_k x_t, a =
        sigmoid(A_k x_t) one number for each head, and v_t the like with A_v. With qk_norm q_t and
        k_t are then w * q_t / sqrt(mean(q_t^2) + norm_eps), and the like, in each head. With
        out_norm what a head reads is divided by its root mean square too, and with gate "sigmoid"
        W_o sees sigmoid(W_g x_t) * concat over heads. Initially W_q, W_k and W_v are
        Glorot-uniform, b_f 0, w 1, and the rest as torch.nn.Linear.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up to a multiple of 8.
        n_kv_heads: heads of keys and values, a divisor of n_heads. Default: n_heads.
        d_rotary: how many of a head's first channels are turned by their position, as in
            ``attention``; the gates are all the positions there are by default, 0.
        window: steps that can be seen, the current one included. Default: all.
        shift, qk_norm, gate, out_norm: see above; all four make FoX (Pro).
        norm_eps: of the norms.
        base: the slowest turn is about 1 / base radians per step.

    Departures from the paper:
        Extension beyond the survey. The norm of what a head reads has no weights: W_o follows, with
        nothing but products between. The state holds the logarithms of the gates, not their sums,
        which grow with the sequence; these are made in double precision.

    Example:
        >>> layer = ForgettingAttention(d_model=8, n_heads=2)
        >>> y, state = layer(torch.randn(2, 100, 8))
        >>> y.shape, state["k"].shape, state["g"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 100, 2, 8]), torch.Size([2, 100, 2]))

    Reference:
        Lin et al., "Forgetting Transformer: Softmax Attention with a Forget Gate", ICLR 2025,
        arXiv:2503.02130. Key: lin2025forgetting.
    """

    family: ClassVar[str] = "attention"
    choices = Choices(transition="scalar", gate="input", memory="past", normaliser="softmax")
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
        d_rotary: int = 0,
        window: int | None = None,
        shift: bool = False,
        qk_norm: bool = False,
        gate: Literal["none", "sigmoid"] = "none",
        out_norm: bool = False,
        norm_eps: float = 1e-6,
        base: float = 10_000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, where = d_model, "ForgettingAttention"
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int(where, n_heads=self.n_heads)
        self.d_head = 8 * -(-d_model // (8 * self.n_heads)) if d_head is None else d_head
        self.n_kv_heads = self.n_heads if n_kv_heads is None else n_kv_heads
        self.d_rotary, self.window, self.base = d_rotary, window, base
        self.shift, self.qk_norm, self.gate, self.out_norm = shift, qk_norm, gate, out_norm
        self.norm_eps = norm_eps
        check_positive_int(where, d_head=self.d_head)
        check_kv_heads(where, self.n_heads, self.n_kv_heads)
        check_rotary(where, d_rotary, self.d_head)
        check_sight(where, window, base)
        check_in(where, "gate", gate, ("none", "sigmoid"))
        check_positive(where, norm_eps=norm_eps)
        if window is not None:  # which bounds cost and state
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        self._add_parts(device=device, dtype=dtype)
        self.reset_parameters()

    def _add_parts(self, **to: Any) -> None:
        counts = (self.n_heads, self.n_kv_heads, self.n_kv_heads)
        self.heads = Heads(self.d_model, counts, (self.d_head,) * 3, **to)
        self.f_proj = Linear(self.d_model, self.n_heads, **to)
        self.shift_proj: Any = None
        if self.shift:
            self.shift_proj = Linear(self.d_model, 2 * self.n_kv_heads, bias=False, **to)
        self.q_norm: Any = None
        self.k_norm: Any = None
        if self.qk_norm:
            self.q_norm, self.k_norm = (
                HeadNorm(count, self.d_head, eps=self.norm_eps, **to) for count in counts[:2]
            )
        norm: Literal["rms", "none"] = "rms" if self.out_norm else "none"
        more: Any = {"norm": norm, "eps": self.norm_eps, "gate": self.gate, **to}
        self.out = GatedOut(self.d_model, self.n_heads, self.d_head, **more)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters(1.0)
        for part in (self.f_proj, self.shift_proj, self.q_norm, self.k_norm, self.out):
            if part is not None:
                part.reset_parameters()
        nn.init.zeros_(self.f_proj.bias)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: keys, values, logarithms of the gates, steps since a reset.

        With shift the last key and value before it, side by side.
        """
        entry = {"n_kv_heads": self.n_kv_heads, "d_head": self.d_head}
        spec = cache_spec(self.window, entry, entry)
        entries = None if self.window is None else self.window - 1
        spec["g"] = real(entries=entries, n_heads=self.n_heads)
        if self.shift:
            spec["before"] = real(past=1, channels=2 * self.n_kv_heads * self.d_head)
        return spec

    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        check_cache("ForgettingAttention", state, "g")
        position = positions(state["position"], x.shape[1], reset)
        q, k, v = (wide(z) for z in self.heads(x))  # (B, T, H, K)
        g = F.logsigmoid(wide(self.f_proj(x.to(self.f_proj.weight.dtype))))  # (B, T, H)
        with without_autocast(x.device):
            more = {}
            if self.shift:
                k, v, more["before"] = self._shifted(x, k, v, state["before"], reset)
            if self.qk_norm:
                q, k = self.q_norm(q).view_as(q), self.k_norm(k).view_as(k)  # (B, T, H, K) each
            q, k = (rotate_first(z, self.d_rotary, position, self.base) for z in (q, k))
            # (B, S, H, K), (B, S, H, K), (B, S, H)
            k, v, g = (torch.cat([state[name], z], 1) for name, z in (("k", k), ("v", v), ("g", g)))
            o = self._attend(q, k, v, g, position)  # (B, T, H, d_head)
        last = cache_of(k, v, position, reset, self.window)
        last["g"] = remember(g, position[:, -1], reset, self.window)
        return self.out(o, x), {**last, **more}

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, position: Tensor) -> Tensor:
        sight = position if self.window is None else position.clamp(max=self.window - 1)
        if q.shape[1] == 1:
            decays = forgotten(g, 1)
            return attend("softmax", q, k, v, sight, window=self.window, whole=False, far=decays)
        # each head of keys with the gates of the heads of queries that read it
        k = torch.cat([k, g.unflatten(2, (self.n_kv_heads, -1))], -1)
        return attend("forgetting", q, k, v, sight, window=self.window, whole=False)

    def _shifted(
        self, x: Tensor, k: Tensor, v: Tensor, before: Tensor, reset: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values mixed with those of the step before, and the last as they came."""
        share = wide(self.shift_proj(x.to(self.shift_proj.weight.dtype))).sigmoid()
        both = torch.cat([k, v], 2).flatten(2)  # (B, T, 2 H K)
        mixed = both.unflatten(2, (-1, self.d_head)).lerp(
            recall(both, before, 1, reset).unflatten(2, (-1, self.d_head)), share[..., None]
        )
        k, v = mixed.chunk(2, 2)
        return k, v, last_inputs(both, before, reset)
