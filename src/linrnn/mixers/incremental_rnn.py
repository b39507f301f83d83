"""iRNN, the incremental RNN (not the identity RNN), whose steps lead to an equilibrium."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import check_few, check_in, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import MOST_WRITTEN_OUT, CellRNN, Family, Timed
from linrnn.mixers._families.inner import etas, iterated
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear


def _increment(act: Any) -> Any:
    def step(h: Any, u: Any, dt: Any, alpha: Any, past: Any, U: Any, eta: Any) -> tuple[Any, Any]:
        g = torch.zeros_like(h)
        for rate in eta:
            s = g + h
            g = g + dt * rate * (act(F.linear(s, U) + u) - alpha * s)
        return g + past * h, g

    return step


STEPS = {"relu": _increment(torch.relu), "tanh": _increment(torch.tanh)}


def _cells(act: str, n_iterations: int) -> Timed:
    kinds = {"state": "h", "constant": "alpha past", "matrix": "U"}
    return iterated(f"i_rnn_{act}", STEPS[act], n_iterations, **kinds)


class IncrementalRNN(CellRNN):
    r"""Incremental RNN (iRNN), not the identity RNN: each step iterates towards an equilibrium.

    Equation:
        g = 0, and n_iterations times, i = 0, 1, ...:
        g <- g + eta_i dt_t (act(U (g + h_{t-1}) + V x_t + b) - alpha (g + h_{t-1}))
        h_t = g                                                            h in R^{d_state}
        At the fixed point h_t + h_{t-1} solves act(U s + V x_t + b) = alpha s, so that the
        derivative of h_t with respect to h_{t-1} is -I: gradients keep their size. Where U is small
        the iteration contracts. Read out is h_t, or h_t + h_{t-1}, mapped by a linear layer where
        d_state is not d_model. Initially U and V are N(0, 0.01), b is 0, and all eta_i are eta.

    Args:
        d_state: channels of h. Default: d_model.
        n_iterations: of the fixed point, 1 to 5 in the paper.
        act: "tanh" or "relu".
        alpha, eta: the rate of decay, learned from there, and what each step size starts at; above
            0. With both 1 an iteration is s <- act(U s + V x_t + b).
        readout: "state", h_t, whose sign alternates in time, or "equilibrium", h_t + h_{t-1}.

    Departures from the paper:
        A longer time between steps makes the iterations as much longer. Step sizes are not chosen
        anew for each place in a sequence, which would bound its length.

    Example:
        >>> y, state = IncrementalRNN(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Kag et al., "RNNs Incrementally Evolving on an Equilibrium Manifold: A Panacea for Vanishing
        and Exploding Gradients?", 2020, arXiv:1908.08574. Key: kag2020rnns.
    """

    aliases: ClassVar[tuple[str, ...]] = ("i_rnn",)

    weight_parameters: ClassVar[tuple[str, ...]] = ("U",)
    single_precision: ClassVar[tuple[str, ...]] = ("decay", "rates")

    family: ClassVar[str] = "dense"
    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")
    cells: ClassVar[Family] = Family(_cells)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        n_iterations: int = 5,
        act: Literal["relu", "tanh"] = "tanh",
        alpha: float = 1.0,
        eta: float = 1.0,
        readout: Literal["state", "equilibrium"] = "state",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_few("IncrementalRNN", MOST_WRITTEN_OUT, n_iterations=n_iterations)
        check_positive("IncrementalRNN", alpha=alpha, eta=eta)
        check_in("IncrementalRNN", "act", act, STEPS)
        check_in("IncrementalRNN", "readout", readout, ("state", "equilibrium"))
        self.n_iterations, self.act, self.readout = n_iterations, act, readout
        self.alpha, self.eta = alpha, eta
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N, empty = self._set_sizes(d_model, d_state, to), empty_parameters(device, dtype)
        self.V, self.U = Linear(d_model, N, **to), empty(N, N)
        self.decay, self.rates = empty(1), empty(n_iterations)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        nn.init.normal_(self.V.weight, std=0.1)
        nn.init.normal_(self.U, std=0.1)
        nn.init.zeros_(self.V.bias)
        self.decay.fill_(self.alpha)
        self.rates.fill_(self.eta)

    def _key(self) -> tuple[str, int]:
        return self.act, self.n_iterations

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        past = float(self.readout == "equilibrium")
        return {"u": self.V(x), "alpha": self.decay, "past": past, "U": self.U, **etas(self.rates)}
