"""The gated Oja rule: a memory that keeps what its answers to values lack of keys."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import without_autocast
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, square_sizes
from linrnn.mixers._families.log_decay import LogDecay
from linrnn.nn import l2_normalise
from linrnn.nn.heads import for_each_head
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.ops.matrix.outer_scan import outer_scan


class GatedOja(ConvDelta):
    r"""Gated Oja rule: the gated delta rule with keys and values exchanged.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and v then scaled to
        length 1; the convolution is depthwise. In each head
        S' = S_{t-1} diag(exp(g_t)),   u_t = beta_t (k_t - S' v_t),   S_t = S' + u_t v_t^T
        g_t = -exp(A_log) softplus(W_up W_down x_t + dt_bias)    in R^{d_value}, A_log one a head
        o_t = S_t^T q_t / sqrt(d_key),   beta_t = beta_max sigmoid(w_b x_t)
        y_t = W_o (sigmoid(G_up G_down x_t) * concat of o_t / sqrt(mean(o_t^2) + norm_eps))
        W_down and G_down map to d_value channels, and G_up has a bias. Initially exp(A_log) is
        uniform on [1, 16], softplus(dt_bias) log-uniform on [0.001, 0.1], and everything else as
        in `torch.nn.Linear` and `torch.nn.Conv1d`.

    Args:
        n_heads: heads. Default: d_model / 128, or 1.
        key_heads: heads of queries and keys, which n_heads / key_heads heads of values share, each
            with its own decays and memory; a divisor. Default: n_heads.
        d_key, d_value: channels of a head's keys and of its values. Default: d_model / n_heads,
            rounded up; d_key.
        beta_max: largest rate, above 0 and at most 2, with which a memory can change its sign.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. There is no paper: the recurrence is an op of
        flash-linear-attention, which has no layer for it, so the layer around it is that of KDA.
        It reads sequences of twice the length by the delta rule, for u, and then its own.

    Example:
        >>> y, state = GatedOja(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 3, 24]))

    Reference:
        Oja, "Simplified neuron model as a principal component analyzer", Journal of Mathematical
        Biology, 1982; with decays, the op of Yang and Zhang's flash-linear-attention, 2024.
        Key: oja1982simplified.
    """

    choices = Choices(
        transition="decay and delta",
        gate="input",
        memory="matrix",
        normaliser="norm",
        output="gated",
    )
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
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.beta_max, self.norm_eps = d_model, beta_max, norm_eps
        self.d_conv, self.conv_bias = d_conv, conv_bias
        sizes = square_sizes("GatedOja", d_model, n_heads, d_key, d_value)
        self.n_heads, self.d_key, self.d_value = sizes
        self.key_heads = self.n_heads if key_heads is None else key_heads
        to: Any = {"device": device, "dtype": dtype}
        rank: Any = self.d_value
        out = {"eps": norm_eps, "gate": "sigmoid", "gate_rank": rank, "gate_bias": True}
        self._make(self.key_heads, out, **to)
        rates: Any = {"rank": rank, "rates": (1.0, 16.0)}
        self.decay = LogDecay("GatedOja", d_model, self.n_heads, self.d_value, **rates, **to)
        self.reset_parameters()

    def _recall(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, v = l2_normalise(q), l2_normalise(v)
        q, k = (for_each_head(z, self.n_heads) for z in (q, k))
        beta, g, scale = self._rate(x, v), self.decay(x), self.d_key**-0.5
        with without_autocast(x.device):
            o, memory = oja_scan(q, k, v, beta, g, state["memory"], scale, reset)
        return o, {"memory": memory}


def oja_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    initial_state: Tensor,
    scale: float,
    reset: Tensor | None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The rule of `GatedOja`: ``(o, S)``.

    Transposed, S goes by the delta rule with values as keys, which reads what the memory answers
    before it is written. A single step is the rule itself.

    Args:
        q, k: (B, T, H, K).
        v, g: (B, T, H, V).
        beta: (B, T, H).
        initial_state: (B, H, K, V).
        scale: of the queries.
        reset: boolean (B, T), or None.
        cu_seqlens: of packed sequences, each with an initial state; or None.
    """
    if q.shape[1] == 1 and reset is None and cu_seqlens is None:
        q, k, v, beta, g = (z[:, 0] for z in (q, k, v, beta, g))
        return _one(q, k, v, beta, g, initial_state, scale)
    marks: Any = {"reset": reset, "cu_seqlens": cu_seqlens}
    answers, _ = delta_scan(v, v, k, beta, g, initial_state.mT, read="before", **marks)
    u = beta[..., None] * (k - answers)  # (B, T, H, K)
    return outer_scan(q, u, v, None, initial_state, value_decay=g, scale=scale, **marks)


def _one(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    S = S * g.exp()[..., None, :]  # (B, H, K, V)
    u = beta[..., None] * (k - (S @ v[..., None])[..., 0])  # (B, H, K)
    S = S + u[..., None] * v[..., None, :]
    o = (scale * q)[..., None, :] @ S  # (B, H, 1, V)
    return o.transpose(1, 2), S
