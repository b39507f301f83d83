"""Linear attention whose weights fall with distance as a cosine."""

from math import pi
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.errors import check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.kernel_attention import Features, KernelAttention
from linrnn.ops.attention import positions
from linrnn.state_spec import Part, integer


class CosFormer(KernelAttention):
    r"""cosFormer: linear attention with ReLU features and cosine weights by distance.

    Equation:
        q_t, k_t, v_t = W_q x_t + b_q, W_k x_t + b_k, W_v x_t + b_v     in each head
        w_ts = (relu(q_t) . relu(k_s)) cos(pi (t - s) / (2 max_length))           for s <= t
        o_t = sum_s w_ts v_s / max(sum_s w_ts, eps)
        y_t = W_o concat over heads of o_t + b_o
        Computed with features [relu(x) cos(a), relu(x) sin(a)], a = pi t / (2 max_length), whose
        products these weights are. Initially as torch.nn.Linear.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_key, d_value: channels of a head's queries and keys, and of its values. Default:
            d_model / n_heads, rounded up.
        max_length: steps after which a weight has fallen to zero. Beyond it weights are negative.
            Their sum can then be zero or less, and a division by eps makes outputs huge. So it
            must be no less than the longest sequence.
        eps: of the division.
        bias: biases in the four maps.

    Departures from the paper:
        The paper's max_length is the length of the sequence at hand, on which no causal output may
        depend. Positions count from the last reset; angles are computed in double precision.

    Example:
        >>> y, state = CosFormer(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 8, 5]))

    Reference:
        Qin et al., "cosFormer: Rethinking Softmax in Attention", 2022, arXiv:2202.08791.
        Key: qin2022cosformer.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="identity", gate="none", memory="matrix", normaliser="sum")
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        max_length: int = 4096,
        eps: float = 1e-6,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.max_length, self.bias = d_model, max_length, bias
        check_positive_int("CosFormer", max_length=max_length)
        self._set_division("clamp", eps)
        self._add_heads(n_heads, d_key, d_value, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    @property
    def d_features(self) -> int:
        """Features of a query or key."""
        return 2 * self.d_key

    def _more_state(self) -> dict[str, Part]:
        return {"position": integer()}

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        position = positions(state["position"], x.shape[1], reset)
        # whole turns are left out, so that no precision is lost to them
        angle = (position % (4 * self.max_length)).double() * (pi / (2 * self.max_length))  # (B, T)
        turn = torch.stack([angle.cos(), angle.sin()], -1).to(q.dtype)[:, :, None, :, None]
        q, k = ((turn * F.relu(z).unsqueeze(-2)).flatten(-2) for z in (q, k))  # (B, T, H, 2 d_key)
        return Features(q, k, carried={"position": position[:, -1] + 1})
