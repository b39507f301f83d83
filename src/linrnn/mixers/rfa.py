"""Random feature attention."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.kernel_attention import Features, KernelAttention
from linrnn.mixers._families.random_features import (
    add_unit_features,
    count_update,
    redraw,
    reset_unit_features,
    unit_features,
)
from linrnn.nn import l2_normalise
from linrnn.nn.directions import RandomDirections


class RFA(KernelAttention):
    r"""Random feature attention (RFA): linear attention with Fourier features and a gate.

    Equation:
        q_t, k_t, v_t = W_q x_t + b_q, W_k x_t + b_k, W_v x_t + b_v     in each head, and
        n(x) = x / sqrt(|x|^2 + 1e-6)              or x / (|x| + 1e-3) with unit "published"
        phi(x) = n_features^(-1/2) [sin(W (sigma * n(x)) / tau), cos(same)]
        g_t = sigmoid(w_g . x_t + b_g)
        S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T,   z_t = g_t z_{t-1} + (1 - g_t) phi(k_t)
        o_t = S_t^T phi(q_t) / max(|z_t . phi(q_t)|, eps)
        y_t = W_o concat over heads of o_t + b_o
        Without the gate S and z are sums. The rows of W are N(0, I), for each head its own, and
        not trained; phi(q) . phi(k) estimates exp(-|sigma * (n(q) - n(k))|^2 / (2 tau^2)).
        Initially maps are Glorot-uniform with gain 2^(-1/2), sigma = 1, g = 0.9 at x = 0.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_key, d_value: channels of a head's queries and keys, and of its values. Default:
            d_model / n_heads, rounded up.
        n_features: directions; there are twice as many features.
        gate: forget.
        tau: scale of the directions.
        unit: "smooth" or "published", the norm of queries and keys, see above.
        eps: of the division.
        redraw_every: optimiser steps after which training draws new directions. Default: never.
            `redraw` does it at any time.

    Departures from the paper:
        The paper's code divides by max(|n|, 1e-3) in parallel and max(n, 1) in steps, where
        features are scaled by 0.1, and takes W at every step of training from a pool of drawn
        ones. Where the gate starts is not published. A memory
        written before W is drawn anew is empty after it.

    Example:
        >>> y, state = RFA(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 128, 5]))

    Reference:
        Peng et al., "Random Feature Attention", 2021, arXiv:2103.02143. Key: peng2021random.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="scalar", gate="input", memory="matrix", normaliser="sum")
    constant_state: ClassVar[tuple[str, ...]] = ("draw",)
    division = "abs"
    n_features: int
    sigma: nn.Parameter
    gate_proj: nn.Linear | None
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
        n_features: int = 64,
        gate: bool = True,
        tau: float = 1.0,
        unit: Literal["smooth", "published"] = "smooth",
        eps: float = 1e-3,
        redraw_every: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.gate, self.tau, self.unit = d_model, gate, tau, unit
        check_in("RFA", "unit", unit, ("smooth", "published"))
        if not 0 < tau < float("inf"):
            raise ArgumentError(f"{type(self).__name__}: tau must be positive, got {tau}.")
        self._set_division(self.division, eps)
        to: Any = {"device": device, "dtype": dtype}
        self._add_heads(n_heads, d_key, d_value, **to)
        add_unit_features(self, n_features, gate, redraw_every, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter and the directions anew from torch's global generator."""
        super().reset_parameters()
        reset_unit_features(self)

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
        return 2 * self.n_features

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        unit = l2_normalise if self.unit == "smooth" else _published_unit
        return unit_features(self, self._phi, wide(self.sigma) / self.tau, q, k, x, unit)

    def _phi(self, z: Tensor) -> Tensor:
        """Features from products with the directions."""
        waves: Tensor = torch.cat([z.sin(), z.cos()], -1) * self.n_features**-0.5
        return waves


def _published_unit(x: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / (length + 1e-3)
