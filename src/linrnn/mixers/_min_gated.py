"""What minGRU and minLSTM share: one projection, one `gated_scan`, perhaps a projection back."""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._base import Mixer
from linrnn.ops import accumulator_dtype, gated_scan, log_linear_scan
from linrnn.ops.gated_scan._composite import log_odds
from linrnn.typing import Float, ResetMask, Sequence, State, Token

_NOTHING = 1e-30  # added to a state before its logarithm, whose slope at 0 would be infinite


class MinGated(Mixer):
    """A diagonal recurrence gated by its input alone; a subclass says by how many gates."""

    family: ClassVar[str] = "gated"
    forms: ClassVar[tuple[str, ...]] = ("scan", "log")
    gates: ClassVar[int]
    """Pre-activations a channel has beside its candidate."""

    def __init__(
        self,
        d_model: int,
        *,
        expansion: float,
        positive: bool,
        normalise: bool,
        bias: bool,
        form: Literal["scan", "log"],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.d_model, self.expansion = d_model, expansion
        self.positive, self.normalise, self.bias, self.form = positive, normalise, bias, form
        check_positive_int(where, d_model=d_model)
        check_in(where, "form", form, self.forms)
        if not 1 <= expansion * d_model < float("inf"):
            raise ArgumentError(
                f"{where}: expansion must give at least one channel, got {expansion} of "
                f"d_model={d_model}. The usual values are 1 to 4."
            )
        if form == "log" and not positive:
            raise ArgumentError(
                f"{where}: form must be 'scan' where positive=False, got 'log'. A candidate that "
                "may be negative has no logarithm: use form='scan', which is as stable."
            )
        self.d_inner = int(expansion * d_model)
        width = (1 + self.gates) * self.d_inner
        self.in_proj = nn.Linear(d_model, width, bias, device, dtype)
        self.out_proj: nn.Linear | None = None
        if expansion != 1:
            self.out_proj = nn.Linear(self.d_inner, d_model, bias, device, dtype)

    def reset_parameters(self) -> None:
        """Draw every parameter anew, as torch.nn.Linear does."""
        for layer in (self.in_proj, self.out_proj):
            if layer is not None:
                layer.reset_parameters()

    @property
    def start(self) -> float:
        """The state before a sequence: g(0) where the state is positive, else 0."""
        return 0.5 if self.positive else 0.0

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Float[Tensor, "batch d_inner"]:
        """``start`` in every channel."""
        return self._zeros(batch_size, self.d_inner, device=device, dtype=dtype).fill_(self.start)

    def forward(
        self, x: Sequence, state: State | None = None, *, reset: ResetMask | None = None
    ) -> tuple[Sequence, State]:
        """Read a whole sequence: see `Mixer.forward`."""
        self._check_input(x, time=True)
        h0 = None if state is None else self._state_of(state, x)
        run = self._by_logarithms if self.form == "log" else self._by_kernel
        h, last = run(self._project_in(x), h0, reset)
        return self._project_out(h, x), last if h0 is None else last.to(h0.dtype)

    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step: see `Mixer.step`."""
        self._check_input(x_t, time=False)
        h0 = self._state_of(state, x_t)
        linear = self.in_proj
        weight = linear.weight
        parts = F.linear(x_t.to(weight.dtype), weight, linear.bias)
        value, *gates = parts.to(accumulator_dtype(parts.dtype)).chunk(1 + self.gates, -1)
        if self.positive:
            value = torch.maximum(value + 0.5, value.sigmoid())  # g, in fewer operators
        if len(gates) == 2 and not self.normalise:
            h = torch.addcmul(gates[1].sigmoid() * value, gates[0].sigmoid(), h0)
        else:
            logit = gates[0] if len(gates) == 1 else log_odds(*gates)
            h = torch.lerp(h0.to(value.dtype), value, logit.sigmoid())
        return self._project_out(h, x_t), h.to(h0.dtype)

    def _state_of(self, state: State, x: Tensor) -> Tensor:
        """The caller's state; what fits at a glance is spared the long check of every step."""
        if (
            type(state) is Tensor
            and not state.is_nested
            and state.shape == (x.shape[0], self.d_inner)
            and state.dtype == accumulator_dtype(self.in_proj.weight.dtype)
            and state.device == x.device
        ):
            return state
        h: Tensor = self._start(state, x)
        return h

    def _by_kernel(
        self, parts: Tensor, h0: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return gated_scan(
            parts,
            h0,
            positive=self.positive,
            normalise=self.normalise,
            start=self.start,
            reset=reset,
        )

    def _by_logarithms(
        self, parts: Tensor, h0: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        value, *gates = parts.to(accumulator_dtype(parts.dtype)).unbind(-2)
        if len(gates) == 2 and not self.normalise:
            log_keep, log_add = F.logsigmoid(gates[0]), F.logsigmoid(gates[1])
        else:
            logit = gates[0] if len(gates) == 1 else log_odds(*gates)
            log_keep, log_add = F.logsigmoid(-logit), F.logsigmoid(logit)
        # relu keeps the branch not taken, and its gradient, finite
        log_value = torch.where(value >= 0, (value.relu() + 0.5).log(), F.logsigmoid(value))
        log_b = log_add + log_value
        log_start = value.new_full((value.shape[0], self.d_inner), self.start).log()
        if reset is not None:
            begun = torch.logaddexp(log_b, log_keep + log_start[:, None])
            log_b = torch.where(reset[..., None], begun, log_b)
        log_h0 = log_start if h0 is None else (h0 + _NOTHING).log()
        log_h, log_last = log_linear_scan(log_keep, log_b, log_h0, reset=reset)
        return log_h.exp().to(parts.dtype), log_last.exp()

    def _project_in(self, x: Tensor) -> Tensor:
        """Pre-activations of candidate and gates, (..., 1 + gates, d_inner)."""
        weight = self.in_proj.weight
        parts: Tensor = F.linear(x.to(weight.dtype), weight, self.in_proj.bias)
        return parts.view(*x.shape[:-1], 1 + self.gates, self.d_inner)

    def _project_out(self, h: Tensor, x: Tensor) -> Tensor:
        if self.out_proj is not None:
            h = self.out_proj(h.to(self.out_proj.weight.dtype))
        return h.to(x.dtype)
