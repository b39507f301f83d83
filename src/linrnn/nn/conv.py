"""Short causal convolution along time, and its shortest: the previous step."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import check_positive_int
from linrnn.ops import accumulator_dtype


def recall(x: Tensor, past: Tensor, delay: int, reset: Tensor | None = None) -> Tensor:
    """``x_{t - delay}``, zero where a reset lies between the two.

    Args:
        x: (batch, time, channels).
        past: what came before ``x``, (batch, at least ``delay``, channels).
        delay: steps back, 0 or more.
        reset: boolean (batch, time); True where a new sequence starts.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
        >>> recall(x, torch.zeros(1, 1, 1), 1).flatten()
        tensor([0., 1., 2.])
    """
    if delay == 0:
        return x
    time, before = x.shape[1], past[:, past.shape[1] - delay :]
    y = torch.cat([before.to(x.dtype), x], 1)[:, :time]
    if reset is None:
        return y
    started = F.pad(reset.cumsum(1), (delay, 0))  # sequences begun up to t, and up to t - delay
    return torch.where((started[:, delay:] == started[:, :time])[..., None], y, 0)


def last_inputs(x: Tensor, past: Tensor, reset: Tensor | None = None) -> Tensor:
    """The newest ``past.shape[1]`` inputs after reading ``x``, those before a reset zero."""
    width = past.shape[1]
    if reset is not None:
        started = reset.cumsum(1)
        x = torch.where((started == started[:, -1:])[..., None], x, 0)
        past = torch.where(reset.any(1)[:, None, None], 0, past)
    return torch.cat([past, x.to(past.dtype)], 1)[:, x.shape[1] :][:, :width]


class CausalConv(nn.Module):
    r"""Depthwise causal convolution along time.

    Equation::

        y_t = bias + sum_{j=0}^{width-1} weight[:, width-1-j] * x_{t-j}

    Args:
        d_model: channels, each with its own taps.
        width: taps; 1 sees only the current step.
        bias: add a bias.
        device, dtype: of the parameters, as in torch.nn.

    Example:
        >>> conv = CausalConv(4, 3)
        >>> y, past = conv(torch.randn(2, 10, 4), conv.init_state(2))
        >>> y.shape, past.shape
        (torch.Size([2, 10, 4]), torch.Size([2, 2, 4]))
    """

    def __init__(
        self,
        d_model: int,
        width: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("CausalConv", d_model=d_model, width=width)
        self.d_model, self.width = d_model, width
        self.weight = nn.Parameter(torch.empty(d_model, width, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d_model, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As `torch.nn.Conv1d`: uniform within ``width ** -0.5``."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.width**-0.5), self.width**-0.5)

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Zeros: the ``width - 1`` inputs before the first, oldest first; at least float32."""
        real = accumulator_dtype(self.weight.dtype if dtype is None else dtype)
        device = self.weight.device if device is None else device
        return torch.zeros(batch_size, self.width - 1, self.d_model, device=device, dtype=real)

    def forward(
        self, x: Tensor, past: Tensor, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read (batch, time, d_model): ``(y, past)`` with the new past inputs."""
        if x.shape[1] == 0:
            return x, past
        y = torch.zeros_like(x) if self.bias is None else self.bias.to(x.dtype)
        for j in range(self.width):
            y = y + self.weight[:, self.width - 1 - j] * recall(x, past, j, reset)
        return y, last_inputs(x, past, reset)

    def step(self, x_t: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Read one step (batch, d_model)."""
        y, past = self(x_t[:, None], past)
        return y[:, 0], past
