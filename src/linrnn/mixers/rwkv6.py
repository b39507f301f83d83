"""RWKV-6 (Finch) time mixing."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.rwkv import CORRECTION, MatrixRWKV, initial_bonus
from linrnn.nn import LowRank, empty_parameters
from linrnn.nn.channel_mix import initial_decay, initial_mix
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import LARGEST_LOG
from linrnn.ops.conv.past import last_inputs
from linrnn.ops.matrix.log_decays import log_decays
from linrnn.ops.matrix.outer_scan import outer_scan

MIXES = "wkvrg"  # the order of the rows of mu, mix_down and mix_up


class RWKV6(MatrixRWKV):
    r"""RWKV-6 time mixing: linear attention with an input-dependent decay per key channel.

    Equation:
        x^i = x_t + (x_{t-1} - x_t) * (mu_i + tanh(x^0 A_i) B_i)          i = w, k, v, r, g
        x^0 = x_t + (x_{t-1} - x_t) * mu_x                                (token shift)
        r, k, v = W_r x^r, W_k x^k, W_v x^v                               in each head
        w_t = exp(-exp(time_decay + W_up tanh(W_down x^w)))               in (0, 1)^{d_head}
        o_t = (S_{t-1} + diag(u) k_t v_t^T)^T r_t,   S_t = diag(w_t) S_{t-1} + k_t v_t^T
        y_t = W_o (norm(o_t) * silu(W_g x^g))       u = time_first, layer norm of each head
        Initially all other maps are orthogonal, A, B, W_down and W_up uniform within 0.01;
        time_decay, u, mu and the weights of the norm as published, by place in the stack.

    Args:
        n_heads: heads. Default: d_model / 64, or 1.
        d_head: channels of a head's keys, and values. Default: d_model / n_heads, rounded up.
        mix_rank, decay_rank: channels between A_i and B_i, and between W_down and W_up.
        init: "orthogonal", or "published" with W_k and W_g a tenth of that, and W_o, A and W_down
            at zero.
        layer, n_layers: place in the stack, counted from 0, for the initial values.
        norm_eps: of the norm of each head; 64e-5 is 1e-5 of a head that is divided by 8.

    Departures from the paper:
        Orthogonal maps are our start: at the published one the first output is zero, B and W_up
        have no gradient in the first step, and without norms and skips around the layer numbers
        fade. The decays between two steps are those of the steps between, as in the released code;
        the paper's first version prints another range. Channel mixing is `linrnn.nn.ChannelMix`;
        the layer norm before either belongs to the backbone.

    Example:
        >>> y, state = RWKV6(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["shift"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 1, 8]))

    Reference:
        Peng et al., "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence", 2024,
        arXiv:2404.05892. Key: peng2024eagle.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("mix_up",)
    single_precision: ClassVar[tuple[str, ...]] = ("time_decay",)

    choices = Choices(
        transition="diagonal", gate="input", memory="matrix", normaliser="norm", output="gated"
    )

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("time_decay", "time_first")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        mix_rank: int = 32,
        decay_rank: int = 64,
        init: Literal["orthogonal", "published"] = "orthogonal",
        layer: int = 0,
        n_layers: int = 1,
        norm_eps: float = 64e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.init, self.layer, self.n_layers = d_model, init, layer, n_layers
        self.mix_rank, self.decay_rank = mix_rank, decay_rank
        check_positive_int("RWKV6", mix_rank=mix_rank, decay_rank=decay_rank)
        to: Any = {"device": device, "dtype": dtype}
        self._make(n_heads, d_head, norm_eps, **to)
        empty, D, A = empty_parameters(device, dtype), d_model, self.width
        self.gate = Linear(D, A, bias=False, **to)
        self.mu_x, self.mu = empty(D), empty(len(MIXES), D)
        self.mix_down = Linear(D, len(MIXES) * mix_rank, bias=False, **to)
        self.mix_up = empty(len(MIXES), mix_rank, D)
        self.decay = LowRank(D, decay_rank, A, act="tanh", bias=False, **to)
        self.time_decay, self.time_first = empty(A), empty(self.n_heads, self.d_head)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        remaining, D, A = self.remaining, self.d_model, self.width
        soon, now = 1 - initial_mix(D, remaining), 1 - initial_mix(D, 0.5 * remaining)
        self.mu_x.copy_(soon)
        self.mu.copy_(torch.stack([soon, soon, soon - 0.3 * self.depth, now, now]))
        self.time_decay.copy_(initial_decay(A, -6, 5, self.depth))
        self.time_first.copy_(initial_bonus(A, self.depth).view_as(self.time_first))
        self._reset_maps(self.gate)
        self._reset_first(self.mix_down.weight, self.decay.down.weight)
        for second in (self.mix_up, self.decay.up.weight):
            nn.init.uniform_(second, -CORRECTION, CORRECTION)

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        (to_move,) = self._mixes(x, state, reset, self.mu_x[None])
        low_rank = self.mix_down(to_move).tanh().unflatten(-1, (len(MIXES), -1))  # (B, T, 5, rank)
        # (5, B, T, d_model)
        moved = torch.einsum("btir,ird->itbd", low_rank, self.mix_up).transpose(1, 2)
        w, k, v, r, g = self._mixes(x, state, reset, self.mu, moved)  # (B, T, d_model) each
        d = log_decays(self.decay(w), self.time_decay, LARGEST_LOG)  # (B, T, d_model)
        r, k, v = self.receptance(r), self.key(k), self.value(v)
        r, k, v, d = self._heads(r, k, v, d)
        with without_autocast(x.device):
            bonus = wide(self.time_first)
            o, memory = outer_scan(r, k, v, d, state["memory"], bonus=bonus, reset=reset)
        y = self._out(self._gated(o, self.gate(g), "silu"))  # (B, T, d_model)
        return y, {"memory": memory, "shift": last_inputs(x, state["shift"], reset)}
