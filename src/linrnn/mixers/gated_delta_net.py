"""Gated DeltaNet: the delta rule on a memory that forgets."""

from typing import Any, ClassVar, Literal

import torch

from linrnn.errors import check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, wide_sizes
from linrnn.mixers._families.log_decay import LogDecay


class GatedDeltaNet(ConvDelta):
    r"""Gated DeltaNet: the delta rule with an input-dependent decay of the memory.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and k then scaled to
        length 1; the convolution is depthwise. In each head
        S' = exp(g_t) S_{t-1},   S_t = S' + beta_t k_t (v_t - S'^T k_t)^T      d_key by d_value
        g_t = -exp(A_log) softplus(w_a x_t + dt_bias),   beta_t = beta_max sigmoid(w_b x_t)
        o_t = S_t^T q_t / sqrt(d_key)
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        Initially exp(A_log) is uniform on [0.01, 16], softplus(dt_bias) log-uniform on
        [0.001, 0.1], or dt_bias 1, and everything else as in `torch.nn.Linear` and
        `torch.nn.Conv1d`.

    Args:
        n_heads: heads. Default: three quarters of d_model / 256, rounded, or 1.
        key_heads: heads of queries and keys, which n_heads / key_heads heads of values share, each
            with its own memory; a divisor. Default: n_heads.
        d_key: channels of a head's keys. Default: 3/4 d_model / n_heads, rounded up.
        d_value: channels of a head's values. Default: twice d_key.
        beta_max: largest rate, above 0 and at most 2, with which a memory can change its sign.
        gate: "silu" as above, "sigmoid", or "none": y_t = W_o concat of the normed o_t.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        dt_start: "log-uniform" or "one", where dt_bias starts; the latter in Qwen3-Next.
        norm_eps: of the norm of each head.
        norm_weight: a learned vector, the same for all heads, by which normed channels are
            multiplied, as checkpoints of hybrid models have it.

    Departures from the paper:
        Extension beyond the survey. Published is exp(A_log) on [0, 16], whose lower end has no
        logarithm. Without ``norm_weight`` the norm of the heads has none: that of W_o is the same.
        Norm and feed-forward layer around it belong to the block.

    Example:
        >>> y, state = GatedDeltaNet(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 3, 6]), torch.Size([2, 3, 24]))

    Reference:
        Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR
        2025, arXiv:2412.06464. Key: yang2025gated.
    """

    choices = Choices(
        transition="decay and delta",
        gate="input",
        memory="matrix",
        normaliser="norm",
        output="gated",
    )

    reads_half: ClassVar[bool] = True
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("decay.A_log", "decay.dt_bias")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        key_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        beta_max: float = 1.0,
        gate: Literal["silu", "sigmoid", "none"] = "silu",
        d_conv: int | None = 4,
        conv_bias: bool = False,
        dt_start: Literal["log-uniform", "one"] = "log-uniform",
        norm_eps: float = 1e-5,
        norm_weight: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.beta_max, self.gate = d_model, beta_max, gate
        self.d_conv, self.conv_bias, self.dt_start = d_conv, conv_bias, dt_start
        check_in("GatedDeltaNet", "gate", gate, ("silu", "sigmoid", "none"))
        check_in("GatedDeltaNet", "dt_start", dt_start, ("log-uniform", "one"))
        sizes = wide_sizes("GatedDeltaNet", d_model, n_heads, d_key, d_value)
        self.n_heads, self.d_key, self.d_value = sizes
        self.key_heads = self.n_heads if key_heads is None else key_heads
        self.norm_eps, self.norm_weight = norm_eps, norm_weight
        to: Any = {"device": device, "dtype": dtype}
        self._make(
            self.key_heads, {"eps": norm_eps, "gate": gate, "norm_weight": norm_weight}, **to
        )
        self.decay = LogDecay("GatedDeltaNet", d_model, self.n_heads, steps=dt_start, **to)
        self.reset_parameters()
