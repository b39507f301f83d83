"""Preconditioned KDA: a delta rule whose channels forget and learn at rates of their own."""

from typing import Any, ClassVar

import torch

from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, square_sizes
from linrnn.mixers._families.log_decay import LogDecay
from linrnn.mixers._families.preconditioner import Preconditioner


class PreconditionedKDA(ConvDelta):
    r"""Preconditioned KDA: smaller updates along key channels already written much.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and k then scaled to
        length 1; the convolution is depthwise. In each head
        A_t = exp(g'_t) A_{t-1} + sigmoid(w'_b x_t) k_t^2             in R^d_key
        r = log(A_t + squash_eps) - m,   k'_t = k_t * squash^(-r / (1 + |r|))
        S' = diag(exp(g_t)) S_{t-1},   S_t = S' + beta_t k'_t (v_t - S'^T k_t)^T
        g'_t = -exp(A'_log) softplus(w_a x_t + dt'_bias),   beta_t = beta_max sigmoid(w_b x_t)
        g_t = -exp(A_log) softplus(W_up W_down x_t + dt_bias)    in R^{d_key}, A_log one a head
        with a lower_bound: g_t = lower_bound sigmoid(exp(A_log) (W_up W_down x_t + dt_bias))
        o_t = S_t^T q_t / sqrt(d_key)
        y_t = W_o (sigmoid(G_up G_down x_t) * concat of o_t / sqrt(mean(o_t^2) + norm_eps))
        W_down and G_down map to d_value channels, and G_up has a bias. Initially m is the centre,
        exp(A_log) uniform on [1, 16], or with a lower_bound 1, exp(A'_log) the former, dt_bias 0,
        softplus(dt'_bias) log-uniform on [0.001, 0.1], and everything else as in `torch.nn.Linear`
        and `torch.nn.Conv1d`.

    Args:
        n_heads: heads. Default: d_model / 128, or 1.
        key_heads: heads of queries, keys and rates, which n_heads / key_heads heads of values
            share, each with its own A, decays and memory; a divisor. Default: n_heads.
        d_key, d_value: channels of a head's keys and of its values. Default: d_model / n_heads,
            rounded up; d_key.
        beta_max: largest rate, above 0 and at most 2. Eigenvalues are at least
            1 - beta_max squash, and so may be below -1.
        lower_bound: least logarithm of a decay, below 0. Default: none.
        squash: largest factor of a channel, above 1 and at most 2; the least is its inverse.
        centre: where m begins.
        squash_eps: added to A.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. The norm of the heads has no weight: that of W_o is the same.

    Example:
        >>> y, state = PreconditionedKDA(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["squares"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 2, 4]))

    Reference:
        Tumma, Loo and Rus, "Preconditioned DeltaNet: Curvature-aware Sequence Modeling for Linear
        Recurrences", 2026, arXiv:2604.21100. Key: tumma2026preconditioned.
    """

    choices = Choices(
        transition="decay and delta",
        gate="input",
        memory="matrix",
        normaliser="norm",
        steps="staged",
        output="gated",
    )
    recurrent_parameters: ClassVar[tuple[str, ...]] = (
        *("decay.A_log", "decay.dt_bias"),
        *("preconditioner.decay.A_log", "preconditioner.decay.dt_bias"),
    )

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
        squash: float = 1.5,
        centre: float = -0.2,
        squash_eps: float = 1e-6,
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.beta_max, self.norm_eps = d_model, beta_max, norm_eps
        self.lower_bound = lower_bound
        self.d_conv, self.conv_bias = d_conv, conv_bias
        sizes = square_sizes("PreconditionedKDA", d_model, n_heads, d_key, d_value)
        self.n_heads, self.d_key, self.d_value = sizes
        self.key_heads = self.n_heads if key_heads is None else key_heads
        self.squash, self.centre, self.squash_eps = squash, centre, squash_eps
        to: Any = {"device": device, "dtype": dtype}
        out = {"eps": norm_eps, "gate": "sigmoid", "gate_rank": self.d_value, "gate_bias": True}
        self._make(self.key_heads, out, beta_heads=self.key_heads, **to)
        where, H, rates = "PreconditionedKDA", self.n_heads, (1.0, 16.0)
        of_decay: Any = {"rank": self.d_value, "lower_bound": lower_bound, "steps": "zero"}
        self.decay = LogDecay(where, d_model, H, self.d_key, rates=rates, **of_decay, **to)
        squashed: Any = {"squash": squash, "centre": centre, "eps": squash_eps, "rates": rates}
        self.preconditioner = Preconditioner(where, d_model, H, self.d_key, **squashed, **to)
        self.reset_parameters()
