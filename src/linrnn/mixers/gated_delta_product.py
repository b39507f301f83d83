"""Gated DeltaProduct: several delta rules a step, on a memory that forgets once."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, wide_sizes
from linrnn.mixers._families.log_decay import LogDecay
from linrnn.ops.matrix.delta_scan import delta_scan


class GatedDeltaProduct(ConvDelta):
    r"""Gated DeltaProduct: several gated delta-rule updates per step, one key each.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and k then scaled to
        length 1; the convolution is depthwise. Keys, values and rates are those of n writes, in
        each head
        S^0 = exp(g_t) S_{t-1},   S^j = S^{j-1} + beta_j k_j (v_j - (S^{j-1})^T k_j)^T,  j = 1 .. n
        S_t = S^n,   o_t = S_t^T q_t / sqrt(d_key)
        g_t = -exp(A_log) softplus(w_a x_t + dt_bias),   beta_j = beta_max sigmoid(w_j x_t)
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        The transition is a product of n matrices I - beta k k^T: with rates of 2 reflections, of
        which two rotate in a plane. Initially exp(A_log) is uniform on [0.01, 16],
        softplus(dt_bias) log-uniform on [0.001, 0.1], and everything else as in `torch.nn.Linear`
        and `torch.nn.Conv1d`.

    Args:
        writes: n, of every step. It reads sequences as long as n times theirs.
        n_heads: heads. Default: three quarters of d_model / 256, rounded, or 1.
        key_heads: heads of queries and keys, which n_heads / key_heads heads of values share, each
            with its own memory; a divisor. Default: n_heads.
        d_key: channels of a head's keys. Default: 3/4 d_model / n_heads, rounded up.
        d_value: channels of a head's values. Default: twice d_key.
        forget: False for DeltaProduct, whose g is 0.
        beta_max: largest rate, above 0 and at most 2, with which a memory can change its sign.
        gate: "silu" as above, or "none": y_t = W_o concat of the normed o_t.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. Published is exp(A_log) on [0, 16], whose lower end has no
        logarithm. The norm of the heads has no weight: that of W_o is the same.

    Example:
        >>> y, state = GatedDeltaProduct(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 3, 6]), torch.Size([2, 3, 42]))

    Reference:
        Siems et al., "DeltaProduct: Improving State-Tracking in Linear RNNs via Householder
        Products", NeurIPS 2025, arXiv:2502.10297. Key: siems2025deltaproduct.
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
        writes: int = 2,
        n_heads: int | None = None,
        key_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        forget: bool = True,
        beta_max: float = 2.0,
        gate: Literal["silu", "none"] = "silu",
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.writes, self.forget, self.gate = d_model, writes, forget, gate
        self.beta_max, self.norm_eps = beta_max, norm_eps
        self.d_conv, self.conv_bias = d_conv, conv_bias
        check_positive_int("GatedDeltaProduct", writes=writes)
        check_in("GatedDeltaProduct", "gate", gate, ("silu", "none"))
        sizes = wide_sizes("GatedDeltaProduct", d_model, n_heads, d_key, d_value)
        self.n_heads, self.d_key, self.d_value = sizes
        self.key_heads = self.n_heads if key_heads is None else key_heads
        to: Any = {"device": device, "dtype": dtype}
        self._make(self.key_heads, {"eps": norm_eps, "gate": gate}, **to)
        if forget:
            self.decay = LogDecay("GatedDeltaProduct", d_model, self.n_heads, **to)
        self.reset_parameters()

    def _recall(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self._activated(q, k, v)
        k, v, beta = (
            z.unflatten(2, (self.writes, z.shape[2] // self.writes))
            for z in (k, v, self._rate(x, v))
        )  # (B, T, writes, heads, ...)
        memory, scale, g = state["memory"], self.d_key**-0.5, self._log_decay(x)
        with without_autocast(x.device):
            if x.shape[1] > 1 or reset is not None:
                o, memory = delta_scan(q, k, v, beta, g, memory, scale=scale, reset=reset)
                return o, {"memory": memory}
            o = q
            for i in range(self.writes):  # one after the other: a record of a step can hold them
                one = k[:, :, i], v[:, :, i], beta[:, :, i], g if i == 0 else None
                o, memory = delta_scan(q, *one, memory, scale=scale)
        return o, {"memory": memory}
