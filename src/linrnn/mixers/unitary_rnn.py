"""uRNN, a unitary recurrence made of simple factors."""

from math import pi
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import scan, steady
from linrnn.mixers._families.orthogonal import COMPLEX
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear
from linrnn.state_spec import Part, complex_

_CELLS = steady(modrelu=COMPLEX)["modrelu"]


class UnitaryRNN(Mixer):
    r"""Unitary RNN (uRNN): a complex RNN with a product of phases, reflections and FFTs.

    Equation:
        h_t = modReLU(T x_t + W h_{t-1})                                    h in C^{d_state}
        modReLU(a) = a / |a| * relu(|a| + b)
        W = D_3 R_2 F^{-1} D_2 P R_1 F D_1
        D_j = diag(exp(i theta_j)),   R_j = 1 - 2 v_j v_j^H / |v_j|^2,   1 where v_j = 0
        y_t = W_out [Re h_t; Im h_t] + b_out
        F is the unitary discrete Fourier transform and P a permutation, drawn once. W is unitary,
        has 7 d_state parameters, and is not any unitary matrix. Initially theta is uniform on
        +-pi, the parts of v on +-1, those of T and W_out Glorot-uniform, b zero.

    Args:
        d_state: channels of h. Default: d_model.

    Departures from the paper:
        The state before a sequence is zero, and not learned. A sequence is read with W written out
        once, d_state^2 products a step where its factors take d_state log d_state.

    Example:
        >>> layer = UnitaryRNN(d_model=4, d_state=8)
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> W = layer.transition()
        >>> torch.allclose(W.mH @ W, torch.eye(8, dtype=W.dtype), atol=1e-5)
        True

    Reference:
        Arjovsky et al., "Unitary Evolution Recurrent Neural Networks", 2015, arXiv:1511.06464.
        Key: arjovsky2015unitary.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("theta", "v")

    family: ClassVar[str] = "orthogonal"
    choices = Choices(transition="orthogonal", gate="learned", memory="vector", steps="nonlinear")
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("theta", "v")
    permutation: Tensor

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        check_positive_int("UnitaryRNN", d_state=self.d_state)
        empty, N = empty_parameters(device, dtype), self.d_state
        self.theta, self.v, self.b = empty(3, N), empty(2, 2, N), empty(N)  # v: which, re and im
        self.T = Linear(d_model, 2 * N, bias=False, device=device, dtype=dtype)
        self.out_proj = Linear(2 * N, d_model, device=device, dtype=dtype)
        self.register_buffer("permutation", torch.empty(N, dtype=torch.int64, device=device))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter, and the permutation, anew from torch's global generator."""
        nn.init.uniform_(self.theta, -pi, pi)
        nn.init.uniform_(self.v, -1, 1)
        nn.init.zeros_(self.b)
        nn.init.xavier_uniform_(self.T.weight)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)
        self.permutation.copy_(torch.randperm(self.d_state))

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return complex_(d_state=self.d_state)

    def transition(self) -> Tensor:
        """The matrix W (d_state, d_state), complex and at least float32."""
        theta, v = wide(self.theta), wide(self.v)
        phases, columns = (
            torch.polar(torch.ones_like(theta), theta),
            torch.complex(v[:, 0], v[:, 1]),
        )
        W = torch.fft.fft(torch.diag(phases[0]), dim=0, norm="ortho")
        W = phases[1, :, None] * _reflected(W, columns[0])[self.permutation]
        W = _reflected(torch.fft.ifft(W, dim=0, norm="ortho"), columns[1])
        return phases[2, :, None] * W

    def _read(self, x: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        dtype = self.T.weight.dtype
        u = wide(self.T(x.to(dtype))).unflatten(-1, (2, -1))  # (B, T, 2, d_state)
        with without_autocast(x.device):
            u = torch.complex(u[..., 0, :], u[..., 1, :])
            inputs = {"u": u, "b": wide(self.b), "W": self.transition()}
            y, last = scan(_CELLS, inputs, h, reset, None)
        return self.out_proj(torch.cat([y.real, y.imag], -1).to(dtype)), last  # (B, T, d_model)


def _reflected(W: Tensor, v: Tensor) -> Tensor:
    """Every column of W reflected at the plane that v stands on; as it is where v is 0."""
    v = v / v.abs().detach().max().clamp(min=torch.finfo(v.real.dtype).tiny)  # or squares underflow
    square = (v.abs() ** 2).sum()
    return W - 2 * v[:, None] * (v.conj()[:, None] * W).sum(0) / square.clamp(min=0.5)
