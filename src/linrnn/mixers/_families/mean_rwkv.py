"""Time mixing by a mean with exponential weights: RWKV-4 and its complex relative."""

from collections.abc import Callable
from math import log
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.compute.precision import autocast_dtype, in_dtype_of, wide
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._families.rwkv import ready
from linrnn.nn.channel_mix import (
    INITS,
    check_layer,
    initial_decay,
    initial_mix,
    orthogonal,
    zigzag,
)
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.nn.ring import ring, uniform
from linrnn.ops import cell_scan
from linrnn.ops.conv.past import last_inputs
from linrnn.ops.conv.token_mix import token_mix
from linrnn.ops.linear.weighted_mean import EMPTY
from linrnn.state_spec import Part, complex_, real

RING = (0.9, 0.999)  # decays of the bare form


class MeanRWKV(Mixer):
    """Keys, values and receptance around a mean, which a cell of the subclass computes."""

    family: ClassVar[str] = "linear-attention"
    complex_mean: ClassVar[bool] = False
    cell: ClassVar[Cell]
    value_parts: int = 1  # real numbers that make a value

    def __init__(
        self,
        d_model: int,
        d_state: int | None,
        token_shift: bool,
        init: str,
        layer: int,
        n_layers: int,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.token_shift, self.init = token_shift, init
        self.layer, self.n_layers = layer, n_layers
        where = type(self).__name__
        check_positive_int(where, d_state=self.d_state)
        check_in(where, "init", init, INITS)
        check_layer(where, layer, n_layers)

        def linear(n_in: int, n_out: int) -> nn.Linear:
            return Linear(n_in, n_out, bias=False, device=device, dtype=dtype)

        empty, D, N = empty_parameters(device, dtype), d_model, self.d_state
        self.time_decay, self.time_first = empty(N), empty(N)
        if token_shift:
            self.mu_k, self.mu_v, self.mu_r = empty(D), empty(D), empty(D)
        self.key, self.value = linear(D, N), linear(D, self.value_parts * N)
        self.receptance, self.output = linear(D, N), linear(N, D)
        self._add_parameters(empty)
        self.reset_parameters()

    def _add_parameters(self, empty: Callable[..., nn.Parameter]) -> None:
        """Add the further parameters of a variant, before any is drawn."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        if self.token_shift:
            self._reset_shifted()
        else:
            self._reset_bare()

    def _reset_shifted(self) -> None:
        depth = self.layer / max(self.n_layers - 1, 1)  # 0 in the first layer, 1 in the last
        self.time_decay.copy_(initial_decay(self.d_state, -5, 8, depth))
        self.time_first.copy_(log(0.3) + 0.5 * zigzag(self.d_state))
        remaining = 1 - self.layer / self.n_layers
        self.mu_k.copy_(initial_mix(self.d_model, remaining))
        self.mu_v.copy_(initial_mix(self.d_model, remaining) + 0.3 * depth)
        self.mu_r.copy_(initial_mix(self.d_model, 0.5 * remaining))
        orthogonal(self.value.weight)
        for linear in (self.key, self.receptance, self.output):
            if self.init == "published":
                nn.init.zeros_(linear.weight)
            else:
                orthogonal(linear.weight)

    def _reset_bare(self) -> None:
        self.time_decay.copy_(ring(uniform(self.d_state), *RING).log())
        nn.init.zeros_(self.time_first)
        for linear in (self.key, self.value, self.receptance, self.output):
            nn.init.xavier_uniform_(linear.weight)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`; ``log_norm`` is 0 where there is no weight at all yet."""
        mean = (complex_ if self.complex_mean else real)(d_state=self.d_state)
        spec = {"mean": mean, "log_norm": real(d_state=self.d_state, start=EMPTY)}
        return {**spec, "shift": real(past=1, d_model=self.d_model)} if self.token_shift else spec

    def _read(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        k, v, r = self._project(x, state, reset)
        start = state["mean"], state["log_norm"]
        inputs = {"k": k, "v": v, "r": r, **self._constants()}
        y, final = self._scan(inputs, start, reset)
        last = dict(zip(("mean", "log_norm"), final, strict=True))
        if self.token_shift:
            last["shift"] = last_inputs(x, state["shift"], reset)
        return self.output(in_dtype_of(self.output.weight, y)), last

    def _scan(
        self, inputs: dict[str, Any], start: tuple[Tensor, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The cell along time, which some have a kernel for."""
        y, (mean, log_norm) = cell_scan(self.cell, **inputs, state=start, reset=reset)
        return y, (mean, log_norm)

    def _constants(self) -> dict[str, Any]:
        """Those of the cell."""
        return {"decay": bounded_exp(wide(self.time_decay)), "bonus": wide(self.time_first)}

    def _values(self, v: Tensor) -> Tensor:
        """(..., N) values from what `value` projected."""
        return v

    def _project(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and receptance, at least float32 unless the cell takes them in bfloat16."""
        x_k = x_v = x_r = x.to(self.key.weight.dtype)
        if self.token_shift:
            mu = 1 - torch.stack([self.mu_k, self.mu_v, self.mu_r])  # (3, d_model)
            dtype = autocast_dtype(self.key.weight)
            x_k, x_v, x_r = token_mix(x, state["shift"], mu, reset=reset, dtype=dtype)
        k, v = self.key(x_k), self.value(x_v)
        r = self.receptance(x_r)
        if self.complex_mean:
            return wide(k), self._values(wide(v)), wide(r)
        return ready(k), self._values(ready(v)), ready(r)
