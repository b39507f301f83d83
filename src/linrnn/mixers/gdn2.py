"""Gated DeltaNet-2: the delta rule with separate gates for what is erased and what is written."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, check_rate, square_sizes
from linrnn.mixers._families.log_decay import LogDecay
from linrnn.nn import Heads
from linrnn.nn.heads import for_each_head
from linrnn.nn.memories import erase_scan


class GDN2(ConvDelta):
    r"""Gated DeltaNet-2: the delta rule with an erase gate per key and a write gate per value.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and k then scaled to
        length 1; the convolution is depthwise. In each head
        S' = diag(exp(g_t)) S_{t-1},   S_t = S' + k_t (w_t * v_t - S'^T (b_t * k_t))^T
        b_t = erase_max sigmoid(W_b x_t) in R^d_key,   w_t = sigmoid(W_w x_t) in R^d_value
        g_t = -exp(A_log) softplus(W_up W_down x_t + dt_bias)   in R^d_key, A_log one a head
        o_t = S_t^T q_t / sqrt(d_key)
        y_t = W_o (sigmoid(G_up G_down x_t) * concat of o_t / sqrt(mean(o_t^2) + norm_eps))
        W_down and G_down map to d_value channels, and G_up has a bias. Initially exp(A_log) is
        uniform on [1, 16], softplus(dt_bias) log-uniform on [0.001, 0.1], and everything else as
        in `torch.nn.Linear` and `torch.nn.Conv1d`. With b_t = w_t one number it is KDA.

    Args:
        n_heads: heads. Default: d_model / 128, or 1.
        key_heads: heads of queries, keys, decays and erase gates, which n_heads / key_heads heads
            of values share, each with its own memory; a divisor. Default: n_heads.
        d_key, d_value: channels of a head's keys and of its values. Default: d_model / n_heads,
            rounded up; d_key.
        erase_max: largest b, above 0 and at most 2, with which a memory can change its sign.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. The eigenvalue 1 - sum b k^2 lies within [-1, 1]. The matrix of
        a step is not symmetric, though: without decays its norm can reach 1.15, and 1.41 with an
        erase_max of 2. The norm of the heads has no weight: that of W_o is the same.

    Example:
        >>> y, state = GDN2(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 3, 24]))

    Reference:
        Hatamizadeh, Choi and Kautz, "Gated DeltaNet-2: Decoupling Erase and Write in Linear
        Attention", 2026, arXiv:2605.22791. Key: hatamizadeh2026gated.
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
        erase_max: float = 1.0,
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.erase_max, self.norm_eps = d_model, erase_max, norm_eps
        self.d_conv, self.conv_bias = d_conv, conv_bias
        check_rate("GDN2", erase_max, "erase_max")
        sizes = square_sizes("GDN2", d_model, n_heads, d_key, d_value)
        self.n_heads, self.d_key, self.d_value = sizes
        self.key_heads = G = self.n_heads if key_heads is None else key_heads
        to: Any = {"device": device, "dtype": dtype}
        out = {"eps": norm_eps, "gate": "sigmoid", "gate_rank": self.d_value, "gate_bias": True}
        self._make(G, out, beta=False, **to)
        rates: Any = {"rank": self.d_value, "rates": (1.0, 16.0)}
        self.decay = LogDecay("GDN2", d_model, G, self.d_key, **rates, **to)
        self.gates = Heads(d_model, (G, self.n_heads), (self.d_key, self.d_value), **to)  # b, w
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        self.gates.reset_parameters()

    def _recall(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self._activated(q, k, v)
        b, w = (wide(gate).sigmoid() for gate in self.gates(x))  # (B, T, G, K), (B, T, H, V)
        g = for_each_head(self.decay(x), self.n_heads)
        o, memory = erase_scan(
            *(q, k, w * v, self.erase_max * b * k, None, g, state["memory"]),
            scale=self.d_key**-0.5,
            reset=reset,
        )
        return o, {"memory": memory}
