"""Check the arguments of every op before a kernel reads them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from linrnn.errors import ArgumentError, DeviceError, DTypeError, ShapeError, check_shape

_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_OFFSETS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_NUMBERS = (*_REAL, torch.complex64, torch.complex128)


def check_tensor(where: str, name: str, x: object) -> None:
    """Raise `DTypeError` unless ``x`` is a tensor whose numbers lie in memory, one by one."""
    if not isinstance(x, Tensor):
        raise DTypeError(
            f"{where}: {name} must be a tensor, got {type(x).__name__}. {_conversion(name, x)}"
        )
    if x.layout is not torch.strided or x.is_nested:
        kind = "nested" if x.is_nested else x.layout
        raise DTypeError(
            f"{where}: {name} must be a dense tensor, got a {kind} one. "
            f"Convert it with {name}.to_dense()."
        )


def _conversion(name: str, x: object) -> str:
    """The usual way from what is no tensor to one."""
    if isinstance(x, PackedSequence):
        return "Pass the padded tensor and lengths=, or call linrnn.RNN, which reads packed ones."
    return f"Convert it with torch.as_tensor({name})."


def check_numbers(
    where: str, required: Mapping[str, object], real: bool = False, **optional: object
) -> None:
    """Raise `DTypeError` unless the arguments are tensors that kernels can compute with.

    Every op and every layer calls it, so here `torch.jit.trace` is refused as well.

    Args:
        where: the op.
        required: its arguments by name.
        real: whether complex numbers are refused.
        optional: arguments that may be None.
    """
    check_not_traced(where)
    dtypes = _REAL if real else _NUMBERS
    for name, x in (*required.items(), *optional.items()):
        if x is None and name in optional:
            continue
        if not isinstance(x, Tensor) or x.layout is not torch.strided or x.is_nested:
            check_tensor(where, name, x)
        assert isinstance(x, Tensor)
        if x.dtype not in dtypes:
            kinds = "real floating point" if real else "floating point or complex"
            kinds += " of 16 to 64 bits" if x.is_floating_point() else ""
            raise DTypeError(
                f"{where}: {name} must be {kinds}, got {x.dtype}. Convert it with {name}.float()."
            )


def traced() -> bool:
    """Whether `torch.jit.trace` is writing down what is called."""
    return torch._C._get_tracing_state() is not None


def check_not_traced(where: str) -> None:
    """Raise `ArgumentError` inside `torch.jit.trace`, in whose graphs sizes are those it saw.

    They give wrong numbers at another batch or length, or read beyond their memory.
    """
    if torch._C._get_tracing_state() is not None:
        raise ArgumentError(
            f"{where}: the call must not be recorded by torch.jit.trace, which holds for one batch "
            "and length only, got one inside it. Use torch.export.export with dynamic_shapes."
        )


def check_reset(where: str, reset: object, batch: int, time: int) -> None:
    """Raise `DTypeError` or `ShapeError` unless it is None or a boolean (batch, time) tensor."""
    if reset is not None:
        shape = check_boolean(where, "reset", reset).shape
        check_shape(where, "reset", shape, {"batch": batch, "time": time})


def check_boolean(where: str, name: str, mask: object) -> Tensor:
    """The mask, a boolean tensor.

    Raises:
        DTypeError: it is none.
    """
    check_tensor(where, name, mask)
    assert isinstance(mask, Tensor)
    if mask.dtype != torch.bool:
        raise DTypeError(f"{where}: {name} must be boolean, got {mask.dtype}. Use mask.bool().")
    return mask


def check_packed(where: str, name: str, x: Tensor, cu_seqlens: object) -> int:
    """How many sequences the argument ``name``, x (batch, time, ...), holds.

    Raises:
        ShapeError, ArgumentError, DTypeError, DeviceError: unless ``cu_seqlens`` is None or offsets
            of sequences that fill a single row.
    """
    if cu_seqlens is None:
        return x.shape[0]
    batch, time = x.shape[:2]
    if batch != 1:
        raise ShapeError(
            f"{where}: {name} must have batch 1 when cu_seqlens is given, got {batch}. "
            f"Pack the sequences one after the other into a single row."
        )
    check_tensor(where, "cu_seqlens", cu_seqlens)
    assert isinstance(cu_seqlens, Tensor)
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1 or cu_seqlens.dtype not in _OFFSETS:
        raise ShapeError(
            f"{where}: cu_seqlens must be a vector of integers [0, ..., time={time}], "
            f"got {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}."
        )
    if torch._C._functorch.is_batchedtensor(cu_seqlens):
        raise ArgumentError(
            f"{where}: cu_seqlens must be the same for all calls under vmap, got one for each. "
            "Call it in a loop, or pack all sequences into one row."
        )
    if x.device.type == "cpu":  # a kernel on another device takes offsets from either
        check_device(where, name, x.device, cu_seqlens=cu_seqlens)
    # reading the values of a GPU tensor would wait for the GPU; inside a graph there are none
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        check_rising(where, cu_seqlens, time)
    return cu_seqlens.shape[0] - 1


def check_rising(where: str, cu_seqlens: Tensor, time: int) -> None:
    """Raise `ArgumentError` unless offsets, whose values can be read, rise from 0 to ``time``."""
    offsets = cu_seqlens.tolist()
    if offsets[0] != 0 or offsets[-1] != time or sorted(offsets) != offsets:
        raise ArgumentError(
            f"{where}: cu_seqlens must rise from 0 to time={time}, got {offsets[:8]}"
            f"{'...' if len(offsets) > 8 else ''}."
        )


def check_device(where: str, like: str, device: torch.device, **named: Tensor | None) -> None:
    """Raise `DeviceError` unless every tensor is on the device of the argument ``like``."""
    for name, x in named.items():
        if x is not None and x.device != device:
            raise DeviceError(
                f"{where}: {name} must be on {device} like {like}, got {x.device}. "
                f"Move it with {name}.to({str(device)!r})."
            )


def check_like_parameters(where: str, name: str, x: Tensor, dtype: torch.dtype) -> None:
    """Raise `DTypeError` unless ``x`` has the dtype of the parameters, or autocast sees to it."""
    if x.dtype == dtype:
        return
    if not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        raise DTypeError(
            f"{where}: {name} must be {dtype} like the parameters, got {x.dtype}. "
            f"Convert it with {name}.to({dtype})."
        )


def check_flags(where: str, **named: Any) -> None:
    """Raise `ArgumentError` unless every argument is True or False."""
    for name, value in named.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{where}: {name} must be True or False, got {value!r:.60}.")
