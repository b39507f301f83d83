"""ODE-RNN: a gated recurrent unit whose state flows between its steps."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.errors import check_few, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import MOST_WRITTEN_OUT, CellRNN, Family, Timed, timed
from linrnn.mixers._families.flow import SOLVERS, flow, small_normal
from linrnn.nn.affine import affine_of
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.ops.cell.dense_recurrence import CELLS
from linrnn.ops.half_linear import half_linear

_GATES = ("xr", "xz", "xn")
_HIDDEN = ("Wr", "Wz", "Wn")


def _decay(
    h: Any, dt: Any, xr: Any, xz: Any, xn: Any, rate: Any, bn: Any, Wr: Any, Wz: Any, Wn: Any
) -> tuple[Any, Any]:
    gru: Any = CELLS["gru"].function
    return gru(h * torch.exp(-dt * rate), xr, xz, xn, bn, Wr, Wz, Wn)  # type: ignore[no-any-return]


def _cells(between: str, solver: str, substeps: int) -> Timed:
    """A flow, then the GRU of the library, whose arguments follow those of the flow."""
    gru: Any = CELLS["gru"].function

    def ode(
        h: Any, dt: Any, xr: Any, xz: Any, xn: Any, a: Any, b: Any, bn: Any,
        W: Any, R: Any, Wr: Any, Wz: Any, Wn: Any,
    ) -> tuple[Any, Any]:  # fmt: skip
        def field(h: Any) -> Any:
            return F.linear(torch.tanh(F.linear(h, W) + a), R) + b

        h = flow(field, h, dt, solver, substeps)
        return gru(h, xr, xz, xn, bn, Wr, Wz, Wn)  # type: ignore[no-any-return]

    if between == "decay":
        return timed(ode=Cell(_decay, state="h", constant="rate bn", matrix="Wr Wz Wn"))["ode"]
    name = f"ode rnn, {solver}"
    cell = Cell(ode, state="h", constant="a b bn", matrix="W R Wr Wz Wn", name=name)
    return timed(ode=cell)["ode"]


class ODERNN(CellRNN):
    r"""ODE-RNN: the state follows a learned ODE between inputs; a GRU reads each input.

    Equation:
        h~_t = the state after a time dt_t, from h_{t-1}
        between "ode"    h' = R tanh(W h + a) + b      in ``substeps`` equal steps of the solver
        between "decay"  h~ = exp(-dt_t exp(log_rate)) * h_{t-1}
        h_t = GRU(x_t, h~_t), see `linrnn.mixers.GRU`                 h in R^{d_state}
        dt is the time since the step before, 1 by default. Read out is h, mapped by a linear layer
        where d_state is not d_model. Initially the GRU is that of torch.nn, W and R are
        N(0, 0.1^2), a and b are 0, and exp(log_rate) is 0.001.

    Args:
        d_state: channels of h. Default: d_model.
        d_hidden: channels of the tanh. Default: d_state.
        between: what happens between inputs, "ode" or "decay" (the RNN-decay of the paper).
        solver: "euler", "midpoint", or "rk4" and "rk4_38", the classic Runge-Kutta method and its
            3/8 rule: of order 1, 2 and 4 at as many evaluations of f.
        substeps: steps of the solver between two inputs.

    Departures from the paper:
        As many steps of the solver for every gap; the paper's are of a length. Its decay has one
        rate for all channels, and its GRU two layers in each gate.

    Example:
        >>> layer, dt = ODERNN(d_model=4), torch.rand(2, 100)
        >>> y, state = layer(torch.randn(2, 100, 4), dt=dt)
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Rubanova, Chen and Duvenaud, "Latent ODEs for Irregularly-Sampled Time Series", NeurIPS
        2019, arXiv:1907.03907. Key: rubanova2019latent.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "continuous"
    choices = Choices(
        transition="flow", gate="state", memory="vector", normaliser="convex", steps="nonlinear"
    )
    cells: ClassVar[Family] = Family(_cells)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        d_hidden: int | None = None,
        between: Literal["ode", "decay"] = "ode",
        solver: Literal["euler", "midpoint", "rk4", "rk4_38"] = "euler",
        substeps: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("ODERNN", "between", between, ("ode", "decay"))
        check_in("ODERNN", "solver", solver, SOLVERS)
        self.between, self.solver, self.substeps = between, solver, substeps
        to: Any = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        self.d_hidden = N if d_hidden is None else d_hidden
        check_positive_int("ODERNN", d_hidden=self.d_hidden)
        check_few("ODERNN", MOST_WRITTEN_OUT, substeps=substeps)
        self.gru = nn.GRUCell(d_model, N, **to)
        empty, flows = empty_parameters(device, dtype), between == "ode"
        self.inner = Linear(N, self.d_hidden, **to) if flows else None
        self.outer = Linear(self.d_hidden, N, **to) if flows else None
        self.log_rate = None if flows else empty(N)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        self.gru.reset_parameters()
        if self.inner is not None and self.outer is not None:
            small_normal(self.inner, self.outer)
        if self.log_rate is not None:
            self.log_rate.fill_(0.001).log_()

    def _key(self) -> tuple[Any, ...]:
        return self.between, self.solver, self.substeps

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        gru, N = self.gru, self.d_state
        # the third gate multiplies its product with h together with its bias
        b = torch.cat([(gru.bias_ih + gru.bias_hh)[: 2 * N], gru.bias_ih[2 * N :]])
        inputs: dict[str, Any] = {"bn": gru.bias_hh[2 * N :]}
        inputs |= zip(_GATES, half_linear(x, gru.weight_ih, b).chunk(3, -1), strict=True)
        inputs |= zip(_HIDDEN, gru.weight_hh.chunk(3), strict=True)
        if self.inner is not None and self.outer is not None:
            (W, a), (R, b) = affine_of(self.inner, x), affine_of(self.outer, x)
            return inputs | {"W": W, "a": a, "R": R, "b": b}
        assert self.log_rate is not None
        return inputs | {"rate": bounded_exp(self.log_rate)}
