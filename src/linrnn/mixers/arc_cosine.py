"""Attention with random rectified features, whose kernel is the arc-cosine one."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.kernel_attention import Features, KernelAttention
from linrnn.mixers._families.random_features import (
    add_unit_features,
    count_update,
    redraw,
    reset_unit_features,
    unit_features,
)
from linrnn.nn.directions import RandomDirections


class ArcCosine(KernelAttention):
    r"""Linear attention with arc-cosine (random ReLU) features, optionally gated.

    Equation:
        q_t, k_t, v_t and n(x) as in RFA
        phi(x) = n_features^(-1/2) relu(W (sigma * n(x))) + offset
        S_t = S_{t-1} + phi(k_t) v_t^T,   z_t = z_{t-1} + phi(k_t)
        o_t = S_t^T phi(q_t) / max(z_t . phi(q_t), eps)
        y_t = W_o concat over heads of o_t + b_o
        With a gate S and z forget as in RFA. The rows of W are N(0, I), for each head its own, and
        not trained. Without offset phi(q) . phi(k) estimates
        |a| |b| (sin(u) + (pi - u) cos(u)) / (2 pi), where u is the angle between
        a = sigma * n(q) and b = sigma * n(k). Initially as RFA.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_key, d_value: channels of a head's queries and keys, and of its values. Default:
            d_model / n_heads, rounded up.
        n_features: directions, and features.
        gate: forget, as RFA.
        offset: added to every feature, at least 0: of some queries all others may be zero.
        eps: of the division.
        redraw_every: optimiser steps after which training draws new directions. Default: never.
            `redraw` does it at any time.

    Departures from the paper:
        The offset is that of the generalised features of Performer. A memory written before W is
        drawn anew is empty after it.

    Example:
        >>> y, state = ArcCosine(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 64, 5]))

    Reference:
        Cho and Saul, "Kernel Methods for Deep Learning", 2009, for the kernel; its features in Peng
        et al., "Random Feature Attention", 2021, arXiv:2103.02143. Key: cho2009kernel.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="identity", gate="none", memory="matrix", normaliser="sum")
    constant_state: ClassVar[tuple[str, ...]] = ("draw",)
    division = "clamp"
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
        gate: bool = False,
        offset: float = 1e-3,
        eps: float = 1e-6,
        redraw_every: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.gate, self.offset = d_model, gate, offset
        if not 0 <= offset < float("inf"):
            raise ArgumentError(f"ArcCosine: offset must be at least 0, got {offset}.")
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
        return self.n_features

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        return unit_features(self, self._phi, wide(self.sigma), q, k, x)

    def _phi(self, z: Tensor) -> Tensor:
        """Features from products with the directions."""
        phi: Tensor = F.relu(z) * self.n_features**-0.5 + self.offset
        return phi
