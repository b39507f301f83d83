"""expRNN, an orthogonal recurrence by the matrix exponential."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN
from linrnn.mixers._families.orthogonal import MODRELU, Angles, check_turns, skew, start_modrelu
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear


class ExpRNN(CellRNN):
    r"""expRNN: an orthogonal RNN whose matrix is the exponential of a skew-symmetric one.

    Equation:
        h_t = modReLU(T x_t + W h_{t-1}),   W = W_0 exp(A),   A = -A^T      h in R^{d_state}
        modReLU(a) = sign(a) * relu(|a| + b)
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        W is orthogonal, whatever A: what is remembered neither grows nor fades but by b. Initially
        W_0 = 1, A turns pairs of channels by angles uniform on [-pi, pi] ("henaff") or [0, pi / 2]
        ("cayley"), T is N(0, 1 / d_model) and b uniform on +-0.01.

    Args:
        d_state: channels of h, at least 2. Default: d_model.
        dtriv: K of the dynamic trivialisation: after every K steps of the optimiser W becomes W_0
            and A zero, where the exponential distorts gradients least. Default: W_0 stays 1.
        init: "henaff" or "cayley", how angles are drawn.

    Departures from the paper:
        W_0 is not projected back: it drifts from an orthogonal matrix by a rounding error every K
        steps. T starts with a gain of 1, as ahead of a linear map.

    Example:
        >>> layer = ExpRNN(d_model=4)
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> W = layer.transition()
        >>> torch.allclose(W.mT @ W, torch.eye(4), atol=1e-5)
        True

    Reference:
        Lezcano-Casado & Martínez-Rubio, "Cheap Orthogonal Constraints in Neural Networks", 2019,
        arXiv:1901.08428; dynamic: arXiv:1909.09501. Key: lezcano2019cheap.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("skew",)

    family: ClassVar[str] = "orthogonal"
    timed: ClassVar[bool] = False
    cells = MODRELU
    choices = Choices(transition="orthogonal", gate="learned", memory="vector", steps="nonlinear")

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("skew",)
    base: Tensor
    updates: Tensor

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        dtriv: int | None = None,
        init: Angles = "henaff",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dtriv is not None:
            check_positive_int("ExpRNN", dtriv=dtriv)
        self.dtriv, self.init = dtriv, init
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        check_turns("ExpRNN", init, N)
        self.T = Linear(d_model, N, bias=False, **to)
        empty = empty_parameters(**to)
        self.b, self.skew = empty(N), empty(N * (N - 1) // 2)
        if dtriv is not None:
            self.register_buffer("base", torch.empty(N, N, **to))
            self.register_buffer("updates", torch.empty((), dtype=torch.int64, device=device))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        start_modrelu(self.T, self.b, self.skew, self.init)
        if self.dtriv is not None:
            torch.nn.init.eye_(self.base)
            self.updates.zero_()

    def transition(self) -> Tensor:
        """The matrix W (d_state, d_state), at least float32."""
        with without_autocast(self.skew.device):
            W: Tensor = torch.linalg.matrix_exp(skew(wide(self.skew)))
            return W if self.dtriv is None else wide(self.base) @ W

    @torch.no_grad()
    def after_update(self) -> None:
        """Move W_0 to W after every ``dtriv`` calls."""
        if self.dtriv is None:
            return
        self.updates += 1
        if int(self.updates) % self.dtriv == 0:
            self.base.copy_(self.transition())
            self.skew.zero_()

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        return {"u": self.T(x), "b": self.b, "W": self.transition()}
