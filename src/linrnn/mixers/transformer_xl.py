"""Transformer-XL: attention to a memory of segments."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import Heads, RelativePositions, lecun_normal
from linrnn.nn.kv_cache import cache_of, cache_spec, check_cache
from linrnn.nn.linear import Linear
from linrnn.nn.relative import distance_scores
from linrnn.ops.attention import attend, positions
from linrnn.state_spec import Part


class TransformerXL(Mixer):
    r"""Transformer-XL: attention to the current segment and to a cache of earlier ones.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                in R^{d_head} for each head
        score_ts = ((q_t + u) . k_s + (q_t + w) . (W_r R_{t-s})) / sqrt(d_head)
        R_d = [sin(d omega), cos(d omega)] in R^{d_model},  omega_i = 10000^(-2i / d_model)
        y_t = W_o concat over heads of sum_s softmax_s(score_ts) v_s
        s runs from ``memory`` steps before the start of t's segment up to t; a segment has
        ``segment`` steps, counted from the last reset. Initially weights are N(0, 1 / fan_in),
        u and w N(0, 0.02^2).

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.
        segment: steps of a segment.
        memory: steps before a segment that it sees, at least 1. Default: those of one segment.

    Departures from the paper:
        The state holds keys and values, not the inputs they come from, so that a step costs what
        a token costs; the begun segment is part of it. Gradients flow through the memory: cut
        them between calls by `linrnn.state.detach`, as the paper does between segments. u and w
        belong to a layer; the paper shares them, and starts all weights as N(0, 0.02^2), with which
        a narrow stack without norms hardly learns. Norm and residual belong to the block.

    Example:
        >>> y, state = TransformerXL(d_model=8, segment=16)(torch.randn(2, 100, 8))
        >>> y.shape, state["k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 31, 1, 8]))

    Reference:
        Dai et al., "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context", ACL
        2019, arXiv:1901.02860. Key: dai2019transformer.
    """

    family: ClassVar[str] = "segment"
    choices = Choices(transition="none", gate="none", memory="window", normaliser="softmax")
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        segment: int = 64,
        memory: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int("TransformerXL", segment=segment, n_heads=self.n_heads)
        self.d_head = -(-d_model // self.n_heads) if d_head is None else d_head
        self.segment, self.memory = segment, segment if memory is None else memory
        check_positive_int("TransformerXL", d_head=self.d_head, memory=self.memory)
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 3, **to)
        self.place = RelativePositions(d_model, self.n_heads, self.d_head, **to)
        self.o_proj = Linear(self.n_heads * self.d_head, d_model, bias=False, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.place.proj, self.o_proj)
        for bias in (self.place.u, self.place.w):
            nn.init.normal_(bias, std=0.02)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: keys and values of what can be seen, steps since a reset."""
        entry = {"n_heads": self.n_heads, "d_head": self.d_head}
        return cache_spec(self.memory + self.segment, entry, entry)

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        check_cache("TransformerXL", state)
        position = positions(state["position"], x.shape[1], reset)
        q, k, v = (wide(z) for z in self.heads(x))  # (B, T, H, K)
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)  # (B, S, H, K) each
        first = (position - position % self.segment - self.memory).clamp(min=0)
        sight, window = position - first, self.memory + self.segment
        near, p = self.place.queries(q)
        if x.shape[1] == 1:  # for which keys of all distances would cost more than all else
            kind, q, far = "softmax", near, distance_scores(p, self.place.weight(q), window)
        else:
            # q: (B, T, H, 2 K)
            kind, q, far = "relative", torch.cat([near, p], -1), self.place.distances(window, q)
        o = attend(kind, q, k, v, sight, window=window, whole=False, far=far)
        y = self.o_proj(o.flatten(2).to(self.o_proj.weight.dtype))  # (B, T, d_model)
        return y, cache_of(k, v, position, reset, window)
