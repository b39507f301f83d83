"""TTT-MLP: a perceptron of two layers in each head, trained on the sequence while it is read."""

from typing import Any, ClassVar

import torch

from linrnn.errors import check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.ttt import TTT


class TTTMLP(TTT):
    r"""TTT-MLP: the state is an MLP, trained by a gradient step at each input.

    Equation:
        q, k, v = W_q x_t, W_k x_t, W_v x_t, pairs of channels of q and k turned by their place in
        the mini-batch, see `linrnn.nn.rotate`                             in each head
        f(z) = gelu(z W_1 + b_1) W_2 + b_2                                 theta the four of them
        loss(theta; k, v) = |norm(f(k)) - (v - k)|^2 / 2,   norm(z) = gain (z - mean) / std + bias
        eta_i = base_rate / d_head sigmoid(w x_i + c)
        theta_t = theta - max(1 / j + row_rate_j, 0) sum over rows i <= t of the mini-batch of
        eta_i grad loss(theta; k_i, v_i)  t the j-th row of it, theta the weights at its start
        o_t = q_t + norm(f(q_t)) with theta_t;   the next mini-batch begins with the last theta_t
        y_t = W_o LayerNorm(concat over heads of o_t)
        gelu is its tanh formula. Variances of norms have 1e-6 beside them. Initially maps are
        N(0, 1 / fan_in), w and first weights of the memory N(0, 0.02^2), biases and row_rate 0,
        gains 1.

    Args:
        n_heads: heads. Default: d_model / 64, at least one.
        d_head: channels of a head, an even number of at least 4. Default: d_model / n_heads,
            rounded up to one.
        expand: channels between the two layers, times d_head.
        mini_batch: rows whose gradients are taken at the same weights; they are computed together.
        base_rate: see above.
        d_conv: q and k are depthwise causal convolutions with this many taps and bias of one map of
            the input. Default: each has a map.
        gate: multiply by gelu(W_g x_t) before W_o; with d_conv=4 this is the layer of the paper's
            Mamba backbone.
        rotary_base: of the turns.

    Departures from the paper:
        Extension beyond the survey. The public code draws maps of any width from N(0, 0.02^2),
        which is the same at 2,500 channels; keys of few channels would be too small for the norm.
        A mini-batch is counted from the last reset, and the one begun is part of the state, so any
        split gives the same numbers.

    Example:
        >>> y, state = TTTMLP(d_model=8)(torch.randn(2, 100, 8))
        >>> y.shape, state["change"]["W1"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 1, 8, 32]))

    Reference:
        Sun et al., "Learning to (Learn at Test Time): RNNs with Expressive Hidden States", ICML
        2025, arXiv:2407.04620. Key: sun2025learning.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    choices = Choices(
        transition="gradient", gate="state", memory="network", normaliser="norm", steps="nonlinear"
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        expand: int = 4,
        mini_batch: int = 16,
        base_rate: float = 0.1,
        d_conv: int | None = None,
        gate: bool = False,
        rotary_base: float = 10_000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.mini_batch, self.base_rate = d_model, mini_batch, base_rate
        self.d_conv, self.gate, self.rotary_base = d_conv, gate, rotary_base
        check_positive_int("TTTMLP", expand=expand)
        self.expand = expand
        to: Any = {"device": device, "dtype": dtype}
        self._make(n_heads, d_head, expand, to)
        self.reset_parameters()
