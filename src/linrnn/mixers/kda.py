"""Kimi Delta Attention: the delta rule with a decay for each channel of the keys."""

from typing import Any, ClassVar, Literal

import torch

from linrnn.errors import check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, square_sizes
from linrnn.mixers._families.log_decay import LogDecay


class KDA(ConvDelta):
    r"""Kimi Delta Attention: the delta rule with an input-dependent decay per key channel.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and k then scaled to
        length 1; the convolution is depthwise. In each head
        S' = diag(exp(g_t)) S_{t-1},   S_t = S' + beta_t k_t (v_t - S'^T k_t)^T
        g_t = -exp(A_log) softplus(W_up W_down x_t + dt_bias)    in R^{d_key}, A_log one a head
        with a lower_bound: g_t = lower_bound sigmoid(exp(A_log) (W_up W_down x_t + dt_bias))
        o_t = S_t^T q_t / sqrt(d_key),   beta_t = beta_max sigmoid(w_b x_t)
        y_t = W_o (sigmoid(G_up G_down x_t) * concat of o_t / sqrt(mean(o_t^2) + norm_eps))
        W_down and G_down map to d_value channels. Initially exp(A_log) is uniform on [1, 16], or
        with a lower_bound 1, softplus(dt_bias) log-uniform on [0.001, 0.1], and everything else as
        in `torch.nn.Linear` and `torch.nn.Conv1d`.

    Args:
        n_heads: heads. Default: d_model / 128, or 1.
        key_heads: heads of queries and keys, which n_heads / key_heads heads of values share, each
            with its own decays and memory; a divisor. Default: n_heads.
        d_key, d_value: channels of a head's keys and of its values. Default: d_model / n_heads,
            rounded up; d_key.
        beta_max: largest rate, above 0 and at most 2, with which a memory can change its sign.
        lower_bound: least logarithm of a decay, below 0: -5 in GLM's and Ling's hybrids. Default:
            none.
        decay_map, gate_map: "low-rank" as above, or "full": one matrix for W_up W_down, or for
            G_up G_down.
        gate_bias: add a bias to G_up G_down x.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.
        norm_weight: a learned vector, the same for all heads, by which normed channels are
            multiplied, as checkpoints of hybrid models have it.

    Departures from the paper:
        Extension beyond the survey. Without ``norm_weight`` the norm of the heads has none: that of
        W_o is the same. Norm and feed-forward layer around it belong to the block.

    Example:
        >>> y, state = KDA(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 3, 24]))

    Reference:
        Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025,
        arXiv:2510.26692. Key: kimi2025linear.
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
        lower_bound: float | None = None,
        decay_map: Literal["low-rank", "full"] = "low-rank",
        gate_map: Literal["low-rank", "full"] = "low-rank",
        gate_bias: bool = False,
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        norm_weight: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.beta_max = d_model, beta_max
        self.d_conv, self.conv_bias = d_conv, conv_bias
        self.lower_bound, self.decay_map = lower_bound, decay_map
        self.gate_map, self.gate_bias = gate_map, gate_bias
        sizes = square_sizes("KDA", d_model, n_heads, d_key, d_value)
        self.n_heads, self.d_key, self.d_value = sizes
        self.key_heads = self.n_heads if key_heads is None else key_heads
        self.norm_eps, self.norm_weight = norm_eps, norm_weight
        check_in("KDA", "decay_map", decay_map, ("low-rank", "full"))
        check_in("KDA", "gate_map", gate_map, ("low-rank", "full"))
        to: Any = {"device": device, "dtype": dtype}
        rank = None if gate_map == "full" else self.d_value
        out = {"eps": norm_eps, "gate": "sigmoid", "gate_rank": rank, "gate_bias": gate_bias}
        out |= {"norm_weight": norm_weight}
        self._make(self.key_heads, out, **to)
        rank = None if decay_map == "full" else self.d_value
        options: Any = {"rank": rank, "lower_bound": lower_bound, "rates": (1.0, 16.0)}
        self.decay = LogDecay("KDA", d_model, self.n_heads, self.d_key, **options, **to)
        self.reset_parameters()
