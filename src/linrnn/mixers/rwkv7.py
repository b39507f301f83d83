"""RWKV-7 (Goose) time mixing."""

from math import exp, sqrt
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.signals import check_receives
from linrnn.mixers._families.rwkv import MatrixRWKV, ready
from linrnn.nn import LowRank, empty_parameters
from linrnn.nn.channel_mix import INITS, fractions, initial_mix, orthogonal
from linrnn.ops.conv.past import last_inputs
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.ops.matrix.low_rank_keys import low_rank_keys
from linrnn.state_spec import Part, real
from linrnn.typing import Signals

POWERS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)  # of the initial mu of r, w, k, v, a, g


class RWKV7(MatrixRWKV):
    r"""RWKV-7 time mixing: a delta rule with input-dependent decay and rate per channel.

    Equation:
        x^i = x_t + (x_{t-1} - x_t) * mu_i                     i = r, w, k, v, a, g (token shift)
        r, k, v = W_r x^r, W_k x^k, W_v x^v                    in each head
        a = sigmoid(a_0 + A_2 A_1 x^a),   g = G_2 sigmoid(G_1 x^g)
        w = exp(-exp(-1/2) sigmoid(w_0 + D_2 tanh(D_1 x^w)))   in (0.545, 1)
        v <- v + (v' - v) * sigmoid(v_0 + V_2 V_1 x^v)         after the first layer of a stack
        c = k * k_k scaled to length 1,   k' = k * (1 + (a - 1) * k_a)
        S_t = (diag(w) - (c * a) c^T) S_{t-1} + k' v^T,   o_t = S_t^T r
        y_t = W_o ((norm(o_t) + (sum r * k' * r_k) v) * g)     layer norm and sum of each head
        v' is v of the first RWKV-7 layer of the stack at the same step, which that hands on.
        Initially D_2, A_2 and V_2 are orthogonal with gain 0.1; vectors as published, by place in
        the stack; and all other maps
        "orthogonal"  orthogonal, but for D_1, A_1, V_1 and G_1, uniform within 0.01
        "published"   W_r and W_v uniform within 1/2, W_k within 1/20 of d_model^(-1/2), G_2
                      orthogonal with gain 0.1, W_o, D_1, A_1, V_1 and G_1 zero
        "trainer"     as the authors' training program starts them anew: like "published", but W_r
                      and W_v orthogonal, and W_k with gain 0.1

    Args:
        n_heads: heads. Default: d_model / 64, or 1.
        d_head: channels of a head's keys, and values. Default: d_model / n_heads, rounded up.
        decay_rank: channels between D_1 and D_2. Default: 2.5 sqrt(d_model), rounded to a multiple
            of 32 that is not 0.
        rate_rank: channels between A_1 and A_2. Default: as decay_rank.
        gate_rank: channels between G_1 and G_2. Default: 5 sqrt(d_model), rounded likewise.
        value_rank: channels between V_1 and V_2; 0 leaves v as it is in every layer. Default: 1.7
            sqrt(d_model), rounded likewise.
        init: "orthogonal", "published" or "trainer", as above.
        layer, n_layers: place in the stack, counted from 0, for the initial values.
        receives: ``("v_first",)`` in a layer that a stack hands v'. See `Mixer.receives`.
        norm_eps: of the norm of each head; 64e-5 is 1e-5 of a head that is divided by 8.

    Departures from the paper:
        Extension beyond the survey. A layer alone is the first of its stack. The published start
        makes nothing of its input at first, gives D_2, A_2 and V_2 no gradient, and needs the norms
        and skips around it: without them numbers fade within two layers. Channel mixing without a
        receptance, the layer norms and the start of both ends belong to the backbone: ``block=
        "relu_mix"``, ``norm="layer"``, ``encoder_norm=True``, ``final_norm=True``,
        ``head_bias=False`` and ``ends_init="rwkv"`` are the published model.

    Example:
        >>> y, state = RWKV7(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["shift"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 1, 8]))

    Reference:
        Peng et al., "RWKV-7 'Goose' with Expressive Dynamic State Evolution", 2025,
        arXiv:2503.14456. Key: peng2025goose.
    """

    inits: ClassVar[tuple[str, ...]] = (*INITS, "trainer")
    weight_parameters: ClassVar[tuple[str, ...]] = ()

    choices = Choices(
        transition="decay and delta",
        gate="input",
        memory="matrix",
        normaliser="norm",
        output="gated",
    )

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("decay.up.bias", "rate.up.bias")
    carries: ClassVar[tuple[str, ...]] = ("v_first",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        decay_rank: int | None = None,
        rate_rank: int | None = None,
        gate_rank: int | None = None,
        value_rank: int | None = None,
        init: Literal["orthogonal", "published", "trainer"] = "orthogonal",
        layer: int = 0,
        n_layers: int = 1,
        receives: tuple[str, ...] = (),
        norm_eps: float = 64e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.init, self.layer, self.n_layers = d_model, init, layer, n_layers
        self.decay_rank = _rank(d_model, 2.5) if decay_rank is None else decay_rank
        self.rate_rank = _rank(d_model, 2.5) if rate_rank is None else rate_rank
        self.gate_rank = _rank(d_model, 5) if gate_rank is None else gate_rank
        ranks = {"decay_rank": self.decay_rank, "rate_rank": self.rate_rank}
        check_positive_int("RWKV7", **ranks, gate_rank=self.gate_rank)
        self.value_rank = _rank(d_model, 1.7) if value_rank is None else value_rank
        if self.value_rank != 0:
            check_positive_int("RWKV7", value_rank=self.value_rank)
        check_receives("RWKV7", receives, self.carries)
        self.receives = tuple(receives) if self.value_rank else ()
        to: Any = {"device": device, "dtype": dtype}
        self._make(n_heads, d_head, norm_eps, **to)
        empty, A = empty_parameters(device, dtype), self.width
        self.mu = empty(len(POWERS), d_model)
        self.decay = LowRank(d_model, self.decay_rank, A, act="tanh", **to)
        self.rate = LowRank(d_model, self.rate_rank, A, **to)
        self.gate = LowRank(d_model, self.gate_rank, A, act="sigmoid", bias=False, **to)
        self.residual = LowRank(d_model, self.value_rank, A, **to) if self.receives else None
        self.k_k, self.k_a, self.r_k = empty(A), empty(A), empty(self.n_heads, self.d_head)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        D, place = self.d_model, fractions(self.width)
        mixes = [1 - initial_mix(D, power * self.remaining) for power in POWERS]
        self.mu.copy_(torch.stack(mixes))
        s = (2 * fractions(self.d_head) - 1).repeat(self.n_heads)
        turn = s * s.abs()  # the ends of a head forget slowest and fastest
        decay = -6 + 6 * place ** (1 + self.depth**0.3)
        self.decay.up.bias.copy_(decay + 0.5 + 2.5 * turn)
        self.rate.up.bias.copy_(-0.19 + 0.3 * turn + 0.4 * (place - 0.5))
        self.k_k.copy_(0.71 - 0.1 * (place - 0.5))
        nn.init.constant_(self.k_a, 1.02)
        nn.init.constant_(self.r_k, -0.04)
        self._reset_first(*(part.down.weight for part in (self.decay, self.rate, self.gate)))
        small = 1.0 if self.init == "orthogonal" else 0.1
        orthogonal(self.decay.up.weight, 0.1)
        orthogonal(self.rate.up.weight, 0.1)
        orthogonal(self.gate.up.weight, small)
        for linear, size in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5)):
            if self.init == "published":
                nn.init.uniform_(linear.weight, -size * D**-0.5, size * D**-0.5)
            else:
                orthogonal(linear.weight, small if linear is self.key else 1.0)
        if self.residual is not None:
            self.residual.up.bias.copy_(0.73 - 0.4 * (place - 0.5))
            self._reset_first(self.residual.down.weight)
            orthogonal(self.residual.up.weight, 0.1)
        self._reset_output()

    def signal_spec(self) -> dict[str, Part]:
        """See `Mixer.signal_spec`: the values of the first layer, of all heads."""
        return {"v_first": real(width=self.width)}

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, signals: Signals
    ) -> tuple[Tensor, Any, Signals]:
        r, w, k, v, a, g = self._mixes(x, state, reset, self.mu)  # (B, T, d_model) each
        v, outgoing = self._values(v, signals)
        r, v = ready(self.receptance(r)), ready(v)
        keys = self.key(k), self.rate(a), self.decay(w)  # (B, T, d_model) each
        options: Any = {"heads": self.n_heads, "scale": -exp(-0.5), "dtype": r.dtype}
        with without_autocast(x.device):
            k, a, b, decay = low_rank_keys(*keys, self.k_k, self.k_a, **options)
            heads = self._heads(r, k, v.to(r.dtype), decay, a, b)  # (B, T, H, d_head) each
            o, memory = _recall(heads, state["memory"], reset)
        # (B, T, d_model)
        y = self._out(self._gated(o, self.gate(g), "none", (r, k, v, self.r_k.flatten())))
        return y, {"memory": memory, "shift": last_inputs(x, state["shift"], reset)}, outgoing

    def _values(self, x: Tensor, signals: Signals) -> tuple[Tensor, Signals]:
        """The values (batch, time, width), and those that later layers are handed."""
        v = self.value(x)  # (B, T, d_model)
        if self.residual is None:
            return v, {"v_first": v}
        way = wide(signals["v_first"]) - wide(v)
        return wide(v) + way * wide(self.residual(x)).sigmoid(), {}


def _recall(
    heads: tuple[Tensor, ...], memory: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Reads of receptance, keys, values, decays and both factors, and the memories after them."""
    r, k, v, decay, a, b = heads
    return delta_scan(r, k, v, None, decay, memory, a=a, b=b, reset=reset)


def _rank(d_model: int, factor: float) -> int:
    return max(1, round(factor * sqrt(d_model) / 32)) * 32
