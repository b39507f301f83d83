"""Recurrences whose gates and candidate see the input alone: minGRU and minLSTM."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import in_dtype_of, wide
from linrnn.errors import ArgumentError, check_in
from linrnn.mixers._contract.base import Mixer
from linrnn.nn.linear import Linear
from linrnn.nn.starts import check_gates, refined, refines, start_gates, starts
from linrnn.ops import accumulator_dtype, gated_scan, log_linear_scan
from linrnn.ops.linear.gated_scan.composite import log_odds
from linrnn.state_spec import Part, real

_NOTHING = 1e-30  # added to a state before its logarithm, whose slope at 0 would be infinite


class MinimalRNN(Mixer):
    """``h_t = keep_t * h_{t-1} + add_t * v_t``, by one gate or two of them.

    With one, ``add_t = sigmoid(gate)`` and ``keep_t = 1 - add_t``. With two they are the sigmoids
    of the gates, forget first, divided by their sum where they are normalised. A refine gate is the
    last block of rows; with it there is one gate, of the two the forget gate.
    """

    family: ClassVar[str] = "gated"
    forms: ClassVar[tuple[str, ...]] = ("scan", "log")
    n_gates: ClassVar[int]
    """Pre-activations a channel has beside its candidate."""

    normalise: bool = True

    def __init__(
        self,
        d_model: int,
        expansion: float,
        positive: bool,
        bias: bool,
        form: str,
        gates: str,
        t_max: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.d_model, self.expansion = d_model, expansion
        self.positive, self.bias, self.form = positive, bias, form
        check_in(where, "form", form, self.forms)
        check_gates(where, gates, t_max)
        if starts(gates) and not bias:
            raise ArgumentError(f"{where}: bias must be True for gates={gates!r}, got {bias}.")
        self.gates, self.t_max = gates, t_max
        self._n_gates = 1 if refines(gates) else self.n_gates
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
        width = (1 + self._n_gates + refines(gates)) * self.d_inner
        self.in_proj = Linear(d_model, width, bias, device, dtype)
        self.out_proj: nn.Linear | None = None
        if expansion != 1:
            self.out_proj = Linear(self.d_inner, d_model, bias, device, dtype)
        self._start_gates()  # else as torch.nn.Linear has drawn

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew, as torch.nn.Linear does; biases of gates as these say."""
        for layer in (self.in_proj, self.out_proj):
            if layer is not None:
                layer.reset_parameters()
        self._start_gates()

    @torch.no_grad()
    def _start_gates(self) -> None:
        if starts(self.gates):
            _, *biases = self.in_proj.bias.split(self.d_inner)
            # a single gate adds, and so works against one that keeps
            forget = [] if self.n_gates == 2 else [torch.empty(self.d_inner)]
            start_gates(self.gates, self.t_max, *forget, *biases)

    @property
    def start(self) -> float:
        """The state before a sequence: g(0) where the state is positive, else 0."""
        return 0.5 if self.positive else 0.0

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`: h, with 0 for ``start``."""
        return real(d_inner=self.d_inner, start=self.start)

    def _read(self, x: Tensor, h0: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        run = self._by_logarithms if self.form == "log" else self._by_kernel
        h, last = run(self._project_in(x), h0, reset)
        return self._project_out(h), last.to(h0.dtype)

    def _step(self, x_t: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
        parts = self._project_in(x_t).flatten(-2)  # (B, parts d_state)
        # (B, d_state) each
        value, *gates = parts.to(accumulator_dtype(parts.dtype)).chunk(1 + self._n_gates, -1)
        if self.positive:
            value = torch.maximum(value + 0.5, value.sigmoid())  # g, in fewer operators
        if len(gates) == 2 and not self.normalise:
            h = torch.addcmul(gates[1].sigmoid() * value, gates[0].sigmoid(), h0)
        else:
            logit = gates[0] if len(gates) == 1 else log_odds(*gates)
            h = torch.lerp(h0.to(value.dtype), value, logit.sigmoid())
        return self._project_out(h), h.to(h0.dtype)

    def _by_kernel(self, parts: Tensor, h0: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        return gated_scan(
            parts,
            h0,
            positive=self.positive,
            normalise=self.normalise,
            start=self.start,
            reset=reset,
        )

    def _by_logarithms(
        self, parts: Tensor, h0: Tensor, reset: Tensor | None
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
        log_h0 = (h0 + _NOTHING).log()
        log_h, log_last = log_linear_scan(log_keep, log_b, log_h0, reset=reset)
        return log_h.exp().to(parts.dtype), log_last.exp()

    def _project_in(self, x: Tensor) -> Tensor:
        """Pre-activations of candidate and gates, (..., 1 + gates, d_inner)."""
        parts: Tensor = self.in_proj(x.to(self.in_proj.weight.dtype))
        parts = parts.unflatten(-1, (-1, self.d_inner))  # (..., blocks, d_inner)
        if not refines(self.gates):
            return parts
        value, gate, refine = wide(parts).unbind(-2)
        forget = gate if self.n_gates == 2 else -gate
        return torch.stack([value, -refined(forget, refine)], -2)

    def _project_out(self, h: Tensor) -> Tensor:
        out_proj = self.out_proj
        return h if out_proj is None else out_proj(in_dtype_of(out_proj.weight, h))
