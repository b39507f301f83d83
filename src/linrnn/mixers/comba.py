"""Comba: the delta rule as closed-loop control, with feedback to the memory and to what is read."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_in, check_not_negative
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, wide_sizes
from linrnn.mixers._families.log_decay import LogDecay
from linrnn.nn import empty_parameters, l2_normalise
from linrnn.nn.memories import erase_scan


class Comba(ConvDelta):
    r"""Comba: the gated delta rule with feedback that corrects both the memory and the query.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x))     depthwise, in heads
        u = sigmoid(c) k,   q' = norm(q - D u),   k' = norm(k),   p = norm(u)
        S' = exp(g_t) S_{t-1},   S_t = S' + beta_t k'_t (v_t - S'^T p_t)^T     d_key by d_value
        g_t = -exp(A_log) softplus(w_a x_t + dt_bias),   beta_t = sigmoid(w_b x_t)
        o_t = S_t^T q'_t / sqrt(d_key)
        y_t = W_o (sigmoid(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        norm scales to length 1, so c matters to what is read alone. With erase "scaled" p is
        sigmoid(c) k', as in the paper. Initially c is 1, D the correction, exp(A_log) uniform on
        [0.01, 16], softplus(dt_bias) log-uniform on [0.001, 0.1], and everything else as in
        `torch.nn.Linear` and `torch.nn.Conv1d`.

    Args:
        n_heads: heads. Default: three quarters of d_model / 256, rounded, or 1.
        key_heads: heads of queries and keys, which n_heads / key_heads heads of values share, each
            with its own memory; a divisor. Default: n_heads.
        d_key: channels of a head's keys. Default: 3/4 d_model / n_heads, rounded up.
        d_value: channels of a head's values. Default: twice d_key.
        erase: "unit" as in the public layer, or "scaled"; see above.
        inner_decay: learn c. Without it u is k.
        correction: where D begins, 0.02 for small models; None for queries as they are.
        gate: "sigmoid" as above, or "none": y_t = W_o concat of the normed o_t.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. The paper erases along sigmoid(c) k'; the public layers scale
        that to length 1, and so does the default. Published is exp(A_log) on [0, 16], whose lower
        end has no logarithm. The norm of the heads has no weight: that of W_o is the same.

    Example:
        >>> y, state = Comba(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 3, 6]), torch.Size([2, 3, 24]))

    Reference:
        Hu et al., "Improving Bilinear RNN with Closed-loop Control", NeurIPS 2025,
        arXiv:2506.02475. Key: hu2025comba.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
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
        erase: Literal["unit", "scaled"] = "unit",
        inner_decay: bool = True,
        correction: float | None = 1.0,
        gate: Literal["sigmoid", "none"] = "sigmoid",
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.erase, self.gate, self.norm_eps = d_model, erase, gate, norm_eps
        self.inner_decay, self.correction = inner_decay, correction
        self.d_conv, self.conv_bias = d_conv, conv_bias
        check_in("Comba", "erase", erase, ("unit", "scaled"))
        check_in("Comba", "gate", gate, ("sigmoid", "none"))
        if correction is not None:
            check_not_negative("Comba", correction=correction)
        if erase == "scaled" and not inner_decay:
            raise ArgumentError(
                "Comba: inner_decay must be True with erase='scaled', got False. Use erase='unit'."
            )
        sizes = wide_sizes("Comba", d_model, n_heads, d_key, d_value)
        self.n_heads, self.d_key, self.d_value = sizes
        self.key_heads = self.n_heads if key_heads is None else key_heads
        to: Any = {"device": device, "dtype": dtype}
        self._make(self.key_heads, {"eps": norm_eps, "gate": gate}, **to)
        self.decay = LogDecay("Comba", d_model, self.n_heads, **to)
        empty = empty_parameters(device, dtype)
        self.c = empty(self.key_heads) if inner_decay else None
        self.D = None if correction is None else empty(self.key_heads)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        if self.c is not None:
            self.c.fill_(1)
        if self.D is not None and self.correction is not None:
            self.D.fill_(self.correction)

    def _recall(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        inner = 1.0 if self.c is None else wide(self.c).sigmoid()[:, None]  # (key_heads, 1)
        u = inner * k
        if self.D is not None:
            q = q - wide(self.D)[:, None] * u  # (B, T, H, d_key)
        q, k = l2_normalise(q), l2_normalise(k)
        p = inner * k if self.erase == "scaled" else l2_normalise(u)
        o, memory = erase_scan(
            *(q, k, v, p, self._rate(x, v), self.decay(x), state["memory"]),
            scale=self.d_key**-0.5,
            reset=reset,
        )
        return o, {"memory": memory}
