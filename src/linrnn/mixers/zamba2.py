"""Zamba2's hybrid layer: Mamba-2 behind a transformer block that several layers share."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.signals import check_receives
from linrnn.mixers._families.shared_weights import SharedWeights
from linrnn.mixers.mamba2 import Mamba2
from linrnn.nn import LowRank, rotate
from linrnn.nn.kv_cache import ALWAYS_GROWS, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.linear import Linear
from linrnn.ops.attention import attend, positions
from linrnn.ops.half_linear import half_linear
from linrnn.state_spec import Part, Spec, real
from linrnn.typing import Signals

WEIGHTS = ("pre_norm", "query", "key", "value", "out", "mid_norm", "up", "down")


class Zamba2(Mixer):
    r"""Zamba2: Mamba-2 plus a transformer block with weights shared over depth.

    Equation:
        u_t = pre_norm * rms([x_t; e_t])                   e_t is the input of the whole stack
        q_t, k_t, v_t = (query + B_q A_q) u_t, ...          in R^{d_head} for each head
        p_ts = softmax over s <= t of q_t . k_s / sqrt(d_head / 2)
        z_t = mid_norm * rms(out concat over heads of sum_s p_ts v_s)        in R^{d_model}
        [g_t; h_t] = (up + B A) z_t
        y = mamba2(norm * rms(x + W down (gelu(g) * h)))
        d_head n_heads = 2 d_model. The weights query to down and both norms before ``mamba2`` are
        those of all layers of a stack, or of every n_sets-th; A, B, W, norm and mamba2 are of each
        layer. A_q, B_q and the like are there with ``adapters`` alone; with ``rotary`` q and k are
        turned as in `linrnn.mixers.Attention`.
        Initially norms are 1, and the rest is as in torch.nn and `linrnn.mixers.Mamba2`.

    Args:
        n_heads: heads of the shared block, a divisor of 2 d_model. Default: the largest divisor of
            d_model of at most d_model / 64, or 1.
        d_ffn: hidden width of the shared block. Default: 4 d_model.
        rank: of the maps A and B of each layer.
        adapters: give each layer its own such maps for queries, keys and values as well.
        rotary: turn queries and keys by their place in the sequence.
        base: the slowest turn is about 1 / base radians per step.
        n_sets: shared blocks there are; layers call them in turn.
        d_state, n_groups, d_conv, expand, dt_low: as in `linrnn.mixers.Mamba2`.
        mamba_head: channels of a head of Mamba-2. Default: its own.
        norm_eps: of every norm.
        receives: ``("embedding", "query", ...)`` in a layer of a stack. See `Mixer.receives`.

    Departures from the paper:
        The layer norms its own input, so its block has no norm before it, and its skip connection
        is that of the block: what the shared block gives is not added to the residual stream. A
        layer alone, and the first of a stack without an encoder, reads its input twice, e = x; the
        shared weights of a layer alone are its own. The public code draws all matrices of the block
        from N(0, 0.02^2).

    Example:
        >>> layer = Zamba2(d_model=8, n_heads=2, d_state=4, rank=2)
        >>> y, state = layer(torch.randn(2, 100, 8))
        >>> y.shape, state["k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 100, 2, 8]))

    Reference:
        Glorioso et al., "The Zamba2 Suite: Technical Report", 2024, arXiv:2411.15242.
        Key: glorioso2024zamba2.
    """

    family: ClassVar[str] = "attention"
    choices = Choices(
        transition="scalar", gate="input", memory="past", normaliser="softmax", output="gated"
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = ALWAYS_GROWS
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    weight_parameters: ClassVar[tuple[str, ...]] = ()
    widening: ClassVar[bool] = True
    norms_input: ClassVar[bool] = True
    carries: ClassVar[tuple[str, ...]] = ("embedding",)
    shares: ClassVar[tuple[str, ...]] = WEIGHTS

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_ffn: int | None = None,
        rank: int = 128,
        adapters: bool = False,
        rotary: bool = False,
        base: float = 10_000.0,
        n_sets: int = 1,
        d_state: int = 64,
        mamba_head: int | None = None,
        n_groups: int = 1,
        d_conv: int = 4,
        expand: int = 2,
        dt_low: float = 0.0,
        norm_eps: float = 1e-5,
        receives: tuple[str, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.n_heads = _most_heads(d_model) if n_heads is None else n_heads
        self.d_ffn = 4 * d_model if d_ffn is None else d_ffn
        self.rank, self.adapters, self.rotary, self.base = rank, adapters, rotary, base
        self.n_sets, self.norm_eps = n_sets, norm_eps
        self.d_state, self.mamba_head, self.n_groups = d_state, mamba_head, n_groups
        self.d_conv, self.expand, self.dt_low = d_conv, expand, dt_low
        self._check()
        check_receives("Zamba2", receives, (*self.carries, *self.shares))
        self.receives = tuple(receives)
        self.d_head = 2 * d_model // self.n_heads
        to: Any = {"device": device, "dtype": dtype}
        alone = not set(self.receives) & set(self.shares)
        self.block = SharedWeights(1, 1, self._shapes(), **to) if alone else None
        low: Any = {"bias": False, **to}
        self.up_adapter = LowRank(d_model, rank, 2 * self.d_ffn, **low)
        self.qkv_adapters = nn.ModuleList(
            LowRank(2 * d_model, rank, 2 * d_model, **low) for _ in range(3 if adapters else 0)
        )
        self.down_proj = Linear(d_model, d_model, bias=False, **to)
        self.norm = nn.RMSNorm(d_model, eps=norm_eps, **to)
        inner: Any = {"d_state": d_state, "d_head": mamba_head, "n_groups": n_groups}
        inner |= {"d_conv": d_conv, "expand": expand, "norm_eps": norm_eps, "dt_low": dt_low}
        self.mamba = Mamba2(d_model, **inner, **to)
        self.reset_parameters()

    def _check(self) -> None:
        where = "Zamba2"
        sizes = {name: getattr(self, name) for name in ("n_heads", "d_ffn", "rank", "n_sets")}
        check_positive_int(where, **sizes)
        check_positive(where, norm_eps=self.norm_eps)
        check_sight(where, None, self.base)
        channels = 2 * self.d_model
        if channels % self.n_heads or (self.rotary and channels // self.n_heads % 2):
            rule = "divide 2 d_model into even parts" if self.rotary else "divide 2 d_model"
            raise ArgumentError(
                f"{where}: n_heads must {rule}, {channels}, got {self.n_heads}. "
                "Choose a divisor of d_model."
            )

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        parts = self.block, self.up_adapter, *self.qkv_adapters, self.down_proj, self.norm
        for part in (*parts, self.mamba):
            if part is not None:
                part.reset_parameters()

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of the shared weights, in the order of their use."""
        width, inner = self.d_model, 2 * self.d_model
        square = (inner, inner)
        shapes = (inner,), square, square, square, (width, inner), (width,)
        return dict(
            zip(WEIGHTS, (*shapes, (2 * self.d_ffn, width), (width, self.d_ffn)), strict=True)
        )

    def signal_spec(self) -> dict[str, Part]:
        """See `Mixer.signal_spec`: the input of the stack, and the weights of the shared block."""
        axes = ("rows", "columns")
        shared = {
            name: real(**dict(zip(axes, shape, strict=False)))
            for name, shape in self._shapes().items()
        }
        return {"embedding": real(d_model=self.d_model), **shared}

    @classmethod
    def shared_part(cls, layers: Iterable["Zamba2"]) -> SharedWeights:
        """See `Mixer.shared_part`: the transformer blocks, which these layers call in turn."""
        stack = list(layers)
        first, like = stack[0], stack[0]._parameter()
        to: Any = {"device": like.device, "dtype": like.dtype}
        return SharedWeights(len(stack), first.n_sets, first._shapes(), **to)

    def state_spec(self) -> dict[str, Spec]:
        """See `Mixer.state_spec`: keys and values of this layer's call, and Mamba-2's state."""
        entry = {"n_heads": self.n_heads, "d_head": self.d_head}
        return {**cache_spec(None, entry, entry), "mamba": self.mamba.state_spec()}

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, signals: Signals
    ) -> tuple[Tensor, Any, Signals]:
        check_cache("Zamba2", state)
        u = x.to(self.down_proj.weight.dtype)
        embedding = signals.get("embedding", x)
        weights = signals if self.block is None else self.block()[0]
        t, cache = self._block(u, embedding.to(u.dtype), weights, state, reset)
        z = self._normed(u + self.down_proj(t), self.norm.weight)
        y, mamba = self.mamba._read(z, state["mamba"], reset, None)
        outgoing = {} if "embedding" in self.receives else {"embedding": x}
        return y, {**cache, "mamba": mamba}, outgoing

    def _block(
        self, x: Tensor, embedding: Tensor, weights: Signals, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The output of the shared block (B, T, d_model), and the keys and values of this call."""
        position = positions(state["position"], x.shape[1], reset)
        u = self._normed(torch.cat([x, embedding], -1), weights["pre_norm"])  # (B, T, 2 d_model)
        vectors = [half_linear(u, weights[name].to(u.dtype)) for name in ("query", "key", "value")]
        if self.adapters:
            vectors = [v + a(u) for v, a in zip(vectors, self.qkv_adapters, strict=True)]
        q, k, v = (wide(z).unflatten(-1, (self.n_heads, -1)) for z in vectors)
        if self.rotary:
            q, k = (rotate(z, position, self.base) for z in (q, k))
        fresh = state["k"].shape[1] == 0 and reset is None
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        low = (2**0.5 * q).to(u.dtype), k.to(u.dtype), v.to(u.dtype)
        o = attend("softmax", *low, position, window=None, whole=fresh).flatten(2).to(u.dtype)
        z = self._normed(half_linear(o, weights["out"].to(u.dtype)), weights["mid_norm"])
        g, h = (half_linear(z, weights["up"].to(u.dtype)) + self.up_adapter(z)).chunk(2, -1)
        t = half_linear(F.gelu(g) * h, weights["down"].to(u.dtype))
        return t, cache_of(k, v, position, reset, None)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """In the dtype of x."""
        normed = F.rms_norm(wide(x), x.shape[-1:], wide(weight), self.norm_eps)
        return normed.to(x.dtype)


def _most_heads(d_model: int) -> int:
    most = max(1, d_model // 64)
    return next(n for n in range(most, 0, -1) if d_model % n == 0)
