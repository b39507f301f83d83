"""scoRNN, an orthogonal recurrence by the scaled Cayley transform."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN
from linrnn.mixers._families.orthogonal import MODRELU, Angles, check_turns, skew, start_modrelu
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear


class ScoRNN(CellRNN):
    r"""scoRNN: an orthogonal RNN by the scaled Cayley transform of a skew-symmetric matrix.

    Equation:
        h_t = modReLU(T x_t + W h_{t-1}),   W = (1 + A)^{-1} (1 - A) D,   A = -A^T
        modReLU(a) = sign(a) * relu(|a| + b)                                h in R^{d_state}
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        D is diagonal, the first n_negative entries -1 and the others 1: without it W could not have
        the eigenvalue -1. W is orthogonal, whatever A. Initially (1 + A)^{-1} (1 - A) turns pairs
        of channels by angles uniform on [0, pi / 2] ("cayley") or [-pi, pi] ("henaff"), T is
        N(0, 1 / d_model) and b uniform on +-0.01.

    Args:
        d_state: channels of h, at least 2. Default: d_model.
        n_negative: entries -1 of D, the paper's rho, tuned there for each task. Default: half.
        init: "cayley" or "henaff", how angles are drawn.

    Departures from the paper:
        The state before a sequence is zero, and not learned.

    Example:
        >>> layer = ScoRNN(d_model=4)
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> W = layer.transition()
        >>> torch.allclose(W.mT @ W, torch.eye(4), atol=1e-5)
        True

    Reference:
        Helfrich et al., "Orthogonal Recurrent Neural Networks with Scaled Cayley Transform", 2017,
        arXiv:1707.09520. Key: helfrich2017orthogonal.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("skew",)

    family: ClassVar[str] = "orthogonal"
    timed: ClassVar[bool] = False
    cells = MODRELU
    choices = Choices(transition="orthogonal", gate="learned", memory="vector", steps="nonlinear")

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("skew",)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        n_negative: int | None = None,
        init: Angles = "cayley",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.init = init
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        check_turns("ScoRNN", init, N)
        self.T = Linear(d_model, N, bias=False, **to)
        empty = empty_parameters(**to)
        self.b, self.skew = empty(N), empty(N * (N - 1) // 2)
        self.n_negative = N // 2 if n_negative is None else n_negative
        if isinstance(self.n_negative, bool) or not 0 <= self.n_negative <= N:
            raise ArgumentError(
                f"ScoRNN: n_negative must be from 0 to d_state={N}, got {self.n_negative}."
            )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        start_modrelu(self.T, self.b, self.skew, self.init, _entries)

    def transition(self) -> Tensor:
        """The matrix W (d_state, d_state), at least float32."""
        with without_autocast(self.skew.device):
            A = skew(wide(self.skew))
            eye = torch.eye(self.d_state, dtype=A.dtype, device=A.device)
            signs = torch.where(
                torch.arange(self.d_state, device=A.device) < self.n_negative, -1, 1
            )
            # 1 - A = 2 - (1 + A); a second forward derivative of solve would lose digits
            W: Tensor = (2 * torch.linalg.inv(eye + A) - eye) * signs
            return W

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        return {"u": self.T(x), "b": self.b, "W": self.transition()}


def _entries(angles: Tensor) -> Tensor:
    """The entries of a matrix that turns by these angles."""
    # |tan| would be infinite at a half turn, which no A reaches
    return torch.tan(0.5 * angles.clamp(-3.1, 3.1))
