"""Base of the layers of TTT: an inner perceptron learns to rebuild values from keys."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._families.inner_memory import InnerMemory
from linrnn.nn import CausalConv, HeadNorm, empty_parameters, lecun_normal, rotate
from linrnn.nn.linear import Linear
from linrnn.nn.rotary import check_rotary
from linrnn.ops.attention import positions
from linrnn.state_spec import integer


class TTT(Mixer):
    """Queries, keys and values, learning rates, the inner perceptron, a norm and a map.

    A subclass stores its options and calls `_make` with the sizes of the perceptron.
    """

    family: ClassVar[str] = "test-time"
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("row_rate",)
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("row_rate",)
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    in_laws: ClassVar[Mapping[str, Any]] = {"mini_batch": 4}

    n_heads: int
    d_head: int
    mini_batch: int
    base_rate: float
    d_conv: int | None
    gate: bool
    rotary_base: float

    def _make(self, n_heads: int | None, d_head: int | None, hidden: int | None, to: Any) -> None:
        """The parts; ``hidden`` times as many channels lie between two layers, or there is one."""
        where = type(self).__name__
        self.n_heads = max(1, self.d_model // 64) if n_heads is None else n_heads
        check_positive_int(where, n_heads=self.n_heads, mini_batch=self.mini_batch)
        # pairs of channels turn
        self.d_head = 2 * -(-self.d_model // (2 * self.n_heads)) if d_head is None else d_head
        check_positive_int(where, d_head=self.d_head)
        check_rotary(where, self.d_head, self.d_head)
        check_positive(where, base_rate=self.base_rate, rotary_base=self.rotary_base)
        if self.d_head < 4:
            raise ArgumentError(
                f"{where}: d_head must be at least 4, got {self.d_head}. A norm of two channels "
                "leaves their sign alone; take fewer heads."
            )
        width = self.n_heads * self.d_head
        shared = self.d_conv is not None
        self.in_proj = Linear(self.d_model, (2 if shared else 3) * width, bias=False, **to)
        self.conv_q = self.conv_k = None
        if self.d_conv is not None:
            check_positive_int(where, d_conv=self.d_conv)
            self.conv_q, self.conv_k = (CausalConv(width, self.d_conv, **to) for _ in range(2))
        self.rate_proj = Linear(self.d_model, self.n_heads, **to)
        empty = empty_parameters(to["device"], to["dtype"])
        self.row_rate = empty(self.mini_batch)
        self.inner_gain = empty(self.n_heads, self.d_head)
        self.inner_bias = empty(self.n_heads, self.d_head)
        sizes = [self.d_head, *([] if hidden is None else [hidden * self.d_head]), self.d_head]
        kind: Any = {"rule": "residual_regression", "activation": "gelu_tanh", "bias": True}
        self.memory = InnerMemory(self.n_heads, sizes, **kind, mini_batch=self.mini_batch, **to)
        self.norm = HeadNorm(1, width, norm="layer", **to)
        self.norm_bias = empty(width)
        self.gate_proj = Linear(self.d_model, width, bias=False, **to) if self.gate else None
        self.out_proj = Linear(width, self.d_model, bias=False, **to)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.gate_proj, self.out_proj):
            if part is not None:
                lecun_normal(part)
        nn.init.normal_(self.rate_proj.weight, std=0.02)
        for conv in (self.conv_q, self.conv_k):
            if conv is not None:
                conv.reset_parameters()
        self.norm.reset_parameters()
        nn.init.ones_(self.inner_gain)
        for zero in (self.rate_proj.bias, self.row_rate, self.inner_bias, self.norm_bias):
            nn.init.zeros_(zero)
        self.memory.reset_parameters(lambda matrix: nn.init.normal_(matrix, std=0.02))

    def state_spec(self) -> dict[str, Any]:
        """See `Mixer.state_spec`: moves of weights, past of convolutions, steps so far."""
        conv = {} if self.conv_q is None else {"conv": self.conv_q.state_spec()}
        return {**self.memory.state_spec(), **conv, "position": integer()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        x = x.to(self.in_proj.weight.dtype)
        position = positions(state["position"], x.shape[1], reset)
        (q, k, v), past = self._projected(x, state, reset)
        rate = self.base_rate / self.d_head * wide(self.rate_proj(x)).sigmoid()  # (B, T, H)
        row = torch.arange(1, self.mini_batch + 1, dtype=rate.dtype, device=x.device)
        gain = (1 / row + wide(self.row_rate)).clamp(min=0)
        constants = (wide(self.inner_gain), wide(self.inner_bias))
        with without_autocast(x.device):
            # (B, T, 2, H, K)
            turned = rotate(torch.stack([q, k], 2), position % self.mini_batch, self.rotary_base)
            q, k = turned.unbind(2)  # (B, T, H, K)
            options: Any = {"gain": gain, "constants": constants}
            o, learned = self.memory(q, k, v, rate, position, state, **options)
            o = self.norm(o.flatten(2)[:, :, None]) + wide(self.norm_bias)  # (B, T, H K)
            if self.gate_proj is not None:
                o = F.gelu(wide(self.gate_proj(x)), approximate="tanh") * o
        y = self.out_proj(o.to(x.dtype))
        return y, {**learned, **past, "position": position[:, -1] + 1}

    def _projected(
        self, x: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Queries, keys and values (B, T, H, K); the first two may be convolutions of the same."""
        parts = self.in_proj(x).split(self.n_heads * self.d_head, -1)
        past = {}
        if self.conv_q is not None and self.conv_k is not None:
            q, past["conv"] = self.conv_q(parts[0], state["conv"], reset)
            k, _ = self.conv_k(parts[0], state["conv"], reset)
            parts = (q, k, parts[1])
        return [wide(z).unflatten(-1, (self.n_heads, -1)) for z in parts], past
