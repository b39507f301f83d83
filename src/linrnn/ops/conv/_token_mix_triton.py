"""`token_mix` by Triton kernels that are generated from its equation."""

import functools
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.layout import dense
from linrnn.ops.cell.cell_scan.row_function import RowFunction
from linrnn.ops.conv.past import recall


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(
    x: Tensor,
    past: Tensor,
    mu: Tensor,
    moved: Tensor | None,
    reset: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """A tensor for each mix."""
    outputs = [x.new_empty(x.shape, dtype=dtype) for _ in mu]
    tensors = _tensors(x, past, mu, moved, reset)
    _function(len(mu), moved is not None).forward(tensors, outputs, 1, x.shape[-1])
    return tuple(outputs)


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """Gradients of ``x``, ``past``, ``mu`` and ``moved``."""
    (x, past, mu, moved, reset, _), grads = inputs[:6], inputs[6:]
    tensors = _tensors(x, past, mu, moved, reset)
    of_x, of_back = x.new_empty(x.shape), x.new_empty(x.shape)
    of_moved = (
        None if moved is None else torch.empty_like(moved, memory_format=torch.contiguous_format)
    )
    results = [of_x, of_back, *(() if of_moved is None else of_moved.unbind(0))]
    function = _function(len(mu), moved is not None)
    gradients = function.backward(tensors, grads, 1, x.shape[-1], results)
    if reset is not None:
        of_back.masked_fill_(reset[..., None], 0)
    of_x[:, :-1].add_(of_back[:, 1:])
    return of_x, of_back[:, :1].to(past.dtype), torch.stack(gradients[len(results) :]), of_moved


def _tensors(
    x: Tensor, past: Tensor, mu: Tensor, moved: Tensor | None, reset: Tensor | None
) -> list[Tensor]:
    """The inputs, those before them, what is added to each mix, and the mixes."""
    back = recall(x, past, 1, reset)
    # one copy for all mixes, where their rows are not one after the other
    return [x, back, *(() if moved is None else dense(moved).unbind(0)), *mu.unbind(0)]


@functools.lru_cache(maxsize=64)
def _function(mixes: int, moves: bool) -> RowFunction:
    """All mixes of a row with the row before; with ``moves`` each has another input."""

    def mix(x: Any, back: Any, *factors: Any) -> tuple[Any, ...]:
        way = back - x
        if moves:
            factors = tuple(factors[i] + factors[mixes + i] for i in range(mixes))
        return tuple(x + way * factor for factor in factors)

    moved = [f"moved_{i}" for i in range(mixes if moves else 0)]
    rows, channels = " ".join(["x", "back", *moved]), " ".join(f"mu_{i}" for i in range(mixes))
    return RowFunction(mix, "token_mix", rows=rows, channels=channels)
