"""Linear Recurrent Unit, and the ablations of its paper."""

from collections.abc import Mapping
from math import pi
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import in_dtype_of, wide
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import FFT_REACHES_BACK, Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.nn.ring import check_phase, check_ring, ring, uniform
from linrnn.ops import fft_scan
from linrnn.ops.cell.cell_scan.row_function import RowFunction, row_functions
from linrnn.ops.half_linear import half_linear
from linrnn.ops.linear.matrix_scan import block_scan, turn
from linrnn.ops.linear.skip import add_skip
from linrnn.ops.linear.skipped_pair_scan import skipped_pair_scan
from linrnn.state_spec import Part, complex_
from linrnn.typing import Complex

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
    """The ablations of the paper in order, each with one change to the previous one.

    Args:
        r_min, r_max: the ring of the ablations from "ring" on.
        max_phase: largest initial phase of the last ablation.

    Returns:
        ``(mixer, options)`` by the name of the ablation, as `linrnn.mixers.build` takes them. The
        dense one and the first two diagonal ones are not stable by construction: training can move
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
    r"""Linear Recurrent Unit: a complex diagonal recurrence with normalised input.

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
        For a step a time dt after the one before, lam is lam^dt: exp(-exp(nu_log) dt + i
        exp(theta_log) dt). gamma stays: an observation adds as much whenever it comes.
        Parameters: B (d_state, 2, d_model) holds Re B and Im B, C (d_model, d_state, 2) holds
        Re C and -Im C, D (d_model,), those of lam and gamma (d_state,)

    Args:
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

    Departures from the paper:
        The uniform draws of the initialisation are kept 1e-6 away from 0 and 1, where a
        logarithm would be infinite (r_min = 0, r_max = 1). The text speaks of a factor 2 on B
        to make up for taking the real part; like its listing, we do not apply it. The paper knows
        no dt. "naive" turns by dt times the angle in (-pi, pi] of its eigenvalue.

    Example:
        >>> y, state = LRU(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences",
        ICML 2023, arXiv:2303.06349. Key: orvieto2023resurrecting.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C",)
    single_precision: ClassVar[tuple[str, ...]] = (
        "nu_log",
        "theta_log",
        "theta",
        "nu",
        "lam_re",
        "lam_im",
        "gamma_log",
    )

    family: ClassVar[str] = "diagonal"
    choices = Choices(
        transition="complex diagonal", gate="learned", memory="vector", normaliser="scaled"
    )
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv", "real")
    without_reset: ClassVar[tuple[str, ...]] = ("conv",)
    sequence_parallel: ClassVar[tuple[str, ...]] = ("scan",)
    timed: ClassVar[bool] = True
    without_dt: ClassVar[tuple[str, ...]] = ("conv", "real")
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}
    # of every parametrisation; a layer has those of the one it uses
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
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        self.parametrisation, self.gamma, self.form = parametrisation, gamma, form
        check_positive_int("LRU", d_state=self.d_state)
        check_in("LRU", "form", form, self.forms)
        check_in("LRU", "parametrisation", parametrisation, PARAMETRISATIONS)
        check_ring("LRU", r_min, r_max)
        check_phase("LRU", max_phase)
        empty, N, D = empty_parameters(device, dtype), self.d_state, d_model
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
        u1, u2 = uniform(2, self.d_state)
        nu, theta = ring(u1, self.r_min, self.r_max), self.max_phase * u2
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

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return complex_(d_state=self.d_state)

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """``lam``, the diagonal of the transition."""
        parameters = [getattr(self, name) for name in PARAMETRISATIONS[self.parametrisation]]
        (lam,) = _eigenvalues(self.parametrisation)(*parameters)
        return lam

    def _read(
        self, x: Tensor, h0: Tensor, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self.form == "scan":
            # C: (d_model, 2 d_state)
            maps = self._input_matrix(), self._transition(dt), h0, self.C.flatten(1), self.D
            return skipped_pair_scan(x, *maps, reset)
        b = self._project_in(x)  # (B, T, N, 2)
        if self.form == "real":
            h, last = block_scan(*self._blocks(), wide(b), torch.view_as_real(h0), reset)
            return self._project_out(h, x), torch.view_as_complex(last.contiguous())
        h, last = fft_scan(self.eigenvalues(), torch.view_as_complex(wide(b)), h0)
        return self._project_out(torch.view_as_real(h), x), last

    def _step(self, x_t: Tensor, h: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        B: Tensor = self.B
        # methods written in C++, for Python's share of a step is large: not unflatten, not [None]
        # (B, d_state, 2)
        b = wide(F.linear(x_t.to(B.dtype), B.flatten(0, 1))).view(x_t.shape[0], self.d_state, 2)
        gamma_log = self.gamma_log
        if gamma_log is not None:
            b = b * bounded_exp(wide(gamma_log)).unsqueeze(1)  # (B, N, 2)
        if self.form == "real":
            pair = b + turn(*self._blocks(), torch.view_as_real(h))
            h = torch.view_as_complex(pair)
        else:
            h = torch.addcmul(torch.view_as_complex(b), self._transition(dt), h)
            pair = torch.view_as_real(h)
        return self._project_out(pair, x_t), h

    def _transition(self, dt: Tensor | None) -> Tensor:
        """``lam^dt``, (..., d_state) for the times (...)."""
        if dt is None:
            return self.eigenvalues()
        dt, names = dt.unsqueeze(-1), PARAMETRISATIONS[self.parametrisation]  # dt (..., 1)
        first, second = wide(getattr(self, names[0])), wide(getattr(self, names[1]))
        if self.parametrisation == "naive":
            lam = torch.complex(first, second)
            return torch.polar(torch.exp(dt * lam.abs().log()), dt * lam.angle())
        nu = first if self.parametrisation == "exponential" else bounded_exp(first)
        theta = bounded_exp(second) if self.parametrisation == "stable" else second
        return torch.polar(bounded_exp(-nu * dt), theta * dt)

    def _blocks(self) -> tuple[Tensor, Tensor]:
        """Real and imaginary part of ``lam``, without complex arithmetic."""
        names = PARAMETRISATIONS[self.parametrisation]
        first, second = wide(getattr(self, names[0])), wide(getattr(self, names[1]))
        if self.parametrisation == "naive":
            return first, second
        first, second = _coordinates(self.parametrisation, first, second)
        return first * second.cos(), first * second.sin()

    def _input_matrix(self) -> Tensor:
        """``gamma * B``, rows of real and imaginary parts in turn: (2 * d_state, d_model)."""
        B: Tensor = self.B
        if self.gamma_log is not None:  # cheaper on the weights than on a sequence
            (gamma,) = _gamma()(self.gamma_log)
            B = B * gamma[:, None, None]  # (d_state, 2, d_model)
        return B.flatten(0, 1)

    def _project_in(self, x: Tensor) -> Tensor:
        """``gamma * (B x)``, real and imaginary part side by side: (batch, time, d_state, 2)."""
        B = self._input_matrix()
        b: Tensor = half_linear(x.to(B.dtype), B).unflatten(-1, (self.d_state, 2))
        return b

    def _project_out(self, h: Tensor, x: Tensor) -> Tensor:
        """``Re(C h) + D * x``."""
        C = self.C
        return add_skip(half_linear(in_dtype_of(C, h.flatten(-2)), C.flatten(1)), self.D, x)


def _coordinates(parametrisation: str, first: Any, second: Any) -> tuple[Any, Any]:
    """Radius and angle of ``lam``."""
    nu = first if parametrisation == "exponential" else bounded_exp(first)
    return bounded_exp(-nu), bounded_exp(second) if parametrisation == "stable" else second


@row_functions
def _eigenvalues(parametrisation: str) -> RowFunction:
    """``lam`` of an `LRU`."""

    def eigenvalues(first: Any, second: Any) -> tuple[Any]:
        if parametrisation == "naive":
            return (torch.complex(first, second),)
        return (torch.polar(*_coordinates(parametrisation, first, second)),)

    return RowFunction(eigenvalues, "lru_eigenvalues", rows="first second")


@row_functions
def _gamma() -> RowFunction:
    return RowFunction(lambda gamma_log: (bounded_exp(gamma_log),), "lru_gamma", rows="gamma_log")
