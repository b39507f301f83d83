"""Selective LRU: a diagonal recurrence whose decay depends on the input."""

from math import pi
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.nn.ring import check_phase, check_ring, ring, uniform
from linrnn.ops import linear_scan
from linrnn.ops.half_linear import half_linear
from linrnn.ops.linear.cumsum import cumsum_mean, cumsum_scan
from linrnn.ops.linear.weighted_mean import EMPTY, mean_of_past, shares
from linrnn.state_spec import Part, complex_, opened, real

_GATES = ("stable", "free", "normalised")


class SelectiveLRU(Mixer):
    r"""LRU with an input-dependent decay, so it can choose what to forget.

    Equation:
        h_t = exp(g_t) * h_{t-1} + gamma_t * W x_t      h in C^{d_state}, W and U real
        y_t = Re(C h_t) + D * x_t                       y in R^{d_model}
        free        g_t = U x_t - nu - i theta,            gamma_t = 1
        stable      g_t = -softplus(nu - U x_t) - i theta, gamma_t = sqrt(1 - |exp(g_t)|^2)
        normalised  g_t as in free, gamma_t = 1, and y_t = Re(C h_t / d_t) + D * x_t with
                    d_t = exp(Re g_t) d_{t-1} + 1
        free grows without bound wherever U x_t stays above nu. stable has |exp(g_t)| <= 1.
        normalised is a weighted mean: from an empty state |h_t / d_t| <= max |W x_s|. It is
        computed from that mean and log d_t; float32 knows log d to 6e-8 |log d|.
        Unrolled: h_t = exp(G_t) (h_0 + sum_{s<=t} exp(-G_s) gamma_s W x_s), G_t = g_1 + ... + g_t.

    Args:
        d_state: complex modes. Default: d_model.
        gate: "stable", "free" (as published) or "normalised", as above.
        learn_initial: make the state before the first step, and after every reset, a parameter.
        r_min, r_max: ring of the initial |exp(g)| at x = 0, 0 <= r_min < r_max <= 1; a mode
            forgets in -1/ln(r) steps. Unused by the free gate.
        max_phase: largest initial theta, radians per step, in (0, 2 pi]. Unused by the free gate.
        form: how a sequence is computed, with the same numbers: "scan", or "cumsum", the
            unrolled equation. The latter is accurate only while Re G_t spans less than 60
            (float32) or 600 (float64), which is enforced, and cannot reset inside a sequence.

    Departures from the paper:
        The post returns Re(h_t); here C and D read it out as in the LRU. The free gate starts
        as published, which forgets within 10 steps: U, W ~ 1e-3 N(0, 1), nu from 0.1 to 0.9,
        theta_k = 2 pi k / d_state. The post has no stable gate: its ring and gamma are the LRU's,
        with gamma following the decay. The post's denominator is that of |exp(g_t)| here, since a
        complex one can vanish. The post keeps Re(h) as its state; all of h is carried here.

        Train the stable gate: naming 6 symbols scattered over 58 steps (two layers of width 48,
        2,000 steps, one seed) it got 81 % right, normalised 70 %, free as published 30 %, the LRU
        53 %. With a U of the others' size, free was not finite at the first step.

    Example:
        >>> y, state = SelectiveLRU(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Arponen, "Linear Recurrent Units and Attention", blog post, 2023. Key: arponen2023linear.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("W", "C_re", "C_im")
    single_precision: ClassVar[tuple[str, ...]] = ("nu", "theta")

    family: ClassVar[str] = "diagonal"
    choices = Choices(
        transition="complex diagonal", gate="input", memory="vector", normaliser="scaled"
    )
    forms: ClassVar[tuple[str, ...]] = ("scan", "cumsum")
    without_reset: ClassVar[tuple[str, ...]] = ("cumsum",)
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("nu", "theta", "U")
    learned: ClassVar[LearnedStart] = LearnedStart("h", pairs=True)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        gate: Literal["stable", "free", "normalised"] = "stable",
        learn_initial: bool = False,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * pi,
        form: Literal["scan", "cumsum"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.gate, self.form = gate, form
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        check_positive_int("SelectiveLRU", d_state=self.d_state)
        check_in("SelectiveLRU", "gate", gate, _GATES)
        check_in("SelectiveLRU", "form", form, self.forms)
        check_ring("SelectiveLRU", r_min, r_max)
        check_phase("SelectiveLRU", max_phase)
        empty, N, D = empty_parameters(device, dtype), self.d_state, d_model
        self.nu, self.theta = empty(N), empty(N)
        self.U, self.W = empty(N, D), empty(N, D)
        self.C_re, self.C_im = empty(D, N), empty(D, N)
        self.D = empty(D)
        self.learned.add(self, learn_initial, N, device=device, dtype=dtype)
        if learn_initial and gate == "normalised":
            self.log_norm0 = empty(N)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        if self.gate == "free":
            steps = torch.arange(self.d_state, dtype=torch.float64)
            self.nu.copy_(torch.linspace(0.1, 0.9, self.d_state, dtype=torch.float64))
            self.theta.copy_(2 * pi * steps / self.d_state)
            for weight in (self.U, self.W):
                nn.init.normal_(weight, std=1e-3)
        else:
            u1, u2 = uniform(2, self.d_state)
            nu = ring(u1, self.r_min, self.r_max)
            # softplus of this is nu
            self.nu.copy_(torch.log(torch.expm1(nu)) if self.gate == "stable" else nu)
            self.theta.copy_(self.max_phase * u2)
            for weight in (self.U, self.W):
                nn.init.normal_(weight, std=self.d_model**-0.5)
        for weight in (self.C_re, self.C_im):
            nn.init.normal_(weight, std=self.d_state**-0.5)
        nn.init.normal_(self.D)
        if self.learn_initial:
            self.learned.reset(self)
            nn.init.normal_(self.get_parameter("h0_re"))
            if self.gate == "normalised":
                nn.init.zeros_(self.log_norm0)  # weighs as much as one input

    def state_spec(self) -> Part | dict[str, Part]:
        """See `Mixer.state_spec`."""
        h = complex_(d_state=self.d_state)
        if self.gate != "normalised":
            return h
        return {"mean": h, "log_norm": real(d_state=self.d_state, start=EMPTY)}

    def _begins(self, spec: Any) -> Any:
        """See `Mixer._begins`."""
        if self.gate != "normalised" or not self.learn_initial:
            return super()._begins(spec)
        mean, log_norm = self.learned.of(self, "h"), wide(self.log_norm0)
        return {
            "mean": spec["mean"]._replace(start=mean),
            "log_norm": spec["log_norm"]._replace(start=log_norm),
        }

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        z, b = self._gates(x)
        if self.form == "cumsum":
            h, last = self._run_cumsum(z, b, state)
        else:
            h, last = self._run_scan(z, b, state, reset)
        return self._project_out(h, x), last

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        z, b = self._gates(x_t)
        if self.gate != "normalised":
            h = self._decay(z) * state + b
            return self._project_out(h, x_t), h
        last = _weighted_step(state, -z, b, self._rotation())
        return self._project_out(last["mean"], x_t), last

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``z = nu - U x``, what the decay is computed from, and the input of the recurrence."""
        weight = torch.cat([self.U, self.W])
        u, b = wide(half_linear(x.to(weight.dtype), weight)).chunk(2, -1)
        z = wide(self.nu) - u
        return z, b * _gamma(z) if self.gate == "stable" else b

    def _log_modulus(self, z: Tensor) -> Tensor:
        """``Re g``."""
        return -F.softplus(z) if self.gate == "stable" else -z

    def _rotation(self) -> Tensor:
        """``exp(-i theta)``, (N,)."""
        theta = wide(self.theta)
        return torch.polar(torch.ones_like(theta), -theta)

    def _decay(self, z: Tensor) -> Tensor:
        """``exp(g)``; of the stable gate the modulus is a sigmoid, at most 1 in any rounding."""
        modulus = torch.sigmoid(-z) if self.gate == "stable" else bounded_exp(-z)
        return modulus * self._rotation()

    def _run_scan(self, z: Tensor, b: Tensor, start: Any, reset: Tensor | None) -> tuple[Any, Any]:
        """Every state, (B, T, N), and the last one."""
        fresh = self._fresh(reset)
        if self.gate != "normalised":
            a = self._decay(z)
            if reset is not None and fresh is not None:
                b = torch.where(reset[..., None], b + a * fresh, b.to(a.dtype))
            return linear_scan(a, b, start, reset=reset)
        weight = torch.zeros_like(z)
        if reset is not None and fresh is not None:
            first = _weighted_step(fresh, -z, b, self._rotation())
            weight = torch.where(reset[..., None], first["log_norm"], weight)
            b = torch.where(reset[..., None], first["mean"], b.to(first["mean"].dtype))
        mean, _, last = mean_of_past(-z, weight, b, start, reset, self._rotation())
        return mean, last

    def _fresh(self, reset: Tensor | None) -> Any:
        """The learned state that a reset starts from, None where it is zero."""
        if reset is None or not self.learn_initial:
            return None
        return opened(self.init_state(1, device=reset.device), self._begins(self.state_spec()))

    def _run_cumsum(self, z: Tensor, b: Tensor, start: Any) -> tuple[Any, Any]:
        theta = wide(self.theta)
        if self.gate == "normalised":
            return cumsum_mean("SelectiveLRU.forward", -z, -theta, b, start)
        return cumsum_scan("SelectiveLRU.forward", self._log_modulus(z), -theta, b, start)

    def _project_out(self, h: Tensor, x: Tensor) -> Tensor:
        """``Re(C h) + D * x`` as one real product on interleaved halves."""
        C = torch.stack([self.C_re, -self.C_im], -1).flatten(1)  # (D, 2 N)
        y = half_linear(torch.view_as_real(h).flatten(-2).to(C.dtype), C)
        return y + self.D * x


def _gamma(z: Tensor) -> Tensor:
    """``sqrt(1 - sigmoid(-z)^2)``, factored so that its gradient is finite where it vanishes."""
    return torch.exp(0.5 * F.logsigmoid(z)) * torch.sqrt(1 + torch.sigmoid(-z))


def _weighted_step(
    state: dict[str, Tensor], log_decay: Tensor, b: Tensor, rotation: Tensor
) -> dict[str, Tensor]:
    """One step of the mean whose weights are 1 when new."""
    log_odds = state["log_norm"] + log_decay
    past, new = shares(log_odds)
    return {
        "mean": past * rotation * state["mean"] + new * b,
        "log_norm": torch.logaddexp(log_odds, torch.zeros_like(log_odds)),
    }
