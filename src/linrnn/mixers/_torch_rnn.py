"""What the recurrent layers computed by PyTorch's own kernels share."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import check_positive_int
from linrnn.mixers._base import Mixer
from linrnn.mixers._reset import check_reset
from linrnn.ops import accumulator_dtype
from linrnn.ops._precision import without_autocast
from linrnn.ops.dense_recurrence import cell, recurrence
from linrnn.typing import ResetMask, Sequence, State, Token


class TorchRNN(Mixer):
    """One layer of a nonlinear recurrence, with the parameters of its `torch.nn` counterpart.

    A subclass says which recurrence it is, how many gates it has and what its state is made of.
    """

    family: ClassVar[str] = "gated"
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    kind: ClassVar[str]
    """Which of the recurrences in ``ops/dense_recurrence.py``."""

    n_gates: ClassVar[int]
    """Blocks of d_state rows in each weight."""

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
        self.bias = bias
        check_positive_int(type(self).__name__, d_model=d_model, d_state=self.d_state)

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        rows = self.n_gates * self.d_state
        self.weight_ih_l0, self.weight_hh_l0 = empty(rows, d_model), empty(rows, self.d_state)
        self.bias_ih_l0 = empty(rows) if bias else None
        self.bias_hh_l0 = empty(rows) if bias else None
        self.out_proj: nn.Module = nn.Identity()
        if self.d_state != d_model:
            self.out_proj = nn.Linear(self.d_state, d_model, device=device, dtype=dtype)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        bound = self.d_state**-0.5
        for parameter in self.parameters():  # that of out_proj is torch.nn.Linear's own as well
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        return f"d_model={self.d_model}, d_state={self.d_state}, bias={self.bias}"

    def forward(
        self, x: Sequence, state: State | None = None, *, reset: ResetMask | None = None
    ) -> tuple[Sequence, State]:
        """Read a whole sequence: see `Mixer.forward`."""
        self._check_input(x, time=True)
        check_reset(f"{type(self).__name__}.forward", reset, x)
        h = self._start(state, x)
        if x.shape[1] == 0:  # the kernels refuse it
            return x, h
        weights = self._weights()
        with without_autocast(x.device):
            u = x.to(weights[0].dtype)
            y, *last = recurrence(u, self._parts(h), weights, reset, self.kind)
        return self._project_out(y, x), self._whole(last)

    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step: see `Mixer.step`."""
        self._check_input(x_t, time=False)
        h = self._start(state, x_t)
        weights = self._weights()
        with without_autocast(x_t.device):
            parts = cell(x_t.to(weights[0].dtype), self._parts(h), weights, self.kind)
        return self._project_out(parts[0], x_t), self._whole(parts)

    @abstractmethod
    def _parts(self, state: Any) -> list[Tensor]:
        """The state as `recurrence` takes it."""

    @abstractmethod
    def _whole(self, parts: list[Tensor]) -> Any:
        """The inverse of `_parts`."""

    def _weights(self) -> list[Tensor]:
        """The parameters in the order the kernels take them, at least float32."""
        found = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
        return [w.to(accumulator_dtype(w.dtype)) for w in found if w is not None]

    def _project_out(self, y: Tensor, x: Tensor) -> Tensor:
        out: Tensor = self.out_proj(y.to(self.weight_ih_l0.dtype))
        return out.to(x.dtype)
