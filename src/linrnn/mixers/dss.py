"""DSS, the diagonal state-space layer whose modes are shared."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._choices import Choices
from linrnn.mixers._systems import Filters, copy, double, held
from linrnn.nn.hippo import check_dt, draw_log_dt, hippo_normal
from linrnn.nn.parameters import empty_parameters
from linrnn.ops import siso
from linrnn.typing import Complex


class DSS(Filters):
    r"""DSS: diagonal systems that share their eigenvalues, with a step size for each channel.

    Equation:
        h_t = a * h_{t-1} + (a - 1) / Lambda x_t      h in C^{d_model x d_state}, a = exp(dt Lambda)
        y_t = Re(sum_n c_n h_{t,n}) + D x_t           each channel x_t alone
        "exp"      Lambda = -exp(A_log) + i A_im      c = C
        "softmax"  Lambda = A_re + i A_im             c = C / (a^length - 1)
        so that the weights a^t / sum_s a^s of a row of ``length`` steps are a softmax over them.
        dt = exp(log_dt), times the time since the step before where that is given; with
        separate_dt one for the real and one for the imaginary part of Lambda.
        All modes are kept, none stands for a pair. Initially Lambda is -1/2 and the positive half
        of the frequencies of HiPPO-LegS of size 2 d_state, C has normal parts of variance 1.
        Parameters: A_log or A_re, and A_im (d_state,); log_dt (d_model,), or (d_model, 2) if
        separate; C_re and C_im (d_model, d_state); D (d_model,)

    Args:
        d_state: modes N.
        kernel: "exp" or "softmax".
        length: steps over which "softmax" sums, those of a training sequence. It stays the same
            for other sequences, or a stream would not give what a whole sequence does.
        separate_dt: learn a step size for decays and another one for frequencies.
        dt_min, dt_max: bounds of the initial dt, in input steps; uniform in the logarithm.
        form: how a sequence is computed, with the same numbers: "scan" or "conv", as in S4D.

    Departures from the paper:
        Quotients are exact, where the paper adds 1e-7 to squares. With "softmax" Lambda may be
        learned to grow: up to ``length`` steps all numbers are bounded while
        ``Re Lambda dt length`` is below 80; longer streams grow on. GELU, the linear layer and the
        norm of the paper's layer belong to the block around a mixer.

    Example:
        >>> y, state = DSS(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4, 8]))

    Reference:
        Gupta, Gu and Berant, "Diagonal State Spaces are as Effective as Structured State Spaces",
        NeurIPS 2022, arXiv:2203.14343. Key: gupta2022diagonal.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C_re", "C_im")
    single_precision: ClassVar[tuple[str, ...]] = ("A_log", "A_re", "A_im", "log_dt")

    choices = Choices(transition="complex diagonal", gate="learned", memory="systems")

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A_log", "A_re", "A_im", "log_dt")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        kernel: Literal["exp", "softmax"] = "exp",
        length: int = 1024,
        separate_dt: bool = False,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.modes, self.form = d_model, d_state, d_state, form
        self.kernel, self.length, self.separate_dt = kernel, length, separate_dt
        self.dt_min, self.dt_max = dt_min, dt_max
        check_positive_int("DSS", d_state=d_state, length=length)
        check_in("DSS", "kernel", kernel, ("exp", "softmax"))
        check_in("DSS", "form", form, self.forms)
        check_dt("DSS", dt_min, dt_max)
        empty, H, N = empty_parameters(device, dtype), d_model, d_state
        self.A_log = empty(N) if kernel == "exp" else None
        self.A_re = None if kernel == "exp" else empty(N)
        self.A_im, self.D = empty(N), empty(H)
        self.log_dt = empty(H, 2) if separate_dt else empty(H)
        self.C_re, self.C_im = empty(H, N), empty(H, N)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lam = hippo_normal(2 * self.d_state)[0][self.d_state :]
        copy(lam.real.neg().log(), self.A_log)
        copy(lam, self.A_re)
        copy(lam.imag, self.A_im)
        drawn = draw_log_dt(self.log_dt.numel(), self.dt_min, self.dt_max)
        copy(drawn.view(self.log_dt.shape), self.log_dt)
        for weight in (self.C_re, self.C_im, self.D):
            nn.init.normal_(weight)

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """``a`` of all channels, one after the other."""
        return self.system().a.flatten()

    def system(self, times: Tensor | None = None) -> siso.System:
        """The discretised systems, in double precision; of times (...) those of each."""
        re = self.A_re if self.A_log is None else -self.A_log.double().exp()
        assert re is not None
        lam, dt = double(re, self.A_im), self.log_dt.double().exp()[..., None]
        if self.separate_dt:
            rate = torch.complex(dt[:, 0] * lam.real, dt[:, 1] * lam.imag)
        else:
            rate = dt * lam
        a, gain = held(rate, times)
        b = gain * rate / lam if self.separate_dt else gain * dt
        c = double(self.C_re, self.C_im)
        if self.kernel == "softmax":  # a power above 1 divides b, or c would underflow
            most = rate.real.clamp(min=0) * self.length
            b, c = b * (-most).exp(), c / ((rate * self.length - most).exp() - (-most).exp())
        return siso.System(a, b, c, self.D)
