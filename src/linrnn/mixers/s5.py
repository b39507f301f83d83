"""S5, one state-space system for all channels."""

from collections.abc import Mapping
from math import inf
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import in_dtype_of, wide
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import FFT_REACHES_BACK, Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.diagonal import diagonal_steps
from linrnn.nn.discretise import DISCRETISATIONS
from linrnn.nn.hippo import check_dt, check_pairs, draw_log_dt, hippo_normal
from linrnn.nn.parameters import empty_parameters
from linrnn.ops import fft_scan
from linrnn.ops.half_linear import half_linear
from linrnn.ops.linear.pair_scan import pair_scan
from linrnn.ops.linear.skip import add_skip
from linrnn.ops.linear.skipped_pair_scan import skipped_pair_scan
from linrnn.state_spec import Part, complex_
from linrnn.typing import Complex

_CLIP = -1e-4  # the largest Re A under clip_eigs


class S5(Mixer):
    r"""S5: one diagonal state-space model for all channels, discretised from continuous time.

    Equation:
        h_t = a * h_{t-1} + gain * (B x_t)           h in C^P, P = d_state / 2
        y_t = 2 Re(C h_t) + D * x_t                  y in R^{d_model}
        "zoh"       a = exp(dt A)                    gain = (exp(dt A) - 1) / A
        "bilinear"  a = (1 + dt A/2) / (1 - dt A/2)  gain = dt / (1 - dt A/2)
        A = A_re + i A_im,  dt = step_rescale exp(log_dt), both one a mode, dt one for all with
        shared_dt; dt times the time since the step before where that is given
        conj_sym=False: P = d_state and y_t = Re(C h_t) + D * x_t
        A_re may be learned to be positive, and then the layer diverges; clip_eigs keeps it below
        -1e-4.
        Initially A, B = V^* B' and C = C' V come from the eigenvectors V of the normal part of
        HiPPO-LegS, in ``blocks`` equal blocks, and B', C' are drawn for the real system: B' from
        a truncated normal distribution of variance 1/d_state.
        Parameters: A_re and A_im (P,), log_dt (P,), or (1,) if shared, B (P, 2, d_model) holds
        Re B and Im B, C (d_model, P, 2) holds Re C and -Im C, D (d_model,)

    Args:
        d_state: size of the real system; half of each conjugate pair is kept. Default: d_model.
        blocks: HiPPO matrices on the diagonal of the initial system; divides d_state.
        conj_sym: keep one of each conjugate pair of modes; False keeps all, each learned alone.
        discretisation: "zoh" (zero-order hold) or "bilinear".
        dt_min, dt_max: bounds of the initial dt, in input steps; uniform in the logarithm.
        shared_dt: learn one dt for all modes, not one for each.
        C_init: "truncated" (C' with truncated normal parts of variance 1/d_state), "lecun" (the
            same of variance 1/(d_model d_state)) or "normal" (C itself with normal parts of
            variance 1/2): "trunc_standard_normal", "lecun_normal" and "complex_normal" of the
            public code.
        clip_eigs: keep Re A <= -1e-4.
        step_rescale: factor on every dt; 2 for data with half the sampling rate of training. Also
            an attribute that may be changed afterwards.
        form: how a sequence is computed, with the same numbers: "scan", or "conv" (an FFT of
            twice the length, for comparison; it cannot reset inside a sequence nor take times, and
            a huge step changes those before it by roundings of the largest output).

    Departures from the paper:
        GELU and the gate of the paper's layer belong to the block around a mixer. The variance of
        B' is that of the public code, whose LeCun initialiser takes the rows of B', and not its
        columns, for the fan-in.

    Example:
        >>> y, state = S5(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Smith, Warrington and Linderman, "Simplified State Space Layers for Sequence Modeling",
        ICLR 2023, arXiv:2208.04933. Key: smith2022simplified.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C",)
    single_precision: ClassVar[tuple[str, ...]] = ("A_re", "A_im", "log_dt")

    family: ClassVar[str] = "ssm"
    choices = Choices(transition="complex diagonal", gate="learned", memory="vector")
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
    without_reset: ClassVar[tuple[str, ...]] = ("conv",)
    sequence_parallel: ClassVar[tuple[str, ...]] = ("scan",)
    timed: ClassVar[bool] = True
    without_dt: ClassVar[tuple[str, ...]] = ("conv",)
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A_re", "A_im", "log_dt", "B")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        blocks: int = 1,
        conj_sym: bool = True,
        discretisation: Literal["zoh", "bilinear"] = "zoh",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        shared_dt: bool = False,
        C_init: Literal["truncated", "lecun", "normal"] = "truncated",
        clip_eigs: bool = False,
        step_rescale: float = 1.0,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.blocks, self.conj_sym, self.discretisation = blocks, conj_sym, discretisation
        self.dt_min, self.dt_max, self.shared_dt, self.C_init = dt_min, dt_max, shared_dt, C_init
        self.clip_eigs, self.step_rescale, self.form = clip_eigs, step_rescale, form
        self._check_arguments()
        self.modes = self.d_state // 2 if conj_sym else self.d_state
        empty, P, D = empty_parameters(device, dtype), self.modes, d_model
        self.A_re, self.A_im, self.log_dt = empty(P), empty(P), empty(1 if shared_dt else P)
        # as the real matrices that interleaved real and imaginary parts are multiplied with
        self.B = empty(P, 2, D)  # Re B, Im B
        self.C = empty(D, P, 2)  # Re C, -Im C
        self.D = empty(D)
        self.reset_parameters()

    def _check_arguments(self) -> None:
        check_positive_int("S5", d_state=self.d_state, blocks=self.blocks)
        check_in("S5", "discretisation", self.discretisation, DISCRETISATIONS)
        check_in("S5", "C_init", self.C_init, ("truncated", "lecun", "normal"))
        check_in("S5", "form", self.form, self.forms)
        check_dt("S5", self.dt_min, self.dt_max)
        if self.conj_sym:
            check_pairs("S5", self.d_state, "Use another size, or conj_sym=False.")
        multiple = 2 * self.blocks if self.conj_sym else self.blocks
        if self.d_state % multiple:
            raise ArgumentError(
                f"S5: d_state must be a multiple of {multiple} for blocks={self.blocks}, "
                f"got {self.d_state}."
            )
        if not 0 < self.step_rescale < float("inf"):
            raise ArgumentError(f"S5: step_rescale must be positive, got {self.step_rescale}.")

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        size = self.d_state // self.blocks
        lam, V, _ = hippo_normal(size)
        modes = size // 2 if self.conj_sym else size  # the half with negative imaginary parts
        lam, V = lam[:modes].repeat(self.blocks), torch.block_diag(*[V[:, :modes]] * self.blocks)
        B = V.mH @ _truncated_normal(self.d_state, self.d_model, fan=self.d_state).to(V.dtype)
        if self.C_init == "normal":
            C = torch.randn(self.d_model, self.modes, dtype=V.dtype)
        else:
            shape = (self.d_model, self.d_state)
            fan = self.d_state if self.C_init == "truncated" else self.d_model * self.d_state
            re, im = (_truncated_normal(*shape, fan=fan) for _ in range(2))
            C = torch.complex(re, im) @ V
        self.A_re.copy_(lam.real)
        self.A_im.copy_(lam.imag)
        self.B.copy_(torch.stack([B.real, B.imag], 1))
        self.C.copy_(torch.stack([C.real, -C.imag], -1))
        self.log_dt.copy_(draw_log_dt(len(self.log_dt), self.dt_min, self.dt_max))
        nn.init.normal_(self.D)

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return complex_(modes=self.modes)

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """``a``, the diagonal of the discretised transition."""
        return self._discretise()[0]

    def _read(
        self, x: Tensor, h0: Tensor, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        a, gain = self._discretise(dt)  # each (modes,)
        if self.form == "scan" and gain.ndim == 1:
            maps = self._input_matrix(gain), a, h0, self._output_matrix(), self.D
            return skipped_pair_scan(x, *maps, reset)
        b = self._project_in(x, gain)  # (B, T, P, 2)
        if self.form == "scan":
            h, last = pair_scan(a, b, h0, reset)
            return self._project_out(h, x), last
        h, last = fft_scan(a, torch.view_as_complex(wide(b)), h0)
        return self._project_out(torch.view_as_real(h), x), last

    def _step(self, x_t: Tensor, h: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        a, gain = self._discretise(dt)
        h = a * h + torch.view_as_complex(self._project_in(x_t, gain))
        return self._project_out(torch.view_as_real(h), x_t), h

    def _discretise(self, times: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``(a, gain)``, each (P,), of times (...) each (..., P), computed in double precision."""
        a, gain = diagonal_steps(
            self.A_re[None],
            self.A_im[None],
            self.log_dt[None],
            rule=self.discretisation,
            re_log=False,
            largest=_CLIP if self.clip_eigs else inf,
            scale=self.step_rescale,
            dtype=torch.complex128 if self.A_re.dtype == torch.float64 else torch.complex64,
            times=times,
        )
        return a.squeeze(-2), gain.squeeze(-2)

    def _input_matrix(self, gain: Tensor) -> Tensor:
        """``gain * B``, rows of real and imaginary parts in turn: (2 P, d_model)."""
        # not a product of (2, 2) matrices, which autocast rounds and batches slowly
        B = torch.view_as_complex(self.B.to(gain.real.dtype).mT.contiguous())  # (P, d_model)
        scaled = torch.view_as_real(gain[:, None] * B).mT  # (P, 2, d_model)
        return scaled.to(self.B.dtype).flatten(0, 1)

    def _output_matrix(self) -> Tensor:
        """``C``, twice with conjugates: (d_model, 2 P)."""
        C = self.C.flatten(1)
        return 2 * C if self.conj_sym else C

    def _project_in(self, x: Tensor, gain: Tensor) -> Tensor:
        """``gain * (B x)`` in pairs (..., P, 2), as one product with interleaved real rows."""
        scales_matrix = x.ndim == 3 and gain.ndim == 1
        # scale the matrix, which is smaller than a sequence and not than a step
        B = self._input_matrix(gain) if scales_matrix else self.B.flatten(0, 1)
        b: Tensor = half_linear(x.to(B.dtype), B).unflatten(-1, (self.modes, 2))
        if scales_matrix:
            return b
        return torch.view_as_real(gain * torch.view_as_complex(wide(b)))

    def _project_out(self, h: Tensor, x: Tensor) -> Tensor:
        """``2 Re(C h) + D * x``, or ``Re(C h) + D * x`` without conjugates, as one real product."""
        h = in_dtype_of(self.C, h.flatten(-2))
        if x.ndim < 3:
            y = F.linear(h, self.C.flatten(1))
            return torch.add(self.D * x, y, alpha=2 if self.conj_sym else 1)
        # the matrix is smaller than a sequence and not than a step
        return add_skip(half_linear(h, self._output_matrix()), self.D, x)


def _truncated_normal(*shape: int, fan: int) -> Tensor:
    """Variance ``1 / fan``, cut at two standard deviations of the normal it is cut from."""
    cut_std = 0.8796256610342398  # standard deviation of a standard normal cut at -2 and 2
    x = torch.empty(shape, dtype=torch.float64)
    return nn.init.trunc_normal_(x, a=-2.0, b=2.0).div_(cut_std * fan**0.5)
