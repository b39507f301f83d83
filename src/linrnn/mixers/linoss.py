"""LinOSS and D-LinOSS, linear oscillators that the input drives."""

from collections.abc import Sequence
from math import pi
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.parameters import empty_parameters
from linrnn.nn.ring import check_phase, check_ring, ring, uniform
from linrnn.ops import block_scan, cell_scan
from linrnn.ops.cell.cell_scan.row_function import RowFunction, row_functions
from linrnn.ops.half_linear import half_linear
from linrnn.state_spec import Part, complex_
from linrnn.typing import Complex

#: Steps up to which one kernel walks along time in place of a tree of operators: at the 0.05 to 0.3
#: microseconds that a step of an elementwise cell took on an H100, no longer than launching those.
_LONGEST_WALK = 4096
_SHORTEST = 1e-9  # step below which the largest A of an oscillation no longer grows


class LinOSS(Mixer):
    r"""LinOSS: forced linear oscillators; implicit, implicit-explicit or damped (D-LinOSS).

    Equation:
        x'' = -A x - G x' + B u                           x in C^{d_state}, A and G diagonal, z = x'
        z_t = (z_{t-1} + Delta (-A x_{t-1} + B u_t)) / S   Delta = step dt_t, dt_t 1 unless given
        x_t = x_{t-1} + Delta z_t
        y_t = Re(C x_t) + D * u_t                         y in R^{d_model}
        "im"      S = 1 + Delta^2 A   implicit: it forgets, the faster the larger A
        "imex"    S = 1               implicit and explicit: it forgets nothing, where Delta^2 A < 4
        "damped"  S = 1 + Delta G     D-LinOSS; A is clipped to where the two eigenvalues of a step
                  are complex: (sqrt(S) - 1)^2 <= Delta^2 A <= (sqrt(S) + 1)^2; |lam|^2 = 1 / S
        step = sigmoid(steps); A = relu(A'), G = relu(G') of parameters A', G'
        Initially steps is normal with standard deviation step_std, and A uniform on [0, A_max]; of
        "damped", lam is uniform by area on a ring, r_min to r_max, with phases up to max_phase, and
        G and A are solved for. B is uniform on +-1 / sqrt(d_model) and C on +-1 / sqrt(d_state) in
        real and imaginary part; D is normal.
        Parameters: steps, A and G (d_state,), B (d_state, 2, d_model) holds Re B and Im B,
        C (d_model, d_state, 2) holds Re C and -Im C, D (d_model,)

    Args:
        d_state: oscillators. Default: d_model.
        discretisation: "im", "imex" or "damped", see above.
        A_max: of the start of "im" and "imex".
        step_std: see above.
        r_min, r_max, max_phase: of the start of "damped".

    Departures from the paper:
        Extension beyond the survey. GELU and the gate of the paper's layer belong to the block
        around a mixer.

    Example:
        >>> y, state = LinOSS(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state["z"].shape, state["x"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]), torch.Size([2, 8]))

    Reference:
        Rusch and Rus, "Oscillatory State-Space Models", ICLR 2025, arXiv:2410.03943; "damped":
        Boyer, Rusch and Rus, "Learning to Dissipate Energy in Oscillatory State-Space Models",
        2025, arXiv:2505.12171. Key: rusch2024oscillatory.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C",)
    single_precision: ClassVar[tuple[str, ...]] = ("A", "G", "steps")

    family: ClassVar[str] = "oscillator"
    choices = Choices(transition="local", gate="learned", memory="vector")
    timed: ClassVar[bool] = True
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A", "G", "steps", "B")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        discretisation: Literal["im", "imex", "damped"] = "im",
        A_max: float = 1.0,
        step_std: float = 0.5,
        r_min: float = 0.9,
        r_max: float = 1.0,
        max_phase: float = pi,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.discretisation, self.A_max, self.step_std = discretisation, A_max, step_std
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        check_positive_int("LinOSS", d_state=self.d_state)
        check_in("LinOSS", "discretisation", discretisation, ("im", "imex", "damped"))
        check_positive("LinOSS", A_max=A_max, step_std=step_std, r_min=r_min)
        check_ring("LinOSS", r_min, r_max)
        check_phase("LinOSS", max_phase)
        empty, P, D = empty_parameters(device, dtype), self.d_state, d_model
        self.steps, self.A = empty(P), empty(P)
        self.G = empty(P) if discretisation == "damped" else None
        # halves side by side: a real product then reads and writes complex numbers in place
        self.B = empty(P, 2, D)  # Re B, Im B
        self.C = empty(D, P, 2)  # Re C, -Im C
        self.D = empty(D)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        u1, u2 = uniform(2, self.d_state)
        steps = self.step_std * torch.randn(self.d_state, dtype=torch.float64)
        self.steps.copy_(steps)
        if self.G is None:
            self.A.copy_(self.A_max * u1)
        else:
            step, S = steps.sigmoid(), (2 * ring(u1, self.r_min, self.r_max)).exp()
            self.G.copy_((S - 1) / step)
            # the trace of a step is 2 |lam| cos(phase), and |lam|^2 is 1 / S
            self.A.copy_((S + 1 - 2 * S.sqrt() * (self.max_phase * u2).cos()) / step**2)
        nn.init.uniform_(self.B, -(self.d_model**-0.5), self.d_model**-0.5)
        nn.init.uniform_(self.C, -(self.d_state**-0.5), self.d_state**-0.5)
        nn.init.normal_(self.D)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: velocity and place."""
        return {"z": complex_(d_state=self.d_state), "x": complex_(d_state=self.d_state)}

    def eigenvalues(self) -> Complex[Tensor, "2 d_state"]:
        """Both of a step of each oscillator, in no particular order."""
        lam: Tensor = torch.linalg.eigvals(self._transition(None)[0])
        return lam.mT

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Any]:
        drive = self._project_in(x)  # (B, T, P, 2), Re and Im
        parameters = self._parameters_of_steps()
        steps = _steps(self.discretisation)
        if dt is None and x.shape[1] <= _LONGEST_WALK and steps.has_kernels(drive, *parameters):
            places, after = _walked(steps(*parameters), drive, state, reset)
            return self._project_out(places, x), after
        with without_autocast(x.device):
            A, gain = self._transition(dt)  # (d_state, 2, 2), (d_state, 2)
            # (..., d_state, 2, 2, 2), of Re and of Im alike
            A = A.unsqueeze(-3).expand(*A.shape[:-2], 2, 2, 2)
            b = drive.unsqueeze(-1) * gain.unsqueeze(-2)  # (B, T, P, 2, 2)
            # (B, d_state, 2, 2)
            start = torch.stack([torch.view_as_real(state[name]) for name in ("z", "x")], -1)
            h, last = block_scan(A, b, start, reset=reset)
        z, place = (torch.complex(*part.unbind(-1)) for part in last.unbind(-1))  # (B, N) each
        return self._project_out(h[..., 1], x), {"z": z, "x": place}

    def _step(self, x_t: Tensor, state: Any, dt: Tensor | None) -> tuple[Tensor, Any]:
        drive = torch.view_as_complex(self._project_in(x_t))  # (B, P)
        A, step, S = (n.to(drive.real.dtype) for n in self._rates(dt))
        z, x = state["z"], state["x"]
        z = (z + step * (drive - A * x)) / S
        x = x + step * z
        return self._project_out(torch.view_as_real(x), x_t), {"z": z, "x": x}

    def _rates(self, dt: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """A, Delta and S, (P,), of times (...) each (..., P), in double precision."""
        steps, *rates = (x.double() for x in self._parameters_of_steps())
        step = steps.sigmoid()
        if dt is not None:
            step = dt.double().unsqueeze(-1) * step
        return _rates(self.discretisation, step, *rates)

    def _parameters_of_steps(self) -> list[Tensor]:
        return [x for x in (self.steps, self.A, self.G) if x is not None]

    def _transition(self, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        """The matrix of a step on (z, x), (..., P, 2, 2), and what it adds of the drive."""
        A, step, S = self._rates(dt)  # each (d_state,)
        numbers = [torch.ones_like(S), -step * A, step, S - step * step * A]
        matrix = (torch.stack(numbers, -1) / S.unsqueeze(-1)).unflatten(-1, (2, 2))
        gain = torch.stack([step / S, step * step / S], -1)  # (d_state, 2)
        dtype = wide(self.A).dtype
        return matrix.to(dtype), gain.to(dtype)

    def _project_in(self, x: Tensor) -> Tensor:
        """``B u``, (..., P, 2)."""
        B: Tensor = self.B
        drive = wide(half_linear(x.to(B.dtype), B.flatten(0, 1)))  # (..., 2 d_state)
        return drive.view(*drive.shape[:-1], self.d_state, 2)

    def _project_out(self, h: Tensor, x: Tensor) -> Tensor:
        """``Re(C x) + D * u``, as one real product."""
        y = half_linear(h.flatten(-2).to(self.C.dtype), self.C.flatten(1))  # (..., d_model)
        out: Tensor = self.D * x + y
        return out


def _rates(discretisation: str, step: Any, A: Any, G: Any = None) -> tuple[Any, Any, Any]:
    """A, Delta and S of steps and parameters."""
    if G is None:
        A = F.relu(A)
        return A, step, 1 + step * step * A if discretisation == "im" else 0 * step + 1
    G = F.relu(G)
    S = 1 + step * G
    root = S.sqrt()
    # (root - 1) / step, without the difference and so for a step of 0 as well
    low, high = (G / (1 + root)) ** 2, ((1 + root) / step.clamp(min=_SHORTEST)) ** 2
    return torch.minimum(torch.maximum(A, low), high), step, S


@row_functions
def _steps(discretisation: str) -> RowFunction:
    """The constants of `oscillate` from the parameters of `LinOSS`."""

    def steps(steps: Any, *rates: Any) -> tuple[Any, ...]:
        A, step, S = _rates(discretisation, torch.sigmoid(steps), *rates)
        return 1 / S, -step * A / S, step / S, (S - step * step * A) / S, step * step / S

    names = "steps A" + " G" * (discretisation == "damped")
    return RowFunction(steps, "linoss_steps", rows=names, double=True)


@cell(state="z x", constant="keep pull push stay drive")
def oscillate(
    z: Any, x: Any, u: Any, keep: Any, pull: Any, push: Any, stay: Any, drive: Any
) -> tuple[Any, Any]:
    """A step of an oscillator's velocity and place."""
    after = keep * z + pull * x + push * u, push * z + stay * x + drive * u
    return after[1], after


def _walked(
    steps: Sequence[Tensor], drive: Tensor, state: Any, reset: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """All steps by the kernel of a cell, which has Re and Im as channels, side by side."""
    constants = (x.repeat_interleave(2) for x in steps)
    named: dict[str, Any] = dict(
        zip(("keep", "pull", "push", "stay", "drive"), constants, strict=True)
    )
    start = tuple(torch.view_as_real(state[name]).flatten(-2) for name in ("z", "x"))
    with without_autocast(drive.device):
        y, last = cell_scan(oscillate, u=drive.flatten(-2), state=start, reset=reset, **named)
    z, x = (torch.view_as_complex(part.unflatten(-1, (-1, 2))) for part in last)
    return y.unflatten(-1, (-1, 2)), {"z": z, "x": x}
