"""The function of transformers that one of ours stands for, and when it computes after all."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from linrnn.ops import seq_idx_to_reset

Function = Callable[..., Any]
#: Keywords by which transformers says where packed sequences begin.
PACKED = ("cu_seqlens", "cu_seq_lens_q", "seq_idx")


class Theirs:
    """A function of transformers.

    Attributes:
        function: as their module has it, which may be a kernel of another package.
        plain: its definition in PyTorch, which runs on a CPU whatever is installed.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.plain: Function = inspect.unwrap(function)

    def computes(self, x: Tensor) -> bool:
        """Whether a call is theirs: off the CPU, or in a program that knows no ops of ours."""
        if x.device.type != "cpu":
            return True
        return torch.compiler.is_exporting() or torch.jit.is_tracing()  # type: ignore[attr-defined]

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Their answer. ``x`` is an argument too, by which the device is judged.

        On a CPU a kernel for GPUs fails, so that is their definition; packed sequences go to the
        wrapper, which refuses them with another error.
        """
        packed = any(kwargs.get(name) is not None for name in PACKED)
        here = x.device.type == "cpu" and not packed
        return (self.plain if here else self.function)(x, *args, **kwargs)


def standing_for(theirs: Theirs, ours: Function) -> Function:
    """Our function under their name and signature, marked so that it can be told apart."""
    functools.update_wrapper(ours, theirs.plain)
    ours.__linrnn_stands_for__ = theirs.function  # type: ignore[attr-defined]
    return ours


def stood_for(value: Any) -> Any:
    """The function that one of ours replaces; anything else unchanged."""
    return getattr(value, "__linrnn_stands_for__", value)


def is_ours(function: object) -> bool:
    """Whether a function is one of ours."""
    return hasattr(function, "__linrnn_stands_for__")


def begins(packed: Mapping[str, Any], x: Tensor, time: int) -> Tensor | None:
    """Where packed sequences after the first begin, boolean (batch, time); None if not packed.

    Where the input has more steps than the marks, the last have them: a cache put the others
    before.
    """
    index, offsets = packed.get("seq_idx"), packed.get("cu_seqlens")
    offsets = packed.get("cu_seq_lens_q") if offsets is None else offsets
    if index is None and offsets is None:
        return None
    reset = torch.zeros(x.shape[0], time, dtype=torch.bool, device=x.device)
    if offsets is not None:
        inner = offsets[1:-1].to(torch.long)
        last = int(offsets[-1])
        reset[:, inner[inner < last] + (time - last)] = True
    else:
        assert isinstance(index, Tensor)
        reset[:, time - index.shape[1] :] = seq_idx_to_reset(index)
    return reset
