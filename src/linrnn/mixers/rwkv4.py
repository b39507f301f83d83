"""RWKV-4 time mixing."""

from collections.abc import Callable
from math import log
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.compute.precision import wide
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.channel_mix import (
    INITS,
    check_layer,
    initial_decay,
    initial_mix,
    orthogonal,
    token_shift,
    zigzag,
)
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.nn.ring import ring, uniform
from linrnn.ops import cell_scan
from linrnn.ops.conv.past import last_inputs, recall
from linrnn.ops.linear.weighted_mean import EMPTY, wkv
from linrnn.state_spec import Part, closed, complex_, real

RING = (0.9, 0.999)  # decays of the bare form


class RWKV4(Mixer):
    r"""RWKV-4 time mixing: a gated mean of past values with exponential weights that decay.

    Equation:
        x^k_t = mu_k * x_t + (1 - mu_k) * x_{t-1}, and x^v, x^r likewise    (token_shift)
        k_t = W_k x^k_t,  v_t = W_v x^v_t,  r_t = W_r x^r_t                 in R^{d_state}
        wkv_t = (sum_{s<t} exp(k_s - (t-1-s) w) v_s + exp(u + k_t) v_t) / (same without v)
        y_t = W_o (sigmoid(r_t) * wkv_t)
        w = exp(time_decay) > 0, per step; u = time_first, a bonus for the current step
        wkv is a weighted mean, so |wkv_t| <= max |v_s|, whatever the keys are.
        Computed from the state L_t = logaddexp(L_{t-1} - w, k_t), the logarithm of the sum of
        weights, and the mean m_t = sigmoid(L_{t-1} - w - k_t) m_{t-1} + sigmoid(-(same)) v_t.
        Float32 knows L to 6e-8 |L|, and weights with that relative error. A state has 0 for the L
        of no weight at all, and 1e-38 for one that comes to 0.

    Args:
        d_state: channels of the mean. Default: d_model.
        token_shift: mix each input with the previous one, as the published block does. False
            is the bare recurrence, as compared in controlled experiments.
        init: "orthogonal", or "published" with W_k, W_r and W_o at zero; unused without
            token_shift.
        layer, n_layers: place in the stack, counted from 0; the published initial values of
            time_decay and mu depend on it.

    Departures from the paper:
        The state holds no running maximum: `to_running_max` and `from_running_max` convert.
        With token_shift time_decay, u, mu and W_v start as published, but W_k, W_r and W_o are
        orthogonal as W_v is. At zero, as published, the first output is zero: in a residual stack
        only W_o has a gradient at first, and in a stack without skips nothing ever has one.
        init="published" starts so; four residual blocks of width 64 with channel mixing then
        learned a text more slowly (training loss of 1.16 nats a byte after 250 steps, not 1.04).
        Without token_shift all maps start Glorot-uniform, u = 0, and exp(-w) squared uniform on
        [0.9^2, 0.999^2]. Channel mixing is `linrnn.nn.ChannelMix`; the layer norm
        before either belongs to the backbone.

    Example:
        >>> y, state = RWKV4(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["mean"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023, arXiv:2305.13048.
        Key: peng2023rwkv.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("time_decay",)

    family: ClassVar[str] = "linear-attention"
    choices = Choices(
        transition="diagonal", gate="learned", memory="vector", normaliser="sum", output="gated"
    )
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("time_decay", "time_first")
    complex_mean: ClassVar[bool] = False
    cell: ClassVar[Cell] = wkv
    value_parts: int = 1  # real numbers that make a value

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        token_shift: bool = True,
        init: Literal["orthogonal", "published"] = "orthogonal",
        layer: int = 0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
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
            return nn.Linear(n_in, n_out, bias=False, device=device, dtype=dtype)

        empty, D, N = empty_parameters(device, dtype), d_model, self.d_state
        self.time_decay, self.time_first = empty(N), empty(N)
        if token_shift:
            self.mu_k, self.mu_v, self.mu_r = empty(D), empty(D), empty(D)
        self.key, self.value = linear(D, N), linear(D, self.value_parts * N)
        self.receptance, self.output = linear(D, N), linear(N, D)
        self._add_parameters(empty)
        self.reset_parameters()

    def _add_parameters(self, empty: Callable[..., nn.Parameter]) -> None:
        """What a variant has besides, before anything is drawn."""

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
        before = state["mean"], state["log_norm"]
        own = self._constants()
        y, after = cell_scan(self.cell, k=k, v=v, r=r, **own, state=before, reset=reset)
        last = dict(zip(("mean", "log_norm"), after, strict=True))
        if self.token_shift:
            last["shift"] = last_inputs(x, state["shift"], reset)
        return self.output(y.to(self.output.weight.dtype)), last

    def _constants(self) -> dict[str, Any]:
        """Those of the cell."""
        return {"decay": bounded_exp(wide(self.time_decay)), "bonus": wide(self.time_first)}

    def _values(self, v: Tensor) -> Tensor:
        """(..., N) values from what `value` projected."""
        return v

    def _project(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and receptance, at least float32: rounded to 8 bits, a key is no weight."""
        dtype = self.key.weight.dtype
        x_k = x_v = x_r = x.to(dtype)
        if self.token_shift:
            last = recall(x, state["shift"], 1, reset)
            x_k, x_v, x_r = (token_shift(x, last, mu) for mu in (self.mu_k, self.mu_v, self.mu_r))
        k, r = wide(self.key(x_k)), wide(self.receptance(x_r))
        return k, self._values(wide(self.value(x_v))), r


def to_running_max(state: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The state as other implementations keep it: ``(alpha, beta, p)``.

    ``alpha exp(p)`` and ``beta exp(p)`` are the two sums of the equation, so the mean is
    ``alpha / beta``. Before the first step they are ``(0, 0, -1e38)``.

    Example:
        >>> [z.item() for z in to_running_max(RWKV4(1).init_state(1))]
        [0.0, 0.0, -9.999999680285692e+37]
    """
    log_norm = state["log_norm"]
    empty = (log_norm == 0) | (log_norm <= EMPTY / 2)  # which files of earlier versions have
    beta = torch.where(empty, 0.0, torch.ones_like(log_norm))
    return state["mean"] * beta, beta, torch.where(empty, -1e38, log_norm)


def from_running_max(alpha: Tensor, beta: Tensor, p: Tensor) -> dict[str, Tensor]:
    """``mean`` and ``log_norm`` from ``(alpha, beta, p)``: the inverse of `to_running_max`.

    A layer with token shift also needs ``shift``, the previous input, (batch, 1, d_model).

    Example:
        >>> state = from_running_max(torch.tensor([[3.0]]), torch.tensor([[2.0]]), torch.zeros(1))
        >>> state["mean"].item(), round(state["log_norm"].item(), 4)
        (1.5, 0.6931)
    """
    empty = beta == 0
    weight = torch.where(empty, 1.0, beta)
    log_norm = closed(p + weight.log(), real(start=EMPTY))
    return {
        "mean": torch.where(empty, 0.0, alpha / weight),
        "log_norm": torch.where(empty, 0.0, log_norm),
    }
