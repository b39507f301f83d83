"""Additive fast weights with deterministic, parameter-free features of keys."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.kernel_attention import Features, KernelAttention
from linrnn.nn import dpfp


class DPFP(KernelAttention):
    r"""Linear attention with deterministic parameter-free projection (DPFP) features of keys.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                       in each head
        r(x) = [relu(x), relu(-x)]                                      in R^{2 d_key}
        phi(x) = concat over j = 1..nu of r(x) * (r(x) turned by j places)
        psi(x) = phi(x) / (sum of phi(x) + eps)
        S_t = S_{t-1} + psi(k_t) v_t^T,   o_t = S_t^T psi(q_t) / sqrt(d_key)      normalize "sum"
        y_t = W_o concat over heads of o_t
        With normalize "attention" o_t = S_t^T phi(q_t) / (z_t . phi(q_t) + eps), where S and the
        sum z of keys are written with phi. Initially as torch.nn.Linear.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_key, d_value: channels of a head's queries and keys, and of its values. Default:
            d_model / n_heads, rounded up; of keys at least 16, for of fewer channels a query and a
            key often have no feature in common, and no gradient.
        nu: products of neighbours at distances 1 to nu; at most 2 d_key - 1.
        normalize: see above.
        eps: added to the sums, for phi can be zero throughout.
        bias: biases in the four maps.

    Departures from the paper:
        Norm and feed-forward layer around it belong to the block. The survey's formula shows one
        distance only. The delta rule instead of the sum is the mixer `delta_net`.

    Example:
        >>> y, state = DPFP(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 96, 4]))

    Reference:
        Schlag, Irie and Schmidhuber, "Linear Transformers Are Secretly Fast Weight Programmers",
        2021, arXiv:2102.11174. Key: schlag2021linear.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="identity", gate="none", memory="matrix")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        nu: int = 3,
        normalize: Literal["sum", "attention"] = "sum",
        eps: float = 1e-5,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.nu, self.normalize, self.bias = d_model, nu, normalize, bias
        check_positive_int("DPFP", nu=nu)
        check_in("DPFP", "normalize", normalize, ("sum", "attention"))
        self._set_division("none" if normalize == "sum" else "add", eps)
        to: Any = {"device": device, "dtype": dtype}
        self._add_heads(n_heads, d_key, d_value, bias=bias, min_key=16, **to)
        if nu > 2 * self.d_key - 1:
            raise ArgumentError(f"DPFP: nu must be at most {2 * self.d_key - 1}, got {nu}.")
        self.reset_parameters()

    @property
    def d_features(self) -> int:
        """Features of a query or key."""
        return 2 * self.nu * self.d_key

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        q, k = dpfp(q, self.nu), dpfp(k, self.nu)
        if self.normalize == "sum":
            q, k = (z / (z.sum(-1, keepdim=True) + self.eps) for z in (q, k))
            q = q * self.d_key**-0.5
        return Features(q, k)
