"""The attention free transformer: a weighted mean of values in every channel."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.kv_cache import ALWAYS_GROWS, cache_of, cache_spec, check_cache
from linrnn.nn.linear import Linear
from linrnn.ops import cell_scan
from linrnn.ops.attention import attend, positions
from linrnn.ops.conv.past import last_inputs
from linrnn.ops.linear.weighted_mean import EMPTY, mean_of_past, wkv
from linrnn.state_spec import Part, integer, real

CLOSED = {"trains": "a gain that starts at 0, as published, lets no gradient through to u"}
KINDS = ("simple", "local", "conv", "full")


class AFT(Mixer):
    r"""Attention-free transformer: a mean of values weighted by keys and learned position biases.

    Equation:
        In every channel,
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                         in R^d_inner
        y_t = W_o (sigmoid(q_t) * sum_s exp(k_s + w_ts) v_s / sum_s exp(k_s + w_ts))    s <= t
        "simple"  w = 0: the state is one mean and the logarithm of its weight
        "local"   w_ts = a_t . b_s for t - s < window, else 0: besides, the last steps
        "conv"    w_ts depends on t - s alone, in each of n_heads groups of channels, is 0 from
                  window on, and is gain (u - mean(u)) / std(u) + shift of numbers u: as "local"
        "full"    w_ts = a_t . b_s: the state holds all keys and values, and steps cost ever more
        a, b in R^rank are learned for positions up to max_length; later ones have those of the
        last. Initially a, b ~ N(0, 0.01^2), u ~ N(0, 1), gain = shift = 0, the rest as torch.nn.

    Args:
        kind: "simple", "local", "conv" or "full", as above.
        d_inner: channels of queries, keys and values. Default: d_model.
        window: steps whose positions count, the current one included ("local", "conv"). All of
            them are in memory for every step.
        n_heads: groups of channels, a divisor of d_inner ("conv").
        rank: width of a and b ("local", "full").
        max_length: positions with a and b of their own ("local", "full").
        bias: biases in the maps but that of the keys, where one would cancel.

    Departures from the paper:
        Where it weighs pairs of positions with a full matrix, here the low-rank form of its
        experiments on language stands.

    Example:
        >>> y, state = AFT(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["mean"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Zhai et al., "An Attention Free Transformer", 2021, arXiv:2105.14103.
        Key: zhai2021attention.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "linear-attention"
    choices = Choices(
        transition="identity", gate="none", memory="vector", normaliser="sum", output="gated"
    )
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        kind: Literal["simple", "local", "conv", "full"] = "simple",
        d_inner: int | None = None,
        window: int = 32,
        n_heads: int = 1,
        rank: int = 64,
        max_length: int = 1024,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.kind, self.window, self.n_heads = d_model, kind, window, n_heads
        self.rank, self.max_length, self.bias = rank, max_length, bias
        self.d_inner = d_model if d_inner is None else d_inner
        check_in("AFT", "kind", kind, KINDS)
        sizes = {"d_inner": self.d_inner, "window": window, "n_heads": n_heads, "rank": rank}
        check_positive_int("AFT", **sizes, max_length=max_length)
        if self.d_inner % n_heads:
            raise ArgumentError(
                f"AFT: n_heads must divide d_inner={self.d_inner}, got n_heads={n_heads}."
            )
        if kind == "full":
            self.declared, self.cost = ALWAYS_GROWS, "quadratic"  # type: ignore[misc]
        if kind == "conv":
            self.declared = CLOSED  # type: ignore[misc]
        to: Any = {"device": device, "dtype": dtype}
        self.q_proj, self.k_proj, self.v_proj = (
            Linear(d_model, self.d_inner, bias=bias and name != "k", **to) for name in "qkv"
        )
        if kind in ("local", "full"):
            self.a, self.b = (nn.Parameter(torch.empty(max_length, rank, **to)) for _ in range(2))
        if kind == "conv":
            self.u = nn.Parameter(torch.empty(n_heads, window, **to))
            self.gain, self.shift = (nn.Parameter(torch.empty(n_heads, **to)) for _ in range(2))
        self.out_proj = Linear(self.d_inner, d_model, bias=bias, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            linear.reset_parameters()
        if self.kind in ("local", "full"):
            nn.init.normal_(self.a, std=0.01)
            nn.init.normal_(self.b, std=0.01)
        if self.kind == "conv":
            nn.init.normal_(self.u)
            nn.init.zeros_(self.gain)
            nn.init.zeros_(self.shift)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: the mean of what no position weighs; keys and values others."""
        inner = {"d_inner": self.d_inner}
        if self.kind == "full":
            return cache_spec(None, {"rank_and_inner": self.rank + self.d_inner}, inner)
        spec = {"mean": real(**inner), "log_norm": real(**inner, start=EMPTY)}
        if self.kind == "simple":
            return spec
        past = real(past=self.window, **inner)
        return {**spec, "k": past, "v": past, "position": integer()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        x = x.to(self.q_proj.weight.dtype)
        q, k, v = (wide(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        with without_autocast(x.device):
            y, state = getattr(self, f"_{self.kind}")(q, k, v, state, reset)
        return self.out_proj(y.to(x.dtype)), state

    def _simple(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, Any]:
        none, start = k.new_zeros(self.d_inner), (state["mean"], state["log_norm"])
        y, last = cell_scan(wkv, k=k, v=v, r=q, decay=none, bonus=none, state=start, reset=reset)
        return y, dict(zip(("mean", "log_norm"), last, strict=True))

    def _full(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, Any]:
        check_cache("AFT", state)
        position = positions(state["position"], k.shape[1], reset)
        place = position.clamp(max=self.max_length - 1)
        k = torch.cat([state["k"], torch.cat([wide(self.b)[place], k], -1)], 1)
        v = torch.cat([state["v"], v], 1)
        a = wide(self.a)[place]
        y = attend("per_channel", a, k, v, position, window=None, whole=False)
        return q.sigmoid() * y, cache_of(k, v, position, reset, None)

    def _local(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, Any]:
        """Weighted mean of one entry for all older steps, and one for each step of the window."""
        position, s = positions(state["position"], k.shape[1], reset), self.window
        ks, vs = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        weights, values = [], []
        for age in range(s + 1):
            visible = (position >= age)[..., None]
            steps = slice(s - age, s - age + k.shape[1])
            bias = self._bias(position, age) if age < s else 0.0
            weights.append(torch.where(visible, ks[:, steps] + bias, EMPTY))
            values.append(torch.where(visible, vs[:, steps], 0))
        start = {"mean": state["mean"], "log_norm": state["log_norm"]}
        keep = k.new_zeros(self.d_inner)
        mean, log_norm, last = mean_of_past(keep, weights.pop(), values.pop(), start, reset)
        if self.kind == "conv":  # in place of adding it to all others: where there is no older
            shift = wide(self.shift).repeat_interleave(self.d_inner // self.n_heads)
            log_norm = log_norm - shift  # step, its gradient is nothing but zero
        share = torch.stack([log_norm, *weights], -1).softmax(-1)
        y = q.sigmoid() * (share * torch.stack([mean, *values], -1)).sum(-1)
        last |= {name: last_inputs(z, state[name], reset) for name, z in (("k", k), ("v", v))}
        return y, {**last, "position": position[:, -1] + 1}

    _conv = _local

    def _bias(self, position: Tensor, age: int) -> Tensor:
        """``w_ts`` for ``s = t - age``: (B, T, 1), or of every channel without the shift."""
        if self.kind == "conv":
            u = wide(self.u)
            std = u.std(1, correction=0) + 1e-5
            w = wide(self.gain) * (u[:, age] - u.mean(1)) / std
            return w.repeat_interleave(self.d_inner // self.n_heads)
        late = position.clamp(max=self.max_length - 1)
        early = (position - age).clamp(0, self.max_length - 1)
        return (wide(self.a)[late] * wide(self.b)[early]).sum(-1, keepdim=True)
