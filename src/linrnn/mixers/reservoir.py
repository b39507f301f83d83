"""Echo state network, a random recurrence that is not trained."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_in, check_not_negative, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import CellRNN, Timed, steady
from linrnn.nn import empty_parameters


@cell(state="h", constant="leak", matrix="W")
def leaky_tanh(h: Any, u: Any, leak: Any, W: Any) -> tuple[Any, Any]:
    """One step."""
    h = torch.lerp(h, torch.tanh(F.linear(h, W) + u), leak)
    return h, h


@cell(state="h", constant="leak", matrix="W")
def leaky_linear(h: Any, u: Any, leak: Any, W: Any) -> tuple[Any, Any]:
    """One step without a nonlinearity."""
    h = torch.lerp(h, F.linear(h, W) + u, leak)
    return h, h


class Reservoir(CellRNN):
    r"""Reservoir (echo state network): a fixed random RNN; only the readout learns.

    Equation:
        h_t = (1 - leak) h_{t-1} + leak f(W h_{t-1} + V x_t + b)       h in R^{d_state}
        with f = tanh, or without f. Read out is h, mapped by a linear layer where d_state is not
        d_model, and that map alone is trained: W, V and b are parameters without a gradient.
        In a row of W, round(density d_state) entries, at least one, are N(0, 1), the others 0; all
        are then scaled so that the largest |eigenvalue| is spectral_radius. V is
        N(0, input_scale^2 / d_model) and b is N(0, bias_scale^2).
        A state forgets where it began, given any input, where leak = 1 and the largest singular
        value of W is below 1. A spectral radius below 1 is necessary for that with zero input and
        b = 0, and in practice mostly enough.

    Args:
        d_state: channels of h. Default: d_model.
        activation: "tanh", or "linear" for a reservoir that mixes the past and does not bend it.
        spectral_radius: the largest |eigenvalue| of W, above 0.
        density: part of the channels that each hears, in (0, 1].
        leak: how far a step goes, in (0, 1].
        input_scale: standard deviation of V x where the channels of x have variance 1; above 0.
        bias_scale: that of b, at least 0.

    Departures from the paper:
        No feedback from the outputs. Rows of W have an equal number of connections, so that no draw
        is nilpotent, and weights are normal.

    Example:
        >>> layer = Reservoir(d_model=4, d_state=4, spectral_radius=0.5)
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> y.shape, state.shape, any(p.requires_grad for p in layer.parameters())
        (torch.Size([2, 100, 4]), torch.Size([2, 4]), False)

    Reference:
        Jaeger, "The 'echo state' approach to analysing and training recurrent neural networks",
        GMD Report 148, 2001. Key: jaeger2001echo.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("W", "V")

    family: ClassVar[str] = "dense"
    timed: ClassVar[bool] = False
    choices = Choices(transition="dense", gate="fixed", memory="vector", steps="nonlinear")
    declared: ClassVar[Mapping[str, str]] = {"trains": "nothing in it is trained"}
    cells: ClassVar[Mapping[str, Timed]] = steady(tanh=leaky_tanh, linear=leaky_linear)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        activation: Literal["tanh", "linear"] = "tanh",
        spectral_radius: float = 0.9,
        density: float = 1.0,
        leak: float = 1.0,
        input_scale: float = 1.0,
        bias_scale: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("Reservoir", "activation", activation, self.cells)
        check_positive("Reservoir", spectral_radius=spectral_radius, input_scale=input_scale)
        check_not_negative("Reservoir", bias_scale=bias_scale)
        for name, part in (("density", density), ("leak", leak)):
            if not 0 < part <= 1:
                raise ArgumentError(f"Reservoir: {name} must be in (0, 1], got {part}.")
        self.activation, self.spectral_radius, self.density = activation, spectral_radius, density
        self.leak, self.input_scale, self.bias_scale = leak, input_scale, bias_scale
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        N = self._set_sizes(d_model, d_state, to)
        empty = empty_parameters(device, dtype)
        self.W, self.V, self.b = (
            empty(*shape).requires_grad_(False) for shape in ((N, N), (N, d_model), (N,))
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every weight anew from torch's global generator."""
        super().reset_parameters()
        nn.init.normal_(self.V, std=self.input_scale * self.d_model**-0.5)
        nn.init.normal_(self.b, std=self.bias_scale)
        self.W.copy_(self._connections())

    def _connections(self) -> Tensor:
        """W (d_state, d_state) in float64; each row hears others, so that a cycle is closed."""
        N, device = self.d_state, self.W.device
        W = torch.randn(N, N, dtype=torch.float64, device=device)
        heard = max(1, round(self.density * N))
        if heard < N:
            order = torch.rand(N, N, device=device).argsort(1)
            W *= torch.zeros_like(W).scatter_(1, order[:, :heard], 1.0)
        radius: Tensor = torch.linalg.eigvals(W).abs().max()
        return W * (self.spectral_radius / radius)

    def _key(self) -> str:
        return self.activation

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        return {"u": F.linear(x, self.V, self.b), "W": wide(self.W), "leak": self.leak}
