"""Traces of a layer with channels apart: what its state owes to each of its parameters."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap
from torch.nn.functional import linear

from linrnn.learn._linears import Given, Linears, answered, linears_of, weights
from linrnn.learn._owners import Owners, owners, real_parts, with_real_parts
from linrnn.mixers import Mixer
from linrnn.ops._precision import wide, without_autocast
from linrnn.ops._traces import advance, credited, kept
from linrnn.state import detach, flatten, map_state, ordered, unflatten
from linrnn.typing import State

_SHORT = 16  # steps up to which passes through all rows, one for each, cost less than reading anew

Traces = dict[str, Tensor]
"""By the name of a parameter: (parts, batch, *shape), the derivative of each part of the channel
that the parameter moves."""


class Gate:
    """Where a window begins: gradients pass to what was before it, unless it is closed."""

    closed = False

    def entered(self, state: State) -> list[Tensor]:
        """The parts of a state, each one that may be differentiated by."""
        parts = [h if h.requires_grad else h.detach().requires_grad_() for h in real_parts(state)]
        return list(_Entered.apply(self, *parts))

    def weight(self, weight: Tensor) -> Tensor:
        """The weight of a linear map, which has traces: what it was made of has none by it."""
        found: Tensor = _Entered.apply(self, weight)[0]
        return found

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Inside, gradients are those of the window alone."""
        self.closed = True
        try:
            yield
        finally:
            self.closed = False


class _Entered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Gate, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.gate = gate
        ctx.set_materialize_grads(False)
        return tuple(h.view_as(h) for h in parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *([None] * len(gradients) if ctx.gate.closed else gradients)


class Graph(NamedTuple):
    """What a layer did in a window, with its history where it has one."""

    calls: list[Given]
    """Of linear maps."""
    before: list[Tensor]
    """The parts of its state, inside of the gate."""
    after: list[Tensor]
    gate: Gate


class Heard(NamedTuple):
    """What a layer was given in a window."""

    x: Tensor
    state: State
    """Before the window, without a history."""
    more: dict[str, Tensor]
    """``reset`` and ``dt``, where there are such."""
    graph: Graph = Graph([], [], [], Gate())


@dataclass(frozen=True)
class Known:
    """What has to be known of a layer to keep its traces."""

    owners: Owners
    linears: Linears

    @property
    def others(self) -> tuple[str, ...]:
        """The parameters that have traces of their own, beside those of linear maps."""
        return self.linears.others if self.linears.index else tuple(self.owners.index)

    @property
    def index(self) -> dict[str, Tensor]:
        """By the name of a trace, the channel that its first axis, or each element, moves."""
        maps = {linear_name(place): found for place, found in self.linears.index.items()}
        return {**{n: self.owners.index[n] for n in self.others}, **maps}

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Of the traces that are of no parameter, by name."""
        return {linear_name(place): shape for place, shape in self.linears.shapes.items()}


def known(layer: Mixer) -> Known:
    """Find what has to be known of a layer.

    Raises:
        NotDiagonalError: it cannot have traces.
    """
    found = owners(layer)
    return Known(found, linears_of(layer, found))


def linear_name(place: int) -> str:
    """Of the trace of a weight that is no parameter, but made of some."""
    return f"linear {place}"


class _Owing(torch.autograd.Function):
    """The parts of a state as they are, and a derivative of them with respect to parameters."""

    @staticmethod
    def forward(
        ctx: Any, index: Mapping[str, Tensor], traces: Traces, parts: int, *tensors: Tensor
    ) -> Any:
        ctx.index, ctx.traces = index, traces
        ctx.set_materialize_grads(False)
        return tuple(h.clone() for h in tensors[:parts])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        none = [None] * (3 + len(gradients))
        like = next((g for g in gradients if g is not None), None)
        if like is None:  # behind a gate that is closed
            return (*none, *[None] * len(ctx.traces))
        # (parts, batch, channels)
        g = torch.stack([torch.zeros_like(like) if g is None else g for g in gradients])
        found = [_contract(g, trace, ctx.index[name]) for name, trace in ctx.traces.items()]
        return (*none, *found)


def _contract(g: Tensor, trace: Tensor, index: Tensor) -> Tensor:
    """Sum over parts and rows of the credit of a channel times what it owes."""
    return credited(_flat(trace, index), g.to(trace.dtype), index).reshape(trace.shape[2:])


def _carried(own: Tensor, across: Tensor, trace: Tensor | None, index: Tensor) -> Tensor:
    """``A E + dh/dtheta`` where the latter is laid out, (parts, batch, *shape)."""
    if trace is None:
        return own
    return own + kept(_flat(trace, index), across.to(trace.dtype), index).view(own.shape)


def _flat(trace: Tensor, index: Tensor) -> Tensor:
    """As of a linear map, with an output for each channel that the index names."""
    return trace.reshape(*trace.shape[:2], len(index), -1)


def owing(layer: Mixer, known: Known, traces: Traces, state: State) -> State:
    """A state of a layer that depends on the layer's parameters as its traces say."""
    if not torch.is_grad_enabled():
        return state
    maps = weights(layer, known.linears)
    by = {linear_name(place): weight for place, weight in maps.items()}
    by.update(layer.named_parameters())
    asked = {n: t for n, t in traces.items() if by[n].requires_grad}
    if not asked:
        return state
    parts = real_parts(state)
    mine = [parts[i] for i in known.owners.parts]
    new = _Owing.apply(known.index, asked, len(mine), *mine, *(by[n] for n in asked))
    return _with_parts(state, known.owners, new)


def _with_parts(state: State, owners: Owners, new: Sequence[Tensor]) -> State:
    """A state with other parts in the place of those that depend on parameters."""
    parts = real_parts(state)
    for i, h in zip(owners.parts, new, strict=True):
        parts[i] = h
    return with_real_parts(state, parts)


def advanced(layer: Mixer, known: Known, traces: Traces, heard: Heard) -> Traces:
    """The traces after a window: ``E <- A E + dh/dtheta``, with A and dh/dtheta of the window.

    Both come from one backward pass for each part of the state: as channels are apart, the gradient
    of the sum over all channels holds that of each. Of parameters beside those of linear maps each
    row's own is asked: by as many passes at once as there are rows if the window is short, else by
    reading it once more, row by row.
    """
    found = _by_graph(layer, known, heard) or _row_by_row(layer, known, heard)
    with without_autocast(found.across.device):
        return _advanced(known, traces, heard, found)


def _advanced(known: Known, traces: Traces, heard: Heard, found: "_Found") -> Traces:
    index, calls = known.index, heard.graph.calls
    across = found.across.detach()
    new = {
        n: _carried(wide(v.detach()).transpose(0, 1), across, traces.get(n), index[n])
        for n, v in found.own.items()
    }
    for place, g in found.maps.items():
        name, x = linear_name(place), wide(calls[place].x.detach())
        slope, keep = g.detach().to(x.dtype), across.to(x.dtype)
        new[name] = advance(traces.get(name), keep, index[name], slope, x)
    return new


class _Found(NamedTuple):
    """Derivatives of a window, of the sums over all channels of each part of a state."""

    own: dict[str, Tensor]
    """Of parameters, (batch, parts, *shape)."""
    across: Tensor
    """Of the parts before, (batch, after, before, channels)."""
    maps: dict[int, Tensor]
    """Of the outputs of linear maps, (batch, parts, time, outputs)."""


def _by_graph(layer: Mixer, known: Known, heard: Heard) -> _Found | None:
    """From what the layer did, where that has a history and few enough steps."""
    graph, moving = heard.graph, known.owners.parts
    after = [graph.after[i] for i in moving]
    mine = {n: layer.get_parameter(n) for n in known.others}
    ys = [graph.calls[place].y for place in known.linears.index]
    inputs = [*ys, *(graph.before[i] for i in moving)]
    if not all(h.requires_grad for h in [*after, *inputs, *mine.values()]):
        return None
    if mine and heard.x.shape[1] > _SHORT:
        return None
    pulled = [
        torch.autograd.grad(
            h, inputs, torch.ones_like(h), retain_graph=True, materialize_grads=True
        )
        for h in after
    ]
    maps = {
        place: torch.stack([p[i] for p in pulled], 1) for i, place in enumerate(known.linears.index)
    }
    across = torch.stack([torch.stack(p[len(ys) :], 1) for p in pulled], 1)
    with graph.gate.shut():
        own = _of_each_row(after, mine)
    return _Found(own, across, maps)


def _of_each_row(after: list[Tensor], mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the sum over the channels of each part, by parameters: (batch, parts, ...)."""
    if not mine:
        return {}
    rows, parts = len(after[0]), len(after)
    one = torch.eye(rows, device=after[0].device, dtype=after[0].dtype)
    one = one.view(rows, rows, *[1] * (after[0].ndim - 1))
    asked = [h.new_zeros(rows, parts, *h.shape) for h in after]
    for p, of_part in enumerate(asked):
        of_part[:, p] = one

    def pulled(*credit: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            after, list(mine.values()), credit, retain_graph=True, materialize_grads=True
        )

    found = vmap(pulled)(*(of_part.flatten(0, 1) for of_part in asked))
    return {n: g.unflatten(0, (rows, parts)) for n, g in zip(mine, found, strict=True)}


def _row_by_row(layer: Mixer, known: Known, heard: Heard) -> _Found:
    """From the window, read once more by each row alone."""
    linears, moving = known.linears, known.owners.parts
    parameters = {n: p.detach() for n, p in layer.named_parameters()}
    mine = {n: parameters[n] for n in known.others}
    rest = {n: p for n, p in parameters.items() if n not in mine}
    before = [real_parts(heard.state)[i] for i in moving]
    ys = {place: heard.graph.calls[place].y.detach() for place in linears.index}

    def of_row(
        x: Tensor, state: State, before: list[Tensor], more: Mapping[str, Tensor], ys: Any
    ) -> _Found:
        def after(some: Mapping[str, Tensor], before: list[Tensor], ys: Any) -> list[Tensor]:
            def answer(place: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
                if place in linears.still:  # nobody asks for it
                    return x.new_zeros(*x.shape[:-1], len(weight))
                if place not in ys:
                    return linear(x, weight, bias)
                y: Tensor = ys[place][None]
                # adds 0, but for its derivative
                return y if bias is None else y + (bias - bias.detach())

            start = _with_parts(alone(state), known.owners, [h[None] for h in before])
            named = {n: v[None] for n, v in more.items()}
            with answered(layer, linears.count, answer) if ys else nullcontext():
                _, last = functional_call(layer, {**rest, **some}, (x[None], start), named)
            new = real_parts(last)
            return [new[i][0] for i in moving]

        last, pull = vjp(after, mine, before, ys)  # type: ignore[misc]  # no has_aux, so two
        one, none = [torch.ones_like(h) for h in last], [torch.zeros_like(h) for h in last]
        pulled = [pull([*none[:i], one[i], *none[i + 1 :]]) for i in range(len(last))]
        own = {n: torch.stack([p[0][n] for p in pulled]) for n in mine}
        maps = {place: torch.stack([p[2][place] for p in pulled]) for place in ys}
        return _Found(own, torch.stack([torch.stack(p[1]) for p in pulled]), maps)

    with torch.enable_grad():
        given = (heard.x, heard.state, before, heard.more, ys)
        found: _Found = vmap(of_row, randomness="different")(*given)
    return found


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
