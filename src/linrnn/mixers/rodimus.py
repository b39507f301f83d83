"""Rodimus: one wide head whose decay and write strength have a temperature of their own."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import CausalConv, LowRank, empty_parameters, l2_normalise
from linrnn.nn.head_norm import head_norm
from linrnn.nn.linear import Linear
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


class Rodimus(Mixer):
    r"""Rodimus: a one-head matrix memory with input-dependent decay and write strength.

    Equation:
        u_t, z_t = W_u x_t, W_z x_t                                     in R^d_inner
        c_t = silu(conv(u)_t),  the convolution depthwise, with bias
        q_t, k_t = W_q c_t, W_k c_t                                     in R^d_state
        e_t = softplus(W_e c_t + b_e),   tau_t = sigmoid(W_tau c_t + b_tau)
        v_t = sigmoid(V_up V_down u_t + b_v) * u_t
        S_t = diag(exp(-tau_t * e_t)) S_{t-1} + (e_t^tau_t * k_t / |k_t|) v_t^T
        o_t = S_t^T q_t / sqrt(d_state) + rho * c_t
        y_t = W_o norm(o_t * silu(z_t)),   norm(a) = a / sqrt(mean(a^2) + norm_eps)
        Initially rho is 1, and the rest as torch.nn.Linear and torch.nn.Conv1d.

    Args:
        d_inner: channels of the head's values. Default: 2 d_model.
        d_state: channels of its keys.
        gate_rank: width of the bottleneck of v. Default: d_model / 64, and at least 16.
        d_conv: taps of the convolution, 1 sees only the current step.
        norm_eps: of the norm.

    Departures from the paper:
        Extension beyond the survey. The scale of the queries is that of the public kernels. Keys
        are divided by sqrt(|k|^2 + 1e-24), which is smooth at zero. The norm has no weights: those
        of W_o are the same. Rodimus+ adds attention in a window: take a pattern of mixers.

    Example:
        >>> y, state = Rodimus(d_model=8, d_state=4)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 4, 16]), torch.Size([2, 3, 16]))

    Reference:
        He et al., "Rodimus*: Breaking the Accuracy-Efficiency Trade-Off with Efficient
        Attentions", ICLR 2025, arXiv:2410.06577. Key: he2025rodimus.
    """

    family: ClassVar[str] = "linear-attention"
    weight_parameters: ClassVar[tuple[str, ...]] = ()
    widening: ClassVar[bool] = True
    choices = Choices(
        transition="diagonal", gate="input", memory="matrix", normaliser="norm", output="gated"
    )

    def __init__(
        self,
        d_model: int,
        *,
        d_inner: int | None = None,
        d_state: int = 64,
        gate_rank: int | None = None,
        d_conv: int = 4,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.norm_eps = d_model, d_state, d_conv, norm_eps
        self.d_inner = 2 * d_model if d_inner is None else d_inner
        self.gate_rank = max(d_model // 64, 16) if gate_rank is None else gate_rank
        sizes = {"d_inner": self.d_inner, "d_state": d_state, "d_conv": d_conv}
        check_positive_int("Rodimus", **sizes, gate_rank=self.gate_rank)
        check_positive("Rodimus", norm_eps=norm_eps)
        to: Any = {"device": device, "dtype": dtype}
        self.in_proj = Linear(d_model, 2 * self.d_inner, bias=False, **to)  # u, z
        self.conv1d = CausalConv(self.d_inner, d_conv, silu=True, **to)
        self.qk_proj = Linear(self.d_inner, 2 * d_state, bias=False, **to)
        self.gates = Linear(self.d_inner, 2 * d_state, **to)  # e, tau
        self.value_gate = LowRank(self.d_inner, self.gate_rank, self.d_inner, **to)
        self.rho = empty_parameters(device, dtype)(self.d_inner)
        self.out_proj = Linear(self.d_inner, d_model, bias=False, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        parts = (self.in_proj, self.conv1d, self.qk_proj, self.gates, self.value_gate)
        for part in (*parts, self.out_proj):
            part.reset_parameters()
        nn.init.ones_(self.rho)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, and what the convolution saw last."""
        memory = real(d_state=self.d_state, d_inner=self.d_inner)
        return {"memory": memory, "conv": self.conv1d.state_spec()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        dtype = self.in_proj.weight.dtype
        u, z = self.in_proj(x.to(dtype)).chunk(2, -1)  # (B, T, d_inner)
        c, past = self.conv1d(u, state["conv"], reset)
        q, k = wide(self.qk_proj(c)).chunk(2, -1)  # (B, T, d_state)
        e, tau = wide(self.gates(c)).chunk(2, -1)  # (B, T, d_state) each
        e, tau = F.softplus(e), tau.sigmoid()
        v = wide(self.value_gate(u)).sigmoid() * wide(u)
        k = l2_normalise(k, 1e-24) * (e.clamp(min=torch.finfo(e.dtype).tiny).log() * tau).exp()
        heads = (q[:, :, None], k[:, :, None], v[:, :, None])  # (B, T, 1, d_state or d_inner)
        g, memory = -(e * tau)[:, :, None], state["memory"][:, None]
        with without_autocast(x.device):
            o, memory = outer_scan(*heads, g, memory, scale=self.d_state**-0.5, reset=reset)
        o = (o[:, :, 0] + wide(self.rho) * wide(c)) * F.silu(wide(z))  # (B, T, d_inner)
        y = self.out_proj(head_norm(o, "rms", self.norm_eps).to(dtype))
        return y, {"memory": memory[:, 0], "conv": past}
