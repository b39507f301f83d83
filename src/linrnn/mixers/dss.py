"""DSS, the diagonal state-space layer whose modes are shared."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.modes import may_look
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.systems import Systems, copy, double, number
from linrnn.nn.diagonal import diagonal_steps
from linrnn.nn.discretise import exp_less_one, zoh
from linrnn.nn.hippo import check_dt, draw_log_dt, hippo_normal
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.ops.conv import siso
from linrnn.state_spec import Part, complex_
from linrnn.typing import Complex

_GROWTH = 600.0
"""Log growth limit of a mode: exp(-600) times any weight is still a float64 number."""

_NEAR_0 = 1e-7  # of a squared denominator, from the public code, which adds it
_NO_DIRECTION = 1e-30  # the size of a Lambda that is as good as 0


class DSS(Systems):
    r"""DSS: diagonal state-space models with shared eigenvalues and a step size per channel.

    Equation:
        h_t = a * h_{t-1} + (a - 1) / Lambda x_t      h in C^{d_model x d_state}, a = exp(dt Lambda)
        y_t = Re(sum_n c_n h_{t,n}) + D x_t           each channel x_t alone
        "exp"      Lambda = -exp(A_log) + i A_im      c = C
        "softmax"  Lambda = A_re + i A_im             c = C / (a^length - 1)
        so that the weights a^t / sum_s a^s of a row of ``length`` steps are a softmax over them.
        dt = exp(log_dt), times the time since the step before where that is given; with
        separate_dt one for the real and one for the imaginary part of Lambda.
        All modes are kept, none stands for a pair. Initially Lambda is -1/2 and the positive half
        of the frequencies of HiPPO-LegS of size 2 d_state, C has normal parts of variance 1, and
        the two dt of a channel are one.
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
        In a quotient 1 / z, |z|^2 is at least 1e-7, where the public code adds 1e-7 to it: only
        "softmax" has such, and its weight is 0 where Lambda is. With "softmax" Lambda may be
        learned to grow. The largest power of a row is taken out, as in the public code, and
        the state is of double precision: up to ``length`` steps all numbers are bounded while
        ``Re Lambda dt length`` is at most 600; more is an error, and in compiled graphs is taken
        for 600. Longer streams grow on. GELU, the linear layer and the norm of the paper's
        layer belong to the block around a mixer.

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
        log_dt = draw_log_dt(self.d_model, self.dt_min, self.dt_max)
        copy(log_dt[:, None].expand(-1, 2) if self.separate_dt else log_dt, self.log_dt)
        for weight in (self.C_re, self.C_im, self.D):
            nn.init.normal_(weight)

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """``a`` of all channels, one after the other."""
        return self.system().a.flatten()

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`: of double precision where modes may grow."""
        return complex_(double=self.kernel == "softmax", d_model=self.d_model, modes=self.modes)

    def system(self, times: Tensor | None = None) -> siso.System:
        """The discretised systems, in double precision; of times (...) those of each.

        Raises:
            ArgumentError: a mode grows by more over ``length`` steps than a state can hold.
        """
        if self.A_log is not None and not self.separate_dt:
            a, b = diagonal_steps(
                self.A_log[None], self.A_im[None], self.log_dt[:, None], times=times
            )
            return siso.System(a, b, number(self.C_re, self.C_im), self.D)
        re = self.A_re if self.A_log is None else -bounded_exp(self.A_log.double())
        assert re is not None
        lam, dt = double(re, self.A_im), bounded_exp(self.log_dt.double())[..., None]
        if self.separate_dt:
            rate = torch.complex(dt[:, 0] * lam.real, dt[:, 1] * lam.imag)
            dt = _common_dt(dt[:, 0], dt[:, 1], lam)
        else:
            rate = dt * lam
        c = double(self.C_re, self.C_im)
        if self.kernel == "exp":
            a, gain = _held(rate, times)
            return siso.System(a, gain * dt, c, self.D)
        rate = self._limited(rate)
        a, gain = _held(rate, times)
        # a power above 1 divides b, or c would underflow
        b = gain * dt * (-rate.real.clamp(min=0) * self.length).exp()
        return siso.System(a, b, c * lam * _inverse(self._total(rate) * lam), self.D)

    def _limited(self, rate: Tensor) -> Tensor:
        """``rate``, unless its growth over ``length`` steps is too large for a state.

        Raises:
            ArgumentError: it is. Where nobody may look at numbers, the rate is cut instead.
        """
        growth = rate.real * self.length
        if may_look(growth) and bool((growth > _GROWTH).any()):
            raise ArgumentError(
                f"DSS: Re Lambda * dt * length must be at most {_GROWTH:g}, got "
                f"{growth.max().item():.6g}. Lower A_re or log_dt, or train with gradient "
                "clipping: kernel='softmax' learns growing modes too."
            )
        return torch.complex(rate.real.clamp(max=_GROWTH / self.length), rate.imag)

    def _total(self, rate: Tensor) -> Tensor:
        """``a^length - 1``, over ``|a|^length`` where a grows: the largest power is 1."""
        falling = torch.where(rate.real > 0, -rate, rate)
        less_one = exp_less_one(falling, rate.real.new_tensor(float(self.length)))[1]
        angle = rate.imag * self.length
        turn = torch.polar(torch.ones_like(angle), angle)
        return less_one * torch.where(rate.real > 0, -turn, 1)


def _held(rate: Tensor, times: Tensor | None) -> tuple[Tensor, Tensor]:
    """`zoh` of steps of length 1, or of ``times`` (...)."""
    return zoh(rate, rate.real.new_ones(()) if times is None else times.double()[..., None, None])


def _common_dt(dt_re: Tensor, dt_im: Tensor, lam: Tensor) -> Tensor:
    """``(dt_re Re lam + i dt_im Im lam) / lam``; where lam is 0, dt_re."""
    along = lam / lam.abs().clamp(min=_NO_DIRECTION)
    more = dt_im - dt_re
    return torch.complex(dt_re + more * along.imag.square(), more * along.real * along.imag)


def _inverse(x: Tensor) -> Tensor:
    """``1 / x``, or ``conj(x) / 1e-7`` where ``|x|^2`` is less."""
    return x.conj() / (x.real.square() + x.imag.square()).clamp(min=_NEAR_0)
