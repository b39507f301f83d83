"""Forecasts that are a weighted mean of forecasts of values and of their square roots."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.errors import ShapeError
from linrnn.frozen._forecast import ForecastModel
from linrnn.frozen.series import SeriesModel
from linrnn.frozen.window import WindowModel


class MeanModel(ForecastModel):
    r"""The weighted mean of several forecasts of one series.

    Equation:
        yhat = sum_k w_k T_k^-1( f_k( T_k(y) ) )

    with ``T_k`` the identity, or ``sqrt(max(y - floor, 0))``, whose inverse is the square of what
    is not negative, plus the floor.

    Args:
        parts: the forecasts ``f_k``, of one number of channels and one horizon; the first is a
            `SeriesModel` of the values themselves.
        weight: (parts,), float64.
        roots: (parts,) boolean, which of them read square roots.
        floor: (channels,), the smallest value that a square root takes.
        tails: as of `SeriesModel`, of errors of the mean.

    Raises:
        ShapeError: sizes that do not fit one another.
    """

    floor: Tensor
    roots: Tensor
    tails: Tensor | None

    def __init__(
        self,
        parts: Sequence[SeriesModel | WindowModel],
        weight: Tensor,
        roots: Tensor,
        floor: Tensor,
        tails: Tensor | None = None,
    ) -> None:
        sizes = {(part.channels, part.horizon) for part in parts}
        shapes = tuple(weight.shape), tuple(roots.shape), tuple(floor.shape)
        if len(sizes) != 1 or shapes != ((len(parts),), (len(parts),), (parts[0].channels,)):
            raise ShapeError(
                "MeanModel: parts must have the same channels and horizon, weight and roots shape "
                f"(parts,) and floor (channels,), got {sorted(sizes)} and {shapes}."
            )
        super().__init__(*sizes.pop())
        self.parts = nn.ModuleList(parts)
        self.register_buffer("roots", roots.bool())
        self.register_buffer("floor", floor.double())
        self.register_buffer("tails", tails)
        self.head = _Shares(weight)

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor]) -> "MeanModel":
        """A model of the sizes that stored weights have.

        Raises:
            ShapeError: they are of something else.
        """
        named = [weights.get(name) for name in ("head.weight", "roots", "floor")]
        weight, roots, floor = named
        if weight is None or roots is None or floor is None or floor.ndim != 1 or not len(floor):
            raise ShapeError("MeanModel: weights must be those of a mean of forecasts, got others.")
        parts: list[SeriesModel | WindowModel] = []
        for k in range(len(weight)):
            start = f"parts.{k}."
            part = {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}
            if "modes" in part:
                parts.append(SeriesModel.of_weights(part, len(floor)))
            else:
                parts.append(WindowModel.of_weights(part))
        return cls(parts, weight, roots, floor, weights.get("tails"))

    @staticmethod
    def is_of(weights: Mapping[str, Tensor]) -> bool:
        """Whether stored weights are those of such a model."""
        return "roots" in weights

    @property
    def reach(self) -> int:
        """Steps of a window that count."""
        return max(part.reach for part in self._parts())

    @property
    def scale(self) -> Tensor:
        """(channels,) one unit of the first forecast."""
        return self._first().scale

    @property
    def modes(self) -> Tensor:
        """(modes, 2) those of the first forecast."""
        return self._first().modes

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """Nothing read yet: the states of all parts."""
        states = [part.init_state(batch_size, device=device) for part in self._parts()]
        return _side_by_side(states)

    def _read(self, x: Tensor, state: Any) -> tuple[Tensor, dict[str, Tensor]]:
        values, states, total = x.to(self.floor.dtype), [], torch.zeros((), device=x.device)
        for k, part in enumerate(self._parts()):
            start = f"{k}_"
            before = {n.removeprefix(start): s for n, s in state.items() if n.startswith(start)}
            root = bool(self.roots[k])
            read = (values - self.floor).clamp_min(0).sqrt() if root else values
            y, after = part(read, before)
            if root:
                y = y.unflatten(1, (-1, self.channels)).clamp_min(0).square() + self.floor
            total = total + self.head.weight[k] * y.flatten(1)
            states.append(after)
        return total, _side_by_side(states)

    def _parts(self) -> list[SeriesModel | WindowModel]:
        return [part for part in self.parts if isinstance(part, (SeriesModel, WindowModel))]

    def _first(self) -> SeriesModel:
        first = self.parts[0]
        assert isinstance(first, SeriesModel)
        return first


def _side_by_side(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """One dictionary, with the place of the part before each name."""
    return {f"{k}_{name}": part for k, state in enumerate(states) for name, part in state.items()}


class _Shares(nn.Module):
    """The weight of each part."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.double().clone())
