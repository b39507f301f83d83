"""The checks of the input of `linrnn.RNN`."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.arguments import check_device, check_like_parameters
from linrnn.errors import DTypeError, ShapeError
from linrnn.nn.parameters import parameters_of, working_dtype


def check_input(rnn: Any, x: Tensor, *axes: str) -> None:
    """Raise unless a tensor is an input that the layers can read.

    Args:
        rnn: the `RNN`.
        x: its input, or the data of a packed one.
        axes: names of the axes before the channels.

    Raises:
        DTypeError: no dense tensor of floating-point numbers of the parameters' dtype.
        ShapeError: other axes, or another number of channels.
        DeviceError: on another device than the parameters.
    """
    if not isinstance(x, Tensor):
        raise DTypeError(
            f"RNN: input must be a floating-point tensor, got {type(x).__name__}. "
            "Convert it with torch.as_tensor(input)."
        )
    if x.layout is not torch.strided:
        raise DTypeError(f"RNN: input must be a floating-point tensor, got {x.layout}.")
    if not x.is_floating_point():
        raise DTypeError(
            f"RNN: input must be a floating-point tensor, got {x.dtype}. "
            "Convert it with input.float()."
        )
    if x.ndim != len(axes) + 1 or x.shape[-1] != rnn.input_size:
        shape = f"({', '.join(axes)}, input_size={rnn.input_size})"
        raise ShapeError(f"RNN: input must have shape {shape}, got {tuple(x.shape)}.")
    check_like_parameters("RNN", "input", x, working_dtype(rnn))
    device = parameters_of(rnn)[0].device
    if device.type != "meta":  # as while they wait elsewhere for a hook that brings them
        check_device("RNN", "the parameters", device, input=x)
