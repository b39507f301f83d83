"""LightNet: additive linear recurrence, a softmax over time for every channel of the keys."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, Heads
from linrnn.ops.linear.weighted_mean import EMPTY, softmax_of_past
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


class LightNet(Mixer):
    r"""LightNet: linear attention that stores a softmax mean of values per key channel.

    Equation:
        q, k, v = silu(W_q x_t), W_k x_t, W_v x_t                       in each head
        z_t = logaddexp(z_{t-1}, k_t)                                   in R^d_key
        S_t = diag(exp(z_{t-1} - z_t)) S_{t-1} + exp(k_t - z_t) v_t^T   (d_key, d_value)
        o_t = S_t^T q_t / sqrt(d_key)
        y_t = W_o (silu(G_up G_down x_t) * norm(concat over heads of o_t))
        norm(z) = z / sqrt(mean(z^2) + norm_eps), of all heads together. Row i of S_t is the mean of
        v_1 to v_t weighted by exp of channel i of the keys. Initially as torch.nn.Linear.

    Args:
        n_heads: heads. Default: d_model / 128, or 1.
        d_key, d_value: channels of a head's keys, and values. Default: d_model / n_heads, rounded
            up.
        gate_rank: width of the bottleneck that the gate passes.
        norm_eps: of the norm.

    Departures from the paper:
        Extension beyond the survey. The paper makes this for data of several dimensions; here is
        its one-dimensional recurrence, read forward. The norm has no weights: those of W_o are the
        same.

    Example:
        >>> y, state = LightNet(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["log_norm"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 2, 4]))

    Reference:
        Qin et al., "You Only Scan Once: Efficient Multi-dimension Sequential Modeling with
        LightNet", 2024, arXiv:2405.21022. Key: qin2024you.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(
        transition="diagonal", gate="input", memory="matrix", normaliser="convex", output="gated"
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        gate_rank: int = 128,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.gate_rank, self.norm_eps = d_model, gate_rank, norm_eps
        self.n_heads = max(1, d_model // 128) if n_heads is None else n_heads
        check_positive_int("LightNet", n_heads=self.n_heads, gate_rank=gate_rank)
        check_positive("LightNet", norm_eps=norm_eps)
        even = -(-d_model // self.n_heads)
        self.d_key = even if d_key is None else d_key
        self.d_value = even if d_value is None else d_value
        check_positive_int("LightNet", d_key=self.d_key, d_value=self.d_value)
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_key, self.d_key, self.d_value), **to)
        width = self.n_heads * self.d_value
        self.out = GatedOut(d_model, 1, width, eps=norm_eps, gate_rank=gate_rank, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters()
        self.out.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, and z."""
        memory = real(n_heads=self.n_heads, d_key=self.d_key, d_value=self.d_value)
        log_norm = real(n_heads=self.n_heads, d_key=self.d_key, start=EMPTY)
        return {"memory": memory, "log_norm": log_norm}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        q, k, v = (wide(z) for z in self.heads(x))  # (B, T, H, K or V)
        with without_autocast(x.device):
            g, write, last = softmax_of_past(k, state["log_norm"], reset)
            o, memory = outer_scan(
                F.silu(q), write, v, g, state["memory"], scale=self.d_key**-0.5, reset=reset
            )
        y = self.out(o.flatten(2).unsqueeze(2), x)  # o: (B, T, 1, H V)
        return y, {"memory": memory, "log_norm": last}
