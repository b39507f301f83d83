"""The rules for what a mixer is called with, and how it names its own arguments."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.arguments import check_device, check_numbers, check_reset, traced
from linrnn.compute.sequence_parallel import refuse
from linrnn.errors import ArgumentError, check_shape
from linrnn.mixers._contract.times import check_times
from linrnn.nn.parameters import KeepsPrecision, parameters_of, working_dtype

_REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def one_parameter(layer: KeepsPrecision) -> Tensor:
    """One of the parameters, with the device of all and the dtype of what is converted."""
    for name, parameter in layer._parameters.items():  # a step feels what `parameters` costs
        if parameter is not None and name not in layer.single_precision:
            return parameter
    for part in layer._modules.values():
        for parameter in () if part is None else part._parameters.values():
            if parameter is not None:
                return parameter
    dtype = working_dtype(layer)
    return next(parameter for parameter in parameters_of(layer) if parameter.dtype == dtype)


def check_input(layer: Any, x: Tensor, *, time: bool) -> None:
    """Raise unless x is a sequence, or a step, that a layer reads."""
    device = layer._parameter().device
    if (  # nothing to complain of: found in a tenth of the time that the words below take
        not traced()
        and isinstance(x, Tensor)
        and not x.is_nested  # one of two axes cannot say its shape
        and x.ndim == 2 + time
        and x.shape[-1] == layer.d_model
        and x.dtype in _REAL
        and x.layout is torch.strided
        and x.device == device
    ):
        return
    call, name = ("forward", "x") if time else ("step", "x_t")
    where = f"{type(layer).__name__}.{call}"
    check_numbers(where, {name: x}, real=True)
    axes: dict[str, int | None] = {"batch": None, "time": None, "d_model": layer.d_model}
    if not time:
        del axes["time"]
    check_shape(where, name, x.shape, axes, _shape_fix(x, layer.d_model, time))
    check_device(where, "the parameters", device, **{name: x})


def _shape_fix(x: Tensor, d_model: int, time: bool) -> str:
    """The usual fix of an input whose axes are another layer's, or another method's."""
    if x.ndim == 3 and time and x.shape[1] == d_model != x.shape[-1]:
        return "Channels come last: pass x.transpose(1, 2)."
    if x.ndim == 2 and time and x.shape[-1] == d_model:
        return "Pass x.unsqueeze(0) for one sequence, or call step for one step of a batch."
    if x.ndim == 3 and not time and x.shape[-1] == d_model:
        return "Call the layer itself for several steps."
    return ""


def check_dt(layer: Any, where: str, dt: Tensor, x: Tensor) -> None:
    """Raise unless the layer, in its form, takes these times between the steps of x."""
    form = layer.form
    if not layer.timed:
        raise ArgumentError(
            f"{where}: dt must be None, for this layer counts steps and knows no time, got a "
            "value. `linrnn list mixers` marks those that do."
        )
    check_times(where, dt, x)
    if form in layer.without_dt:
        supported = next(f for f in layer.forms if f not in layer.without_dt)
        raise ArgumentError(
            f"{where}: dt must be None for form={form!r}, which needs all steps alike, got a "
            f"tensor. Use form={supported!r}."
        )


def check_mask(layer: Any, reset: Tensor, x: Tensor) -> None:
    """Raise unless the layer, in its form, takes this mask of resets for x."""
    where, form = f"{type(layer).__name__}.forward", layer.form
    check_reset(where, reset, x.shape[0], x.shape[1])
    check_device(where, "x", x.device, reset=reset)
    if form in layer.without_reset:
        supported = next(f for f in layer.forms if f not in layer.without_reset)
        raise ArgumentError(
            f"{where}: reset must be None for form={form!r}, got a mask. "
            f"Use form={supported!r}, or split the batch at the resets."
        )


def refuse_script(layer: Any) -> None:
    """Raise `ArgumentError`: what chooses a kernel is no TorchScript."""
    raise ArgumentError(
        f"{type(layer).__name__}: the layer must not be compiled by torch.jit.script, got a call "
        "by it. Use torch.export.export with dynamic_shapes, or torch.compile."
    )


def check_split(layer: Any) -> None:
    """Raise inside of `linrnn.ops.sequence_parallel` where a layer cannot be split."""
    form = layer.form
    if form not in layer.sequence_parallel:
        name, split = type(layer).__name__, layer.sequence_parallel
        fix = f"Use form={split[0]!r}." if split else "Use lru, s5 or slru."
        what = f"a layer must mix along time by linear_scan alone, got {name} of form {form!r}"
        refuse(f"{name}.forward", what, fix)


def bounding_option(mixer: object) -> str | None:
    """The option that gives a state that grows a constant size; None where there is none.

    It is what limits the steps that a layer sees, and by default it does not.
    """
    options = inspect.signature(type(mixer)).parameters
    sights = [name for name in ("window", "chunk") if name in options]
    return next((name for name in sights if options[name].default is None), None)


def check_timed(where: str, dt: object, mixers: Iterable[Any]) -> None:
    """Raise `ArgumentError` for times that no mixer, or no model, would read."""
    if dt is not None and not any(mixer.timed for mixer in mixers):
        raise ArgumentError(
            f"{where}: dt must be None, for no layer of this model knows time, got a value. "
            "`linrnn list mixers` marks those that do."
        )


def described(layer: Any) -> str:
    """The arguments of a layer's constructor, as they are stored."""
    words = []
    for name in inspect.signature(type(layer)).parameters:
        if name in ("device", "dtype"):
            continue
        value = getattr(layer, name, None)
        if type(value) is float:
            value = float(f"{value:.4g}")
        words.append(f"{name}={value!r}")
    return ", ".join(words)
