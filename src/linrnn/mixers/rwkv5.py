"""RWKV-5 (Eagle) time mixing."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.rwkv import MatrixRWKV, initial_bonus
from linrnn.nn import bounded_exp, empty_parameters
from linrnn.nn.channel_mix import initial_decay, initial_mix
from linrnn.nn.linear import Linear
from linrnn.ops.conv.past import last_inputs
from linrnn.ops.matrix.outer_scan import outer_scan


class RWKV5(MatrixRWKV):
    r"""RWKV-5 time mixing: linear attention with a learned, fixed decay per key channel.

    Equation:
        x^i = mu_i * x_t + (1 - mu_i) * x_{t-1}                   i = r, k, v, g (token shift)
        r, k, v = W_r x^r, W_k x^k, W_v x^v                       in each head
        o_t = (S_{t-1} + diag(u) k_t v_t^T)^T r_t,   S_t = diag(w) S_{t-1} + k_t v_t^T
        y_t = W_o (norm(o_t) * silu(W_g x^g))                     layer norm of each head
        w = exp(-exp(time_decay)) in (0, 1), u = time_first, a bonus for the current step
        Initially all maps are orthogonal; time_decay, u, mu and the weights of the norm as
        published, by place in the stack.

    Args:
        n_heads: heads. Default: d_model / 64, or 1.
        d_head: channels of a head's keys, and values. Default: d_model / n_heads, rounded up.
        init: "orthogonal", or "published" with W_k and W_g a tenth of that, and W_o at zero.
        layer, n_layers: place in the stack, counted from 0, for the initial values.
        norm_eps: of the norm of each head; 64e-5 is 1e-5 of a head that is divided by 8.

    Departures from the paper:
        Orthogonal maps are our start: at the published one the first output is zero, and without
        norms and skips around the layer numbers fade. The bonus is added to the memory before the
        step, as in the paper. Channel mixing is `linrnn.nn.ChannelMix`, of 4 d_model channels and
        not 3.5; the layer norm before either belongs to the backbone.

    Example:
        >>> y, state = RWKV5(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["shift"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 1, 8]))

    Reference:
        Peng et al., "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence", 2024,
        arXiv:2404.05892. Key: peng2024eagle.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("time_decay",)

    choices = Choices(
        transition="diagonal", gate="learned", memory="matrix", normaliser="norm", output="gated"
    )

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("time_decay", "time_first")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        init: Literal["orthogonal", "published"] = "orthogonal",
        layer: int = 0,
        n_layers: int = 1,
        norm_eps: float = 64e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.init, self.layer, self.n_layers = d_model, init, layer, n_layers
        to: Any = {"device": device, "dtype": dtype}
        self._make(n_heads, d_head, norm_eps, **to)
        empty = empty_parameters(device, dtype)
        self.gate = Linear(d_model, self.width, bias=False, **to)
        self.mu_r, self.mu_k, self.mu_v, self.mu_g = (empty(d_model) for _ in range(4))
        self.time_decay, self.time_first = (empty(self.n_heads, self.d_head) for _ in range(2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        remaining, D, A = self.remaining, self.d_model, self.width
        self.mu_k.copy_(initial_mix(D, remaining))
        self.mu_v.copy_(initial_mix(D, remaining) + 0.3 * self.depth)
        self.mu_r.copy_(initial_mix(D, 0.5 * remaining))
        self.mu_g.copy_(self.mu_r)
        self.time_decay.copy_(initial_decay(A, -6, 5, self.depth).view_as(self.time_decay))
        self.time_first.copy_(initial_bonus(A, self.depth).view_as(self.time_first))
        self._reset_maps(self.gate)

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        mu = 1 - torch.stack([self.mu_r, self.mu_k, self.mu_v, self.mu_g])  # (4, d_model)
        r, k, v, g = self._mixes(x, state, reset, mu)  # (B, T, d_model) each
        r, k, v = self._heads(self.receptance(r), self.key(k), self.value(v))
        with without_autocast(x.device):
            decay, bonus = -bounded_exp(wide(self.time_decay)), wide(self.time_first)
            o, memory = outer_scan(r, k, v, decay, state["memory"], bonus=bonus, reset=reset)
        y = self._out(self._gated(o, self.gate(g), "silu"))  # (B, T, d_model)
        return y, {"memory": memory, "shift": last_inputs(x, state["shift"], reset)}
