"""Simplified Linear Recurrent Unit, real throughout."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import FFT_REACHES_BACK, Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.affine import affine_of
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.nn.ring import check_ring, ring, uniform
from linrnn.ops import fft_scan, linear_scan
from linrnn.ops.half_linear import half_linear
from linrnn.state_spec import Part, real
from linrnn.typing import Float


class SLRU(Mixer):
    r"""Simplified LRU: a real diagonal recurrence between two affine maps.

    Equation:
        h_t = lam * h_{t-1} + gamma * (W_in x_t + b_in)     h in R^{d_state}
        y_t = W_out h_t + b_out                             y in R^{d_model}
        lam = exp(-exp(nu_log)), in (0, 1); float32 rounds it to 1 below nu_log = -17.3
        gamma = exp(gamma_log), a free parameter that starts at sqrt(1 - lam^2)
        For a step a time dt after the one before, lam is lam^dt: exp(-exp(nu_log) dt).
        Initially lam^2 is uniform on [r_min^2, r_max^2].

    Args:
        d_state: modes. Default: d_model.
        r_min, r_max: range of the initial lam, 0 <= r_min < r_max <= 1; a mode forgets in
            -1/ln(lam) steps: 0.9 is 9.5 steps, 0.999 is 999.5.
        form: how a sequence is computed, with the same numbers: "scan", or "conv" (an FFT of
            twice the length, for comparison; it cannot reset inside a sequence nor take dt, and a
            huge step changes those before it by roundings of the largest output).

    Departures from the paper:
        None known: both maps start Glorot-uniform with zero biases.

    Example:
        >>> y, state = SLRU(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Su, blog post on the LRU paper (kexue.fm/archives/9554), 2023. Key: su2023google.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("nu_log",)

    family: ClassVar[str] = "diagonal"
    choices = Choices(transition="diagonal", gate="learned", memory="vector", normaliser="scaled")
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
    without_reset: ClassVar[tuple[str, ...]] = ("conv",)
    sequence_parallel: ClassVar[tuple[str, ...]] = ("scan",)
    timed: ClassVar[bool] = True
    without_dt: ClassVar[tuple[str, ...]] = ("conv",)
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("nu_log", "gamma_log")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        r_min: float = 0.9,
        r_max: float = 0.999,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.r_min, self.r_max, self.form = r_min, r_max, form
        check_positive_int("SLRU", d_state=self.d_state)
        check_in("SLRU", "form", form, self.forms)
        check_ring("SLRU", r_min, r_max)
        empty = empty_parameters(device, dtype)
        self.nu_log, self.gamma_log = empty(self.d_state), empty(self.d_state)
        self.in_proj = Linear(d_model, self.d_state, device=device, dtype=dtype)
        self.out_proj = Linear(self.d_state, d_model, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nu = ring(uniform(self.d_state), self.r_min, self.r_max)
        self.nu_log.copy_(nu.log())
        self.gamma_log.copy_(0.5 * torch.log(-torch.expm1(-2 * nu)))
        for linear in (self.in_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return real(d_state=self.d_state)

    def decay(self, dt: Tensor | None = None) -> Float[Tensor, "*batch_time d_state"]:
        """``lam``, real, at least float32; of times (...) ``lam^dt``, (..., d_state)."""
        nu = bounded_exp(wide(self.nu_log))
        return torch.exp(-nu if dt is None else -nu * dt.unsqueeze(-1))

    def eigenvalues(self) -> Tensor:
        """``lam`` as complex numbers, the diagonal of the transition."""
        lam = self.decay()
        return torch.complex(lam, torch.zeros_like(lam))

    def _read(
        self, x: Tensor, h0: Tensor, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        b = self._project_in(x)  # (B, T, N)
        if self.form == "conv":
            h, last = fft_scan(self.decay(), b, h0)
        else:
            h, last = linear_scan(self.decay(dt), b, h0, reset=reset)
        return self._project_out(h), last

    def _step(self, x_t: Tensor, h: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        h = self.decay(dt) * h + self._project_in(x_t)
        return self._project_out(h), h

    def _project_in(self, x: Tensor) -> Tensor:
        """``gamma * (W x + b)``, gamma multiplied into the small factors."""
        gamma, (weight, b) = bounded_exp(self.gamma_log), affine_of(self.in_proj, x)
        return wide(half_linear(x.to(weight.dtype), weight * gamma[:, None], b * gamma))

    def _project_out(self, h: Tensor) -> Tensor:
        y: Tensor = self.out_proj(h.to(self.out_proj.weight.dtype))
        return y
