"""TTT-Linear: a linear map in each head, trained on the sequence while it is read."""

from typing import Any, ClassVar

import torch

from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.ttt import TTT


class TTTLinear(TTT):
    r"""TTT-Linear: the state is an affine map, trained by a gradient step at each input.

    Equation:
        q, k, v = W_q x_t, W_k x_t, W_v x_t, pairs of channels of q and k turned by their place in
        the mini-batch, see `linrnn.nn.rotate`                             in each head
        loss(W; k, v) = |norm(k W + b) - (v - k)|^2 / 2,   norm(z) = gain (z - mean) / std + bias
        eta_i = base_rate / d_head sigmoid(w x_i + c)
        W_t = W - max(1 / j + row_rate_j, 0) sum over rows i <= t of the mini-batch of
        eta_i grad loss(W; k_i, v_i)          t the j-th row of it, W the weights at its start
        o_t = q_t + norm(q_t W_t + b_t);   the next mini-batch begins with the last W_t
        y_t = W_o LayerNorm(concat over heads of o_t)
        b is moved as W is. Variances of norms have 1e-6 beside them. Initially maps are
        N(0, 1 / fan_in), w and first weights of the memory N(0, 0.02^2), biases and row_rate 0,
        gains 1.

    Args:
        n_heads: heads. Default: d_model / 64, at least one.
        d_head: channels of a head, an even number of at least 4. Default: d_model / n_heads,
            rounded up to one.
        mini_batch: rows whose gradients are taken at the same weights; they are computed together.
        base_rate: see above.
        d_conv: q and k are depthwise causal convolutions with this many taps and bias of one map of
            the input. Default: each has a map.
        gate: multiply by gelu(W_g x_t) before W_o, by its tanh formula; with d_conv=4 this is the
            layer of the paper's Mamba backbone.
        rotary_base: of the turns.

    Departures from the paper:
        Extension beyond the survey. The public code draws maps of any width from N(0, 0.02^2),
        which is the same at 2,500 channels; keys of few channels would be too small for the norm.
        A mini-batch is counted from the last reset, and the one begun is part of the state, so any
        split gives the same numbers.

    Example:
        >>> y, state = TTTLinear(d_model=8)(torch.randn(2, 100, 8))
        >>> y.shape, state["change"]["W1"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 1, 8, 8]))

    Reference:
        Sun et al., "Learning to (Learn at Test Time): RNNs with Expressive Hidden States", ICML
        2025, arXiv:2407.04620. Key: sun2025learning.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    choices = Choices(
        transition="gradient", gate="state", memory="matrix", normaliser="norm", steps="nonlinear"
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        mini_batch: int = 16,
        base_rate: float = 1.0,
        d_conv: int | None = None,
        gate: bool = False,
        rotary_base: float = 10_000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.mini_batch, self.base_rate = d_model, mini_batch, base_rate
        self.d_conv, self.gate, self.rotary_base = d_conv, gate, rotary_base
        to: Any = {"device": device, "dtype": dtype}
        self._make(n_heads, d_head, None, to)
        self.reset_parameters()
