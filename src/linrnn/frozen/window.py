"""Forecasts by a linear map of the last values of each channel."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.errors import ShapeError
from linrnn.frozen._forecast import ForecastModel


class WindowModel(ForecastModel):
    r"""A direct autoregression of each channel, as of a ridge regression on windows.

    Equation:
        yhat_{t+h} = b_h + sum_k W_{k,h} y_{t-K+k}                  k = 1 .. K, h = 1 .. horizon

    with K the steps of a window. Before its first value a series is taken to have had that value.

    Args:
        weight: (channels, steps, horizon), float64; the last step of a window comes last.
        bias: (channels, horizon).

    Raises:
        ShapeError: sizes that do not fit one another.

    Example:
        >>> model = WindowModel(torch.tensor([[[0.5], [1.0]]]).double(), torch.zeros(1, 1))
        >>> y, state = model(torch.tensor([[[4.0], [1.0], [3.0]]]))
        >>> y.tolist(), model.step(torch.tensor([[2.0]]), state)[0].tolist()
        ([[3.5]], [[3.5]])
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        if weight.ndim != 3 or bias.shape != (weight.shape[0], weight.shape[2]):
            raise ShapeError(
                "WindowModel: weight must have shape (channels, steps, horizon) and bias "
                f"(channels, horizon), got {tuple(weight.shape)} and {tuple(bias.shape)}."
            )
        channels, steps, horizon = weight.shape
        super().__init__(channels, horizon)
        self.steps = steps
        self.head = _WindowHead(weight, bias)

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor]) -> "WindowModel":
        """A model of stored weights.

        Raises:
            ShapeError: they are of something else.
        """
        weight, bias = weights.get("head.weight"), weights.get("head.bias")
        if weight is None or bias is None:
            raise ShapeError("WindowModel: weights must be those of its head, got others.")
        return cls(weight, bias)

    @property
    def reach(self) -> int:
        """Steps of a window that count."""
        return self.steps

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """Nothing read yet: the last values, and whether there were any."""
        weight = self.head.weight
        window = weight.new_zeros(batch_size, self.steps, self.channels, device=device)
        return {"window": window, "begun": window.new_zeros(batch_size)}

    def _read(self, x: Tensor, state: Any) -> tuple[Tensor, dict[str, Tensor]]:
        values = x.to(self.head.weight.dtype)
        begun = state["begun"][:, None, None] > 0
        before = torch.where(begun, state["window"], values[:, :1])  # (batch, steps, channels)
        window = torch.cat([before, values], 1)[:, -self.steps :]
        y = torch.einsum("bsc,csh->bhc", window, self.head.weight) + self.head.bias.T
        return y.flatten(1), {"window": window, "begun": torch.ones_like(state["begun"])}


class _WindowHead(nn.Module):
    """The coefficients of each channel."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.double().clone())
        self.bias = nn.Parameter(bias.double().clone())
