"""Preconditioned Gated DeltaNet: the gated delta rule with steps as long as each channel needs."""

from typing import Any, ClassVar, Literal

import torch

from linrnn.errors import check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, wide_sizes
from linrnn.mixers._families.log_decay import LogDecay
from linrnn.mixers._families.preconditioner import Preconditioner


class PreconditionedGatedDelta(ConvDelta):
    r"""Preconditioned Gated DeltaNet: smaller updates along key channels already written much.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and k then scaled to
        length 1; the convolution is depthwise. In each head
        A_t = exp(g'_t) A_{t-1} + sigmoid(w'_b x_t) k_t^2             in R^d_key
        r = log(A_t + squash_eps) - m,   k'_t = k_t * squash^(-r / (1 + |r|))
        S' = exp(g_t) S_{t-1},   S_t = S' + beta_t k'_t (v_t - S'^T k_t)^T     d_key by d_value
        g_t = -exp(A_log) softplus(w_a x_t + dt_bias),   g'_t alike
        beta_t = beta_max sigmoid(w_b x_t),   o_t = S_t^T q_t / sqrt(d_key)
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        Initially m is the centre, exp(A_log) uniform on [0.01, 16], softplus(dt_bias) log-uniform
        on [0.001, 0.1], and everything else as in `torch.nn.Linear` and `torch.nn.Conv1d`.

    Args:
        n_heads: heads. Default: three quarters of d_model / 256, rounded, or 1.
        key_heads: heads of queries and keys, each with its own A, which n_heads / key_heads
            heads of values share, each with its own memory; a divisor. Default: n_heads.
        d_key: channels of a head's keys. Default: 3/4 d_model / n_heads, rounded up.
        d_value: channels of a head's values. Default: twice d_key.
        beta_max: largest rate, above 0 and at most 2. Eigenvalues are at least
            1 - beta_max squash, and so may be below -1.
        squash: largest factor of a channel, above 1 and at most 2; the least is its inverse.
        centre: where m begins.
        squash_eps: added to A.
        gate: "silu" as above, or "none": y_t = W_o concat of the normed o_t.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. Published is exp(A_log) on [0, 16], whose lower end has no
        logarithm. The norm of the heads has no weight: that of W_o is the same.

    Example:
        >>> y, state = PreconditionedGatedDelta(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["squares"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 3, 6]), torch.Size([2, 2, 3]))

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
        squash: float = 1.5,
        centre: float = -0.2,
        squash_eps: float = 1e-6,
        gate: Literal["silu", "none"] = "silu",
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.beta_max, self.gate, self.norm_eps = d_model, beta_max, gate, norm_eps
        self.squash, self.centre, self.squash_eps = squash, centre, squash_eps
        self.d_conv, self.conv_bias = d_conv, conv_bias
        check_in("PreconditionedGatedDelta", "gate", gate, ("silu", "none"))
        sizes = wide_sizes("PreconditionedGatedDelta", d_model, n_heads, d_key, d_value)
        self.n_heads, self.d_key, self.d_value = sizes
        self.key_heads = self.n_heads if key_heads is None else key_heads
        to: Any = {"device": device, "dtype": dtype}
        self._make(self.key_heads, {"eps": norm_eps, "gate": gate}, **to)
        self.decay = LogDecay("PreconditionedGatedDelta", d_model, self.n_heads, **to)
        self.preconditioner = Preconditioner(
            *("PreconditionedGatedDelta", d_model, self.key_heads, self.d_key),
            squash=squash,
            centre=centre,
            eps=squash_eps,
            **to,
        )
        self.reset_parameters()
