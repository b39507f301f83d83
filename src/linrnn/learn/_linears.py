"""Gradients of each row of a batch by weights it is multiplied by, from the batch's own pass."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Use(NamedTuple):
    """A product with a parameter: ``z = x W^T + b``."""

    weight: str
    bias: str | None
    x: Tensor
    z: Tensor


class Linears(TorchFunctionMode):
    """Notes down, inside, which parameters of layers inputs are multiplied by; changes nothing.

    Args:
        layers: by name.

    Attributes:
        uses: of each layer, in the order of the calls.
    """

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._names = {
            id(p): (name, n) for name in layers for n, p in layers[name].named_parameters()
        }
        self.uses: dict[str, list[Use]] = {name: [] for name in layers}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call it, and look."""
        z = func(*args, **(kwargs or {}))
        if func is F.linear and z.ndim == 3:
            self._note(z, *args, **(kwargs or {}))
        return z

    def _note(self, z: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        found = self._names.get(id(weight))
        if found is not None:
            layer, name = found
            _, of_bias = self._names.get(id(bias), (layer, None))
            self.uses[layer].append(Use(name, of_bias, input.detach(), z))


def by_row(
    uses: Iterable[Use], gradients: Iterable[Tensor], named: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """(batch, *shape) for each parameter that was used, from the gradients of the products."""
    found: dict[str, Tensor] = {}
    for use, g in zip(uses, gradients, strict=True):
        p = named[use.weight]
        g, x = g.to(p.dtype), use.x.to(p.dtype)
        own = {use.weight: torch.bmm(g.mT, x)}
        if use.bias is not None:
            own[use.bias] = g.sum(1)
        for n, new in own.items():
            found[n] = new if n not in found else found[n] + new
    return found


def pulled(
    of: Tensor, uses: Sequence[Use], others: Sequence[Tensor], named: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """Gradients of a scalar by the parameters of each row, and by other tensors."""
    inputs = [*(use.z for use in uses), *others]
    found = torch.autograd.grad(of, inputs, retain_graph=True, materialize_grads=True)
    return by_row(uses, found[: len(uses)], named), found[len(uses) :]
