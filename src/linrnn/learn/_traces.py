"""Traces of a layer with channels apart: what its state owes to each of its parameters."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap

from linrnn.learn._linears import Use, pulled
from linrnn.learn._owners import Owners, real_parts, with_real_parts
from linrnn.mixers import Mixer
from linrnn.state import detach, flatten, map_state, ordered, unflatten
from linrnn.typing import State

Traces = dict[str, Tensor]
"""By the name of a parameter: (parts, batch, *shape), the derivative of each part of the channel
that the parameter moves."""


_LARGE = 1 << 13  # numbers of a parameter, above which its traces are worth a call a row


class Pass(NamedTuple):
    """The history of a window, of which derivatives may be asked."""

    before: State
    uses: list[Use]
    after: State = ()


class Heard(NamedTuple):
    """What a layer was given in a window."""

    x: Tensor
    state: State
    """Before the window, without a history."""
    more: dict[str, Tensor]
    """``reset`` and ``dt``, where there are such."""
    read: Pass = Pass((), [])


class _Owing(torch.autograd.Function):
    """The parts of a state as they are, and a derivative of them with respect to parameters."""

    @staticmethod
    def forward(ctx: Any, owners: Owners, traces: Traces, *tensors: Tensor) -> Any:
        ctx.owners, ctx.traces = owners, traces
        return tuple(h.clone() for h in tensors[: len(owners.parts)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        g = torch.stack(gradients)  # (parts, batch, channels)
        owners, found = ctx.owners, []
        for name, trace in ctx.traces.items():
            found.append(_contract(g, trace, owners.index[name]))
        return (None, None, *([None] * len(gradients)), *found)


def _contract(g: Tensor, trace: Tensor, index: Tensor) -> Tensor:
    """Sum over parts and rows of the credit of a channel times what it owes."""
    shape = trace.shape[2:]
    flat = trace.reshape(*trace.shape[:2], len(index), -1)
    credit = g.to(trace.dtype).index_select(2, index)
    if flat[0, 0].numel() < _LARGE:
        return torch.einsum("pbi,pbij->ij", credit, flat).reshape(shape)
    # row by row, into a sum that stays in the cache: a product would first put all rows side by
    # side
    total = flat.new_zeros(flat.shape[2:])
    for part, trace_of_part in zip(credit, flat, strict=True):
        for row, owed in zip(part, trace_of_part, strict=True):
            total.addcmul_(row[:, None], owed)
    return total.reshape(shape)


def owing(layer: Mixer, owners: Owners, traces: Traces, state: State) -> State:
    """A state of a layer that depends on the layer's parameters as its traces say."""
    parameters = dict(layer.named_parameters())
    kept = {n: t for n, t in traces.items() if parameters[n].requires_grad}
    if not kept:
        return state
    parts = real_parts(state)
    mine = [parts[i] for i in owners.parts]
    new = _Owing.apply(owners, kept, *mine, *(parameters[n] for n in kept))
    return _with_parts(state, owners, new)


def _with_parts(state: State, owners: Owners, new: Sequence[Tensor]) -> State:
    """A state with other parts in the place of those that depend on parameters."""
    parts = real_parts(state)
    for i, h in zip(owners.parts, new, strict=True):
        parts[i] = h
    return with_real_parts(state, parts)


def advanced(layer: Mixer, owners: Owners, traces: Traces, heard: Heard) -> Traces:
    """The traces after a window: ``E <- A E + dh/dtheta``, with A and dh/dtheta of the window.

    Both come from one backward pass for each part of the state, row by row: as channels are apart,
    the gradient of the sum over all channels holds that of each. Where all parameters are those of
    products, the pass that has been is asked; else there is another, in which each row has its own.
    """
    if _tells(owners, traces, heard.read):
        own, across = _from_products(layer, owners, traces, heard.read)
    else:
        own, across = _row_by_row(layer, owners, heard)
    return {n: _carried(own[n], across, traces.get(n), owners.index[n]) for n in own}


def _tells(owners: Owners, traces: Traces, read: Pass) -> bool:
    """Whether the pass that has been can be asked what a state owes to each row's parameters."""
    if not (owners.linear and read.uses):
        return False
    before, after = real_parts(read.before), real_parts(read.after)
    ends = [after[i] for i in owners.parts] + [before[i] for i in owners.parts if traces]
    mine = [use for use in read.uses if use.weight in owners.index]
    named = {n for use in mine for n in (use.weight, use.bias) if n}
    asked = all(h.requires_grad for h in (*ends, *(use.z for use in mine)))
    return asked and named == set(owners.index)


def _from_products(
    layer: Mixer, owners: Owners, traces: Traces, read: Pass
) -> tuple[dict[str, list[Tensor]], list[Sequence[Tensor]]]:
    """Derivatives of each part of the state by the parameters, and by each part before."""
    named = {n: p for n, p in layer.named_parameters() if n in owners.index}
    uses = [use for use in read.uses if use.weight in named]
    parts, after = real_parts(read.before), real_parts(read.after)
    before = [parts[i] for i in owners.parts] if traces else []
    found = [pulled(after[i].sum(), uses, before, named) for i in owners.parts]
    return {n: [own[n] for own, _ in found] for n in owners.index}, [back for _, back in found]


def _row_by_row(
    layer: Mixer, owners: Owners, heard: Heard
) -> tuple[dict[str, list[Tensor]], list[Sequence[Tensor]]]:
    """The same by a pass of each row's own."""
    parameters = {n: p.detach() for n, p in layer.named_parameters()}
    mine = {n: p for n, p in parameters.items() if n in owners.index}
    rest = {n: p for n, p in parameters.items() if n not in owners.index}
    parts = real_parts(heard.state)
    moving = [parts[i] for i in owners.parts]
    m = len(moving)

    def of_row(x: Tensor, state: State, moving: list[Tensor], more: dict[str, Tensor]) -> Any:
        def after(some: Mapping[str, Tensor], parts: list[Tensor]) -> list[Tensor]:
            before = _with_parts(alone(state), owners, [h[None] for h in parts])
            named = {n: v[None] for n, v in more.items()}
            _, last = functional_call(layer, {**rest, **some}, (x[None], before), named)
            new = real_parts(last)
            return [new[i][0] for i in owners.parts]

        last, pull = vjp(after, mine, moving)  # type: ignore[misc]  # no has_aux, so two
        one = [torch.ones_like(h) for h in last]
        none = [torch.zeros_like(h) for h in last]
        pulls = [pull([*none[:i], one[i], *none[i + 1 :]]) for i in range(m)]
        # each part by itself: a stack of them would be one more copy
        return [own for own, _ in pulls], [across for _, across in pulls]

    with torch.enable_grad():
        own, across = vmap(of_row, randomness="different")(heard.x, heard.state, moving, heard.more)
    found = {n: [of_part[n].detach() for of_part in own] for n in mine}
    return found, [[a.detach() for a in of_part] for of_part in across]


def begun(layer: Mixer, heard: Heard) -> tuple[State, Tensor | None]:
    """What a window of one step begins with: new states in the rows that it resets.

    Returns:
        The state, and (batch,) whether a row goes on from the one before; None: all do.
    """
    reset = heard.more.get("reset")
    if reset is None:
        return heard.state, None
    ended = reset[:, 0]
    new = detach(layer.init_state(len(heard.x), device=heard.x.device))
    old, fresh = flatten(ordered(heard.state)), flatten(ordered(new))
    mixed = {k: torch.where(_like(ended, h), fresh[k].to(h), h) for k, h in old.items()}
    return unflatten(mixed, heard.state), ~ended


def _like(rows: Tensor, h: Tensor) -> Tensor:
    return rows.view(-1, *[1] * (h.ndim - 1))


def alone(state: State) -> State:
    """A row as a batch of one."""
    return map_state(lambda h: h[None], state)


def _carried(
    own: Sequence[Tensor],
    across: Sequence[Sequence[Tensor]],
    trace: Tensor | None,
    index: Tensor,
) -> Tensor:
    """A trace after the window, from the derivatives of each part of the state."""
    if trace is None:
        return torch.stack(list(own))
    flat = trace.reshape(*trace.shape[:2], len(index), -1)
    new = torch.empty_like(flat)
    # a part at a time and element by element: each trace is read once, and nothing is laid out anew
    for fresh, by, out in zip(own, across, new, strict=True):
        keep = [a.to(trace.dtype).index_select(1, index)[..., None] for a in by]
        torch.addcmul(fresh.reshape(out.shape), keep[0], flat[0], out=out)
        for k, old in zip(keep[1:], flat[1:], strict=True):
            out.addcmul_(k, old)
    return new.reshape(trace.shape)
