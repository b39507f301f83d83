"""What a layer says of the native kernel that computes one of its steps.

The kernels are ``src/native/kernels/*_step.cpp``; `linrnn.ops._step_program` calls them.
"""

import struct
from typing import NamedTuple, cast

from torch import nn

_NO_NORM, _LAYER_NORM, _RMS_NORM = 0, 1, 2
_ROUNDING = -1.0  # an eps below 0 is the rounding of what is computed in


class Weight(NamedTuple):
    """A parameter, by where it is kept: it may be replaced."""

    owner: nn.Module
    name: str
    shape: tuple[int, ...]
    optional: bool = False


class NativeStep(NamedTuple):
    """What computes one step of a layer: a record of sizes, then addresses (``*_args.h``)."""

    kernel: str
    sizes: tuple[int, ...]  # those after the batch
    columns: int  # of x, (batch, columns)
    rows: int  # of y
    weights: tuple[Weight | None, ...]  # in the order of the record
    state: tuple[tuple[str, tuple[int, ...] | None], ...] = ()
    """Names and shapes, in the order of the record: "" where the state is no dict, None where the
    record has a place for something that is not there."""
    attributes: tuple[tuple[nn.Module, str], ...] = ()
    """What else the sizes were taken from."""


class Stack(NamedTuple):
    """Pre-norm residual layers: ``x = x + layer(norm(x))`` for each, then norm and head."""

    layers: tuple[tuple[NativeStep, NativeStep], ...]  # each with its norm first
    final_norm: NativeStep
    head: NativeStep


def weights_of(layer: nn.Module) -> tuple[Weight, Weight] | None:
    """Weight and bias of a `torch.nn.Linear`, None if it is anything else."""
    if type(layer) is not nn.Linear:
        return None
    rows, columns = layer.out_features, layer.in_features
    return Weight(layer, "weight", (rows, columns)), Weight(layer, "bias", (rows,), True)


def matrices_of(*layers: nn.Module) -> tuple[Weight, ...] | None:
    """The weight of each `torch.nn.Linear` without a bias, None if one is anything else."""
    found = [weights_of(layer) for layer in layers if layer._parameters.get("bias") is None]
    known = tuple(weights[0] for weights in found if weights is not None)
    return known if len(known) == len(layers) else None


def linear(layer: nn.Module) -> NativeStep | None:
    """What computes ``layer(x)`` for a `torch.nn.Linear`."""
    weights = weights_of(layer)
    if weights is None:
        return None
    rows, columns = weights[0].shape
    return NativeStep("linear_step", (columns, rows), columns, rows, weights)


def norm(layer: nn.Module | None, columns: int) -> NativeStep | None:
    """What computes ``layer(x)`` for a layer or RMS norm; None is no norm."""
    kind: int = _NO_NORM
    eps: float | None = 0.0
    weights: tuple[Weight | None, ...] = (None, None)
    attributes: tuple[tuple[nn.Module, str], ...] = ()
    if layer is not None and type(layer) is not nn.Identity:
        if type(layer) not in (nn.LayerNorm, nn.RMSNorm):
            return None
        known = cast(nn.LayerNorm | nn.RMSNorm, layer)
        if known.normalized_shape != (columns,):
            return None
        kind = _LAYER_NORM if type(layer) is nn.LayerNorm else _RMS_NORM
        eps, attributes = known.eps, ((layer, "eps"),)
        weight = Weight(layer, "weight", (columns,), True)
        bias = Weight(layer, "bias", (columns,), True)
        weights = (weight, bias if kind == _LAYER_NORM else None)
    (bits,) = struct.unpack("=q", struct.pack("=d", _ROUNDING if eps is None else eps))
    return NativeStep(
        "norm_step", (columns, kind, bits), columns, columns, weights, attributes=attributes
    )
