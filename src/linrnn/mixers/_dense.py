"""What the recurrent layers with a full transition matrix share."""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import check_positive_int
from linrnn.mixers._base import Mixer
from linrnn.mixers._reset import check_reset
from linrnn.ops import accumulator_dtype
from linrnn.ops._precision import without_autocast
from linrnn.ops.dense_recurrence import cell, recurrence
from linrnn.typing import Float, ResetMask, Sequence, State, Token


class DenseRNN(Mixer):
    """``h_t = phi(A h_{t-1} + B x_t + b)``, ``y_t = C h_t + D * x_t``, all real.

    A subclass says how a sequence of inputs ``B x`` and one step become states.
    """

    family: ClassVar[str] = "dense"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A", "B", "b")

    def __init__(
        self,
        d_model: int,
        d_state: int | None,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.d_state = d_model if d_state is None else d_state
        check_positive_int(type(self).__name__, d_model=d_model, d_state=self.d_state)

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        N, D = self.d_state, d_model
        self.A, self.B, self.C, self.D = empty(N, N), empty(N, D), empty(D, N), empty(D)
        self.b = empty(N) if bias else None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for weight in (self.A, self.B, self.C):
            nn.init.xavier_normal_(weight)
        nn.init.normal_(self.D)
        if self.b is not None:
            nn.init.zeros_(self.b)

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Float[Tensor, "batch d_state"]:
        """Zeros."""
        return self._zeros(batch_size, self.d_state, device=device, dtype=dtype)

    def forward(
        self, x: Sequence, state: State | None = None, *, reset: ResetMask | None = None
    ) -> tuple[Sequence, State]:
        """Read a whole sequence: see `Mixer.forward`."""
        self._check_input(x, time=True)
        check_reset(f"{type(self).__name__}.forward", reset, x)
        h = self._start(state, x)
        if x.shape[1] == 0:  # PyTorch's kernels refuse it
            return x, h
        with without_autocast(x.device):
            h, last = self._states(x.to(self.B.dtype), h, reset)
        return self._project_out(h, x), last

    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step: see `Mixer.step`."""
        self._check_input(x_t, time=False)
        h = self._start(state, x_t)
        with without_autocast(x_t.device):
            h = self._next_state(x_t.to(self.B.dtype), h)
        return self._project_out(h, x_t), h

    @abstractmethod
    def _states(self, x: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """All states (batch, time, d_state), and the last."""

    @abstractmethod
    def _next_state(self, x_t: Tensor, h: Tensor) -> Tensor:
        """The state after one step."""

    def _project_out(self, h: Tensor, x: Tensor) -> Tensor:
        y = F.linear(h.to(self.C.dtype), self.C)
        return torch.addcmul(y, self.D, x).to(x.dtype)


class ElmanRNN(DenseRNN):
    """A dense recurrence with a nonlinearity: one step after another, by PyTorch's kernels."""

    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    nonlinearity: ClassVar[Literal["tanh", "relu"]]

    def __init__(
        self,
        d_model: int,
        d_state: int | None,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(d_model, d_state, bias, device, dtype)
        self.bias = bias

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        return f"d_model={self.d_model}, d_state={self.d_state}, bias={self.bias}"

    def _weights(self) -> list[Tensor]:
        """In the order of PyTorch's kernels, which add a second bias; at least float32."""
        weights = [wide(self.B), wide(self.A)]
        if self.b is not None:
            b = wide(self.b)
            weights += [b, torch.zeros_like(b)]
        return weights

    def _states(self, x: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        states, last = recurrence(wide(x), [h], self._weights(), reset, self.nonlinearity)
        return states, last

    def _next_state(self, x_t: Tensor, h: Tensor) -> Tensor:
        return cell(wide(x_t), [h], self._weights(), self.nonlinearity)[0]


def wide(x: Tensor) -> Tensor:
    """At least float32, in which a recurrence accumulates."""
    return x.to(accumulator_dtype(x.dtype))
