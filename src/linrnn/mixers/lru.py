"""Linear Recurrent Unit."""

from math import pi
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._base import Mixer
from linrnn.ops import fft_scan, linear_scan
from linrnn.typing import Complex, ResetMask, Sequence, State, Token


class LRU(Mixer):
    r"""Linear Recurrent Unit: a diagonal complex recurrence with a normalised input.

    Equation:
        h_t = lam * h_{t-1} + gamma * (B x_t)        h in C^{d_state}
        y_t = Re(C h_t) + D * x_t                    y in R^{d_model}
        lam = exp(-exp(nu_log) + i exp(theta_log))
        gamma = exp(gamma_log), a free parameter that starts at
        sqrt(1 - |lam|^2), computed as sqrt(-expm1(-2 exp(nu_log)))
        |lam| < 1 in exact arithmetic, so the layer cannot diverge; float32 rounds it to 1
        below nu_log = -17.3, a memory of 3e7 steps.
        Initially |lam|^2 is uniform on [r_min^2, r_max^2] (uniform by area on a ring) and
        arg(lam) uniform on [0, max_phase].

    Shapes:
        x      (batch, time, d_model)   real
        y      (batch, time, d_model)   real, dtype of x
        state  (batch, d_state)         complex64, complex128 for float64; 2 * d_state floats

    Args:
        d_model: channels in and out.
        d_state: complex modes. Default: d_model.
        r_min, r_max: ring of the initial |lam|, dimensionless, 0 <= r_min < r_max <= 1.
            Radius r forgets in -1/ln(r) steps: 0.9 is 9.5 steps, 0.999 is 999.5.
        max_phase: largest initial arg(lam), radians per step, in (0, 2 pi].
        form: how a sequence is computed, with the same numbers: "scan", or "conv" (an FFT of
            twice the length, for comparison; it cannot reset inside a sequence).
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        ArgumentError: r_min, r_max, max_phase or a size outside the ranges above; "conv" with
            a reset mask.
        UnknownNameError: an unknown form.
        ShapeError: the last axis of x is not d_model, or state does not fit.

    Departures from the paper:
        The uniform draws of the initialisation are kept 1e-6 away from 0 and 1, where a
        logarithm would be infinite (r_min = 0, r_max = 1). The text speaks of a factor 2 on B
        to make up for taking the real part; like its listing, we do not apply it.

    Example:
        >>> y, state = LRU(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences",
        ICML 2023, arXiv:2303.06349. Key: orvieto2023resurrecting.
    """

    family: ClassVar[str] = "diagonal"
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
    recurrent_parameters: ClassVar[tuple[str, ...]] = (
        "nu_log",
        "theta_log",
        "gamma_log",
        "B_re",
        "B_im",
    )

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * pi,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.d_state = d_model if d_state is None else d_state
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        self.form = form

        check_positive_int("LRU", d_model=d_model, d_state=self.d_state)
        check_in("LRU", "form", form, self.forms)
        if not 0 <= r_min < r_max <= 1:
            raise ArgumentError(
                f"LRU: r_min and r_max must satisfy 0 <= r_min < r_max <= 1, "
                f"got r_min={r_min}, r_max={r_max}."
            )
        if not 0 < max_phase <= 2 * pi:
            raise ArgumentError(f"LRU: max_phase must be in (0, 2 pi], got {max_phase}.")

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        N, D = self.d_state, d_model
        self.nu_log, self.theta_log, self.gamma_log = empty(N), empty(N), empty(N)
        self.B_re, self.B_im = empty(N, D), empty(N, D)
        self.C_re, self.C_im = empty(D, N), empty(D, N)
        self.D = empty(D)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        u1, u2 = torch.rand(2, self.d_state, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        nu = -0.5 * torch.log(u1 * (self.r_max**2 - self.r_min**2) + self.r_min**2)
        self.nu_log.copy_(nu.log())
        self.theta_log.copy_((self.max_phase * u2).log())
        self.gamma_log.copy_(0.5 * torch.log(-torch.expm1(-2 * nu)))
        for weight in (self.B_re, self.B_im):
            nn.init.normal_(weight, std=(2 * self.d_model) ** -0.5)
        for weight in (self.C_re, self.C_im):
            nn.init.normal_(weight, std=self.d_state**-0.5)
        nn.init.normal_(self.D)

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        return (
            f"d_model={self.d_model}, d_state={self.d_state}, r_min={self.r_min}, "
            f"r_max={self.r_max}, max_phase={self.max_phase:.4g}, form={self.form!r}"
        )

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """``lam``, the diagonal of the transition."""
        nu, theta = (_wide(p) for p in (self.nu_log, self.theta_log))
        return torch.polar(torch.exp(-nu.exp()), theta.exp())

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Complex[Tensor, "batch d_state"]:
        """Zeros."""
        return self._zeros(batch_size, self.d_state, device=device, dtype=dtype, is_complex=True)

    def forward(
        self, x: Sequence, state: State | None = None, *, reset: ResetMask | None = None
    ) -> tuple[Sequence, State]:
        """Read a whole sequence: see `Mixer.forward`."""
        self._check_input(x, time=True)
        h0 = self._start(state, x)
        b = self._project_in(x)  # (B, T, N) complex
        if self.form == "conv":
            if reset is not None:
                raise ArgumentError(
                    "LRU.forward: reset must be None for form='conv', got a mask. "
                    "Use form='scan', or split the batch at the resets."
                )
            h, last = fft_scan(self.eigenvalues(), b, h0)
        else:
            h, last = linear_scan(self.eigenvalues(), b, h0, reset=reset)
        return self._project_out(h, x), last

    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step: see `Mixer.step`."""
        self._check_input(x_t, time=False)
        h = self.eigenvalues() * self._start(state, x_t) + self._project_in(x_t)
        return self._project_out(h, x_t), h

    def _project_in(self, x: Tensor) -> Tensor:
        """``gamma * (B x)``; real and imaginary rows interleaved, so one real product does it."""
        B = torch.stack([self.B_re, self.B_im], 1)  # (N, 2, D)
        B = (B * self.gamma_log.exp()[:, None, None]).flatten(0, 1)
        b = F.linear(x.to(B.dtype), B).unflatten(-1, (self.d_state, 2))  # (..., N, 2)
        return torch.view_as_complex(_wide(b))

    def _project_out(self, h: Tensor, x: Tensor) -> Tensor:
        """``Re(C h) + D * x`` as one real product on interleaved halves."""
        C = torch.stack([self.C_re, -self.C_im], -1).flatten(1)  # (D, 2 N)
        y = F.linear(torch.view_as_real(h).flatten(-2).to(C.dtype), C)
        return (y + self.D * x).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    """At least float32: half precision cannot hold a decay near 1."""
    return x if x.dtype == torch.float64 else x.float()
