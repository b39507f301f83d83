"""Delta RNN: a fast recurrent network whose two weight matrices follow the delta rule."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, Heads, feature_map, sum_normalise
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.ops.matrix.fast_weights import asked_by_itself, asked_step
from linrnn.state_spec import Part, real


class DeltaRNN(Mixer):
    r"""Delta RNN: a DeltaNet plus a second memory queried by the last output.

    Equation:
        q, k = phi(W_q x), phi(W_k x) divided by their sums + 1e-6, phi = elu + 1    each head
        S_t = S_{t-1} + beta k (v - S_{t-1}^T k)^T                     S is d_key by d_value
        R_t = R_{t-1} + beta' k' (v' - R_{t-1}^T k')^T                 R is d_value by d_value
        y_t = S_t^T q + R_t^T softmax(y_{t-1}),   k' = softmax(W_k' x)
        v, v', beta, beta' = W_v x, W_v' x, sigmoid(w x), sigmoid(w' x)
        output W_o y_t / sqrt(d_value)
        Keys sum to 1, so that no eigenvalue is above 1. Initially as `torch.nn.Linear`.

    Args:
        n_heads: heads. Default: d_model / 16, or 1.
        d_key, d_value: channels of a head's keys and of its values. Default: d_model / n_heads,
            rounded up; d_key.

    Departures from the paper:
        Norm and feed-forward layer around it belong to the block.

    Example:
        >>> y, state = DeltaRNN(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["read"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 2, 4]))

    Reference:
        Irie et al., "Going Beyond Linear Transformers with Recurrent Fast Weight Programmers",
        NeurIPS 2021, arXiv:2106.06295. Key: irie2021going.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="delta", gate="state", memory="matrix", steps="nonlinear")
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"

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
        check_positive_int("DeltaRNN", n_heads=self.n_heads)
        self.d_key = -(-d_model // self.n_heads) if d_key is None else d_key
        self.d_value = self.d_key if d_value is None else d_value
        check_positive_int("DeltaRNN", d_key=self.d_key, d_value=self.d_value)
        to: Any = {"device": device, "dtype": dtype}
        K, V = self.d_key, self.d_value
        self.heads = Heads(d_model, self.n_heads, (K, K, V, 1, V, V, 1), **to)
        self.out = GatedOut(d_model, self.n_heads, V, norm="none", gate="none", **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters()
        self.out.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, R, and y."""
        H, V = self.n_heads, self.d_value
        return {
            "memory": real(n_heads=H, d_key=self.d_key, d_value=V),
            "recurrent": real(n_heads=H, d_read=V, d_value=V),
            "read": real(n_heads=H, d_value=V),
        }

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        o, memory, (k, v, beta) = self._first(x, state["memory"], reset)
        with without_autocast(x.device):
            R, read = state["recurrent"], state["read"]
            y, *states = asked_by_itself(o, k, v, beta, R, read, reset)
        return self._answer(y, x, (memory, *states))

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        o, memory, second = self._first(x_t[:, None], state["memory"], None)
        o, k, v, beta = (part.squeeze(1) for part in (o, *second))  # (B, H, channels) each
        with without_autocast(x_t.device):
            states = asked_step(o, k, v, beta, state["recurrent"], state["read"])
        return self._answer(states[1], x_t, (memory, *states))

    def _first(self, x: Tensor, S: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor, Any]:
        """Output and state of the first memory, and keys, values and rates of the second."""
        q, k, v, beta, k_r, v_r, beta_r = (wide(z) for z in self.heads(x))
        q, k = (sum_normalise(feature_map("elu", z)) for z in (q, k))
        second = k_r.softmax(-1), v_r, beta_r.sigmoid()
        with without_autocast(x.device):
            o, S = delta_scan(q, k, v, beta.squeeze(-1).sigmoid(), None, S, reset=reset)
        return o, S, second

    def _answer(self, y: Tensor, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, Any]:
        state = dict(zip(("memory", "recurrent", "read"), states, strict=True))
        return self.out(y * self.d_value**-0.5, x), state
