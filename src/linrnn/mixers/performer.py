"""Performer: softmax attention estimated with random features."""

from math import log
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.cells import cell
from linrnn.errors import check_in, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.kernel_attention import Features, KernelAttention, divide
from linrnn.mixers._families.random_features import (
    add_directions,
    count_update,
    redraw,
    reset_directions,
)
from linrnn.nn.directions import RandomDirections
from linrnn.ops import cell_scan
from linrnn.ops.linear.weighted_mean import EMPTY
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real

_EPS = {"positive": 1e-4, "hyperbolic": 1e-4, "trigonometric": 1e-3, "relu": 1e-3}
_FORGOTTEN = -1e4  # a logarithm whose exponential is zero in every precision


@cell(state="top", start=EMPTY)
def running_max(top: Any, x: Any) -> tuple[Any, Any]:
    """The largest so far, and how far it was below that before, as a negative number."""
    now = torch.maximum(top, x)
    return (now, (top - now).clamp(min=_FORGOTTEN)), now


class Performer(KernelAttention):
    r"""Performer: softmax attention estimated with orthogonal random features (FAVOR+).

    Equation:
        q_t, k_t, v_t = W_q x_t + b_q, W_k x_t + b_k, W_v x_t + b_v     in each head
        u = d_key^(-1/4) q_t or d_key^(-1/4) k_t,    z = W u            W has rows from N(0, I)
        phi(u) = exp(z - |u|^2 / 2 - c) + eps                           "positive"
        phi(u) = [exp(z - |u|^2 / 2 - c), exp(-z - |u|^2 / 2 - c)] + eps      "hyperbolic"
        phi(u) = exp(|u|^2 / 2 - c) [sin z, cos z]                      "trigonometric"
        phi(u) = n_features^(-1/2) relu(z) + eps                        "relu"
        o_t = sum_{s<=t} (phi(q_t) . phi(k_s)) v_s / sum_{s<=t} (phi(q_t) . phi(k_s))
        y_t = W_o concat over heads of o_t + b_o
        c is the largest exponent: of a query its own; of keys that of all keys up to t, carried in
        the state, so that step t divides by what it would if the sequence ended there. But for eps
        it cancels, and phi(q) . phi(k) estimates a multiple of exp(q . k / sqrt(d_key)). With
        "trigonometric" the sum is divided by as max(|sum| / n_features, eps). Directions are
        orthogonal in blocks of d_key, the same in all heads, and not trained. Initially maps are
        as torch.nn.Linear.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_key, d_value: channels of a head's queries and keys, and of its values. Default:
            d_model / n_heads, rounded up.
        n_features: directions. Default: d_key log d_key, rounded down, at least 1.
        features: see above.
        sampling: of the directions: "orthogonal" ones have random lengths, "regularised" ones are
            orthogonal too and have length sqrt(d_key); or all numbers are "independent".
        eps: see above. Default: 1e-4 where features are exponentials, else 1e-3.
        redraw_every: optimiser steps after which training draws new directions. Default: never.
            `redraw` does it at any time.
        bias: biases in the four maps.

    Departures from the paper:
        The published code takes c over the whole sequence, so that the future reaches earlier
        steps through eps; and c without |u|^2 / 2; and draws directions anew every 1,000 steps.
        A memory written before that is empty after it. The survey's exponent of "trigonometric" has
        the wrong sign.

    Example:
        >>> y, state = Performer(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 5, 5]))

    Reference:
        Choromanski et al., "Rethinking Attention with Performers", 2021, arXiv:2009.14794.
        Key: choromanski2021rethinking.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="identity", gate="none", memory="matrix", normaliser="sum")
    constant_state: ClassVar[tuple[str, ...]] = ("draw",)
    n_features: int
    directions: RandomDirections
    updates: Tensor
    """Steps of the optimiser since the directions were last drawn."""

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        n_features: int | None = None,
        features: Literal["positive", "hyperbolic", "trigonometric", "relu"] = "positive",
        sampling: Literal["orthogonal", "regularised", "independent"] = "orthogonal",
        eps: float | None = None,
        redraw_every: int | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.features, self.bias = d_model, features, bias
        self.sampling = sampling
        check_in("Performer", "features", features, _EPS)
        check_in("Performer", "sampling", sampling, ("orthogonal", "regularised", "independent"))
        self.eps = _EPS[features] if eps is None else eps
        check_positive("Performer", eps=self.eps)
        to: Any = {"device": device, "dtype": dtype}
        self._add_heads(n_heads, d_key, d_value, bias=bias, **to)
        count = max(1, int(self.d_key * log(self.d_key))) if n_features is None else n_features
        kind = {"orthogonal": sampling != "independent", "regularised": sampling == "regularised"}
        add_directions(self, count, redraw_every, shared=True, **kind, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter and the directions anew from torch's global generator."""
        super().reset_parameters()
        reset_directions(self)

    def redraw(self) -> None:
        """Draw the directions anew. Whatever state there is begins anew at the next call."""
        redraw(self)

    def after_update(self) -> None:
        """See `Mixer.after_update`: draw anew, every ``redraw_every`` steps."""
        count_update(self)

    def _draws(self) -> Tensor:
        return self.directions.draws

    @property
    def d_features(self) -> int:
        """Features of a query or key."""
        return self.n_features * (2 if self.features in ("hyperbolic", "trigonometric") else 1)

    @property
    def _exponential(self) -> bool:
        return self.features in ("positive", "hyperbolic")

    def _more_state(self) -> dict[str, Part]:
        """The sum of values, for what eps adds to keys, and the largest exponent of keys."""
        sums = real(n_heads=self.n_heads, one=1, columns=self.d_value + 1)
        top = real(n_heads=self.n_heads, start=EMPTY)
        if self.features == "relu":
            return {}
        return {"sums": sums, "top": top} if self._exponential else {"top": top}

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        q, k = (z * self.d_key**-0.25 for z in (q, k))
        zs, halves = [self.directions(u) for u in (q, k)], [u.square().sum(-1) / 2 for u in (q, k)]
        if self.features == "relu":
            q, k = (F.relu(z) * self.n_features**-0.5 + self.eps for z in zs)
            return Features(q, k)
        if self._exponential:
            if self.features == "hyperbolic":
                zs = [torch.cat([z, -z], -1) for z in zs]
            q, k = (z - half[..., None] for z, half in zip(zs, halves, strict=True))  # (B, T, H, n)
            q, largest = (q - q.amax(-1, keepdim=True)).exp() + self.eps, k.amax(-1)
        else:
            q, largest = torch.cat([zs[0].sin(), zs[0].cos()], -1) / self.n_features, halves[1]
        (top, drop), last = cell_scan(running_max, x=largest, state=state["top"], reset=reset)
        if self._exponential:
            k = (k - top[..., None]).exp()  # (B, T, H, n_features)
        else:
            waves = torch.cat([zs[1].sin(), zs[1].cos()], -1)
            k = (largest - top).exp()[..., None] * waves
        return Features(q, k, drop, {"top": last})

    def _attend(
        self, features: Features, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        o, memory = super()._attend(features, v, state, reset)
        if not self._exponential:
            return o, memory
        # eps in every feature of a key: a feature more, which no new scale changes
        weight = self.eps * features.q.sum(-1, keepdim=True)
        one = torch.ones_like(weight)
        more, sums = outer_scan(weight, one, v, None, state["sums"], normalizer=True, reset=reset)
        return o + more, {**memory, "sums": sums}

    def _read_out(self, o: Tensor) -> Tensor:
        if self.features == "trigonometric":
            return divide(o, "abs", self.eps)
        return divide(o, "add", 0.0)
