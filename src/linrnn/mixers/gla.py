"""Gated linear attention."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, Heads, LowRank, default_heads
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


class GLA(Mixer):
    r"""Gated linear attention: every channel of a key forgets at a rate that the input chooses.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                         in each head
        alpha_t = sigmoid(W_2 W_1 x_t + b)^(1 / tau)        in (0, 1)^d_key, W_1 of gate_rank rows
        S_t = diag(alpha_t) S_{t-1} + k_t v_t^T,   o_t = S_t^T q_t / sqrt(d_key)
        y_t = W_o (silu(W_g x_t + b_g) * concat over heads of norm(o_t))
        W_q, W_k, W_1 and W_2 are initially Glorot-uniform with gain 2^(-5/2), the rest as in
        `torch.nn.Linear`: alpha starts near 0.5^(1/16) = 0.958, a memory of some 24 steps.

    Args:
        n_heads: heads. Default: 4, fewer if they had less than 16 of d_model channels each.
        d_key: channels of a head's queries and keys. Default: d_model / (2 n_heads), rounded up.
        d_value: channels of a head's values. Default: d_model / n_heads, rounded up.
        gate_rank: width of the bottleneck that decays pass.
        tau: temperature of the decays; larger ones remember longer.
        norm: of each head, "layer" as in the paper or "rms" as in its later code.
        norm_eps: of the norm.

    Departures from the paper:
        The norm has no weights of its own: W_o follows, with nothing but products between.

    Example:
        >>> y, state = GLA(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 2, 4]))

    Reference:
        Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training", 2023,
        arXiv:2312.06635. Key: yang2023gated.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(
        transition="diagonal", gate="input", memory="matrix", normaliser="norm", output="gated"
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        gate_rank: int = 16,
        tau: float = 16.0,
        norm: Literal["layer", "rms"] = "layer",
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        n_heads = default_heads(d_model, 4) if n_heads is None else n_heads
        check_positive_int("GLA", n_heads=n_heads)
        check_positive("GLA", tau=tau, norm_eps=norm_eps)
        self.n_heads, self.gate_rank = n_heads, gate_rank
        self.tau, self.norm, self.norm_eps = tau, norm, norm_eps
        self.d_key = -(-d_model // (2 * n_heads)) if d_key is None else d_key
        self.d_value = -(-d_model // n_heads) if d_value is None else d_value
        check_positive_int("GLA", d_key=self.d_key, d_value=self.d_value)
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, n_heads, (self.d_key, self.d_key, self.d_value), **to)
        self.decay = LowRank(d_model, gate_rank, n_heads * self.d_key, **to)
        self.out = GatedOut(
            d_model, n_heads, self.d_value, norm=norm, eps=norm_eps, gate_bias=True, **to
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for linear in (self.heads.proj, self.decay.up, self.out.gate_proj, self.out.out_proj):
            linear.reset_parameters()
        q, k, _ = self.heads.rows()
        for weight in (q, k, self.decay.down.weight, self.decay.up.weight):
            nn.init.xavier_uniform_(weight, 2**-2.5)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S."""
        return {"memory": real(n_heads=self.n_heads, d_key=self.d_key, d_value=self.d_value)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        q, k, v = (wide(z) for z in self.heads(x))  # (B, T, H, K or V)
        g = F.logsigmoid(wide(self.decay(x))).unflatten(-1, (self.n_heads, -1)) / self.tau
        with without_autocast(x.device):
            o, memory = outer_scan(q, k, v, g, state["memory"], scale=self.d_key**-0.5, reset=reset)
        return self.out(o, x), {"memory": memory}
