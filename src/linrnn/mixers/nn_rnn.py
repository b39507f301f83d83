"""nnRNN, a non-normal recurrence: rotations in an orthogonal basis, and what is passed on."""

from math import pi
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN
from linrnn.mixers._families.orthogonal import MODRELU, Angles, check_turns, skew, start_modrelu
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear


class NNRNN(CellRNN):
    r"""Non-normal RNN (nnRNN): a Schur form with unit rotations and an upper triangle.

    Equation:
        h_t = modReLU(T x_t + V h_{t-1}),   V = P Theta P^T,   P = exp(A),   A = -A^T
        modReLU(a) = sign(a) * relu(|a| + b)                                h in R^{d_state}
        Theta has the blocks gamma_i [[cos theta_i, -sin theta_i], [sin theta_i, cos theta_i]] on
        its diagonal, free numbers above these blocks, and zeros below: V has the eigenvalues
        gamma_i exp(+-i theta_i), and what is above lets one pair of channels drive the next, for
        some time more than orthogonal matrices can.
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        Initially gamma is 1, theta uniform on [0, 2 pi], the part above zero, A turns pairs of
        channels as "henaff" or "cayley" says, T is N(0, 1 / d_model) and b uniform on +-0.01.

    Args:
        d_state: channels of h, an even number. Default: d_model.
        init: angles of P uniform on [-pi, pi], "henaff", or on [0, pi / 2], "cayley".

    Departures from the paper:
        The public code's free numbers are also inside the blocks, where they would change the
        eigenvalues. The paper adds a multiple of sum (gamma - 1)^2 to the loss, which a layer does
        not have.

    Example:
        >>> layer = NNRNN(d_model=4)
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> torch.linalg.eigvals(layer.transition()).abs()
        tensor([1.0000, 1.0000, 1.0000, 1.0000], grad_fn=<AbsBackward0>)

    Reference:
        Kerg et al., "Non-normal Recurrent Neural Network (nnRNN): learning long time dependencies
        while improving expressivity with transient dynamics", 2019, arXiv:1905.12080.
        Key: kerg2019nonnormal.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("skew", "gamma", "theta", "above")

    family: ClassVar[str] = "orthogonal"
    timed: ClassVar[bool] = False
    cells = MODRELU
    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("skew", "gamma", "theta", "above")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        init: Angles = "henaff",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.init = init
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        check_turns("NNRNN", init, N)
        self.T = Linear(d_model, N, bias=False, **to)
        empty = empty_parameters(**to)
        self.b, self.skew = empty(N), empty(N * (N - 1) // 2)
        if N % 2:
            raise ArgumentError(f"NNRNN: d_state must be even, got {N}.")
        self.gamma, self.theta, self.above = (
            empty(N // 2),
            empty(N // 2),
            empty(N * (N - 2) // 8, 2, 2),
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        start_modrelu(self.T, self.b, self.skew, self.init)
        nn.init.ones_(self.gamma)
        nn.init.uniform_(self.theta, 0, 2 * pi)
        nn.init.zeros_(self.above)

    def transition(self) -> Tensor:
        """The matrix V (d_state, d_state), at least float32."""
        with without_autocast(self.skew.device):
            P = torch.linalg.matrix_exp(skew(wide(self.skew)))
            V: Tensor = P @ self._schur() @ P.mT
            return V

    def _schur(self) -> Tensor:
        gamma, theta, M = wide(self.gamma), wide(self.theta), self.d_state // 2
        cos, sin = gamma * theta.cos(), gamma * theta.sin()
        turns = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        on = torch.arange(M, device=theta.device)
        above = torch.triu_indices(M, M, 1, device=theta.device)
        blocks = theta.new_zeros(M, M, 2, 2).index_put((on, on), turns)
        blocks = blocks.index_put(tuple(above), wide(self.above))
        return blocks.transpose(1, 2).reshape(self.d_state, self.d_state)

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        return {"u": self.T(x), "b": self.b, "W": self.transition()}
