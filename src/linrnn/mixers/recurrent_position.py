"""Recurrent positional embedding: attention to channels that an RNN has read in order."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import Heads, lecun_normal
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache
from linrnn.nn.linear import Linear
from linrnn.ops import cell_scan
from linrnn.ops.attention import attend, positions
from linrnn.ops.cell.dense_recurrence import CELLS
from linrnn.state_spec import Part, real


class RecurrentPosition(Mixer):
    r"""Recurrent positional embedding: an RNN over some channels gives the positions.

    Equation:
        x_t = [p_t ; s_t],  s_t in R^{d_recurrent}
        r_t = tanh(W s_t + V r_{t-1} + b)
        e_t = [p_t + PE_t ; r_t],  PE_t = sin(t omega_i) in channel 2i, cos(t omega_i) in 2i + 1,
        omega_i = 10000^(-2i / channels of p), t counted from the last reset
        q_t, k_t, v_t = linear maps to R^{d_head} for each head
            of e_t                                                      "joint"
            of p_t + PE_t in n_heads heads, of r_t in n_recurrent_heads  "split"
        p_ts = softmax over s <= t of q_t . k_s / sqrt(d_head)
        y_t = e_t - x_t + W_o concat over heads of sum_s p_ts v_s
        Initially W, V and b are as in torch.nn.RNN, uniform within d_recurrent^(-1/2), the other
        weights N(0, 1 / fan_in).

    Args:
        d_recurrent: channels that pass the RNN, the last ones, fewer than all. Default: a quarter
            of d_model, at least one.
        heads: "joint" or "split".
        n_heads: heads. Default: one for each 64 channels, at least one.
        n_recurrent_heads: of "split", the heads that read r.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.
        window: steps that attention can see, the current one included. Default: all.

    Departures from the paper:
        The paper embeds once, before the first layer of a stack: here one layer does, in a block
        whose sum with its input is e_t + W_o (...). Maps have no biases but b. ``window`` is an
        addition.

    Example:
        >>> y, state = RecurrentPosition(d_model=8, d_recurrent=3)(torch.randn(2, 100, 8))
        >>> y.shape, state["r"].shape, state["k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 3]), torch.Size([2, 100, 1, 8]))

    Reference:
        Chen, Wang, Utiyama and Sumita, "Recurrent Positional Embedding for Neural Machine
        Translation", EMNLP 2019. Key: chen2019recurrent.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "attention"
    choices = Choices(
        transition="dense", gate="learned", memory="past", normaliser="softmax", steps="nonlinear"
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = GROWS
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("weight_ih", "weight_hh", "bias")

    def __init__(
        self,
        d_model: int,
        *,
        d_recurrent: int | None = None,
        heads: Literal["joint", "split"] = "joint",
        n_heads: int | None = None,
        n_recurrent_heads: int = 1,
        d_head: int | None = None,
        window: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.heads, self.window = d_model, heads, window
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        self.n_recurrent_heads = n_recurrent_heads
        self.d_recurrent = max(1, d_model // 4) if d_recurrent is None else d_recurrent
        where = "RecurrentPosition"
        check_in(where, "heads", heads, ("joint", "split"))
        check_positive_int(where, n_heads=self.n_heads, n_recurrent_heads=n_recurrent_heads)
        check_positive_int(where, d_recurrent=self.d_recurrent)
        if self.d_recurrent >= d_model:
            raise ArgumentError(
                f"{where}: d_recurrent must be less than d_model={d_model}, got {self.d_recurrent}."
            )
        self.d_head = -(-d_model // self.n_heads) if d_head is None else d_head
        check_positive_int(where, d_head=self.d_head)
        if window is not None:  # which bounds state and what a step costs
            check_positive_int(where, window=window)
            self.declared, self.cost = {}, "sequential"  # type: ignore[misc]
        to: Any = {"device": device, "dtype": dtype}
        R, sizes = self.d_recurrent, (self.d_head,) * 3
        self.weight_ih, self.weight_hh = (nn.Parameter(torch.empty(R, R, **to)) for _ in range(2))
        self.bias = nn.Parameter(torch.empty(R, **to))
        joint = heads == "joint"
        self.maps = Heads(d_model if joint else d_model - R, self.n_heads, sizes, **to)
        self.recurrent_maps = None if joint else Heads(R, n_recurrent_heads, sizes, **to)
        self._heads = self.n_heads + (0 if joint else n_recurrent_heads)
        self.o_proj = Linear(self._heads * self.d_head, d_model, bias=False, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        bound = self.d_recurrent**-0.5
        for weight in (self.weight_ih, self.weight_hh, self.bias):
            nn.init.uniform_(weight, -bound, bound)
        lecun_normal(self.maps.proj, self.o_proj)
        if self.recurrent_maps is not None:
            lecun_normal(self.recurrent_maps.proj)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: r, keys and values, the steps since a reset."""
        entry = {"n_heads": self._heads, "d_head": self.d_head}
        return {"r": real(d_recurrent=self.d_recurrent), **cache_spec(self.window, entry, entry)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        check_cache("RecurrentPosition", state)
        position, dtype = positions(state["position"], x.shape[1], reset), self.bias.dtype
        x = wide(x.to(dtype))
        # (B, T, d_plain), (B, T, d_recurrent)
        p, s = x.split([self.d_model - self.d_recurrent, self.d_recurrent], -1)
        p = p + _waves(position, p)
        with without_autocast(x.device):
            u = F.linear(s, wide(self.weight_ih), wide(self.bias))
            W, start = wide(self.weight_hh), (state["r"],)
            r, last = cell_scan(CELLS["tanh"], x=u, W=W, state=start, reset=reset)
        # (B, T, heads, K) each
        parts = [self.maps(p if self.recurrent_maps else torch.cat([p, r], -1))]
        if self.recurrent_maps is not None:
            parts.append(self.recurrent_maps(r))
        q, k, v = (wide(torch.cat(z, 2)) for z in zip(*parts, strict=True))  # (B, T, H, K) each
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)  # (B, S, H, K) each
        sight = position if self.window is None else position.clamp(max=self.window - 1)
        with without_autocast(x.device):
            o = attend("softmax", q, k, v, sight, window=self.window, whole=False)
        y = torch.cat([p, r], -1) - x + wide(self.o_proj(o.flatten(2).to(dtype)))  # (B, T, d_model)
        return y, {"r": last, **cache_of(k, v, position, reset, self.window)}


def _waves(position: Tensor, like: Tensor) -> Tensor:
    """PE (B, T, channels); angles are computed in double precision."""
    channel = torch.arange(like.shape[-1], device=position.device)
    omega = 10_000.0 ** (-(channel - channel % 2).double() / like.shape[-1])
    angle = position[..., None] * omega
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).to(like.dtype)
