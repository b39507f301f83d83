"""Calls against the signature of a function: names of arguments, flags, dtypes and devices."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch

from linrnn.errors import (
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    UnknownArgumentError,
    nearest,
    show,
)

F = TypeVar("F", bound=Callable[..., Any])

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_FLAGS = (bool, bool | None)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def checked(function: F) -> F:
    """A function or constructor whose wrong calls raise errors that suggest the right argument.

    At each call it compares the arguments with the signature: their names, whether those without
    a default are there, whether an argument annotated ``bool`` is one, and ``dtype`` and ``device``
    of a constructor.

    Raises:
        UnknownArgumentError: a keyword that the signature lacks, with the nearest one.
        ArgumentTypeError: too many arguments by position, a missing one, or no bool.
        DTypeError, DeviceError: a ``dtype`` of no real floating-point number, no device.

    Example:
        >>> @checked
        ... def train(model, *, epochs: int = 10, shuffle: bool = True): ...
        >>> train("lru", max_epochs=3)
        Traceback (most recent call last):
        ...
        linrnn.errors.UnknownArgumentError: no argument of train named 'max_epochs'. Did you mean \
'epochs'? Known: epochs, model, shuffle.
    """
    constructor = function.__name__ == "__init__"
    signature = inspect.signature(function)
    parameters = dict(signature.parameters)
    if constructor:
        parameters.pop(next(iter(parameters)))
    flags = [name for name, p in parameters.items() if p.annotation in _FLAGS]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        where = type(args[0]).__name__ if constructor else function.__name__
        try:
            values = signature.bind(*args, **kwargs).arguments
        except TypeError:
            check_names(where, parameters, args[1:] if constructor else args, kwargs)
            raise
        for name in flags:
            check_flag(where, name, values.get(name))
        if constructor:
            check_placement(where, values)
        return function(*args, **kwargs)

    return cast(F, call)


def check_names(
    where: str,
    parameters: Mapping[str, inspect.Parameter],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Raise the error of `checked` that says how arguments do not fit the parameters.

    Args:
        where: the function or class, for the message.
        parameters: of its signature, without ``self``.
        args, kwargs: arguments by position and by keyword.
    """
    by_name = [name for name, p in parameters.items() if p.kind in _BY_NAME]
    for name in kwargs:
        if name not in by_name:
            of_mixer = f"Options of a mixer go into mixer_options={{{name!r}: ...}}."
            lost = "mixer_options" in by_name and nearest(name, by_name) is None
            fix = of_mixer if lost else ""
            raise UnknownArgumentError(f"argument of {where}", name, by_name, fix)
    by_place = [n for n, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(args) > len(by_place):
        rest = [name for name in by_name if name not in by_place]
        names = f" ({', '.join(by_place)})" if by_place else ""
        fix = f" Name the others, as in {rest[0]}=..." if rest else ""
        raise ArgumentTypeError(
            f"{where}: arguments by position must be at most {len(by_place)}{names}, got "
            f"{len(args)}.{fix}"
        )
    got = dict(zip(by_place, args, strict=False)) | dict(kwargs)
    for name in by_name:
        if name not in got and parameters[name].default is inspect.Parameter.empty:
            values = ", ".join(f"{key}={show(value)}" for key, value in got.items())
            raise ArgumentTypeError(f"{where}: {name} must be given, got {values or 'nothing'}.")


def check_flag(where: str, name: str, value: object) -> None:
    """Raise `ArgumentTypeError` unless a flag is True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise ArgumentTypeError(f"{where}: {name} must be True or False, got {show(value)}.")


def check_placement(where: str, values: Mapping[str, Any]) -> None:
    """Raise unless ``dtype`` and ``device`` among the arguments are such as parameters may have."""
    dtype, device = values.get("dtype"), values.get("device")
    # an array that is compared with a dtype gives no truth value
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype in _DTYPES):
        names = ", ".join(map(str, _DTYPES))
        raise DTypeError(f"{where}: dtype must be one of {names}, got {show(dtype)}.")
    if device is not None and not isinstance(device, torch.device):
        try:
            torch.device(device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise DeviceError(
                f"{where}: device must be one of PyTorch's, such as 'cpu' or 'cuda:0', got "
                f"{show(device)}."
            ) from error
