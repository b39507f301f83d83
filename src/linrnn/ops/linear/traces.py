"""Traces of linear maps: what the parts of a state owe to the weights that move its channels.

A trace is (parts, batch, outputs, inputs). Each output of a map moves one channel, which an index
(outputs,) names, and channels do not move one another.
"""

from types import ModuleType

import torch
from torch import Tensor

from linrnn.compute.backend import choose, module_of

_MODULES = (("cpu", "linrnn.ops.linear._traces_cpu"),)


def advance(trace: Tensor | None, keep: Tensor, index: Tensor, slope: Tensor, x: Tensor) -> Tensor:
    """A trace after a window: ``sum_q keep_pq E_q + sum_t slope_pt x_t^T``, row by row.

    Args:
        trace: before it; None: 0.
        keep: of a channel's parts after by those before, (batch, after, before, channels).
        index: channels of the outputs.
        slope: of the parts after by the map's outputs, (batch, parts, time, outputs).
        x: what the map was given, (batch, time, inputs).
    """
    if trace is None:
        return torch.stack([torch.bmm(g.mT, x) for g in slope.unbind(1)])  # (P, B, outputs, inputs)
    kernels = _kernels(trace)
    if kernels is not None and x.shape[1] == 1:
        new_trace: Tensor = kernels.advance(trace, keep, index, slope[:, :, 0], x[:, 0])
        return new_trace
    new = kept(trace, keep, index)
    for of_part, g in zip(new, slope.unbind(1), strict=True):
        of_part.baddbmm_(g.mT, x)
    return new


def kept(trace: Tensor, keep: Tensor, index: Tensor) -> Tensor:
    """``sum_q keep_pq E_q`` alone, of weights or of any numbers that each move a channel.

    Args:
        trace, keep, index: as of `advance`.
    """
    kernels = _kernels(trace)
    if kernels is not None:
        new_trace: Tensor = kernels.advance(trace, keep, index, None, None)
        return new_trace
    return carried(trace, keep.index_select(3, index))


def carried(trace: Tensor, by: Tensor) -> Tensor:
    """``sum_q by_pq E_q`` in PyTorch's operators.

    Args:
        trace: (parts, batch, outputs, inputs).
        by: of each output's own channel, (batch, after, before, outputs).
    """
    by = by[..., None]
    parts = []
    for p in range(len(trace)):
        new = trace[0] * by[:, p, 0]
        for q in range(1, len(trace)):
            new.addcmul_(trace[q], by[:, p, q])
        parts.append(new)
    return torch.stack(parts)  # (P, B, outputs, inputs)


def credited(trace: Tensor, credit: Tensor, index: Tensor, pairs: Tensor | None = None) -> Tensor:
    """The gradient of the weight, (outputs, inputs).

    Args:
        trace: of the weight.
        credit: gradient of the state, (parts, batch, channels).
        index: channels of the outputs.
        pairs: (2, outputs), the places of these among twice as many and of others, which move i
            times what these do. The two parts of a channel are a complex number then.
    """
    kernels = _kernels(trace)
    if kernels is not None:
        total: Tensor = kernels.credited(trace, credit, index, pairs)
        return total
    # (outputs, inputs)
    gradient = torch.einsum("pbi,pbij->ij", credit.index_select(2, index), trace)
    if pairs is None:
        return gradient
    # the parts of the other are minus the imaginary part of the first, and its real part
    # (outputs, inputs)
    paired_gradient = credited(trace, torch.stack([credit[1], -credit[0]]), index)
    both = gradient.new_empty(2 * len(gradient), *gradient.shape[1:])
    return both.index_copy_(0, pairs[0], gradient).index_copy_(0, pairs[1], paired_gradient)


def learned(
    trace: Tensor | None,
    keep: Tensor,
    index: Tensor,
    slope: Tensor,
    x: Tensor,
    credit: Tensor,
    gain: Tensor,
    pairs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A trace after one step, as of `advance`, and the gradient of the weight, as of `credited`.

    Args:
        trace, keep, index, credit, pairs: as of these two.
        slope: (batch, parts, outputs).
        x: what the map was given, (batch, inputs).
        gain: gradient of all outputs of the map at this step, (batch, outputs), which adds
            ``gain^T x`` to that of the weight.
    """
    kernels = _kernels(x)
    if kernels is not None:
        results: tuple[Tensor, Tensor] = kernels.learned(
            trace, keep, index, slope, x, credit, gain, pairs
        )
        return results
    new_trace = advance(trace, keep, index, slope[:, :, None], x[:, None])
    total = gain.mT @ x  # (outputs, inputs)
    return new_trace, total if trace is None else total + credited(trace, credit, index, pairs)


def _kernels(trace: Tensor) -> ModuleType | None:
    name, _ = choose("traces", _MODULES, None, trace.device, trace.dtype)
    return module_of(_MODULES, name)
