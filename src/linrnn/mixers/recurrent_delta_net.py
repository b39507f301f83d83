"""Recurrent Delta Net: a DeltaNet that sees what it has read."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, Heads, empty_parameters
from linrnn.ops.matrix.fast_weights import fed_back_delta, fed_back_step
from linrnn.state_spec import Part, real


class RecurrentDeltaNet(Mixer):
    r"""Recurrent Delta Net: keys, values and rates of the delta rule also read the last output.

    Equation:
        h = tanh(y_{t-1})                                                  in each head
        q, k = softmax(W_q x_t + R_q h), softmax(W_k x_t + R_k h)          in R^{d_key}
        v, beta = W_v x_t + R_v h, sigmoid(w x_t + r h)
        S_t = S_{t-1} + beta k (v - S_{t-1}^T k)^T,   y_t = S_t^T q        S is d_key by d_value
        output W_o y_t / sqrt(d_value)
        Keys sum to 1, so that no eigenvalue is above 1. Initially R ~ N(0, 1/d_value), and maps are
        as in `torch.nn.Linear`.

    Args:
        n_heads: heads. Default: d_model / 16, or 1.
        d_key, d_value: channels of a head's keys and of its values. Default: d_model / n_heads,
            rounded up; d_key.

    Departures from the paper:
        The survey adds a map of tanh(y_{t-1}) to y_t, which the paper has only in its Delta RNN:
        `linrnn.mixers.DeltaRNN`. Norm and feed-forward layer around it belong to the block.

    Example:
        >>> y, state = RecurrentDeltaNet(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["read"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 2, 4]))

    Reference:
        Irie et al., "Going Beyond Linear Transformers with Recurrent Fast Weight Programmers",
        NeurIPS 2021, arXiv:2106.06295. Key: irie2021going.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="delta", gate="state", memory="matrix", steps="nonlinear")
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("R",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.n_heads = d_model, max(1, d_model // 16) if n_heads is None else n_heads
        check_positive_int("RecurrentDeltaNet", n_heads=self.n_heads)
        self.d_key = -(-d_model // self.n_heads) if d_key is None else d_key
        self.d_value = self.d_key if d_value is None else d_value
        check_positive_int("RecurrentDeltaNet", d_key=self.d_key, d_value=self.d_value)
        to: Any = {"device": device, "dtype": dtype}
        K, V = self.d_key, self.d_value
        self.heads = Heads(d_model, self.n_heads, (2 * K + V + 1,), **to)  # q, k, v and the rate
        self.R = empty_parameters(device, dtype)(self.n_heads, V, 2 * K + V + 1)
        self.out = GatedOut(d_model, self.n_heads, V, norm="none", gate="none", **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters()
        self.out.reset_parameters()
        nn.init.normal_(self.R, std=self.d_value**-0.5)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, and what was read last."""
        memory = real(n_heads=self.n_heads, d_key=self.d_key, d_value=self.d_value)
        return {"memory": memory, "read": real(n_heads=self.n_heads, d_value=self.d_value)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        (z,), start = self.heads(x), (state["memory"], state["read"])
        with without_autocast(x.device):
            y, *states = fed_back_delta(wide(z), wide(self.R), *start, reset)
        return self._answer(y, x, states)

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        (z,), start = self.heads(x_t), (state["memory"], state["read"])
        with without_autocast(x_t.device):
            states = fed_back_step(wide(z), wide(self.R), *start)
        return self._answer(states[1], x_t, states)

    def _answer(self, y: Tensor, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, Any]:
        return self.out(y * self.d_value**-0.5, x), {"memory": states[0], "read": states[1]}
