"""P-TNCN, the parallel temporal neural coding network: it predicts what comes."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.errors import check_in, check_not_negative, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN, Timed, steady
from linrnn.nn.parameters import empty_parameters

WEIGHTS = ("M1", "V1", "U1", "M2", "V2", "W1", "W2", "E1", "E2")

OUT = {"identity": lambda p: p, "sigmoid": torch.sigmoid}


def _cell(out: Any, name: str) -> Cell:
    def step(
        y1: Any,
        y2: Any,
        u: Any,
        x: Any,
        alpha: Any,
        beta: Any,
        M1: Any,
        V1: Any,
        U1: Any,
        M2: Any,
        V2: Any,
        W1: Any,
        W2: Any,
        E1: Any,
        E2: Any,
    ) -> tuple[Any, Any]:
        z1 = F.linear(u, M1) + F.linear(y2, U1) + F.linear(y1, V1)
        z2 = F.linear(torch.tanh(y1), M2) + F.linear(y2, V2)
        f1, f2 = torch.tanh(z1), torch.tanh(z2)
        e1 = F.linear(f2, W2) - f1
        e_x = out(F.linear(f1, W1)) - x
        y1 = torch.tanh(z1 - beta * (F.linear(e_x, E1) - alpha * e1))
        y2 = torch.tanh(z2 - beta * F.linear(e1, E2))
        ahead = F.linear(x, M1) + F.linear(y2, U1) + F.linear(y1, V1)
        return F.linear(torch.tanh(ahead), W1), (y1, y2, x)

    return Cell(step, state="y1 y2 u", constant="alpha beta", matrix=WEIGHTS, name=name)


class PTNCN(CellRNN):
    r"""P-TNCN: two predictive layers whose states are corrected by their prediction errors.

    Equation:
        z1 = M_1 x_{t-1} + U_1 y2_{t-1} + V_1 y1_{t-1},   z2 = M_2 tanh(y1_{t-1}) + V_2 y2_{t-1}
        f1 = tanh(z1),   f2 = tanh(z2),   e1 = W_2 f2 - f1,   e_x = out(W_1 f1) - x_t
        y1_t = tanh(z1 - beta (E_1 e_x - alpha e1)),   y2_t = tanh(z2 - beta E_2 e1)
        Read out is the prediction of x_{t+1} before out, W_1 f1 of the next step; all vectors are
        of d_model channels. All weights are initially N(0, 0.025^2).

    Args:
        output: out, "identity", or "sigmoid" for inputs in [0, 1].
        alpha: weight of the first layer's own prediction error, at least 0.
        beta: how far states move from their predictions to their targets, above 0.

    Departures from the paper:
        All layers are as wide as the input, which is any sequence of reals. The learner
        ``local_representation_alignment`` trains it by its own rule; others, by its derivative.

    Example:
        >>> y, state = PTNCN(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, sorted(state)
        (torch.Size([2, 100, 4]), ['u', 'y1', 'y2'])

    Reference:
        Ororbia et al., "Continual Learning of Recurrent Neural Networks by Locally Aligning
        Distributed Representations", 2020, arXiv:1810.07411. Key: ororbia2020continual.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("M1", "W1", "W2", "E1", "E2")

    family: ClassVar[str] = "dense"
    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")
    timed: ClassVar[bool] = False
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("V1", "U1", "M2", "V2")
    cells: ClassVar[Mapping[str, Timed]] = steady(
        **{name: _cell(out, f"p_tncn_{name}") for name, out in OUT.items()}
    )

    def __init__(
        self,
        d_model: int,
        *,
        output: Literal["identity", "sigmoid"] = "identity",
        alpha: float = 1.0,
        beta: float = 0.2,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("PTNCN", "output", output, OUT)
        check_not_negative("PTNCN", alpha=alpha)
        check_positive("PTNCN", beta=beta)
        self.output, self.alpha, self.beta = output, alpha, beta
        N = self._set_sizes(d_model, None, {})
        empty = empty_parameters(device, dtype)
        for name in WEIGHTS:
            self.register_parameter(name, empty(N, N))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.025)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self._parameter().dtype

    def _key(self) -> str:
        return self.output

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        matrices = {name: getattr(self, name) for name in WEIGHTS}
        return {"x": x, "alpha": self.alpha, "beta": self.beta, **matrices}
