"""S4D, the diagonal state-space layer."""

from math import pi
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.systems import Systems, copy, number
from linrnn.nn.diagonal import diagonal_steps, shared_systems
from linrnn.nn.discretise import DISCRETISATIONS
from linrnn.nn.hippo import (
    INITS,
    check_dt,
    check_pairs,
    draw_log_dt,
    hippo_normal,
    initial_eigenvalues,
)
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.ops.conv import siso
from linrnn.state_spec import Part, complex_, real
from linrnn.typing import Inexact


class S4D(Systems):
    r"""S4D: a diagonal state-space model per channel, discretised from continuous time.

    Equation:
        h_t = a * h_{t-1} + gain * B x_t             h in C^{d_model x d_state/2}
        y_t = 2 Re(sum_n C_n h_{t,n}) + D x_t        each channel x_t alone
        A = -exp(A_log) + i A_im                     Re A < 0, so |a| < 1 in exact arithmetic
        "zoh"       a = exp(dt A)                    gain = (exp(dt A) - 1) / A
        "bilinear"  a = (1 + dt A/2) / (1 - dt A/2)  gain = dt / (1 - dt A/2)
        dt = exp(log_dt), one a channel, times the time since the step before where that is given;
        B = 1 unless it is separate
        Initially, for n = 0, 1, ...
        "lin"   A = -1/2 + i pi n
        "inv"   A = -1/2 + i N/pi (N / (2n+1) - 1),  N = d_state
        "legs"  the eigenvalues of the normal part of HiPPO-LegS
        "real"  A = -(n+1), a real system of d_state modes, y_t = sum_n C_n h_{t,n} + D x_t
        Parameters: A_log, A_im, B_re, B_im, C_re and C_im (d_model, modes), the imaginary ones not
        for "real", those of B where it is separate; log_dt and D (d_model,). With n_ssm systems
        A and B are (n_ssm, modes), and channel c has those of the system c modulo n_ssm

    Args:
        d_state: size N of a channel's real system; half of each conjugate pair is kept.
        init: initial eigenvalues, "lin", "inv", "legs" or "real".
        discretisation: "zoh" (zero-order hold) or "bilinear".
        dt_min, dt_max: bounds of the initial dt, in input steps; uniform in the logarithm.
        separate_B: learn B and C, not their product alone.
        n_ssm: A and B that the channels share, a divisor of d_model; each keeps its own
            step size and C. Default: one for each channel.
        bandlimit: drop every mode that oscillates with more than bandlimit / 2 cycles per step; 1
            drops what is above the Nyquist frequency. Default: keep all modes.
        project: add a linear layer with bias from the systems' outputs to y.
        form: how a sequence is computed, with the same numbers: "scan" (matrix products inside
            blocks of time, a scan over the blocks) or "conv" (an FFT of twice the length; it
            cannot reset inside a sequence nor take times, and a huge step changes those before it
            by roundings of the largest output, one that is not finite makes them NaN). With times
            every step has its own system, and all states are held at once.

    Departures from the paper:
        The layer of the paper is this system followed by GELU, a linear layer and a GLU. GELU and
        GLU belong to the block around a mixer, so only the system is here; ``project`` adds the
        linear layer. Powers of ``a`` are computed in double precision.

    Example:
        >>> y, state = S4D(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4, 4]))

    Reference:
        Gu, Gupta, Goel and Re, "On the Parameterization and Initialization of Diagonal State
        Space Models", NeurIPS 2022, arXiv:2206.11893. Key: gu2022parameterization.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C_re", "C_im")
    single_precision: ClassVar[tuple[str, ...]] = ("A_log", "A_im", "log_dt")

    choices = Choices(transition="complex diagonal", gate="learned", memory="systems")

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A_log", "A_im", "log_dt", "B_re", "B_im")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        init: Literal["lin", "inv", "legs", "real"] = "lin",
        discretisation: Literal["zoh", "bilinear"] = "zoh",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        separate_B: bool = False,
        n_ssm: int | None = None,
        bandlimit: float | None = None,
        project: bool = False,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_state
        self.init, self.discretisation = init, discretisation
        self.dt_min, self.dt_max = dt_min, dt_max
        self.separate_B, self.bandlimit, self.project = separate_B, bandlimit, project
        self.n_ssm, self.form = d_model if n_ssm is None else n_ssm, form

        check_positive_int("S4D", d_state=d_state, n_ssm=self.n_ssm)
        if d_model % self.n_ssm:
            raise ArgumentError(f"S4D: n_ssm must divide d_model={d_model}, got {self.n_ssm}.")
        check_in("S4D", "init", init, INITS)
        check_in("S4D", "discretisation", discretisation, DISCRETISATIONS)
        check_in("S4D", "form", form, self.forms)
        check_dt("S4D", dt_min, dt_max)
        if init != "real":
            check_pairs("S4D", d_state, "Use another size, or init='real'.")
        if bandlimit is not None and not bandlimit > 0:
            raise ArgumentError(f"S4D: bandlimit must be positive or None, got {bandlimit}.")
        empty = empty_parameters(device, dtype)
        pairs = init != "real"
        H, S, M = d_model, self.n_ssm, d_state // 2 if pairs else d_state
        self.modes = M
        self.log_dt, self.D = empty(H), empty(H)
        self.A_log, self.A_im = empty(S, M), empty(S, M) if pairs else None
        self.B_re = empty(S, M) if separate_B else None
        self.B_im = empty(S, M) if separate_B and pairs else None
        self.C_re, self.C_im = empty(H, M), empty(H, M) if pairs else None
        self.out = Linear(H, H, device=device, dtype=dtype) if project else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        A = initial_eigenvalues(self.init, self.d_state).expand(self.d_model, -1)
        B = torch.ones_like(A)
        if self.init == "legs":
            B = B * hippo_normal(self.d_state)[2][self.modes :]
        C = torch.randn_like(A)  # complex: 1/2 the variance in each part
        if not self.separate_B:
            C = C * B
        A, B = A[: self.n_ssm], B[: self.n_ssm]
        copy(A.real.neg().log(), self.A_log)
        copy(draw_log_dt(self.d_model, self.dt_min, self.dt_max), self.log_dt)
        if self.A_im is not None:
            copy(A.imag, self.A_im)
        copy(B, self.B_re, self.B_im)
        copy(C, self.C_re, self.C_im)
        nn.init.normal_(self.D)
        if self.out is not None:
            self.out.reset_parameters()

    def eigenvalues(self) -> Inexact[Tensor, " d_state"]:
        """``a`` of all channels, one after the other."""
        return self.system().a.flatten()

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        part = real if self.init == "real" else complex_
        return part(d_model=self.d_model, modes=self.modes)

    def system(self, times: Tensor | None = None) -> siso.System:
        """The discretised systems; of times (...) those of each."""
        a, b = diagonal_steps(
            self.A_log, self.A_im, self.log_dt[:, None], rule=self.discretisation, times=times
        )
        c = number(self.C_re, self.C_im)
        if self.B_re is not None:
            b = b * self._each(number(self.B_re, self.B_im))
        if self.A_im is not None:
            c = 2 * c  # a mode and its conjugate
            if self.bandlimit is not None:
                c = torch.where(self._angles(times) > pi * self.bandlimit, 0, c)
        return siso.System(a, b, c, self.D)

    def _angles(self, times: Tensor | None) -> Tensor:
        """The angle of each mode in a step, (..., d_model, modes), without a sign."""
        assert self.A_im is not None
        dt = bounded_exp(self.log_dt.double())[:, None]  # (d_model, 1)
        dt = dt if times is None else times.double()[..., None, None] * dt
        return dt * self._each(self.A_im.double()).abs()

    def _each(self, systems: Tensor) -> Tensor:
        """Rows of systems, repeated for every channel that has the system."""
        return shared_systems(systems, self.d_model)

    def _project_out(self, y: Tensor, side_input: Tensor) -> Tensor:
        return y.to(side_input.dtype) if self.out is None else self.out(y.to(self.out.weight.dtype))
