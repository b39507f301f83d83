"""The contract every mixer keeps; `linrnn.testing.check_mixer` tests it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import check_shape
from linrnn.mixers._state import check_start, check_state
from linrnn.ops import accumulator_dtype
from linrnn.ops._arguments import check_device, check_numbers
from linrnn.typing import Complex, ResetMask, Sequence, State, Token

FFT_REACHES_BACK = (
    "an FFT spreads its rounding errors over the row: a step changes those before it by some "
    "roundings of the largest number, and NaN, infinity or an overflow make them NaN"
)


class Mixer(nn.Module, ABC):
    """A layer that mixes information along time: (B, T, d_model) in and out, state in and out.

    A subclass is final. It stores its arguments under their own names, declares the class
    attributes below where the defaults are not true of it, and implements `forward`, `step` and
    `init_state`. The state is a plain tree of tensors with the batch as leading axis, always
    returned, of a size that does not depend on how much was read, and at least float32.
    """

    family: ClassVar[str]
    """What kind of recurrence: diagonal, ssm, linear-attention, gated, oscillator, ..."""

    causal: ClassVar[bool] = True
    """No output depends on a later input."""

    forms: ClassVar[tuple[str, ...]] = ("scan",)
    """Values of ``form`` the constructor takes; all give the same numbers. The first is default."""

    declared: ClassVar[Mapping[str, str]] = {}
    """Laws of `linrnn.testing.check_mixer` this mixer cannot keep, each with its reason; as
    ``"law:form"`` where only that form cannot."""

    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "parallel"
    """How a long sequence is read: by a few parallel operations, one step after another because
    a step needs the result of the last, or with every step looking at all earlier ones."""

    recurrent_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters of the recurrence: trained with a smaller learning rate, without weight decay."""

    constant_state: ClassVar[tuple[str, ...]] = ()
    """Keys of a state dict through which no gradient flows, such as positions or a running
    maximum that cancels out of every result."""

    d_model: int

    @abstractmethod
    def forward(
        self, x: Sequence, state: State | None = None, *, reset: ResetMask | None = None
    ) -> tuple[Sequence, State]:
        """Read a whole sequence.

        Args:
            x: input (batch, time, d_model).
            state: what an earlier call returned, or None for `init_state`.
            reset: boolean (batch, time); True starts a new sequence at that step, as if
                everything before had been read by somebody else.

        Returns:
            ``(y, state)``: the output, shape and dtype of ``x``, and the state after the last step.
        """

    @abstractmethod
    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step (batch, d_model) in constant time: ``(y_t, state)``."""

    @abstractmethod
    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before the first step, for ``batch_size`` sequences.

        Device and dtype default to those of the parameters; ``dtype`` is a real dtype, of which
        a complex state takes the complex counterpart and half precision becomes float32.
        """

    def eigenvalues(self) -> Complex[Tensor, " d_state"] | None:
        """Eigenvalues of a transition that does not depend on the input, else None."""
        return None

    def _check_input(self, x: Tensor, *, time: bool) -> None:
        call, name = ("forward", "x") if time else ("step", "x_t")
        where = f"{type(self).__name__}.{call}"
        check_numbers(where, {name: x}, real=True)
        axes: dict[str, int | None] = {"batch": None, "time": None, "d_model": self.d_model}
        if not time:
            del axes["time"]
        check_shape(where, name, x.shape, axes)
        check_device(where, "the parameters", next(self.parameters()).device, **{name: x})

    def _zeros(
        self,
        *shape: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        is_complex: bool = False,
    ) -> Tensor:
        """A zero state: on the device and of the dtype of the parameters, at least float32."""
        check_start(type(self).__name__, shape[0], device, dtype)
        like = next(self.parameters())
        real = accumulator_dtype(like.dtype if dtype is None else dtype)
        if is_complex:
            real = torch.complex128 if real == torch.float64 else torch.complex64
        return torch.zeros(shape, device=like.device if device is None else device, dtype=real)

    def _start(self, state: State | None, x: Tensor) -> Any:
        """The state a call begins from: `init_state` for None, else the caller's, checked.

        It has the tree and the dtypes of `init_state`; a call casts to them.

        Raises:
            DTypeError, ShapeError, DeviceError: a state this layer cannot have returned.
        """
        fresh = self.init_state(x.shape[0], device=x.device)
        return fresh if state is None else check_state(type(self).__name__, state, fresh)
