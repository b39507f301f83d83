"""TARNN, the time-adaptive RNN, whose input says how far each step goes."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.parts import parts
from linrnn.compute.precision import without_autocast
from linrnn.errors import check_few, check_in, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import MOST_WRITTEN_OUT, CellRNN, Family, Timed, scan
from linrnn.mixers._families.inner import etas, iterated
from linrnn.nn import empty_parameters, last_inputs, recall
from linrnn.nn.linear import Linear
from linrnn.ops.attention import positions
from linrnn.state_spec import Part, integer, real


def _slope(act: Any, s: Any, h: Any, q: Any, r: Any, U_1: Any) -> Any:
    return act(F.linear(s, U_1) + q) - s - h + r


def _gate_after(act: Any) -> Any:
    def step(
        h: Any, q: Any, r: Any, g: Any, dt: Any, U_1: Any, U_2: Any, U_g: Any, B_2: Any, eta: Any
    ) -> tuple[Any, Any]:
        q, r, s = q + F.linear(h, U_2), r + F.linear(h, B_2), h
        for rate in eta:
            s = (1 - dt * rate) * s + dt * rate * _slope(act, s, h, q, r, U_1)
        h = torch.lerp(h, s, torch.sigmoid(g + F.linear(h, U_g)))
        return h, h

    return step


def _gate_inside(act: Any) -> Any:
    def step(
        h: Any, q: Any, r: Any, g: Any, dt: Any, U_1: Any, U_2: Any, U_g: Any, B_2: Any, eta: Any
    ) -> tuple[Any, Any]:
        g = torch.sigmoid(g + F.linear(h, U_g))
        q, r, s = q + F.linear(h, U_2), r + F.linear(h, B_2), h
        for rate in eta:
            s = s + dt * rate * g * _slope(act, s, h, q, r, U_1)
        return s, s

    return step


STEPS = {
    f"{gate}_{name}": make(act)
    for gate, make in (("after", _gate_after), ("inside", _gate_inside))
    for name, act in (("relu", torch.relu), ("tanh", torch.tanh))
}


def _cells(kind: str, n_iterations: int) -> Timed:
    matrices = "U_1 U_2 U_g B_2"
    return iterated(f"ta_rnn_{kind}", STEPS[kind], n_iterations, state="h", matrix=matrices)


class TARNN(CellRNN):
    r"""Time-adaptive RNN: an input- and state-dependent step size towards an equilibrium.

    Equation:
        g_t = sigmoid(U_g h_{t-1} + W_g x_t + b_g)
        q = U_2 h_{t-1} + W_1 x_t + W_2 x_{t-1} + b_1,    F(s) = act(U_1 s + q) - s - h_{t-1} + r
        r = B_1 x_t + B_2 h_{t-1};  s = h_{t-1}, and n_iterations times, with e_i = eta_i dt_t:
        gate "after":   s <- (1 - e_i) s + e_i F(s),  then  h_t = (1 - g_t) * h_{t-1} + g_t * s
        gate "inside":  s <- s + e_i g_t * F(s),      then  h_t = s             h in R^{d_state}
        Before the first step of a sequence stood its first input. Read out is h, mapped by a linear
        layer where d_state is not d_model. Initially weights are N(0, 0.01), all eta_i are eta, and
        biases are 0 but for b_g = -3 with the gate after.

    Args:
        d_state: channels of h. Default: d_model.
        n_iterations: how often s is made anew.
        gate: "after" or "inside", the variants B and A of the public code.
        act: "relu" or "tanh".
        eta: what each step size, which is learned, starts at; above 0.

    Departures from the paper:
        Step sizes are not chosen anew for each place in a sequence, which would bound its length,
        and start at 0.1 and not 0.01, with which the gradients of a lower layer nearly vanish. A
        longer time between steps makes the iterations as much longer.

    Example:
        >>> y, state = TARNN(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["h"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Kag & Saligrama, "Time Adaptive Recurrent Neural Network", CVPR, 2021. Key: kag2021time.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("U_1", "U_2", "U_g", "B_2")

    family: ClassVar[str] = "dense"
    choices = Choices(
        transition="dense", gate="state", memory="vector", normaliser="convex", steps="nonlinear"
    )
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    cells: ClassVar[Family] = Family(_cells)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        n_iterations: int = 1,
        gate: Literal["after", "inside"] = "after",
        act: Literal["relu", "tanh"] = "relu",
        eta: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_few("TARNN", MOST_WRITTEN_OUT, n_iterations=n_iterations)
        check_positive("TARNN", eta=eta)
        check_in("TARNN", "gate", gate, ("after", "inside"))
        check_in("TARNN", "act", act, ("relu", "tanh"))
        self.n_iterations, self.gate, self.act, self.eta = n_iterations, gate, act, eta
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N, empty = self._set_sizes(d_model, d_state, to), empty_parameters(device, dtype)
        self.W = Linear(d_model, 2 * N, **to)  # of q and g
        self.B_1, self.W_2 = (Linear(d_model, N, bias=False, **to) for _ in range(2))
        self.U_1, self.U_2, self.U_g, self.B_2 = (empty(N, N) for _ in range(4))
        self.rates = empty(n_iterations)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        inputs = (self.W.weight, self.B_1.weight, self.W_2.weight)
        for weight in (*inputs, self.U_1, self.U_2, self.U_g, self.B_2):
            nn.init.normal_(weight, std=0.1)
        nn.init.zeros_(self.W.bias)
        self.W.bias[self.d_state :] = -3.0 if self.gate == "after" else 0.0
        self.rates.fill_(self.eta)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: h, the last input, steps since the last reset."""
        past = real(past=1, d_model=self.d_model)
        return {"h": real(d_state=self.d_state), "past": past, "position": integer()}

    def _key(self) -> tuple[str, int]:
        return f"{self.gate}_{self.act}", self.n_iterations

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, dt: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        position = positions(state["position"], x.shape[1], reset)
        x = x.to(self.W.weight.dtype)
        previous = torch.where(position[..., None] == 0, x, recall(x, state["past"], 1, reset))
        q, g = parts(self.W(x), 2)
        inputs = {"q": q + self.W_2(previous), "g": g, "r": self.B_1(x), **etas(self.rates)}
        inputs |= {name: getattr(self, name) for name in ("U_1", "U_2", "U_g", "B_2")}
        with without_autocast(x.device):
            y, h = scan(self._cells(), inputs, state["h"], reset, dt)
        past = last_inputs(x, state["past"], reset)
        last = {"h": h, "past": past, "position": position[:, -1] + 1}
        return self.out_proj(y.to(x.dtype)), last
