"""RWKV-4 time mixing and its complex variant: what they have in common."""

from abc import abstractmethod
from math import log
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._base import Mixer
from linrnn.mixers._reset import check_reset
from linrnn.nn.channel_mix import INITS, check_layer, initial_mix, orthogonal, token_shift
from linrnn.ops import accumulator_dtype
from linrnn.ops.past import last_inputs, recall
from linrnn.ops.weighted_mean import EMPTY, before, mean_of_past, shares
from linrnn.typing import ResetMask, Sequence, State, Token

RING = (0.9, 0.999)  # decays of the bare form


class WKVMixer(Mixer):
    """Everything RWKV-4 time mixing and its complex variant have in common."""

    family: ClassVar[str] = "linear-attention"

    def __init__(
        self,
        d_model: int,
        d_state: int | None,
        d_value: int,
        token_shift: bool,
        init: Literal["orthogonal", "published"],
        layer: int,
        n_layers: int,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.d_state = d_model if d_state is None else d_state
        self.token_shift, self.init = token_shift, init
        self.layer, self.n_layers = layer, n_layers
        where = type(self).__name__
        check_positive_int(where, d_model=d_model, d_state=self.d_state)
        check_in(where, "init", init, INITS)
        check_layer(where, layer, n_layers)

        def empty(n: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(n, device=device, dtype=dtype))

        def linear(n_in: int, n_out: int) -> nn.Linear:
            return nn.Linear(n_in, n_out, bias=False, device=device, dtype=dtype)

        D, N = d_model, self.d_state
        self.time_decay, self.time_first = empty(N), empty(N)
        if token_shift:
            self.mu_k, self.mu_v, self.mu_r = empty(D), empty(D), empty(D)
        self.key, self.value = linear(D, N), linear(D, d_value * N)
        self.receptance, self.output = linear(D, N), linear(N, D)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        if self.token_shift:
            self._reset_shifted()
        else:
            self._reset_bare()

    def _reset_shifted(self) -> None:
        depth = self.layer / max(self.n_layers - 1, 1)  # 0 in the first layer, 1 in the last
        channel = torch.arange(self.d_state, dtype=torch.float64)
        fraction = channel / max(self.d_state - 1, 1)
        self.time_decay.copy_(-5 + 8 * fraction ** (0.7 + 1.3 * depth))
        self.time_first.copy_(log(0.3) + 0.5 * ((channel + 1) % 3 - 1))
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
        u = torch.rand(self.d_state, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        r_min, r_max = RING
        w = -0.5 * torch.log(u * (r_max**2 - r_min**2) + r_min**2)
        self.time_decay.copy_(w.log())
        nn.init.zeros_(self.time_first)
        for linear in (self.key, self.value, self.receptance, self.output):
            nn.init.xavier_uniform_(linear.weight)

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        return (
            f"d_model={self.d_model}, d_state={self.d_state}, token_shift={self.token_shift}, "
            f"init={self.init!r}, layer={self.layer}, n_layers={self.n_layers}"
        )

    @abstractmethod
    def _values(self, v: Tensor) -> Tensor:
        """(..., N) values from what `value` projected."""

    @abstractmethod
    def _rotation(self) -> Tensor | None:
        """What the mean turns by in a step, (N,)."""

    @abstractmethod
    def _read(self, mean: Tensor) -> Tensor:
        """Real (..., N) from a mean that may be complex."""

    def _empty_state(
        self,
        batch_size: int,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        *,
        is_complex: bool,
    ) -> dict[str, Tensor]:
        def zeros(*shape: int, is_complex: bool = False) -> Tensor:
            return self._zeros(
                batch_size, *shape, device=device, dtype=dtype, is_complex=is_complex
            )

        state = {
            "mean": zeros(self.d_state, is_complex=is_complex),
            "log_norm": zeros(self.d_state).fill_(EMPTY),
        }
        return {**state, "shift": zeros(1, self.d_model)} if self.token_shift else state

    def forward(
        self, x: Sequence, state: State | None = None, *, reset: ResetMask | None = None
    ) -> tuple[Sequence, State]:
        """Read a whole sequence: see `Mixer.forward`."""
        self._check_input(x, time=True)
        check_reset(f"{type(self).__name__}.forward", reset, x)
        start = self._start(state, x)
        k, v, r = self._project(x, start, reset)
        w, bonus = self._decay_and_bonus()
        mean, log_norm, last = mean_of_past(-w, k, v, start, reset, self._rotation())
        y = self._bonus_mean(
            before(mean, start["mean"], reset, 0.0),
            bonus + k - before(log_norm, start["log_norm"], reset, EMPTY),
            v,
        )
        if self.token_shift:
            last["shift"] = last_inputs(x, start["shift"], reset)
        return self._project_out(y, r, x.dtype), last

    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step: see `Mixer.step`."""
        self._check_input(x_t, time=False)
        start = self._start(state, x_t)
        k, v, r = (z[:, 0] for z in self._project(x_t[:, None], start, None))
        w, bonus = self._decay_and_bonus()
        mean, log_norm = start["mean"], start["log_norm"]
        y = self._bonus_mean(mean, bonus + k - log_norm, v)
        past, new = shares(log_norm - w - k)
        rotation = self._rotation()
        past = past if rotation is None else past * rotation
        last = {"mean": past * mean + new * v, "log_norm": torch.logaddexp(log_norm - w, k)}
        if self.token_shift:
            last["shift"] = x_t[:, None].to(start["shift"].dtype, copy=True)
        return self._project_out(y, r, x_t.dtype), last

    def _decay_and_bonus(self) -> tuple[Tensor, Tensor]:
        wide = accumulator_dtype(self.time_decay.dtype)
        return self.time_decay.to(wide).exp(), self.time_first.to(wide)

    def _project(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and receptance, at least float32: rounded to 8 bits, a key is no weight."""
        dtype = self.key.weight.dtype
        x_k = x_v = x_r = x.to(dtype)
        if self.token_shift:
            last = recall(x, state["shift"], 1, reset)
            x_k, x_v, x_r = (token_shift(x, last, mu) for mu in (self.mu_k, self.mu_v, self.mu_r))
        wide = accumulator_dtype(dtype)
        k, r = self.key(x_k).to(wide), self.receptance(x_r).to(wide)
        return k, self._values(self.value(x_v).to(wide)), r

    def _bonus_mean(self, past_mean: Tensor, log_odds: Tensor, v: Tensor) -> Tensor:
        """What is read: the past, not yet decayed, and the current value with its bonus."""
        now, past = shares(log_odds)
        return self._read(past * past_mean + now * v)

    def _project_out(self, y: Tensor, r: Tensor, dtype: torch.dtype) -> Tensor:
        out: Tensor = self.output((r.sigmoid() * y).to(self.output.weight.dtype))
        return out.to(dtype)
