"""Linear Recurrent Unit, and the ladder of ablations that leads to it."""

from collections.abc import Mapping
from math import pi
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._base import FFT_REACHES_BACK, Mixer
from linrnn.ops import accumulator_dtype, fft_scan, linear_scan
from linrnn.ops._arguments import traced
from linrnn.ops.matrix_scan import block_scan, turn
from linrnn.typing import Complex, ResetMask, Sequence, State, Token

PARAMETRISATIONS = {
    "stable": ("nu_log", "theta_log"),
    "linear_phase": ("nu_log", "theta"),
    "exponential": ("nu", "theta"),
    "naive": ("lam_re", "lam_im"),
}
"""The two parameters that `LRU` learns for ``lam``, by parametrisation."""


def ladder(
    r_min: float = 0.9, r_max: float = 0.999, max_phase: float = pi / 10
) -> dict[str, tuple[str, dict[str, Any]]]:
    """The ablations of the paper, each one change after the one before.

    Args:
        r_min, r_max: the ring of the rungs from "ring" on.
        max_phase: of the last rung.

    Returns:
        The name of a rung to ``(mixer, options)``, what `linrnn.mixers.build` takes. The dense
        rung and the first two diagonal ones are not stable by construction: training can carry
        an eigenvalue out of the unit disk, and then the numbers overflow.

    Example:
        >>> from linrnn import mixers
        >>> [type(mixers.build(name, 4, options)).__name__ for name, options in ladder().values()]
        ['LinearRNN', 'LRU', 'LRU', 'LRU', 'LRU', 'LRU', 'LRU']
        >>> list(ladder())
        ['dense', 'naive', 'exponential', 'stable exponential', 'ring', 'gamma', 'small phase']
    """
    ring = {"parametrisation": "linear_phase", "r_min": r_min, "r_max": r_max}
    return {
        "dense": ("linear_rnn", {}),
        "naive": ("lru", {"parametrisation": "naive", "gamma": False}),
        "exponential": ("lru", {"parametrisation": "exponential", "gamma": False}),
        "stable exponential": ("lru", {"parametrisation": "linear_phase", "gamma": False}),
        "ring": ("lru", {**ring, "gamma": False}),
        "gamma": ("lru", ring),
        "small phase": ("lru", {"r_min": r_min, "r_max": r_max, "max_phase": max_phase}),
    }


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
        Parameters: B (d_state, 2, d_model) holds Re B and Im B, C (d_model, d_state, 2) holds
        Re C and -Im C, D (d_model,), those of lam and gamma (d_state,)

    Args:
        d_model: channels in and out.
        d_state: complex modes. Default: d_model.
        r_min, r_max: ring of the initial |lam|, dimensionless, 0 <= r_min < r_max <= 1.
            Radius r forgets in -1/ln(r) steps: 0.9 is 9.5 steps, 0.999 is 999.5.
        max_phase: largest initial arg(lam), radians per step, in (0, 2 pi].
        parametrisation: of lam, for ablations; `linrnn.mixers.lru.ladder` lists those of the
            paper. "stable" is the equation above; "linear_phase" learns theta itself:
            exp(-exp(nu_log) + i theta); "exponential" learns both: exp(-nu + i theta), which
            grows once nu < 0; "naive" learns lam_re + i lam_im, which grows once it leaves the
            unit disk. Nothing is clipped: what grows overflows, to infinity and NaN. Start and
            meaning of r_min, r_max and max_phase are the same in all.
        gamma: normalise the input. Without, gamma is 1 and there is no gamma_log.
        form: how a sequence is computed, with the same numbers: "scan"; "conv" (an FFT of
            twice the length, for comparison, which cannot reset inside a sequence, and where a
            huge step changes those before it by roundings of the largest output); or "real"
            (the 2 x 2 real blocks of appendix E.3 in ordinary operations, for runtimes without
            complex numbers or custom operators; only the state passed in and out is complex).
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        ArgumentError: r_min, r_max, max_phase or a size outside the ranges above; "conv" with
            a reset mask.
        UnknownNameError: an unknown form or parametrisation.
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
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv", "real")
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}
    # of every parametrisation; a layer has those of its own
    recurrent_parameters: ClassVar[tuple[str, ...]] = (
        *("nu_log", "theta_log", "theta", "nu", "lam_re", "lam_im"),
        *("gamma_log", "B"),
    )

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * pi,
        parametrisation: Literal["stable", "linear_phase", "exponential", "naive"] = "stable",
        gamma: bool = True,
        form: Literal["scan", "conv", "real"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.d_state = d_model if d_state is None else d_state
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        self.parametrisation, self.gamma, self.form = parametrisation, gamma, form

        check_positive_int("LRU", d_model=d_model, d_state=self.d_state)
        check_in("LRU", "form", form, self.forms)
        check_in("LRU", "parametrisation", parametrisation, PARAMETRISATIONS)
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
        for name in PARAMETRISATIONS[parametrisation]:
            self.register_parameter(name, empty(N))
        self.gamma_log = empty(N) if gamma else None
        # halves side by side: a real product then reads and writes complex numbers in place
        self.B = empty(N, 2, D)  # Re B, Im B
        self.C = empty(D, N, 2)  # Re C, -Im C
        self.D = empty(D)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        u1, u2 = torch.rand(2, self.d_state, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        nu = -0.5 * torch.log(u1 * (self.r_max**2 - self.r_min**2) + self.r_min**2)
        theta = self.max_phase * u2
        lam = torch.polar(torch.exp(-nu), theta)
        start = {"nu": nu, "nu_log": nu.log(), "theta": theta, "theta_log": theta.log()}
        start |= {"lam_re": lam.real, "lam_im": lam.imag}
        for name in PARAMETRISATIONS[self.parametrisation]:
            self.get_parameter(name).copy_(start[name])
        if self.gamma_log is not None:
            self.gamma_log.copy_(0.5 * torch.log(-torch.expm1(-2 * nu)))
        nn.init.normal_(self.B, std=(2 * self.d_model) ** -0.5)
        nn.init.normal_(self.C, std=self.d_state**-0.5)
        nn.init.normal_(self.D)

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        return (
            f"d_model={self.d_model}, d_state={self.d_state}, r_min={self.r_min}, "
            f"r_max={self.r_max}, max_phase={self.max_phase:.4g}, "
            f"parametrisation={self.parametrisation!r}, gamma={self.gamma}, form={self.form!r}"
        )

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """``lam``, the diagonal of the transition."""
        first, second = self._coordinates()
        if self.parametrisation == "naive":
            return torch.complex(first, second)
        return torch.polar(first, second)

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
        b = self._project_in(x)  # (B, T, N, 2)
        if self.form == "real":
            h, last = block_scan(*self._blocks(), b, torch.view_as_real(h0), reset)
            return self._project_out(h, x), torch.view_as_complex(last.contiguous())
        b = torch.view_as_complex(b)
        if self.form == "conv":
            if reset is not None:
                raise ArgumentError(
                    "LRU.forward: reset must be None for form='conv', got a mask. "
                    "Use form='scan', or split the batch at the resets."
                )
            h, last = fft_scan(self.eigenvalues(), b, h0)
        else:
            h, last = linear_scan(self.eigenvalues(), b, h0, reset=reset)
        return self._project_out(torch.view_as_real(h), x), last

    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step: see `Mixer.step`."""
        if not self._fits(x_t, state):
            self._check_input(x_t, time=False)
            state = self._start(state, x_t)
        h, B = cast(Tensor, state), self.B
        # methods written in C++, for Python's share of a step is large: not unflatten, not [None]
        b = _wide(F.linear(x_t.to(B.dtype), B.flatten(0, 1))).view(x_t.shape[0], self.d_state, 2)
        gamma_log = self.gamma_log
        if gamma_log is not None:
            b = b * _wide(gamma_log).exp().unsqueeze(1)  # (B, N, 2)
        if self.form == "real":
            pair = b + turn(*self._blocks(), torch.view_as_real(h))
            h = torch.view_as_complex(pair)
        else:
            h = torch.addcmul(torch.view_as_complex(b), self.eigenvalues(), h)
            pair = torch.view_as_real(h)
        return self._project_out(pair, x_t), h

    def _fits(self, x_t: Tensor, state: State) -> bool:
        """Nothing to complain of or to cast: found in a tenth of the time of the full checks."""
        return (
            isinstance(state, Tensor)
            and isinstance(x_t, Tensor)
            and not (state.is_nested or x_t.is_nested)
            and x_t.ndim == 2
            and x_t.shape[1] == self.d_model
            and state.shape == (x_t.shape[0], self.d_state)
            and state.dtype is (torch.complex64 if x_t.dtype is torch.float32 else torch.complex128)
            and x_t.dtype is self.B.dtype in (torch.float32, torch.float64)
            and state.device == x_t.device
            and not traced()
        )

    def _coordinates(self) -> tuple[Tensor, Tensor]:
        """Radius and angle of ``lam``; for "naive" its real and imaginary part."""
        names = PARAMETRISATIONS[self.parametrisation]
        first, second = _wide(getattr(self, names[0])), _wide(getattr(self, names[1]))
        if self.parametrisation == "naive":
            return first, second
        nu = first if self.parametrisation == "exponential" else first.exp()
        return torch.exp(-nu), second.exp() if self.parametrisation == "stable" else second

    def _blocks(self) -> tuple[Tensor, Tensor]:
        """Real and imaginary part of ``lam``, without complex arithmetic."""
        first, second = self._coordinates()
        if self.parametrisation == "naive":
            return first, second
        return first * second.cos(), first * second.sin()

    def _project_in(self, x: Tensor) -> Tensor:
        """``gamma * (B x)``, real and imaginary part side by side: (batch, time, d_state, 2)."""
        B: Tensor = self.B
        if self.gamma_log is not None:  # cheaper on the weights than on a sequence
            B = B * self.gamma_log.exp()[:, None, None]
        b = F.linear(x.to(B.dtype), B.flatten(0, 1)).unflatten(-1, (self.d_state, 2))
        return _wide(b)

    def _project_out(self, h: Tensor, x: Tensor) -> Tensor:
        """``Re(C h) + D * x``."""
        C = self.C
        y = F.linear(h.flatten(-2).to(C.dtype), C.flatten(1))
        return torch.addcmul(y, self.D, x).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    """At least float32: half precision cannot hold a decay near 1."""
    return x if x.dtype is torch.float32 else x.to(accumulator_dtype(x.dtype))
