"""ReBased: linear attention whose weights are squares of products of normed queries and keys."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.kernel_attention import Features, KernelAttention
from linrnn.nn import empty_parameters, second_powers
from linrnn.nn.head_norm import head_norm


class ReBased(KernelAttention):
    r"""ReBased: linear attention with a learned quadratic kernel that can be zero.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                       in each head
        n(x) = gamma * (x - mean(x)) / sqrt(var(x) + norm_eps) + beta   gamma, beta of all heads
        phi(x) = products of two channels of n(x) / sqrt(d_key)
        so that phi(q) . phi(k) = (n(q) . n(k))^2 / d_key
        S_t = S_{t-1} + phi(k_t) v_t^T,   z_t = z_{t-1} + phi(k_t)
        o_t = S_t^T phi(q_t) / (z_t . phi(q_t) + eps)
        y_t = W_o concat over heads of o_t
        Products x_i x_j and x_j x_i are one feature, sqrt(2) times as large. Initially gamma is 1,
        beta is 0, and the maps are as torch.nn.Linear.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_key: channels of a head's queries and keys, at least 2. A head has
            d_key (d_key + 1) / 2 features.
        d_value: channels of a head's values. Default: d_model / n_heads, rounded up.
        eps: added to the sum of weights, which can be zero.
        norm_eps: of the norm.

    Departures from the paper:
        Extension beyond the survey. The authors divide by d_key or by its root; this is the root,
        as in the later public code. What divides cancels but for ``eps``.

    Example:
        >>> y, state = ReBased(d_model=8, n_heads=2, d_key=4)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 10, 5]))

    Reference:
        Aksenov et al., "Linear Transformers with Learnable Kernel Functions are Better In-Context
        Models", 2024, arXiv:2402.10644. Key: aksenov2024linear.
    """

    family: ClassVar[str] = "linear-attention"
    weight_parameters: ClassVar[tuple[str, ...]] = ()
    choices = Choices(transition="identity", gate="none", memory="matrix", normaliser="sum")
    # a square near 0 divided by itself plus 1e-5 magnifies rounding a thousand times
    in_laws: ClassVar[Mapping[str, Any]] = {"eps": 1e-2}

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int = 16,
        d_value: int | None = None,
        eps: float = 1e-5,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.norm_eps = d_model, norm_eps
        self._set_division("add", eps)
        to: Any = {"device": device, "dtype": dtype}
        self._add_heads(n_heads, d_key, d_value, bias=False, **to)
        if self.d_key < 2:
            raise ArgumentError(
                f"ReBased: d_key must be at least 2, for the norm takes the mean away, got {d_key}."
            )
        empty = empty_parameters(device, dtype)
        self.gamma, self.beta = empty(self.d_key), empty(self.d_key)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        nn.init.ones_(self.gamma)
        nn.init.zeros_(self.beta)

    @property
    def d_features(self) -> int:
        """Features of a query or key."""
        return self.d_key * (self.d_key + 1) // 2

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        return Features(self._squares(q), self._squares(k))

    def _squares(self, x: Tensor) -> Tensor:
        normed = head_norm(x, "layer", self.norm_eps, wide(self.gamma), wide(self.beta))
        return second_powers(normed, self.d_key**-0.5)  # (B, T, H, d_features)
