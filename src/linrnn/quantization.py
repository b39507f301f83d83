"""Smaller weights, faster words: a trained model with weights of 8 or 4 bits.

A step of a few sequences costs reading the weights. In 8 bits they are a quarter of float32, in 4
bits about an eighth.
"""

import copy
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from linrnn._options.call import checked
from linrnn.errors import ArgumentError, ArgumentTypeError
from linrnn.nn.head import CappedLinear
from linrnn.nn.linear import plain_linear
from linrnn.nn.quantized import QuantizedLinear, check_form

__all__ = [
    "KINDS",
    "AnyModel",
    "MapError",
    "errors",
    "quantize",
]


def __dir__() -> list[str]:
    return sorted(__all__)


AnyModel = TypeVar("AnyModel", bound=nn.Module)
KINDS = {"int8": 8, "int4": 4}
"""Names of the precisions, and their bits."""
_FEWEST_INPUTS = 32  # of a map that is worth it
_FEWEST_OUTPUTS = 16


class MapError(NamedTuple):
    """How near the weights of one map are to those they stand for."""

    name: str
    """Name of the map in the model; empty if it is the model."""
    shape: tuple[int, int]
    """(outputs, inputs)."""
    error: float
    """Norm of the difference over that of the weights."""


@checked
def quantize(
    model: AnyModel,
    bits: int = 8,
    group_size: int | None = 64,
    *,
    symmetric: bool = True,
    activation_bits: int | None = None,
    exclude: Sequence[str] = (),
) -> AnyModel:
    """A model whose linear maps store their weights in 8 or 4 bits; it cannot be trained.

    Each linear map with 32 inputs and 16 outputs or more becomes a
    `linrnn.nn.quantized.QuantizedLinear`. Biases, norms, convolutions, decays and whatever else a
    recurrence has for itself stay as they are, and so do embeddings: a token reads one row of
    them. A head that shares its matrix with the embedding gets a separate one, in fewer bits.

    Its ``state_dict`` has the bytes. To load one, quantise a model of the same sizes first.

    Args:
        model: a `linrnn.SequenceModel`, a mixer, a `linrnn.RNN` or any other module. It stays as it
            is.
        bits: 8 or 4.
        group_size: neighbouring inputs that share a scale, 32, 64 or 128; None, of 8 bits: all
            inputs of an output.
        symmetric: no number is stored for zero; otherwise one for each group.
        activation_bits: as of `linrnn.nn.quantized.QuantizedLinear`. With more than about two
            sequences at once the arithmetic is what a step costs, and 16 bits are faster than 24.
        exclude: names of maps that stay, as ``head`` or ``blocks.*.mixer.in_proj``.

    Returns:
        A copy, which shares nothing with ``model``.

    Raises:
        ArgumentError: another argument, weights that are not finite, or a model without such maps.
        ArgumentTypeError: no module.

    Example:
        >>> import linrnn
        >>> model = linrnn.SequenceModel(50, 50, d_model=64, n_layers=1, encoder="tokens")
        >>> small = linrnn.quantize(model, bits=4, group_size=32)
        >>> small.head
        QuantizedLinear(in_features=64, out_features=50, bias=True, bits=4, group_size=32)
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            f"quantize: model must be a torch.nn.Module, got a {type(model).__name__}."
        )
    check_form("quantize", bits, group_size, activation_bits)
    maps = dict(_maps(model, exclude))
    if not maps:
        raise ArgumentError(
            f"quantize: model must have a linear map of {_FEWEST_INPUTS} inputs and "
            f"{_FEWEST_OUTPUTS} outputs or more that is not excluded, got a "
            f"{type(model).__name__} without one. Use it as it is."
        )
    # the copy of a map is its small one, so its weights are not copied
    small = {
        id(linear): QuantizedLinear(
            linear, bits, group_size, symmetric=symmetric, activation_bits=activation_bits
        )
        for linear in maps.values()
    }
    return copy.deepcopy(model, dict(small))


def errors(model: nn.Module, quantized: nn.Module) -> list[MapError]:
    """How near each map of `quantize` is to that of the model, in the order of the model.

    Args:
        model: what was quantised.
        quantized: what came out.
    """
    before = dict(model.named_modules())
    rows = []
    for name, small in quantized.named_modules():
        if isinstance(small, QuantizedLinear):
            weight = before[name].weight.detach().double()
            difference = torch.linalg.norm(small.dequantize().double() - weight)
            error = float(difference / torch.linalg.norm(weight))
            rows.append(MapError(name, (small.out_features, small.in_features), error))
    return rows


def _maps(model: nn.Module, exclude: Sequence[str]) -> Iterator[tuple[str, nn.Linear]]:
    for name, part in model.named_modules():
        plain = plain_linear(part) or type(part) is CappedLinear
        if plain and not any(fnmatchcase(name, pattern) for pattern in exclude):
            assert isinstance(part, nn.Linear)
            large = part.in_features >= _FEWEST_INPUTS and part.out_features >= _FEWEST_OUTPUTS
            if large:
                yield name, part
