"""RetNet's multi-scale retention."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, Heads, feature_map, rotate
from linrnn.nn.conv_heads import add_conv, check_conv, conv_spec, convolved
from linrnn.nn.heads import FEATURE_MAPS, check_kv_heads, for_each_head
from linrnn.nn.linear import Linear
from linrnn.ops.attention import positions
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, integer, real


class RetNet(Mixer):
    r"""RetNet (multi-scale retention): linear attention with a fixed decay per head.

    Equation:
        q_t, k_t, v_t = R^t W_q x_t, R^t W_k x_t / sqrt(d_key), W_v x_t        in each head
        or with d_conv R^t silu(conv(W_q x))_t, ..., a depthwise convolution; phi before the turn
        S_t = gamma S_{t-1} + k_t v_t^T,   o_t = S_t^T q_t        S is d_key by d_value
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        gamma = 1 - 2^(-5-h) in head h = 0, 1, ...: a memory of 32, 64, 128, ... steps, or with
        decay "input" gamma_t = sigmoid(W_gamma x_t)^(1/16) in each head: gated retention.
        R turns the pair of channels (2i, 2i+1) by 10000^(-2i/(d_key - 2)) radians, or with turns
        "rotary" by 10000^(-2i/d_key).
        Initially Glorot-uniform with gain 2^(-5/2), W_o with gain 1/2, W_gamma as in torch.nn.

    Args:
        n_heads: heads, with fixed decays at most 19, beyond which gamma rounds to 1. Default:
            d_model / 256, or 1.
        n_kv_heads: heads of keys and values, a divisor of n_heads, each for as many neighbouring
            heads of queries, which keep memories of their own. Default: n_heads.
        d_key: channels of a head's queries and keys, an even number. Default: d_model / n_heads,
            rounded up to an even number.
        d_value: channels of a head's values. Default: twice d_key.
        turns: "published" as in the authors' code, or "rotary", see above.
        decay: "fixed", or "input" as in the lower half of YOCO (Sun et al. 2024, arXiv:2405.05254).
        feature_map: phi: "identity", "relu", "silu", "elu" for elu + 1, "exp", or "softmax" over
            the channels of a head.
        d_conv: taps of a short convolution of queries, keys and values, 1 sees only the current
            step. Default: none.
        conv_bias: add a bias to the convolution.
        gate: "silu" as above, "sigmoid", or "none": y_t = W_o concat of the normed o_t.
        norm: of each head, "rms" as in the public code and above, or "layer" as in the paper, which
            subtracts the mean of o_t first.
        norm_eps: of the norm.

    Departures from the paper:
        Scores are not normalised before the norm of the heads, which cancels it but for norm_eps.
        Norm and feed-forward layer around it belong to the block.

    Example:
        >>> y, state = RetNet(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 8]))

    Reference:
        Sun et al., "Retentive Network: A Successor to Transformer for Large Language Models",
        2023, arXiv:2307.08621. Key: sun2023retentive.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(
        transition="scalar", gate="fixed", memory="matrix", normaliser="norm", output="gated"
    )
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        n_kv_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        turns: Literal["published", "rotary"] = "published",
        decay: Literal["fixed", "input"] = "fixed",
        feature_map: Literal["identity", "relu", "silu", "elu", "exp", "softmax"] = "identity",
        d_conv: int | None = None,
        conv_bias: bool = False,
        gate: Literal["silu", "sigmoid", "none"] = "silu",
        norm: Literal["rms", "layer"] = "rms",
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.norm, self.norm_eps = d_model, norm, norm_eps
        self.n_heads = max(1, d_model // 256) if n_heads is None else n_heads
        check_positive_int("RetNet", n_heads=self.n_heads)
        self.n_kv_heads = self.n_heads if n_kv_heads is None else n_kv_heads
        self.turns, self.feature_map, self.gate = turns, feature_map, gate
        self.decay = decay
        self.d_conv, self.conv_bias = d_conv, conv_bias
        self._check_options()
        self.d_key = 2 * -(-d_model // (2 * self.n_heads)) if d_key is None else d_key
        self.d_value = 2 * self.d_key if d_value is None else d_value
        check_positive_int("RetNet", d_key=self.d_key, d_value=self.d_value)
        too_many = self.n_heads > 19 and decay == "fixed"
        if self.d_key % 2 or too_many or not norm_eps > 0:
            raise ArgumentError(
                "RetNet: d_key must be even, n_heads at most 19 and norm_eps positive, got "
                f"d_key={self.d_key}, n_heads={self.n_heads}, norm_eps={norm_eps}."
            )
        to: Any = {"device": device, "dtype": dtype}
        heads = self.n_heads, self.n_kv_heads, self.n_kv_heads
        self.heads = Heads(d_model, heads, (self.d_key, self.d_key, self.d_value), **to)
        self.conv1d = add_conv(self.heads, d_conv, bias=conv_bias, **to)
        out: Any = {"norm": norm, "eps": norm_eps, "gate": gate}
        self.out = GatedOut(d_model, self.n_heads, self.d_value, **out, **to)
        self.decay_proj = None
        if decay == "input":
            self.decay_proj = Linear(d_model, self.n_heads, bias=False, **to)
        self.reset_parameters()

    def _check_options(self) -> None:
        check_kv_heads("RetNet", self.n_heads, self.n_kv_heads)
        check_in("RetNet", "turns", self.turns, ("published", "rotary"))
        check_in("RetNet", "decay", self.decay, ("fixed", "input"))
        check_in("RetNet", "feature_map", self.feature_map, FEATURE_MAPS)
        check_in("RetNet", "gate", self.gate, ("silu", "sigmoid", "none"))
        check_conv("RetNet", self.d_conv, self.conv_bias)

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters(gain=2**-2.5)
        if self.conv1d is not None:
            self.conv1d.reset_parameters()
        if self.out.gate_proj is not None:
            nn.init.xavier_uniform_(self.out.gate_proj.weight, 2**-2.5)
        nn.init.xavier_uniform_(self.out.out_proj.weight, 0.5)
        if self.decay_proj is not None:
            self.decay_proj.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, the steps since the last reset, what a convolution saw."""
        memory = real(n_heads=self.n_heads, d_key=self.d_key, d_value=self.d_value)
        return {"memory": memory, "position": integer(), **conv_spec(self.conv1d)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        position = positions(state["position"], x.shape[1], reset)
        proj = self.heads.proj
        z, past = convolved(self.conv1d, proj(x.to(proj.weight.dtype)), state, reset)
        q, k, v = (wide(part) for part in self.heads.split(z))  # (B, T, H or G, K or V)
        q, k = (feature_map(self.feature_map, part) for part in (q, k))
        q, k = (rotate(part, position, endpoint=self.turns == "published") for part in (q, k))
        k, v = (for_each_head(part, self.n_heads) for part in (k, v))  # (B, T, H, K or V)
        g = self._log_decays(x)  # (H,)
        with without_autocast(x.device):
            o, memory = outer_scan(q, k * self.d_key**-0.5, v, g, state["memory"], reset=reset)
        return self.out(o, x), {"memory": memory, "position": position[:, -1] + 1, **past}

    def _log_decays(self, x: Tensor) -> Tensor:
        """Log decays of each head (H,), or of each step too (B, T, H)."""
        if self.decay_proj is not None:
            return F.logsigmoid(wide(self.decay_proj(x.to(self.decay_proj.weight.dtype)))) / 16
        head = torch.arange(self.n_heads, dtype=torch.float64, device=x.device)
        return torch.log1p(-(2 ** (-5 - head)))
