"""`outer_scan` and `delta_scan` by the native kernel in ``src/native/kernels/memory_scan.cpp``."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import checked_offsets, dense, unit_channels
from linrnn.compute.native import array, pointer
from linrnn.ops.matrix._memory._problem import Problem

#: Steps between the memories kept for the backward pass, which computes those between once more.
WINDOW = 64
#: As many independent parts as keep a processor busy; where there are fewer heads, their columns
#: are cut, but not into slices narrower than this. Both follow from shapes, never from threads.
_ENOUGH, _NARROWEST = 8, 32

SCAN = native.Kernel(
    "memory_scan",
    "reverse delta normalizer channels constant scale seqs time heads key_heads keys values "
    "offsets window width parts q k v a b g value_decay beta reset bonus initial kept o final "
    "backward grad_q grad_k grad_a grad_b grad_v grad_g grad_value_decay grad_beta grad_initial "
    "sums",
)
_NO_GRADIENTS = (0,) * 27


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True)


def window(p: Problem) -> int | None:
    """Steps from one memory to the next that are kept for the gradient."""
    return WINDOW


def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """``(o, final_state)`` of a `Problem`; memories kept on the way go to the last input."""
    *fields, memories = inputs
    p = _prepare(Problem(*fields))
    o = p.v.new_empty(*p.v.shape[:3], p.columns)
    final = p.v.new_empty(p.memory, dtype=p.wide)
    _run(p, _width(p), 1, memories, o, final, _NO_GRADIENTS)
    return o, final


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """The gradients of the ten tensors at the head of a `Problem`; None for those that are.

    Its fields are followed by the kept memories and the gradients of the results.
    """
    *fields, memories, grad_o, grad_final = inputs
    p = _prepare(Problem(*fields))
    width = _width(p)
    slices, parts = max(1, -(-p.columns // width)), _parts(p, width)
    # what nothing depends on has a gradient of zeros
    empty = p.v.new_empty if p.v.shape[2] * p.columns else p.v.new_zeros
    q, k, a, b = (
        None if x is None else empty(parts, *x.shape, dtype=p.wide) for x in (p.q, p.k, p.a, p.b)
    )
    v, initial = empty(p.v.shape), empty(p.memory, dtype=p.wide)
    varying = p.g is not None and p.g.ndim > 2
    g, beta = (
        empty(slices, *x.shape, dtype=p.wide) if x is not None and present else None
        for x, present in ((p.g, varying), (p.beta, True))
    )
    e = None if p.value_decay is None else empty(p.value_decay.shape, dtype=p.wide)
    heads, keys = p.memory[1:3]
    sums = p.v.new_zeros(slices, p.seqs, heads, 2, keys, dtype=torch.float64)
    rows = (_flat(None if x is None else x[0]) for x in (q, k, a, b))
    firsts = (_flat(v), *(_flat(x if x is None else x[0]) for x in (g,)), _flat(e))
    outputs = (
        True,
        *(field for x in (*rows, *firsts) for field in array(x)),
        *array(None if beta is None else beta[0]),
        initial.data_ptr(),
        sums.data_ptr(),
    )
    _run(p, width, parts, memories, _rows(grad_o), dense(grad_final), outputs)
    q, k, a, b, g, beta = (None if x is None else _sum(x) for x in (q, k, a, b, g, beta))
    if p.g is not None and not varying:
        g = sums[:, :, :, 0].sum((0, 1)).to(p.wide)
        g = g[:, 0].clone() if p.g.ndim == 1 else g
    bonus = sums[:, :, :, 1].sum((0, 1)).to(p.wide)
    stored = (None if x is None else x.to(p.v.dtype) for x in (q, k, a, b))
    q, k, a, b = stored
    grads = (q, k, v, g, e, bonus, beta, a, b, initial)
    return tuple(None if x is None else d for d, x in zip(grads, p.tensors, strict=True))


def _sum(parts: Tensor) -> Tensor:
    """Add the parts, in a fixed order."""
    return parts.sum(0) if parts.shape[0] > 1 else parts.squeeze(0)


def _flat(x: Tensor | None) -> Tensor | None:
    return x if x is None or x.ndim < 4 else x.flatten(2)


def _run(p: Problem, *arguments: Any) -> None:
    SCAN(p.q.dtype, *_values(p, *arguments))


def _values(
    p: Problem,
    width: int,
    parts: int,
    memories: Tensor | None,
    o: Tensor,
    final: Tensor,
    outputs: tuple[int, ...],
) -> tuple[float, ...]:
    """Return the fields of the kernel's record."""
    q, k, v, g, e, bonus, beta, a, b = p[:9]
    constant = g is not None and g.ndim < 3
    return (
        p.reverse,
        p.delta,
        p.normalizer,
        0 if g is None else 1 + (g.ndim % 2 == 0),
        constant,
        p.scale,
        p.seqs,
        q.shape[1],
        v.shape[2],
        q.shape[2],
        q.shape[3],
        v.shape[3],
        pointer(p.cu_seqlens),
        WINDOW,
        width,
        parts,
        *(field for x in (q, k, v, a, b) for field in array(_flat(x))),
        *((pointer(g), 0, 0) if constant else array(_flat(g))),
        *(field for x in (_flat(e), beta, p.reset) for field in array(x)),
        pointer(bonus),
        pointer(p.initial_state),
        pointer(memories),
        *array(_flat(o)),
        final.data_ptr(),
        *outputs,
    )


def record(fields: Problem, o: Tensor, final: Tensor) -> bytes | None:
    """Build the record of a call without a gradient; None where an argument must be copied."""
    p = _prepare(fields)
    if any(x is not y for x, y in zip(p[:12], fields[:12], strict=True)):
        return None
    values = _values(p, _width(p), 1, None, o, final, _NO_GRADIENTS)
    return SCAN.pack(native.DTYPES[p.q.dtype], native.threads(), *values)


def _rows(x: Tensor) -> Tensor:
    """``x`` (B, T, heads, channels) with heads and channels of a step side by side."""
    heads, channels = x.shape[2:]
    together = x.stride(3) == 1 and (heads == 1 or x.stride(2) == channels)
    return unit_channels(x) if together else dense(x)


def _prepare(p: Problem) -> Problem:
    """Inputs as the kernel reads them."""
    q, k, v = (_rows(x) for x in p[:3])
    e, a, b = (None if x is None else _rows(x) for x in (p.value_decay, p.a, p.b))
    g, bonus, initial = (None if x is None else dense(x) for x in (p.g, p.bonus, p.initial_state))
    if p.g is not None and p.g.ndim > 2:
        g = _rows(p.g) if p.g.ndim == 4 else unit_channels(p.g)
    beta = None if p.beta is None else unit_channels(p.beta)
    offsets = checked_offsets("delta_scan" if p.delta else "outer_scan", p.cu_seqlens, q.shape[1])
    return Problem(q, k, v, g, e, bonus, beta, a, b, initial, p.reset, offsets, *p[-4:])


def _width(p: Problem) -> int:
    """Columns of a slice, a multiple of any vector unless there is one slice."""
    units, columns = p.seqs * p.v.shape[2], max(p.columns, 1)
    slices = -(-_ENOUGH // max(units, 1))
    width = -(-columns // (slices * _NARROWEST)) * _NARROWEST
    return columns if width + 16 > columns else width


def _parts(p: Problem, width: int) -> int:
    """Return how many parts add up the gradients of keys that heads and slices share."""
    items = max(1, p.v.shape[2] // p.q.shape[2] * -(-p.columns // width))
    share = -(-items // min(items, -(-_ENOUGH // max(p.seqs * p.q.shape[2], 1))))
    return -(-items // share)  # each has something to do
