"""PaTH attention: positions are reflections, made of every step between two."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import CausalConv, HeadNorm, Heads, LowRank, l2_normalise
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.linear import Linear
from linrnn.ops.attention import attend, in_sight, positions, remember
from linrnn.ops.attention.forgetting import forgotten
from linrnn.ops.attention.path import carried_keys
from linrnn.state_spec import Part, real


class PathAttention(Mixer):
    r"""PaTH attention: keys pass through data-dependent Householder-like position transforms.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                in R^{d_head} for each head
        w_t = c_t / sqrt(|c_t|^2 + 1e-6),   c = silu(conv(W_up W_down x))
        beta_t = 2 sigmoid(W_b x_t + b_b)                        one number for each head
        H_t = I - beta_t w_t w_t^T
        p_ts = softmax over s <= t of q_t^T H_t H_{t-1} ... H_{s+1} k_s / sqrt(d_head)
        y_t = W_o concat over heads of sum_s p_ts v_s
        The convolution is depthwise, without bias. With forget G_t - G_s is added to the scores,
        G the sum of log sigmoid(W_f x_r + b_f) over r <= t, as in ``forgetting_attention``: this
        is PaTH-FoX. With qk_norm q_t and k_t are w * q_t / sqrt(mean(q_t^2) + norm_eps), and the
        like, in each head. With a window at most that many s. Initially W_q, W_k and W_v are
        Glorot-uniform, b_b and b_f 0, w 1, and the rest as torch.nn.Linear and torch.nn.Conv1d.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up to a multiple of 8.
        rank: width of the bottleneck of w.
        d_conv: taps of the convolution, 1 sees only the current step.
        forget: decays of the scores, see above.
        scale_gates: divide what they add by sqrt(d_head) too, as fla does.
        window: steps that can be seen, the current one included. Default: all.
        qk_norm: see above.
        norm_eps: of that norm.

    Departures from the paper:
        Extension beyond the survey. A step reflects all keys of the state, so that the state after
        it holds H_t ... H_{s+1} k_s; sequences are read in blocks, as by the delta rule.

    Example:
        >>> y, state = PathAttention(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["k"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 100, 2, 8]), torch.Size([2, 2, 16]))

    Reference:
        Yang et al., "PaTH Attention: Position Encoding via Accumulating Householder
        Transformations", NeurIPS 2025, arXiv:2505.16381. Key: yang2025path.
    """

    family: ClassVar[str] = "attention"
    choices = Choices(transition="low rank", gate="input", memory="past", normaliser="softmax")
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = GROWS
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        rank: int = 32,
        d_conv: int = 3,
        forget: bool = False,
        scale_gates: bool = False,
        window: int | None = None,
        qk_norm: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, where = d_model, "PathAttention"
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int(where, n_heads=self.n_heads, rank=rank, d_conv=d_conv)
        self.d_head = 8 * -(-d_model // (8 * self.n_heads)) if d_head is None else d_head
        check_positive_int(where, d_head=self.d_head)
        check_positive(where, norm_eps=norm_eps)
        check_sight(where, window, 1.0)
        self.rank, self.d_conv, self.forget, self.window = rank, d_conv, forget, window
        self.qk_norm, self.norm_eps, self.scale_gates = qk_norm, norm_eps, scale_gates
        if window is not None:  # which bounds cost and state
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        to: Any = {"device": device, "dtype": dtype}
        width = self.n_heads * self.d_head
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 3, **to)
        self.w_proj = LowRank(d_model, rank, width, bias=False, **to)
        self.conv1d = CausalConv(width, d_conv, bias=False, silu=True, **to)
        self.beta_proj = Linear(d_model, self.n_heads, **to)
        self.f_proj = Linear(d_model, self.n_heads, **to) if forget else None
        self.q_norm, self.k_norm = (
            HeadNorm(self.n_heads, self.d_head, eps=norm_eps, **to) if qk_norm else None
            for _ in range(2)
        )
        self.o_proj = Linear(width, d_model, bias=False, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters(1.0)
        parts = (self.w_proj, self.conv1d, self.beta_proj, self.f_proj, self.q_norm, self.k_norm)
        for part in (*parts, self.o_proj):
            if part is not None:
                part.reset_parameters()
        for linear in (self.beta_proj, self.f_proj):
            if linear is not None:
                nn.init.zeros_(linear.bias)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: reflected keys, values, what the convolution saw last.

        And the steps since the last reset; with forget the logarithms of the gates.
        """
        entry = {"n_heads": self.n_heads, "d_head": self.d_head}
        spec = cache_spec(self.window, entry, entry)
        if self.forget:
            entries = None if self.window is None else self.window - 1
            spec["g"] = real(entries=entries, n_heads=self.n_heads)
        return {**spec, "conv": self.conv1d.state_spec()}

    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        check_cache("PathAttention", state, *(("g",) if self.forget else ()))
        position = positions(state["position"], x.shape[1], reset)
        q, k, v = (wide(z) for z in self.heads(x))  # (B, T, H, K)
        u, past = self._reflections(x, state["conv"], reset)  # (B, T, H, d_head), (B, 2, 3 d_head)
        g = None
        if self.f_proj is not None:
            g = F.logsigmoid(wide(self.f_proj(x.to(self.f_proj.weight.dtype))))  # (B, T, H)
            g = g * self.d_head**-0.5 if self.scale_gates else g
            g = torch.cat([state["g"], g], 1)  # (B, S, H)
        with without_autocast(x.device):
            if self.q_norm is not None and self.k_norm is not None:
                # (B, T, H, K), (B, S, H, K)
                q, k = self.q_norm(q).view_as(q), self.k_norm(k).view_as(k)
            v = torch.cat([state["v"], v], 1)  # (B, S, H, K)
            sight = position if self.window is None else position.clamp(max=self.window - 1)
            read = self._one if x.shape[1] == 1 else self._many
            o, k = read(q, state["k"], k, u, v, g, sight)
        last = cache_of(k, v, position, reset, self.window)
        if g is not None:
            last["g"] = remember(g, position[:, -1], reset, self.window)
        # (B, T, d_model)
        return self.o_proj(o.flatten(2).to(self.o_proj.weight.dtype)), {**last, "conv": past}

    def _reflections(self, x: Tensor, past: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """``sqrt(beta) w``, (B, T, H, K), and what the convolution saw last."""
        c, past = self.conv1d(self.w_proj(x), past, reset)  # (B, T, 3 d_head), (B, 2, 3 d_head)
        w = l2_normalise(wide(c).unflatten(-1, (self.n_heads, -1)), 1e-6)  # (B, T, H, d_head)
        beta = wide(self.beta_proj(x.to(self.beta_proj.weight.dtype)))  # (B, T, H)
        # smooth where sigmoid is 0, which a root is not
        return w * (F.logsigmoid(beta) / 2).exp()[..., None] * 2**0.5, past

    def _one(
        self, q: Tensor, before: Tensor, k: Tensor, u: Tensor, v: Tensor, g: Any, sight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The read of a step, (B, 1, H, K), and all keys, reflected by it."""
        before = before - (before * u).sum(-1, keepdim=True) * u
        # what is out of sight stays 0, also where u is no number
        k = in_sight(torch.cat([before, k], 1), sight[:, 0])
        far = None if g is None else forgotten(g, 1)
        return attend("softmax", q, k, v, sight, window=self.window, whole=False, far=far), k

    def _many(
        self, q: Tensor, before: Tensor, k: Tensor, u: Tensor, v: Tensor, g: Any, sight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The reads of steps, (B, T, H, K), and the keys visible to later ones, after the last."""
        k = torch.cat([before, k], 1)
        u = torch.cat([torch.zeros_like(before), u], 1)
        packed = [k, u] if g is None else [k, u, g[..., None]]
        o = attend("path", q, torch.cat(packed, -1), v, sight, window=self.window, whole=False)
        if self.window is not None:
            k, u = (z[:, z.shape[1] - self.window :] for z in (k, u))
        return o, carried_keys(k, u)
