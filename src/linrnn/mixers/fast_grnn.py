"""FastGRNN, a gated recurrence of kilobytes: gate and candidate share their matrices."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN, Family, Timed, steady
from linrnn.nn import empty_parameters
from linrnn.nn.starts import check_gates, refines, start_gates, starts
from linrnn.ops.half_linear import half_linear


def _ramp(a: Any) -> Any:
    return torch.clamp(0.5 * a + 0.5, 0.0, 1.0)


ACTS: dict[str, tuple[Any, Any]] = {
    "tanh": (torch.tanh, torch.sigmoid),
    "relu": (torch.relu, torch.sigmoid),
    "piecewise": (F.hardtanh, _ramp),
}
"""phi, of the candidate, and sigma, of the gate."""


def _cells(gated: bool, low_rank: bool, nonlinearity: str, refine: bool) -> Timed:
    phi, sigma = ACTS[nonlinearity]

    def refining(h: Any, a: Any, zeta: Any, nu: Any, b_z: Any, b_h: Any, b_s: Any) -> Any:
        z, s = sigma(a + b_z), sigma(a + b_s)
        keep, lost = z * (z + 2 * s * (1 - z)), (1 - z) * (1 - z + 2 * z * (1 - s))
        h = keep * h + (zeta * lost + nu) * phi(a + b_h)
        return h, h

    def mixed(h: Any, a: Any, zeta: Any, nu: Any, b_z: Any, b_h: Any) -> tuple[Any, Any]:
        z = sigma(a + b_z)
        h = z * h + (zeta * (1 - z) + nu) * phi(a + b_h)
        return h, h

    def added(h: Any, a: Any, alpha: Any, beta: Any) -> tuple[Any, Any]:
        h = beta * h + alpha * phi(a)
        return h, h

    def gated_full(h: Any, u: Any, zeta: Any, nu: Any, b_z: Any, b_h: Any, U: Any) -> Any:
        return mixed(h, u + F.linear(h, U), zeta, nu, b_z, b_h)

    def gated_low(h: Any, u: Any, zeta: Any, nu: Any, b_z: Any, b_h: Any, U: Any, U_1: Any) -> Any:
        return mixed(h, u + F.linear(F.linear(h, U_1), U), zeta, nu, b_z, b_h)

    def refined_full(
        h: Any, u: Any, zeta: Any, nu: Any, b_z: Any, b_h: Any, b_s: Any, U: Any
    ) -> Any:
        return refining(h, u + F.linear(h, U), zeta, nu, b_z, b_h, b_s)

    def refined_low(
        h: Any, u: Any, zeta: Any, nu: Any, b_z: Any, b_h: Any, b_s: Any, U: Any, U_1: Any
    ) -> Any:
        return refining(h, u + F.linear(F.linear(h, U_1), U), zeta, nu, b_z, b_h, b_s)

    def full(h: Any, u: Any, alpha: Any, beta: Any, U: Any) -> Any:
        return added(h, u + F.linear(h, U), alpha, beta)

    def low(h: Any, u: Any, alpha: Any, beta: Any, U: Any, U_1: Any) -> Any:
        return added(h, u + F.linear(F.linear(h, U_1), U), alpha, beta)

    whole = refined_full if refine else gated_full if gated else full
    of_low_rank = refined_low if refine else gated_low if gated else low
    step: Any = of_low_rank if low_rank else whole
    constant = "zeta nu b_z b_h" + " b_s" * refine if gated else "alpha beta"
    matrix = "U U_1" if low_rank else "U"
    name = f"fast {step.__name__}, {nonlinearity}"
    return steady(fast=Cell(step, state="h", constant=constant, matrix=matrix, name=name))["fast"]


class FastGRNN(CellRNN):
    r"""FastGRNN: gate and candidate share one pair of matrices; models of a few kilobytes.

    Equation:
        a_t = W x_t + U h_{t-1},   z_t = sigma(a_t + b_z)                h in R^{d_state}
        h_t = z_t * h_{t-1} + (zeta (1 - z_t) + nu) * phi(a_t + b_h),  numbers zeta, nu in (0, 1)
        with a refine gate s_t = sigma(a_t + b_s), of the same matrices,
        2 s_t z_t + (1 - 2 s_t) z_t^2 replaces z_t
        and without a gate, FastRNN,
        h_t = beta h_{t-1} + alpha phi(a_t + b_h),                     numbers alpha, beta in (0, 1)
        With rank r the matrix is a product W W_1, of r columns and r rows, so is U. Read out is
        h, mapped by a linear layer where d_state is not d_model. Where |phi| <= 1 and h_0 = 0, h
        has a bound: |h_t| <= zeta + nu t, and without a gate |h_t| <= alpha / (1 - beta).
        Initially entries of all matrices are N(0, 0.01), biases 1 and b_s 0; zeta = sigmoid(1),
        nu = sigmoid(-4), and alpha = sigmoid(-3), beta = sigmoid(3).

    Args:
        d_state: channels of h. Default: d_model.
        gated: the gate z; False is FastRNN.
        w_rank, u_rank: of W and U, at least 1. Default: whole matrices.
        nonlinearity: phi and sigma, "tanh" with the sigmoid, "relu" with it, or "piecewise":
            max(-1, min(1, a)) and max(0, min(1, (a + 1) / 2)), for processors without exponentials.
        gates: how z starts and whether s refines it: see `linrnn.nn.starts`. The start of a
            piecewise gate is of the same value.
        t_max: longest initial memory, in steps; gates="chrono" needs it. Default: none.

    Departures from the paper:
        Weights stay dense and real: sparse ones, by thresholds while it trains, and bytes are not
        made here.

    Example:
        >>> y, state = FastGRNN(d_model=4, d_state=8, u_rank=2)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Kusupati et al., "FastGRNN: A Fast, Accurate, Stable and Tiny Kilobyte Sized Gated Recurrent
        Neural Network", NeurIPS 2018, arXiv:1901.02358. Key: kusupati2018fastgrnn.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("W", "U", "W_1", "U_1")

    family: ClassVar[str] = "gated"
    timed: ClassVar[bool] = False
    choices = Choices(transition="dense", gate="state", memory="vector", steps="nonlinear")
    cells: ClassVar[Family] = Family(_cells)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        gated: bool = True,
        w_rank: int | None = None,
        u_rank: int | None = None,
        nonlinearity: Literal["tanh", "relu", "piecewise"] = "tanh",
        gates: Literal["plain", "chrono", "uniform", "refine", "ur"] = "plain",
        t_max: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("FastGRNN", "nonlinearity", nonlinearity, ACTS)
        ranks = {"w_rank": w_rank, "u_rank": u_rank}
        check_positive_int("FastGRNN", **{k: r for k, r in ranks.items() if r is not None})
        check_gates("FastGRNN", gates, t_max)
        if gates != "plain" and not gated:
            raise ArgumentError(
                f"FastGRNN: gates must be 'plain' for gated=False, got {gates!r}. Use gated=True."
            )
        self.gated, self.nonlinearity = gated, nonlinearity
        self.gates, self.t_max = gates, t_max
        self.w_rank, self.u_rank = w_rank, u_rank
        N = self._set_sizes(d_model, d_state, {"device": device, "dtype": dtype})
        empty = empty_parameters(device, dtype)
        self.W, self.W_1 = empty(N, w_rank or d_model), empty(w_rank, d_model) if w_rank else None
        self.U, self.U_1 = empty(N, u_rank or N), empty(u_rank, N) if u_rank else None
        self.b_h, self.b_z = empty(N), empty(N) if gated else None
        self.b_s = empty(N) if refines(gates) else None
        self.logits = empty(2)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        for weight in (self.W, self.W_1, self.U, self.U_1):
            if weight is not None:
                nn.init.normal_(weight, std=0.1)
        for bias in (self.b_h, self.b_z):
            if bias is not None:
                nn.init.ones_(bias)
        self._start_gates()
        self.logits.copy_(torch.tensor([1.0, -4.0] if self.gated else [-3.0, 3.0]))

    def _start_gates(self) -> None:
        if self.b_s is not None:
            nn.init.zeros_(self.b_s)
        if self.b_z is None or not starts(self.gates):
            return
        biases = [self.b_z] if self.b_s is None else [self.b_z, self.b_s]
        start_gates(self.gates, self.t_max, *biases)
        for bias in biases if self.nonlinearity == "piecewise" else ():
            bias.copy_(2 * bias.sigmoid() - 1)

    def _key(self) -> tuple[Any, ...]:
        return self.gated, self.u_rank is not None, self.nonlinearity, self.b_s is not None

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        if self.W_1 is not None:
            x = half_linear(x, self.W_1)
        first, second = wide(self.logits).sigmoid().repeat_interleave(self.d_state).chunk(2)
        inputs: dict[str, Any] = {"U": self.U}
        if self.U_1 is not None:
            inputs["U_1"] = self.U_1
        if self.b_z is None:
            return inputs | {"u": half_linear(x, self.W, self.b_h), "alpha": first, "beta": second}
        biases = {"b_z": self.b_z, "b_h": self.b_h}
        if self.b_s is not None:
            biases["b_s"] = self.b_s
        return inputs | {"u": half_linear(x, self.W), "zeta": first, "nu": second} | biases
