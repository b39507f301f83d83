"""Weights that several layers of a stack call, each of them as its own."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.nn.parameters import KeepsPrecision


class SharedWeights(KeepsPrecision):
    """Sets of weights that layers use in turn: layer ``i`` of a stack has set ``i % n_sets``.

    Matrices start as those of `torch.nn.Linear`, vectors at 1.

    Args:
        n_layers: layers that use them.
        n_sets: sets there are, at most one a layer.
        shapes: of each weight, by name, a vector or a matrix.
        device, dtype: of the parameters, as in torch.nn.

    Example:
        >>> one, two, three = SharedWeights(3, 2, {"up": (4, 2)})()
        >>> one["up"].equal(two["up"]), one["up"].equal(three["up"])
        (False, True)
    """

    weight_parameters: tuple[str, ...] = ()

    def __init__(
        self, n_layers: int, n_sets: int, shapes: Mapping[str, tuple[int, ...]], **factory: Any
    ) -> None:
        super().__init__()
        self.n_layers, self.n_sets = n_layers, min(n_sets, n_layers)
        self.names = tuple(shapes)
        matrices = [name for name, shape in shapes.items() if len(shape) == 2]
        self.weight_parameters = tuple(f"{n}_{i}" for n in matrices for i in range(self.n_sets))
        for name, shape in shapes.items():
            for i in range(self.n_sets):
                self.register_parameter(f"{name}_{i}", nn.Parameter(torch.empty(shape, **factory)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for weight in self.parameters():
            if weight.ndim == 1:
                nn.init.ones_(weight)
            else:
                bound = weight.shape[1] ** -0.5
                nn.init.uniform_(weight, -bound, bound)

    def forward(self) -> list[dict[str, Tensor]]:
        """The weights of each layer, by name."""
        sets = [
            {name: getattr(self, f"{name}_{i}") for name in self.names} for i in range(self.n_sets)
        ]
        return [sets[layer % self.n_sets] for layer in range(self.n_layers)]
