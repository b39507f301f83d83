"""R-Transformer: attention to a recurrence that reads short windows."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import Heads, empty_parameters, head_norm, last_inputs, lecun_normal
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache
from linrnn.nn.linear import Linear
from linrnn.ops import cell_scan
from linrnn.ops.attention import attend, positions
from linrnn.ops.cell.dense_recurrence import CELLS, arguments
from linrnn.state_spec import Part, real

_CELLS = ("gru", "lstm", "tanh")


class RTransformer(Mixer):
    r"""R-Transformer: an RNN over a short window at each step, then causal attention.

    Equation:
        h_t = the last state of an RNN that reads u_{t-M+1} .. u_t from a state of zeros
        u = x, and u_s = 0 before the first step of a sequence, which the RNN reads as well
        z_t = x_t + h_t;  of several RNNs the next reads u = norm(z), and adds its own to z
        q_t, k_t, v_t = W_q norm(z_t), W_k norm(z_t), W_v norm(z_t)   in R^{d_head} for each head
        p_ts = softmax over s <= t of q_t . k_s / sqrt(d_head)
        y_t = z_t - x_t + W_o concat over heads of sum_s p_ts v_s
        There are no positions. norm is LayerNorm with 1e-6 under the root, of weight
        ``gain`` and bias ``shift``. Initially the RNNs are as in torch.nn, uniform
        within d_model^(-1/2), the other weights N(0, 1 / fan_in).

    Args:
        cell: "gru", "lstm" or "tanh", each equal to its layer of torch.nn. Of RNN i the parameters
            are ``weight_ih[i]``, ``weight_hh[i]``, ``bias_ih[i]`` and ``bias_hh[i]``.
        local: M, steps of a window, the current one included.
        n_local: RNNs, one upon the other.
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.
        window: steps that attention can see, the current one included. Default: all.

    Departures from the paper:
        The layer's input, which is added to what it gives, and the norm before that belong to the
        block around a mixer, as does the feed-forward network; so z starts from what the block has
        normed. Maps of the attention have no biases. ``window`` is an addition.

    Example:
        >>> y, state = RTransformer(d_model=8, local=4)(torch.randn(2, 100, 8))
        >>> y.shape, state["inputs"].shape, state["k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 1, 3, 8]), torch.Size([2, 100, 1, 8]))

    Reference:
        Wang, Ma, Liu and Tang, "R-Transformer: Recurrent Neural Network Enhanced Transformer",
        2019, arXiv:1907.05572. Key: wang2019rtransformer.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("weight_ih", "weight_hh")

    family: ClassVar[str] = "attention"
    choices = Choices(transition="none", gate="none", memory="past", normaliser="softmax")
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = GROWS
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        cell: Literal["gru", "lstm", "tanh"] = "gru",
        local: int = 8,
        n_local: int = 1,
        n_heads: int | None = None,
        d_head: int | None = None,
        window: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.cell, self.local, self.n_local = d_model, cell, local, n_local
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_in("RTransformer", "cell", cell, _CELLS)
        check_positive_int("RTransformer", local=local, n_local=n_local, n_heads=self.n_heads)
        self.d_head = -(-d_model // self.n_heads) if d_head is None else d_head
        check_positive_int("RTransformer", d_head=self.d_head)
        self.window = window
        if window is not None:  # which bounds cost and state
            check_positive_int("RTransformer", window=window)
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 3, **to)
        self.o_proj = Linear(self.n_heads * self.d_head, d_model, bias=False, **to)
        empty, rows = empty_parameters(device, dtype), len(CELLS[cell].inputs) * d_model
        self.weight_ih, self.weight_hh = (empty(n_local, rows, d_model) for _ in range(2))
        self.bias_ih, self.bias_hh = (empty(n_local, rows) for _ in range(2))
        self.gain, self.shift = (empty(n_local, d_model) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.o_proj)
        for weight in self._rnns():
            nn.init.uniform_(weight, -(self.d_model**-0.5), self.d_model**-0.5)
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.shift)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: what the RNNs read last, keys and values, steps since a reset."""
        entry = {"n_heads": self.n_heads, "d_head": self.d_head}
        inputs = real(n_local=self.n_local, steps=self.local - 1, d_model=self.d_model)
        return {"inputs": inputs, **cache_spec(self.window, entry, entry)}

    def _rnns(self) -> list[Tensor]:
        """Parameters of all RNNs, in the order of torch.nn."""
        return [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        check_cache("RTransformer", state)
        position = positions(state["position"], x.shape[1], reset)
        dtype = self.o_proj.weight.dtype
        x = wide(x.to(dtype))
        u, z, layer_inputs = x, x, []
        parts = (*self._rnns(), self.gain, self.shift)
        for past, *rnn, gain, shift in zip(
            state["inputs"].unbind(1), *map(wide, parts), strict=True
        ):
            layer_inputs.append(last_inputs(u, past, reset))
            with without_autocast(x.device):
                z = z + _windows(self.cell, rnn, u, past, position)
                u = shift + gain * head_norm(z, "layer", 1e-6)
        q, k, v = (wide(part) for part in self.heads(u))
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)  # (B, S, H, K) each
        sight = position if self.window is None else position.clamp(max=self.window - 1)
        with without_autocast(x.device):
            o = attend("softmax", q, k, v, sight, window=self.window, whole=False)
        y = z - x + wide(self.o_proj(o.flatten(2).to(dtype)))  # (B, T, d_model)
        cache = cache_of(k, v, position, reset, self.window)
        # inputs: (B, layers, steps, d_model)
        return y, {"inputs": torch.stack(layer_inputs, 1), **cache}


def _windows(kind: str, weights: list[Tensor], u: Tensor, past: Tensor, position: Tensor) -> Tensor:
    """The state (B, T, d_model) that the window of each step ends with, read from zeros.

    A step is mapped once, and not by each window that it is in.
    """
    cell, (batch, time), length = CELLS[kind], u.shape[:2], past.shape[1]
    inputs: dict[str, Any] = dict(arguments(kind, torch.cat([past, u], 1), weights))
    pad = arguments(kind, u.new_zeros(1, 1, u.shape[2]), weights)
    age = torch.arange(length, -1, -1, device=u.device)
    visible = (age <= position[..., None])[..., None]  # (B, T, M, 1)
    for name in cell.inputs:
        windows = torch.stack([inputs[name][:, i : i + time] for i in range(length + 1)], 2)
        inputs[name] = torch.where(visible, windows, pad[name]).flatten(0, 1)  # (B T, M, d_model)
    zeros = tuple(u.new_zeros(batch * time, u.shape[2]) for _ in cell.states)
    _, last = cell_scan(cell, **inputs, state=zeros)
    h: Tensor = (last[0] if isinstance(last, tuple) else last).unflatten(0, (batch, time))
    return h
