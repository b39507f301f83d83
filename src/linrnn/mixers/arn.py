"""Attentive recurrent network: a cell that looks for its input among all steps read so far."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import Heads, empty_parameters, lecun_normal
from linrnn.nn.kv_cache import ALWAYS_GROWS, cache_of, cache_spec, check_cache
from linrnn.nn.linear import Linear
from linrnn.ops.attention import positions
from linrnn.ops.attention.attentive_recurrence import attentive_recurrence
from linrnn.ops.cell.dense_recurrence import CELLS
from linrnn.state_spec import Part, real


class ARN(Mixer):
    r"""Attentive recurrent network: an RNN whose state is the query to attention over the input.

    Equation:
        k_s, v_s = W_k x_s, W_v x_s,  q_t = W_q h_{t-1}                in R^{d_head} for each head
        p_ts = softmax over s <= t of q_t . k_s / sqrt(d_head)
        c_t = concat over heads of sum_s p_ts v_s
        h_t = cell(h_{t-1}, c_t),  h_0 = 0,  a GRU, an LSTM or tanh of torch.nn
        y_t = lam_t * x_t + (1 - lam_t) * h_t,  lam_t = sigmoid(W_g [x_t ; h_t])    "gated"
        y_t = h_t                                                                  "plain"
        Each step needs the state of the last one, so time cannot be parallelised. Initially the
        cell is as in torch.nn, uniform within d_model^(-1/2), other weights N(0, 1 / fan_in).

    Args:
        cell: "gru", "lstm" or "tanh".
        fusion: "gated" or "plain".
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.

    Departures from the paper:
        The paper's network is an encoder's: it takes a few steps in all, each of which looks at the
        whole text, of later steps too. Here it takes one step for each that is read and looks at
        those up to it, so that it is causal and a stream. The kind of attention and the first state
        are not in print: products, and zeros. The gate mixes with the layer's input, where the
        paper's mixes what a decoder reads from two encoders.

    Example:
        >>> y, state = ARN(d_model=8)(torch.randn(2, 100, 8))
        >>> y.shape, state["h"].shape, state["k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 8]), torch.Size([2, 100, 1, 8]))

    Reference:
        Hao et al., "Modeling Recurrence for Transformer", NAACL 2019, arXiv:1904.03092.
        Key: hao2019modeling.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("weight_ih", "weight_hh")

    family: ClassVar[str] = "attention"
    choices = Choices(
        transition="dense", gate="state", memory="past", normaliser="softmax", steps="nonlinear"
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = ALWAYS_GROWS
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        cell: Literal["gru", "lstm", "tanh"] = "gru",
        fusion: Literal["gated", "plain"] = "gated",
        n_heads: int | None = None,
        d_head: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.cell, self.fusion = d_model, cell, fusion
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_in("ARN", "cell", cell, ("gru", "lstm", "tanh"))
        check_in("ARN", "fusion", fusion, ("gated", "plain"))
        check_positive_int("ARN", n_heads=self.n_heads)
        self.d_head = -(-d_model // self.n_heads) if d_head is None else d_head
        check_positive_int("ARN", d_head=self.d_head)
        to: Any = {"device": device, "dtype": dtype}
        inner, empty = self.n_heads * self.d_head, empty_parameters(device, dtype)
        rows = len(CELLS[cell].inputs) * d_model
        self.weight_ih, self.weight_hh = empty(rows, inner), empty(rows, d_model)
        self.bias_ih, self.bias_hh = empty(rows), empty(rows)
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 2, **to)
        self.q_proj = Linear(d_model, inner, bias=False, **to)
        gated = fusion == "gated"
        self.gate = Linear(2 * d_model, d_model, bias=False, **to) if gated else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.q_proj)
        if self.gate is not None:
            lecun_normal(self.gate)
        for weight in (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh):
            nn.init.uniform_(weight, -(self.d_model**-0.5), self.d_model**-0.5)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: that of the cell, keys and values, the steps since a reset."""
        entry = {"n_heads": self.n_heads, "d_head": self.d_head}
        names = CELLS[self.cell].states
        return {
            **dict.fromkeys(names, real(d_model=self.d_model)),
            **cache_spec(None, entry, entry),
        }

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        check_cache("ARN", state)
        position = positions(state["position"], x.shape[1], reset)
        x = x.to(self.bias_ih.dtype)
        names = CELLS[self.cell].states
        k, v = (wide(part) for part in self.heads(x))
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)  # (B, S, H, K) each
        weights = [wide(w) for w in (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)]
        with without_autocast(x.device):
            y, *last = attentive_recurrence(
                self.cell,
                k,
                v,
                position,
                [state[n] for n in names],
                wide(self.q_proj.weight),
                weights,
            )
        if self.gate is not None:
            lam = wide(self.gate(torch.cat([x, y.to(x.dtype)], -1))).sigmoid()  # (B, T, d_model)
            y = torch.lerp(y, wide(x), lam)
        cell_state = dict(zip(names, last, strict=True))
        return y, {**cell_state, **cache_of(k, v, position, reset, None)}
