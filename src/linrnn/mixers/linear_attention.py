"""Linear attention: the linear Transformer."""

from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.kernel_attention import Features, KernelAttention
from linrnn.nn.features import LEARNED_MAPS, LearnedFeatures
from linrnn.nn.heads import feature_map

_FEATURE_MAPS = ("elu", "relu", "exp", "softmax", "identity")


class LinearAttention(KernelAttention):
    r"""Linear attention with positive features: the state is a running sum of k v^T.

    Equation:
        q_t, k_t, v_t = W_q x_t + b_q, W_k x_t + b_k, W_v x_t + b_v              in each head
        S_t = S_{t-1} + phi(k_t) v_t^T,   z_t = z_{t-1} + phi(k_t)
        o_t = S_t^T phi(q_t) / (z_t . phi(q_t) + eps)                     division "add"
        y_t = W_o concat over heads of o_t + b_o
        phi is elu(x) + 1, relu, exp, softmax over the head's channels, x itself, or learned, a map
        for the queries of all heads and one for their keys, `linrnn.nn.LearnedFeatures`.
        Other divisions: by the larger of z . phi and eps ("clamp"), by the root of the mean square
        of S_t^T phi(q_t), plus eps, in each head ("norm"), or none: the plain sum ("none").
        Initially as torch.nn.Linear, learned maps as they say.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_key, d_value: channels of a head's queries and keys, and of its values. Default:
            d_model / n_heads, rounded up.
        feature_map: phi; "hedgehog", "t2r" and "product" are learned. "identity" and "product" are
            signed, which "add" and "clamp" cannot divide by.
        division: see above.
        eps: of the division, at least 0.
        bias: biases in the four maps.

    Departures from the paper:
        The paper's feature map is "elu"; the others and the divisions are those of later ones:
        "softmax" of Shen et al. (arXiv:1812.01243), but not over time, "norm" of Qin et al.
        (arXiv:2210.10340), in each head here. The survey's V'phi(K) is phi(K)'V.

    Example:
        >>> y, state = LinearAttention(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 5]))

    Reference:
        Katharopoulos et al., "Transformers are RNNs: Fast Autoregressive Transformers with Linear
        Attention", 2020, arXiv:2006.16236. Key: katharopoulos2020transformers.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="identity", gate="none", memory="matrix", normaliser="sum")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        feature_map: Literal[
            "elu", "relu", "exp", "softmax", "identity", "hedgehog", "t2r", "product"
        ] = "elu",
        division: Literal["add", "clamp", "norm", "none"] = "add",
        eps: float = 1e-6,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.feature_map, self.bias = d_model, feature_map, bias
        check_in("LinearAttention", "feature_map", feature_map, _FEATURE_MAPS + LEARNED_MAPS)
        self._set_division(division, eps, ("add", "clamp", "norm", "none"))
        if feature_map in ("identity", "product") and self._normalizer:
            raise ArgumentError(
                "LinearAttention: division must be 'norm' or 'none' with the signed features of "
                f"feature_map={feature_map!r}, got {division!r}."
            )
        to: Any = {"device": device, "dtype": dtype}
        self._add_heads(n_heads, d_key, d_value, bias=bias, **to)
        self.map_q: LearnedFeatures | None = None
        self.map_k: LearnedFeatures | None = None
        if feature_map in LEARNED_MAPS:
            self.map_q, self.map_k = (
                LearnedFeatures(self.d_key, cast(Any, feature_map), **to) for _ in range(2)
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        for learned in (self.map_q, self.map_k):
            if learned is not None:
                learned.reset_parameters()

    @property
    def d_features(self) -> int:
        """Features of a query or key."""
        return self.d_key if self.map_q is None else self.map_q.d_features

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        if self.map_q is not None and self.map_k is not None:
            return Features(self.map_q(q), self.map_k(k))
        return Features(feature_map(self.feature_map, q), feature_map(self.feature_map, k))
