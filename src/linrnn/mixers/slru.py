"""Simplified Linear Recurrent Unit, real throughout."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._base import FFT_REACHES_BACK, Mixer
from linrnn.ops import accumulator_dtype, fft_scan, linear_scan
from linrnn.typing import Float, ResetMask, Sequence, State, Token


class SLRU(Mixer):
    r"""Simplified LRU: real decays between two real affine maps.

    Equation:
        h_t = lam * h_{t-1} + gamma * (W_in x_t + b_in)     h in R^{d_state}
        y_t = W_out h_t + b_out                             y in R^{d_model}
        lam = exp(-exp(nu_log)), in (0, 1); float32 rounds it to 1 below nu_log = -17.3
        gamma = exp(gamma_log), a free parameter that starts at sqrt(1 - lam^2)
        Initially lam^2 is uniform on [r_min^2, r_max^2].

    Shapes:
        x      (batch, time, d_model)   real
        y      (batch, time, d_model)   real, dtype of x
        state  (batch, d_state)         float32, float64 for float64

    Args:
        d_model: channels in and out.
        d_state: modes. Default: d_model.
        r_min, r_max: range of the initial lam, 0 <= r_min < r_max <= 1; a mode forgets in
            -1/ln(lam) steps: 0.9 is 9.5 steps, 0.999 is 999.5.
        form: how a sequence is computed, with the same numbers: "scan", or "conv" (an FFT of
            twice the length, for comparison; it cannot reset inside a sequence, and a huge step
            changes those before it by roundings of the largest output).
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        ArgumentError: r_min, r_max or a size outside the ranges above; "conv" with a reset mask.
        UnknownNameError: an unknown form.
        ShapeError: the last axis of x is not d_model, or state does not fit.

    Departures from the paper:
        None known: both maps start Glorot-uniform with zero biases.

    Example:
        >>> y, state = SLRU(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Su, blog post on the LRU paper (kexue.fm/archives/9554), 2023. Key: su2023google.
    """

    family: ClassVar[str] = "diagonal"
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
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
        self.d_model = d_model
        self.d_state = d_model if d_state is None else d_state
        self.r_min, self.r_max = r_min, r_max
        self.form = form

        check_positive_int("SLRU", d_model=d_model, d_state=self.d_state)
        check_in("SLRU", "form", form, self.forms)
        if not 0 <= r_min < r_max <= 1:
            raise ArgumentError(
                f"SLRU: r_min and r_max must satisfy 0 <= r_min < r_max <= 1, "
                f"got r_min={r_min}, r_max={r_max}."
            )
        self.nu_log = nn.Parameter(torch.empty(self.d_state, device=device, dtype=dtype))
        self.gamma_log = nn.Parameter(torch.empty(self.d_state, device=device, dtype=dtype))
        self.in_proj = nn.Linear(d_model, self.d_state, device=device, dtype=dtype)
        self.out_proj = nn.Linear(self.d_state, d_model, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        u = torch.rand(self.d_state, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        nu = -0.5 * torch.log(u * (self.r_max**2 - self.r_min**2) + self.r_min**2)
        self.nu_log.copy_(nu.log())
        self.gamma_log.copy_(0.5 * torch.log(-torch.expm1(-2 * nu)))
        for linear in (self.in_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        return (
            f"d_model={self.d_model}, d_state={self.d_state}, r_min={self.r_min}, "
            f"r_max={self.r_max}, form={self.form!r}"
        )

    def decay(self) -> Float[Tensor, " d_state"]:
        """``lam``, real; at least float32, since half precision cannot hold a decay near 1."""
        return torch.exp(-self.nu_log.to(accumulator_dtype(self.nu_log.dtype)).exp())

    def eigenvalues(self) -> Tensor:
        """``lam`` as complex numbers, the diagonal of the transition."""
        lam = self.decay()
        return torch.complex(lam, torch.zeros_like(lam))

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Float[Tensor, "batch d_state"]:
        """Zeros."""
        return self._zeros(batch_size, self.d_state, device=device, dtype=dtype)

    def forward(
        self, x: Sequence, state: State | None = None, *, reset: ResetMask | None = None
    ) -> tuple[Sequence, State]:
        """Read a whole sequence: see `Mixer.forward`."""
        self._check_input(x, time=True)
        h0 = self._start(state, x)
        b = self._project_in(x)  # (B, T, N)
        if self.form == "conv":
            if reset is not None:
                raise ArgumentError(
                    "SLRU.forward: reset must be None for form='conv', got a mask. "
                    "Use form='scan', or split the batch at the resets."
                )
            h, last = fft_scan(self.decay(), b, h0)
        else:
            h, last = linear_scan(self.decay(), b, h0, reset=reset)
        return self._project_out(h, x.dtype), last

    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step: see `Mixer.step`."""
        self._check_input(x_t, time=False)
        h = self.decay() * self._start(state, x_t) + self._project_in(x_t)
        return self._project_out(h, x_t.dtype), h

    def _project_in(self, x: Tensor) -> Tensor:
        """``gamma * (W x + b)``, gamma multiplied into the small factors."""
        gamma, weight = self.gamma_log.exp(), self.in_proj.weight
        b = F.linear(x.to(weight.dtype), weight * gamma[:, None], self.in_proj.bias * gamma)
        return b.to(accumulator_dtype(weight.dtype))

    def _project_out(self, h: Tensor, dtype: torch.dtype) -> Tensor:
        y: Tensor = self.out_proj(h.to(self.out_proj.weight.dtype))
        return y.to(dtype)
