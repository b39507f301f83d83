"""Log-linear Gated DeltaNet: the gated delta rule with a memory for each scale of the past."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, wide_sizes
from linrnn.mixers._families.levels import LevelScales, levels_before, levels_spec, unread
from linrnn.mixers._families.log_decay import LogDecay
from linrnn.nn.conv_heads import conv_spec
from linrnn.nn.linear import Linear
from linrnn.ops.matrix.fenwick_scan import fenwick_scan
from linrnn.state_spec import Part


class LogLinearGatedDeltaNet(ConvDelta):
    r"""Log-linear Gated DeltaNet: a delta-rule memory per time scale of the past.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and k then scaled to
        length 1; the convolution is depthwise. In each head
        P_t = exp(g_t) (I - beta_t k_t k_t^T),   S_t^i = sum over the steps j of level i of
        P_t ... P_{j+1} beta_j k_j v_j^T                                   d_key by d_value
        g_t = -exp(A_log) softplus(w_a x_t + dt_bias),   beta_t = beta_max sigmoid(w_b x_t)
        o_t = sum_i lambda_t^i (S_t^i)^T q_t / sqrt(d_key),   lambda = softplus(L * W_l x)
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        The level of step j at step t is 0 for j = t, else the number of binary digits of t xor j,
        at most levels - 1; steps are counted from the last reset. All lambda equal is Gated
        DeltaNet. Initially L = 1, and everything else as there.

    Args:
        n_heads: heads. Default: three quarters of d_model / 256, rounded, or 1.
        key_heads: heads of queries and keys, which n_heads / key_heads heads of values share, each
            with its own memories; a divisor. Default: n_heads.
        d_key: channels of a head's keys. Default: 3/4 d_model / n_heads, rounded up.
        d_value: channels of a head's values. Default: twice d_key.
        levels: memories of a head. The last holds everything before the current 2^(levels - 2)
            steps; the default tells up to 2^14 steps apart.
        beta_max: largest rate, above 0 and at most 2, with which a memory can change its sign.
        gate: "silu" as above, "sigmoid", or "none": y_t = W_o concat of the normed o_t.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. The last level takes what there are no more levels for. A
        sequence is read in chunks, whose levels are products of matrices; with resets, and rows
        at different positions, by one scan for each level.

    Example:
        >>> layer = LogLinearGatedDeltaNet(d_model=8, n_heads=2, levels=8)
        >>> y, state = layer(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["position"]
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 8, 3, 6]), tensor([100, 100]))

    Reference:
        Guo et al., "Log-Linear Attention", 2025, arXiv:2506.04761. Key: guo2025log.
    """

    choices = Choices(
        transition="decay and delta",
        gate="input",
        memory="matrix",
        normaliser="norm",
        output="gated",
    )

    recurrent_parameters: ClassVar[tuple[str, ...]] = (
        "decay.A_log",
        "decay.dt_bias",
        "scales.L",
    )
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        key_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        levels: int = 15,
        beta_max: float = 1.0,
        gate: Literal["silu", "sigmoid", "none"] = "silu",
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = "LogLinearGatedDeltaNet"
        self.d_model, self.beta_max, self.gate, self.levels = d_model, beta_max, gate, levels
        self.d_conv, self.conv_bias, self.norm_eps = d_conv, conv_bias, norm_eps
        check_in(where, "gate", gate, ("silu", "sigmoid", "none"))
        check_positive_int(where, levels=levels)
        self.n_heads, self.d_key, self.d_value = wide_sizes(where, d_model, n_heads, d_key, d_value)
        self.key_heads = self.n_heads if key_heads is None else key_heads
        to: Any = {"device": device, "dtype": dtype}
        self._make(self.key_heads, {"eps": norm_eps, "gate": gate}, **to)
        self.decay = LogDecay(where, d_model, self.n_heads, **to)
        self.level_proj = Linear(d_model, self.n_heads * levels, bias=False, **to)
        self.scales = LevelScales(where, self.n_heads, levels, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        self.level_proj.reset_parameters()
        self.scales.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: all levels, steps read, and what the convolution saw last."""
        levels = levels_spec(self.n_heads, self.levels, d_key=self.d_key, d_value=self.d_value)
        return {**levels, **conv_spec(self.qkv.conv1d)}

    def _start(self, state: Any, x: Tensor, spec: Any) -> Any:
        start = super()._start(state, x, spec)
        return unread(start, x) if state is None else start

    def _recall(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self._activated(q, k, v)  # (B, T, H, d_key), (B, T, H, d_key), (B, T, H, d_value)
        beta, g = self._rate(x, v), self._log_decay(x)  # each (B, T, H)
        scales = self.scales(self.level_proj(x).unflatten(-1, (self.n_heads, -1)))
        options: Any = {"beta": beta, "scale": self.d_key**-0.5, "reset": reset}
        with without_autocast(x.device):
            o, memory, position = fenwick_scan(q, k, v, g, scales, *levels_before(state), **options)
        return o, {"memory": memory, "position": position}
