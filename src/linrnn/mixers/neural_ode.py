"""Neural ODE with an input held between its steps."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.cells import Cell
from linrnn.errors import check_few, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import MOST_WRITTEN_OUT, CellRNN, Family, Timed, timed
from linrnn.mixers._families.flow import SOLVERS, flow, small_normal
from linrnn.nn.affine import affine_of
from linrnn.nn.linear import Linear


def _cells(solver: str, substeps: int) -> Timed:
    def step(h: Any, u: Any, dt: Any, b: Any, W: Any, R: Any) -> tuple[Any, Any]:
        h = flow(lambda h: F.linear(torch.tanh(F.linear(h, W) + u), R) + b, h, dt, solver, substeps)
        return h, h

    name = f"neural ode, {solver}"
    return timed(ode=Cell(step, state="h", constant="b", matrix="W R", name=name))["ode"]


class NeuralODE(CellRNN):
    r"""Neural ODE: the state follows a learned vector field; the input is held between steps.

    Equation:
        h' = R tanh(W h + U x_t + a) + b               for a time dt_t, from h_{t-1} to h_t
        in ``substeps`` equal steps of a solver; h in R^{d_state}, tanh in R^{d_hidden}
        euler     s f(h)                               s = dt_t / substeps
        midpoint  s f(h + s/2 f(h))
        rk4       s/6 (k1 + 2 k2 + 2 k3 + k4), the classic one; s/8 (k1 + 3 k2 + 3 k3 + k4) by the
                  3/8 rule, "rk4_38"
        dt is the time since the step before, 1 by default. Read out is h, mapped by a linear layer
        where d_state is not d_model. |h_t - h_{t-1}| grows with dt at most as sum |R| + |b| does.
        Initially matrices are N(0, 0.1^2) and biases 0.

    Args:
        d_state: channels of h. Default: d_model.
        d_hidden: channels of the tanh. Default: d_state.
        solver: "euler", "midpoint", or "rk4" and "rk4_38", the classic Runge-Kutta method and its
            3/8 rule: of order 1, 2 and 4 at as many evaluations of f.
        substeps: steps of the solver for each of the input.

    Departures from the paper:
        The paper's solvers choose their steps; these are as many for every gap, so that gradients
        are those of what was computed, with no adjoint equation. There is no input in the paper.

    Example:
        >>> layer, dt = NeuralODE(d_model=4), torch.rand(2, 100)
        >>> y, state = layer(torch.randn(2, 100, 4), dt=dt)
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Chen et al., "Neural Ordinary Differential Equations", NeurIPS 2018, arXiv:1806.07366.
        Key: chen2018neural.
    """

    family: ClassVar[str] = "continuous"
    choices = Choices(transition="flow", gate="learned", memory="vector", steps="nonlinear")
    cells: ClassVar[Family] = Family(_cells)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        d_hidden: int | None = None,
        solver: Literal["euler", "midpoint", "rk4", "rk4_38"] = "rk4",
        substeps: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("NeuralODE", "solver", solver, SOLVERS)
        self.solver, self.substeps = solver, substeps
        to: Any = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        self.d_hidden = N if d_hidden is None else d_hidden
        check_positive_int("NeuralODE", d_hidden=self.d_hidden)
        check_few("NeuralODE", MOST_WRITTEN_OUT, substeps=substeps)
        self.in_proj = Linear(d_model, self.d_hidden, **to)
        self.inner = Linear(N, self.d_hidden, bias=False, **to)
        self.outer = Linear(self.d_hidden, N, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        small_normal(self.in_proj, self.inner, self.outer)

    def _key(self) -> tuple[Any, ...]:
        return self.solver, self.substeps

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        (W, _), (R, b) = affine_of(self.inner, x), affine_of(self.outer, x)
        return {"u": self.in_proj(x), "W": W, "R": R, "b": b}
