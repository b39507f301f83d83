"""Gated linear attention."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import autocast_dtype, wide, without_autocast
from linrnn.errors import check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, Heads, LowRank, default_heads, feature_map
from linrnn.nn.conv_heads import add_conv, check_conv, conv_spec, convolved
from linrnn.nn.heads import FEATURE_MAPS, check_kv_heads, for_each_head
from linrnn.ops.half_linear import half_cast
from linrnn.ops.matrix.log_sigmoid import log_sigmoid
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


class GLA(Mixer):
    r"""Gated linear attention (GLA): an input-dependent decay per key channel of the memory.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                         in each head
        or with d_conv silu(conv(W_q x)), ..., a depthwise convolution; then phi of q_t and k_t
        alpha_t = sigmoid(W_2 W_1 x_t + b)^(1 / tau)        in (0, 1)^d_key, W_1 of gate_rank rows
        S_t = diag(alpha_t) S_{t-1} + k_t v_t^T,   o_t = S_t^T q_t / sqrt(d_key)
        y_t = W_o (silu(W_g x_t + b_g) * concat over heads of norm(o_t))
        W_q, W_k, W_1 and W_2 are initially Glorot-uniform with gain 2^(-5/2), the rest as in
        `torch.nn.Linear`: alpha starts near 0.5^(1/16) = 0.958, a memory of some 24 steps.

    Args:
        n_heads: heads. Default: 4, fewer if they had less than 16 of d_model channels each.
        n_kv_heads: heads of keys, values and decays, a divisor of n_heads, each with one memory
            that as many neighbouring heads of queries read. Default: n_heads.
        d_key: channels of a head's queries and keys. Default: d_model / (2 n_heads), rounded up.
        d_value: channels of a head's values. Default: d_model / n_heads, rounded up.
        gate_rank: width of the bottleneck that decays pass.
        tau: temperature of the decays; larger ones remember longer.
        feature_map: phi: "identity", "relu", "silu", "elu" for elu + 1, "exp", or "softmax" over
            the channels of a head.
        d_conv: taps of a short convolution of queries, keys and values, 1 sees only the current
            step. Default: none.
        conv_bias: add a bias to the convolution.
        gate: "silu" as above, "sigmoid", or "none": y_t = W_o concat of the normed o_t.
        gate_bias: b_g.
        norm: of each head, "layer" as in the paper or "rms" as in its later code.
        norm_eps: of the norm.

    Departures from the paper:
        The norm has no weights: W_o follows, with nothing but products between.

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
        n_kv_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        gate_rank: int = 16,
        tau: float = 16.0,
        feature_map: Literal["identity", "relu", "silu", "elu", "exp", "softmax"] = "identity",
        d_conv: int | None = None,
        conv_bias: bool = False,
        gate: Literal["silu", "sigmoid", "none"] = "silu",
        gate_bias: bool = True,
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
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.tau, self.norm, self.norm_eps = tau, norm, norm_eps
        self.feature_map, self.gate, self.gate_bias = feature_map, gate, gate_bias
        self.d_conv, self.conv_bias = d_conv, conv_bias
        check_kv_heads("GLA", n_heads, self.n_kv_heads)
        check_in("GLA", "feature_map", feature_map, FEATURE_MAPS)
        check_in("GLA", "gate", gate, ("silu", "sigmoid", "none"))
        check_conv("GLA", d_conv, conv_bias)
        self.d_key = -(-d_model // (2 * n_heads)) if d_key is None else d_key
        self.d_value = -(-d_model // n_heads) if d_value is None else d_value
        check_positive_int("GLA", d_key=self.d_key, d_value=self.d_value)
        to: Any = {"device": device, "dtype": dtype}
        heads, sizes = (n_heads, *2 * [self.n_kv_heads]), (self.d_key, self.d_key, self.d_value)
        self.heads = Heads(d_model, heads, sizes, **to)
        self.conv1d = add_conv(self.heads, d_conv, bias=conv_bias, **to)
        self.decay = LowRank(d_model, gate_rank, self.n_kv_heads * self.d_key, **to)
        out: Any = {"norm": norm, "eps": norm_eps, "gate": gate, "gate_bias": gate_bias}
        self.out = GatedOut(d_model, n_heads, self.d_value, **out, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.heads.proj, self.conv1d, self.decay.up, self.out):
            if part is not None:
                part.reset_parameters()
        q, k, _ = self.heads.rows()
        for weight in (q, k, self.decay.down.weight, self.decay.up.weight):
            nn.init.xavier_uniform_(weight, 2**-2.5)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, and what a convolution of q, k and v saw last."""
        sizes = {"n_kv_heads": self.n_kv_heads, "d_key": self.d_key, "d_value": self.d_value}
        return {"memory": real(**sizes), **conv_spec(self.conv1d)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        H, G = self.n_heads, self.n_kv_heads
        proj = self.heads.proj
        x = half_cast(x, autocast_dtype(proj.weight))  # once for all products
        z, past = convolved(self.conv1d, proj(x), state, reset)
        q, k, v = self.heads.split(z)  # (B, T, H or G, K or V)
        if self.feature_map != "identity":  # the op reads others as they are
            q, k = (feature_map(self.feature_map, wide(part)) for part in (q, k))
        g = log_sigmoid(self.decay(x), 1 / self.tau).unflatten(-1, (G, -1))  # (B, T, G, K)
        k, v, g = (for_each_head(part, H) for part in (k, v, g))  # (B, T, H, K or V)
        memory = for_each_head(state["memory"], H, 1)  # (B, H, K, V)
        with without_autocast(x.device):
            o, memory = outer_scan(q, k, v, g, memory, scale=self.d_key**-0.5, reset=reset)
        # heads that share keys, values and decays hold the same
        return self.out(o, x), {"memory": memory if G == H else memory[:, :: H // G], **past}
