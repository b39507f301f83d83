"""A perceptron in each head that learns while a sequence is read, as a part of layers."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.ops.inner import inner_scan
from linrnn.state_spec import Part, real


class InnerMemory(nn.Module):
    """The first weights of a perceptron, and how far they are moved: see `inner_scan`.

    Args:
        n_heads: each with its own perceptron.
        sizes: channels in, of each layer between, and out.
        rule: of `linrnn.ops.inner`.
        activation: between layers.
        bias: whether layers have one.
        mini_batch: steps whose gradients are taken at the same weights.
        momentum: whether `forward` is given momentum.
        device, dtype: of the parameters, as in torch.nn.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        n_heads: int,
        sizes: Sequence[int],
        rule: str,
        activation: str,
        *,
        bias: bool,
        mini_batch: int,
        momentum: bool = False,
        **factory: Any,
    ) -> None:
        super().__init__()
        self.n_heads, self.sizes, self.rule = n_heads, tuple(sizes), rule
        self.activation, self.mini_batch, self.momentum = activation, mini_batch, momentum
        self._names: list[str] = []
        for i, (d_in, d_out) in enumerate(zip(self.sizes, self.sizes[1:], strict=False), 1):
            W = nn.Parameter(torch.empty(n_heads, d_in, d_out, **factory))
            self.register_parameter(f"W{i}", W)
            self._names.append(f"W{i}")
            if bias:
                b = nn.Parameter(torch.empty(n_heads, d_out, **factory))
                self.register_parameter(f"b{i}", b)
                self._names.append(f"b{i}")

    @torch.no_grad()
    def reset_parameters(self, draw: Callable[[Tensor], object]) -> None:
        """Draw each matrix anew; biases are 0."""
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.zeros_(parameter)
            else:
                for matrix in parameter:
                    draw(matrix)

    def state_spec(self) -> dict[str, dict[str, Part]]:
        """Moves up to this mini-batch, moves in it, and velocities, where there are such."""
        change = {name: self._part(w) for name, w in self._weights().items()}
        pending = {"pending": change} if self.mini_batch > 1 else {}
        return {"change": change, **pending, **({"velocity": change} if self.momentum else {})}

    def _weights(self) -> dict[str, Tensor]:
        """By name, also of a replica that `torch.nn.DataParallel` makes."""
        return {name: getattr(self, name) for name in self._names}

    def _part(self, weight: Tensor) -> Part:
        sizes = {"d_in": weight.shape[1]} if weight.ndim == 3 else {}
        return real(n_heads=self.n_heads, **sizes, d_out=weight.shape[-1])

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rate: Tensor,
        position: Tensor,
        state: Any,
        *,
        momentum: Tensor | None = None,
        decay: Tensor | None = None,
        gain: Tensor | None = None,
        constants: Sequence[Tensor] = (),
    ) -> tuple[Tensor, dict[str, dict[str, Tensor]]]:
        """Return the reads of the queries, and the state; arguments are those of `inner_scan`."""
        change, pending, velocity = (
            list(state.get(name, {}).values()) for name in ("change", "pending", "velocity")
        )
        o, *last = inner_scan(
            self.rule,
            self.activation,
            q,
            k,
            v,
            rate,
            [wide(w) for w in self._weights().values()],
            (change, pending, velocity),
            position,
            self.mini_batch,
            momentum=momentum,
            decay=decay,
            gain=gain,
            constants=constants,
        )
        new, names = iter(last), self._names
        return o, {part: {name: next(new) for name in names} for part in self.state_spec()}
