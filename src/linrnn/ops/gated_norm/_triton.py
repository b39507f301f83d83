"""`gated_rms_norm` by Triton kernels that are generated from its equation."""

import functools
from typing import Any

import torch
from torch import Tensor

from linrnn.cells import fold, spread
from linrnn.compute import gpu
from linrnn.ops.cell.cell_scan.row_function import RowFunction
from linrnn.ops.gated_norm import inverse_root

#: The tensors of a call in order, and those of them that differ from step to step.
_NAMES = ("x", "z", "weight", "bias", "q", "k", "v", "share", "skip", "skip_weight")
_ROWS = ("x", "z", "q", "k", "v", "skip")
_CHANNELS = tuple(name for name in _NAMES if name not in _ROWS)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(*arguments: Any) -> tuple[Tensor]:
    """The output."""
    x, stored = arguments[0], arguments[-1]
    y = torch.empty(x.shape, dtype=stored or x.dtype, device=x.device)
    function, tensors, sizes = _call(arguments)
    function.forward(tensors, [y], *sizes)
    return (y,)


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """Gradients of the ten tensors; None for those that are."""
    *arguments, grad = inputs
    function, tensors, sizes = _call(arguments)
    gradients = function.backward(tensors, [grad], *sizes)
    by_name = dict(zip(function.arguments, gradients, strict=True))
    return tuple(by_name.get(name) for name in _NAMES)


def _call(arguments: Any) -> tuple[RowFunction, list[Tensor], tuple[int, int]]:
    """The function of a call, the tensors that there are, and heads and their width."""
    by_name = dict(zip(_NAMES, arguments, strict=False))
    groups, eps, norm_first, gate, centre, _ = arguments[len(_NAMES) :]
    present = tuple(name for name in (*_ROWS, *_CHANNELS) if by_name[name] is not None)
    width = by_name["x"].shape[-1] // groups
    function = _function(present, width, eps, norm_first, gate, centre)
    return function, [by_name[name] for name in present], (groups, width)


@functools.lru_cache(maxsize=64)
def _function(
    present: tuple[str, ...], width: int, eps: float, norm_first: bool, gate: str, centre: bool
) -> RowFunction:
    """`linrnn.ops.gated_norm.gated_norm` of the tensors that are present."""

    def norm(*values: Any) -> tuple[Any]:
        given = dict(zip(present, values, strict=True))
        h = given["x"]
        if "skip" in given:
            h = h + given["skip_weight"] * given["skip"]
        factor = _GATES[gate](given["z"]) if "z" in given else 1.0
        h = h if norm_first else h * factor
        if centre:
            h = h - spread(fold(h, width) / width, width)
        y = h * spread(inverse_root(fold(h * h, width) / width + eps), width)
        y = y * given["weight"] if "weight" in given else y
        y = y + given["bias"] if "bias" in given else y
        if "q" in given:
            both = fold(given["q"] * given["k"] * given["share"], width)
            y = y + spread(both, width) * given["v"]
        return (y * factor if norm_first else y,)

    rows, channels = (" ".join(x for x in present if x in kind) for kind in (_ROWS, _CHANNELS))
    return RowFunction(norm, "gated_rms_norm", rows=rows, channels=channels)


_GATES = {"silu": lambda z: z * torch.sigmoid(z), "sigmoid": torch.sigmoid, "none": lambda z: z}
