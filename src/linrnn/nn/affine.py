"""The matrix of a linear layer, for those who use it otherwise than by calling the layer."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from linrnn.nn.linear import plain_linear


def affine_of(layer: nn.Module, like: Tensor) -> tuple[Tensor, Any]:
    """W and b of ``layer(x) = W x + b``, W (out, in) and b (out,) or None.

    For a plain linear layer they are its parameters. Something that
    replaces one, such as a low-rank adapter, or whose weights are elsewhere until it is called,
    is asked: it reads the unit vectors.

    Args:
        layer: a linear one.
        like: a tensor where they are needed.

    Example:
        >>> W, b = affine_of(nn.Linear(3, 2), torch.ones(1))
        >>> W.shape, b.shape
        (torch.Size([2, 3]), torch.Size([2]))
    """
    linear = cast(nn.Linear, layer)
    weight = linear.weight
    if plain_linear(linear) and weight.device == like.device:
        return weight, linear.bias
    unit = torch.eye(linear.in_features, device=like.device, dtype=weight.dtype)
    b = linear(torch.zeros_like(unit[0]))
    return (linear(unit) - b).mT, b
