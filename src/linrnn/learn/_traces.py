"""Traces of a layer with channels apart: what its state owes to each of its parameters."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap

from linrnn.learn._owners import Owners, real_parts, with_real_parts
from linrnn.mixers import Mixer
from linrnn.state import detach, flatten, map_state, ordered, unflatten
from linrnn.typing import State

Traces = dict[str, Tensor]
"""By the name of a parameter: (parts, batch, *shape), the derivative of each part of the channel
that the parameter moves."""


_LARGE = 1 << 13  # numbers of a parameter, above which its traces are worth a call a row


class Heard(NamedTuple):
    """What a layer was given in a window."""

    x: Tensor
    state: State
    """Before the window, without a history."""
    more: dict[str, Tensor]
    """``reset`` and ``dt``, where there are such."""


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
    the gradient of the sum over all channels holds that of each.
    """
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
        pulled = [pull([*none[:i], one[i], *none[i + 1 :]]) for i in range(m)]
        own = {n: torch.stack([p[0][n] for p in pulled]) for n in mine}
        return own, torch.stack([torch.stack(p[1]) for p in pulled])

    with torch.enable_grad():
        own, across = vmap(of_row, randomness="different")(heard.x, heard.state, moving, heard.more)
    own = {n: v.detach().transpose(0, 1) for n, v in own.items()}
    across = across.detach()  # (batch, after, before, channels)
    return {n: _carried(own[n], across, traces.get(n), owners.index[n]) for n in own}


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


def _carried(own: Tensor, across: Tensor, trace: Tensor | None, index: Tensor) -> Tensor:
    if trace is None:
        return own
    flat = trace.reshape(*trace.shape[:2], len(index), -1)
    keep = across.to(trace.dtype).index_select(3, index)
    # a part at a time and element by element: each trace is read once, and nothing is laid out anew
    fresh, new = own.reshape(flat.shape), torch.empty_like(flat)
    for p, out in enumerate(new):
        torch.addcmul(fresh[p], keep[:, p, 0, :, None], flat[0], out=out)
        for q in range(1, len(flat)):
            out.addcmul_(keep[:, p, q, :, None], flat[q])
    return new.reshape(own.shape)
