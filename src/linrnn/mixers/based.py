"""Based: linear attention whose weights are a Taylor polynomial of the exponential."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.kernel_attention import Features, KernelAttention
from linrnn.nn.features import second_taylor


class Based(KernelAttention):
    r"""Based: linear attention with the second-order Taylor expansion of exp.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                       in each head
        phi(x) = [1, x / d_key^(1/4), products of two channels of x / sqrt(2 d_key)]
        so that phi(q) . phi(k) = 1 + s + s^2 / 2,   s = q . k / sqrt(d_key),   at least 1/2
        S_t = S_{t-1} + phi(k_t) v_t^T,   z_t = z_{t-1} + phi(k_t)
        o_t = S_t^T phi(q_t) / (z_t . phi(q_t) + eps)
        y_t = W_o concat over heads of o_t
        Products x_i x_j and x_j x_i are one feature, sqrt(2) times as large. Initially as
        torch.nn.Linear.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_key: channels of a head's queries and keys, 16 in the paper. A head has
            (d_key + 1) (d_key + 2) / 2 features.
        d_value: channels of a head's values. Default: d_model / n_heads, rounded up.
        eps: added to the sum of weights.

    Departures from the paper:
        Extension beyond the survey. The paper sets it beside attention in a short window and gated
        convolutions: take a pattern of mixers for that. The authors' code makes d_key^2 features
        of the second power, with the same products.

    Example:
        >>> y, state = Based(d_model=8, n_heads=2, d_key=4)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 15, 5]))

    Reference:
        Arora et al., "Simple Linear Attention Language Models Balance the Recall-Throughput
        Tradeoff", 2024, arXiv:2402.18668. Key: arora2024simple.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="identity", gate="none", memory="matrix", normaliser="sum")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int = 16,
        d_value: int | None = None,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self._set_division("add", eps)
        to: Any = {"device": device, "dtype": dtype}
        self._add_heads(n_heads, d_key, d_value, bias=False, **to)
        self.reset_parameters()

    @property
    def d_features(self) -> int:
        """Features of a query or key."""
        return (self.d_key + 1) * (self.d_key + 2) // 2

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        return Features(self._taylor(q), self._taylor(k))

    def _taylor(self, x: Tensor) -> Tensor:
        return second_taylor(x * self.d_key**-0.25)  # (B, T, H, d_features)
