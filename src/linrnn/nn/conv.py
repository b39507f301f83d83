"""Short causal convolution along time, and its shortest: the previous step."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from linrnn.compute.arguments import check_device, check_numbers, check_reset
from linrnn.errors import check_positive_int, check_shape
from linrnn.ops.conv.causal_conv import convolve
from linrnn.state_spec import Part, initial, real


class CausalConv(nn.Module):
    r"""Depthwise causal convolution along time.

    Equation::

        y_t = bias + sum_{j=0}^{width-1} weight[:, width-1-j] * x_{t-j}

    No sum reaches over a reset. On a CPU one native kernel computes it, forward and backward.

    Args:
        d_model: channels, each with its own taps.
        width: taps; 1 sees only the current step.
        bias: add a bias.
        silu: apply SiLU to the output, in the same pass.
        device, dtype: of the parameters, as in torch.nn.

    Example:
        >>> conv = CausalConv(4, 3)
        >>> y, past = conv(torch.randn(2, 10, 4), conv.init_state(2))
        >>> y.shape, past.shape
        (torch.Size([2, 10, 4]), torch.Size([2, 2, 4]))
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("weight",)

    def __init__(
        self,
        d_model: int,
        width: int,
        *,
        bias: bool = True,
        silu: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("CausalConv", d_model=d_model, width=width)
        self.d_model, self.width, self.silu = d_model, width, silu
        self.weight = nn.Parameter(torch.empty(d_model, width, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d_model, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights as `torch.nn.Conv1d` does: uniform within ``width ** -0.5``."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.width**-0.5), self.width**-0.5)

    def state_spec(self) -> Part:
        """The ``width - 1`` inputs before the first, oldest first; at least float32."""
        return real(past=self.width - 1, channels=self.d_model)

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Zeros: no inputs before the first."""
        past: Tensor = initial(
            "CausalConv", self.state_spec(), batch_size, self.weight, device, dtype
        )
        return past

    def forward(
        self, x: Tensor, past: Tensor, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read (batch, time, d_model): ``(y, past)`` with the new past inputs.

        Raises:
            ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        """
        self._check(x, past, reset)
        if x.shape[1] == 0:
            return x, past
        return convolve(x, past, self.weight, self.bias, reset, silu=self.silu)

    def _check(self, x: Tensor, past: Tensor, reset: Tensor | None) -> None:
        where, width = "CausalConv", self.d_model
        check_numbers(where, {"x": x, "past": past}, real=True)
        axes: dict[str, int | None] = {"batch": None, "time": None, "d_model": width}
        check_shape(where, "x", x.shape, axes)
        batch, time, _ = x.shape
        axes = {"batch": batch, "past": self.width - 1, "d_model": width}
        check_shape(where, "past", past.shape, axes)
        check_reset(where, reset, batch, time)
        check_device(where, "x", x.device, past=past, reset=reset)

    def step(self, x_t: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Read one step (batch, d_model)."""
        y, past = self(x_t[:, None], past)
        return y[:, 0], past
