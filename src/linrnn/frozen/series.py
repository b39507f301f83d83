"""Forecasts: frozen modes that read how a series changes, and a linear map of their states."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.errors import ShapeError
from linrnn.frozen._forecast import ForecastModel
from linrnn.nn.change_bank import ChangeBank
from linrnn.nn.gaps import filled


class SeriesModel(ForecastModel):
    r"""The forecast of `linrnn.RecurrentForecaster`, as a model of windows and of streams.

    Equation:
        yhat_{t+h} = y_t + scale (W_h x_t + V_h z_t)

    with ``x_t`` the states of a channel's modes, as `linrnn.nn.change_bank.ChangeBank` has them,
    and ``z_t`` some of those of all channels. Before its first value a series is taken to have had
    that value.

    Args:
        modes: (modes,) complex, real ones last.
        few: (width,) places of the features of a channel that are in ``z``; empty: no ``z``.
        scale: (channels,) one unit of the read-out.
        weight: (channels, features, horizon).
        together: (channels, channels * width, horizon).
        d_input: numbers of a step: the channels; or twice as many, of which the second half is 1
            where the first half misses a value.
        reach: steps of a window that count; more are read, and change little.
        tails: (channels, bins) whole numbers: how many errors one step ahead of the back-test were
            of a size or larger, as `linrnn stream` compares later ones with; None has none.

    Raises:
        ShapeError: sizes that do not fit one another.
    """

    modes: Tensor
    few: Tensor
    scale: Tensor
    reach_: Tensor
    tails: Tensor | None

    def __init__(
        self,
        modes: Tensor,
        few: Tensor,
        scale: Tensor,
        weight: Tensor,
        together: Tensor,
        *,
        d_input: int,
        reach: int,
        tails: Tensor | None = None,
    ) -> None:
        channels, features, horizon = weight.shape
        super().__init__(channels, horizon, d_input)
        if d_input not in (channels, 2 * channels):
            raise ShapeError(
                f"SeriesModel: d_input must be {channels}, or twice that with marks of missing "
                f"values, got {d_input}."
            )
        self.register_buffer("modes", torch.view_as_real(modes).contiguous())
        self.register_buffer("few", few)
        self.register_buffer("scale", scale)
        self.register_buffer("reach_", torch.tensor(reach, device=modes.device))
        self.register_buffer("tails", tails)
        self.head = _ReadOut(weight, together)
        expected = (channels, channels * len(few), horizon)
        if features != self._bank().n_features or together.shape != expected:
            raise ShapeError(
                f"SeriesModel: weight and together must have {self._bank().n_features} features "
                f"and shape {expected}, got {features} and {tuple(together.shape)}."
            )

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor], d_input: int) -> "SeriesModel":
        """A model of the sizes that stored weights have.

        Raises:
            ShapeError: they are of something else.
        """
        axes = {"modes": 2, "few": 1, "scale": 1, "head.weight": 3, "head.together": 3}
        parts = {name: weights.get(name) for name in axes}
        bad = any(part is None or part.ndim != axes[name] for name, part in parts.items())
        reach = weights.get("reach_")
        if bad or reach is None or reach.ndim or weights["modes"].shape[1] != 2:
            raise ShapeError("SeriesModel: weights must be those of modes and their head.")
        modes, few, scale, weight, together = (weights[name] for name in axes)
        as_complex = torch.view_as_complex(modes.contiguous())
        return cls(
            as_complex,
            few,
            scale,
            weight,
            together,
            d_input=d_input,
            reach=int(reach),
            tails=weights.get("tails"),
        )

    @property
    def reach(self) -> int:
        """Steps of a window that count."""
        return int(self.reach_)

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """Nothing read yet: a real and an imaginary part of each mode, and the last value."""
        zero = self.scale.new_zeros(batch_size, self.channels, device=device)
        return {
            "modes": zero.new_zeros(batch_size, self.channels, len(self.modes), 2),
            "last": zero,
            "begun": zero.new_zeros(batch_size),
        }

    def _read(self, x: Tensor, state: Any) -> tuple[Tensor, dict[str, Tensor]]:
        values = self._values(x.to(self.scale.dtype), state)
        begun = state["begun"][:, None] > 0
        first = torch.where(begun, state["last"], values[:, 0])
        changes = torch.diff(values, dim=1, prepend=first[:, None]) / self.scale
        states = self._advanced(changes, torch.view_as_complex(state["modes"]))
        updated = {
            "modes": torch.view_as_real(states),
            "last": values[:, -1],
            "begun": torch.ones_like(state["begun"]),
        }
        return self._forecast(states, values[:, -1]), updated

    def _bank(self) -> ChangeBank:
        return ChangeBank(torch.view_as_complex(self.modes))

    def _values(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """(batch, time, channels); what is missing is the last value before it, 0 at first."""
        if self.d_input == self.channels:
            return x
        values = x[..., : self.channels].masked_fill(x[..., self.channels :] > 0, torch.nan)
        return filled(values, state["last"])

    def _advanced(self, changes: Tensor, states: Tensor) -> Tensor:
        """The states (batch, channels, modes) after all changes (batch, time, channels).

        Only the last states of a window count: one product with powers of the modes.
        """
        bank, steps = self._bank(), changes.shape[1]
        back = torch.arange(steps - 1, -1, -1, device=changes.device)
        powers = bank.modes ** back[:, None] * bank.gain  # (time, modes)
        parts = torch.cat([powers.real, powers.imag], 1)
        sums = changes.transpose(1, 2) @ parts  # (batch, channels, 2 * modes)
        real, imaginary = sums.chunk(2, -1)
        return states * bank.modes**steps + torch.complex(real, imaginary)

    def _forecast(self, states: Tensor, last: Tensor) -> Tensor:
        """(batch, horizon * channels)."""
        features = self._bank().features(states)  # (batch, channels, features)
        changes = torch.einsum("bcf,cfh->bhc", features, self.head.weight)
        if len(self.few):
            z = features[..., self.few].flatten(1)  # (batch, channels * width)
            changes = changes + torch.einsum("bw,cwh->bhc", z, self.head.together)
        return (last[:, None] + changes * self.scale).flatten(1)


class _ReadOut(nn.Module):
    """The coefficients of each channel."""

    def __init__(self, weight: Tensor, together: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.together = nn.Parameter(together.clone())
