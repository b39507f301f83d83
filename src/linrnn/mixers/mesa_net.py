"""MesaNet: at every step the least-squares map from keys to values, applied to a query."""

from math import expm1, log
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import ConvHeads, GatedOut, empty_parameters, l2_normalise
from linrnn.nn.conv_heads import check_conv, conv_spec
from linrnn.nn.linear import Linear
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.ops.matrix.ridge_solve import ridge_solve
from linrnn.state_spec import Part, real


class MesaNet(Mixer):
    r"""MesaNet: reads the least-squares fit to all keys and values, solved at each step.

    Equation:
        q, k = silu(conv(W_q x)), silu(conv(W_k x)), then scaled to length 1;  v = W_v x
        a_t, beta_t = sigmoid(w_a x_t + b_a), sigmoid(w_b x_t + b_b)             in each head
        H_t = a_t H_{t-1} + beta_t k_t k_t^T                            (d_key, d_key)
        G_t = a_t G_{t-1} + beta_t k_t v_t^T                            (d_key, d_value)
        o_t = G_t^T (H_t + diag(Lambda))^-1 q_t,   Lambda = ridge_min + softplus(ridge)
        y_t = W_o concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps)
        G^T (H + Lambda)^-1 is the map of keys to values with the least squared error, weighted by
        beta and forgetting, and penalised by Lambda. It is found by conjugate gradients. Initially
        Lambda is 1, and everything else as in torch.nn.Linear and torch.nn.Conv1d.

    Args:
        n_heads: heads. Default: d_model / 128, at least one.
        d_key, d_value: channels of a head's keys, and values. Default: d_model / n_heads, rounded
            up.
        iterations: of conjugate gradients, at most. As many as d_key solve the system but for
            rounding, and mostly far fewer do.
        ridge_min: the least Lambda, positive.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. Gradients are those of the exact solution, however many
        iterations there are. Nothing is added to a denominator: a system that is solved to the
        last digit stays as it is. The norm of the heads has no weight: that of W_o is the same.

    Example:
        >>> y, state = MesaNet(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape  # H and G side by side
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 8]))

    Reference:
        von Oswald et al., "MesaNet: Sequence Modeling by Locally Optimal Test-Time Training",
        2025, arXiv:2506.05233. Key: vonoswald2025mesanet.
    """

    family: ClassVar[str] = "linear-attention"
    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("ridge",)
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("ridge",)
    choices = Choices(transition="scalar", gate="input", memory="matrix", normaliser="norm")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        iterations: int = 30,
        ridge_min: float = 0.25,
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.iterations, self.ridge_min = d_model, iterations, ridge_min
        self.d_conv, self.conv_bias, self.norm_eps = d_conv, conv_bias, norm_eps
        self.n_heads = max(1, d_model // 128) if n_heads is None else n_heads
        check_positive_int("MesaNet", n_heads=self.n_heads, iterations=iterations)
        self.d_key = -(-d_model // self.n_heads) if d_key is None else d_key
        self.d_value = -(-d_model // self.n_heads) if d_value is None else d_value
        check_positive_int("MesaNet", d_key=self.d_key, d_value=self.d_value)
        check_positive("MesaNet", ridge_min=ridge_min, norm_eps=norm_eps)
        check_conv("MesaNet", d_conv, conv_bias)
        to: Any = {"device": device, "dtype": dtype}
        conv: Any = {"d_conv": d_conv, "conv_bias": conv_bias}
        self.qk = ConvHeads(d_model, self.n_heads, (self.d_key,) * 2, **conv, **to)
        self.v_proj = Linear(d_model, self.n_heads * self.d_value, bias=False, **to)
        self.gates = Linear(d_model, 2 * self.n_heads, **to)  # a, beta
        self.ridge = empty_parameters(device, dtype)(self.n_heads, self.d_key)
        norm: Any = {"eps": norm_eps, "gate": "none"}
        self.out = GatedOut(d_model, self.n_heads, self.d_value, **norm, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.qk, self.v_proj, self.gates, self.out):
            part.reset_parameters()
        self.ridge.fill_(log(expm1(max(1 - self.ridge_min, 1e-3))))

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: H and G side by side, and what the convolution saw last."""
        columns = self.d_key + self.d_value
        memory = real(n_heads=self.n_heads, d_key=self.d_key, columns=columns)
        return {"memory": memory, **conv_spec(self.qk.conv1d)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        x = x.to(self.v_proj.weight.dtype)
        (q, k), past = self.qk.read(x, state, reset)
        q, k = l2_normalise(wide(q)), l2_normalise(wide(k))  # (B, T, heads, K)
        v = wide(self.v_proj(x)).unflatten(-1, (self.n_heads, -1))  # (B, T, heads, V)
        a, beta = wide(self.gates(x)).chunk(2, -1)  # (B, T, heads)
        g, beta = F.logsigmoid(a), beta.sigmoid()
        values = beta[..., None] * torch.cat([k, v], -1)  # (B, T, heads, K + V)
        memory, ridge = state["memory"], F.softplus(wide(self.ridge)) + self.ridge_min
        with without_autocast(x.device):
            H = memory[..., : self.d_key]  # (B, heads, K, K)
            solution, *_ = ridge_solve(q, k, beta, g, ridge, H, reset, self.iterations)
            o, memory = outer_scan(solution, k, values, g, memory, reset=reset)
        return self.out(o[..., self.d_key :], x), {"memory": memory, **past}
