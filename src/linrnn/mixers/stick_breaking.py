"""Stick-breaking attention: the nearest step takes its share of the attention first."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import Heads, empty_parameters
from linrnn.nn.head_norm import head_norm
from linrnn.nn.heads import check_kv_heads
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.linear import Linear
from linrnn.ops.attention import attend, positions
from linrnn.state_spec import Part


class StickBreaking(Mixer):
    r"""Stick-breaking attention: each step, latest first, takes a share of the remaining weight.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                in R^{d_head} for each head
        z_ts = q_t . k_s / sqrt(d_head)
        A_ts = sigmoid(z_ts) prod over s < r < t of (1 - sigmoid(z_tr))     s < t
        o_t = sum_s A_ts v_s,   y_t = W_o concat over heads of o_t
        The weights of a step add up to at most 1; those of the first are all 0, so it reads 0.
        There are no positions, the order of steps says what is near. With rest "bias" o_t has b
        times what is left, 1 - sum_s A_ts, added, a vector for each head; with norm "layer" its
        mean is subtracted, and it is divided by sqrt(var(o_t) + 1e-5), in each head. Initially
        W_q, W_k and W_v are Glorot-uniform, W_o as torch.nn.Linear, biases 0.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up to a multiple of 8.
        n_kv_heads: heads of keys and values, a divisor of n_heads. Default: n_heads.
        window: steps that can be seen, the current one included. Default: all.
        current: a step looks at itself too, before all others.
        rest: "lost" or "bias", see above.
        norm: "none" or "layer", see above.
        out_bias: a bias in W_o.

    Departures from the paper:
        Extension beyond the survey. rest and norm are those of its authors' public models, whose
        norm has weights and biases, which W_o has as well.

    Example:
        >>> y, state = StickBreaking(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 100, 2, 8]))

    Reference:
        Tan et al., "Scaling Stick-Breaking Attention: An Efficient Implementation and In-depth
        Study", ICLR 2025, arXiv:2410.17980. Key: tan2025scaling.
    """

    family: ClassVar[str] = "attention"
    weight_parameters: ClassVar[tuple[str, ...]] = ()
    choices = Choices(transition="none", gate="none", memory="past")
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
        window: int | None = None,
        current: bool = False,
        rest: Literal["lost", "bias"] = "lost",
        norm: Literal["none", "layer"] = "none",
        out_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, where = d_model, "StickBreaking"
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int(where, n_heads=self.n_heads)
        self.d_head = 8 * -(-d_model // (8 * self.n_heads)) if d_head is None else d_head
        self.n_kv_heads = self.n_heads if n_kv_heads is None else n_kv_heads
        self.window, self.current, self.rest, self.norm = window, current, rest, norm
        self.out_bias = out_bias
        check_positive_int(where, d_head=self.d_head)
        check_kv_heads(where, self.n_heads, self.n_kv_heads)
        check_sight(where, window, 1.0)
        check_in(where, "rest", rest, ("lost", "bias"))
        check_in(where, "norm", norm, ("none", "layer"))
        if window is not None:  # which bounds cost and state
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        to: Any = {"device": device, "dtype": dtype}
        counts = (self.n_heads, self.n_kv_heads, self.n_kv_heads)
        self.heads = Heads(d_model, counts, (self.d_head,) * 3, **to)
        self.b = (
            empty_parameters(device, dtype)(*counts[:1], self.d_head) if rest == "bias" else None
        )
        self.o_proj = Linear(self.n_heads * self.d_head, d_model, bias=out_bias, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters(1.0)
        self.o_proj.reset_parameters()
        for bias in (self.b, self.o_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: keys and values, and the steps since the last reset."""
        entry = {"n_kv_heads": self.n_kv_heads, "d_head": self.d_head}
        return cache_spec(self.window, entry, entry)

    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        check_cache("StickBreaking", state)
        position = positions(state["position"], x.shape[1], reset)
        q, k, v = (wide(z) for z in self.heads(x))  # (B, T, H, K)
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)  # (B, S, H, K) each
        sight = position if self.window is None else position.clamp(max=self.window - 1)
        kind = "stick_breaking_current" if self.current else "stick_breaking"
        with without_autocast(x.device):
            if self.b is None:
                o = attend(kind, q, k, v, sight, window=self.window, whole=False)
            else:  # a value of 1 reads how much of the stick was taken
                ones = torch.ones_like(v[..., :1])
                read = torch.cat([v, ones], -1)  # (B, S, H, 2 K)
                o = attend(kind, q, k, read, sight, window=self.window, whole=False)
                o = o[..., :-1] + (1 - o[..., -1:]) * wide(self.b)
            o = head_norm(o, self.norm, 1e-5)
        y = self.o_proj(o.flatten(2).to(self.o_proj.weight.dtype))  # (B, T, d_model)
        return y, cache_of(k, v, position, reset, self.window)
