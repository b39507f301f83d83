"""Traces of a layer with channels apart: what its state owes to each of its parameters."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap
from torch.nn.functional import linear, pad

from linrnn.compute.layout import like
from linrnn.compute.precision import wide, without_autocast
from linrnn.learn._exact.linears import Given, Linears, answered, linears_of, weights
from linrnn.learn._exact.owners import (
    Owners,
    owners,
    real_parts,
    tensors,
    with_real_parts,
    with_tensors,
)
from linrnn.learn._parts.last_step import LastStep
from linrnn.mixers import Mixer
from linrnn.ops.linear.traces import advance, credited, kept
from linrnn.state import detach, leaves, map_state, rebuilt
from linrnn.typing import State

_SHORT, FEW = 16, 16
"""Steps up to which a window is not read anew where that takes this many passes through its graph;
beyond, where it takes no more than reading anew does."""

Traces = dict[str, Tensor]
"""By the name of a parameter: (parts, batch, *shape), the derivative of each part of the channel
that the parameter moves."""


@dataclass(frozen=True)
class Layout:
    """Layout of the traces of a layer: `Windowed`, or one that learns step by step."""

    owners: Owners
    linears: Linears
    device: torch.device
    """Where the layer is, and what is asked of it step by step."""

    @property
    def others(self) -> tuple[str, ...]:
        """The parameters that move the state, beside weights and biases of linear maps."""
        return self.linears.others if self.linears.index else tuple(self.owners.index)

    @property
    def named(self) -> tuple[str, ...]:
        """The parameters that have traces."""
        return (*self.others, *self.linears.biases.values())

    @cached_property
    def index(self) -> dict[str, Tensor]:
        """By the name of a trace, the channel that its first axis, or each element, moves."""
        return {n: index.to(self.device) for n, index in self._index().items()}

    @cached_property
    def in_order(self) -> frozenset[str]:
        """The traces whose numbers, or rows, are one for each channel, in their order."""
        every = torch.arange(self.owners.channels)
        return frozenset(n for n, index in self._index().items() if index.equal(every))

    def _index(self) -> dict[str, Tensor]:
        linears = self.linears
        maps = {linear_name(place): channels for place, channels in linears.index.items()}
        maps |= {linear_name(i): linears.index[i][pair[0]] for i, pair in linears.pairs.items()}
        return {**{n: self.owners.index[n] for n in self.named}, **maps}

    @cached_property
    def pairs(self) -> dict[str, Tensor]:
        """`Linears.pairs` by the names of traces, which are of the first outputs alone."""
        pairs = self.linears.pairs.items()
        return {linear_name(place): pair.to(self.device) for place, pair in pairs}

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of the traces that belong to no parameter, by name."""
        return {linear_name(place): shape for place, shape in self.linears.shapes.items()}

    @cached_property
    def turns(self) -> dict[str, "Turns"]:
        """The passes through the graph of a window that give the derivatives by `others`."""
        channels, elements = self.owners.channels, self.owners.elements
        groups = {n: _turns(elements[n], channels) for n in self.others}
        return {n: turns.to(self.device) for n, turns in groups.items()}

    @cached_property
    def passes(self) -> int:
        """How many passes that takes."""
        return sum(len(turns.mask) for turns in self.turns.values())


@dataclass(frozen=True)
class Windowed(Layout):
    """Layout of the traces of a layer that learns from windows of steps."""


class Turns(NamedTuple):
    """The passes that differentiate all elements of a parameter, no two of a channel at once."""

    mask: Tensor
    """(turns, *shape): which elements."""
    gather_index: Tensor | None
    """(elements,): where each is found among (turns, channels), flat; behind all: it moves none.
    None where that is their order."""

    def to(self, device: torch.device) -> "Turns":
        """On a device."""
        return Turns(
            self.mask.to(device),
            None if self.gather_index is None else self.gather_index.to(device),
        )


def _turns(owner: Tensor, channels: int) -> Turns:
    number = _among(owner.flatten()).view_as(owner)
    count = int(number.max()) + 1
    mask = torch.stack([(number == k) & (owner >= 0) for k in range(count)])
    gather_index = torch.where(owner < 0, count * channels, number * channels + owner).flatten()
    return Turns(mask, None if gather_index.equal(torch.arange(count * channels)) else gather_index)


def _among(owner: Tensor) -> Tensor:
    """The number of each element among those of its channel."""
    order = owner.argsort(stable=True)
    ordered = owner[order]
    number = torch.arange(len(owner)) - torch.searchsorted(ordered, ordered)
    return torch.empty_like(number).index_copy_(0, order, torch.where(ordered < 0, 0, number))


def windowed(layer: Mixer) -> Windowed:
    """Find what has to be known of a layer.

    Raises:
        NotDiagonalError: it cannot have traces.
    """
    layer_owners = owners(layer)
    device = next((p.device for p in layer.parameters()), torch.device("cpu"))
    return Windowed(layer_owners, linears_of(layer, layer_owners), device)


def linear_name(place: int) -> str:
    """Name the trace of a weight that is no parameter, but computed from some."""
    return f"linear {place}"


class Gate:
    """Where a window begins: what passes through it is as it was.

    Gradients pass back, and what a state owes to parameters and weights with them, unless the gate
    is closed.

    Args:
        layout: of the layer.
        traces: before the window.
    """

    def __init__(self, layout: Layout, traces: Traces) -> None:
        self.layout, self.traces, self.closed = layout, traces, False

    def state(self, state: State, by: Mapping[str, Tensor]) -> State:
        """A state that depends on others, by the names of their traces, as these say."""
        # a window is differentiated by each of its tensors, also where none has a history
        inputs = [h if h.requires_grad else h.detach().requires_grad_() for h in tensors(state)]
        self.traces = {n: trace for n, trace in self.traces.items() if n in by}
        return with_tensors(
            state, _Passed.apply(self, inputs, *inputs, *(by[n] for n in self.traces))
        )

    def weight(self, weight: Tensor) -> Tensor:
        """The weight of a linear map, which has traces: what it was made of has none by it."""
        passed: Tensor = _Passed.apply(self, [weight], weight)[0]
        return passed

    def owed(self, state: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Contract gradients of the state before the window with the traces."""
        if not self.traces:
            return []
        pairs = zip(state, gradients, strict=True)
        parts = real_parts([torch.zeros_like(h) if g is None else g for h, g in pairs])
        # (parts, batch, channels)
        credit = torch.stack([parts[i] for i in self.layout.owners.parts])
        return [self._contracted(n, credit) for n in self.traces]

    def _contracted(self, name: str, credit: Tensor) -> Tensor:
        """Sum over parts and rows of the credit of a channel times what it owes."""
        trace, index, pair = self.traces[name], self.layout.index[name], self.layout.pairs.get(name)
        total = credited(_flat(trace, index), credit.to(trace.dtype), index, pair)
        return total.reshape(trace.shape[2:]) if pair is None else total

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Inside, gradients are those of the window alone."""
        self.closed = True
        try:
            yield
        finally:
            self.closed = False


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Gate, inputs: list[Tensor], *tensors: Tensor) -> Any:
        ctx.gate, ctx.inputs, ctx.owing = gate, inputs, len(tensors) > len(inputs)
        ctx.set_materialize_grads(False)
        return tuple(h.view_as(h) for h in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        closed = ctx.gate.closed or all(g is None for g in gradients)
        if closed or not ctx.owing:
            through = [None] * len(gradients) if closed else gradients
            return None, None, *through, *[None] * (len(ctx.gate.traces) if ctx.owing else 0)
        return None, None, *gradients, *ctx.gate.owed(ctx.inputs, gradients)


class Entry(NamedTuple):
    """With what a layer begins a window."""

    state: State
    gate: Gate | None = None
    """Through which the state passed."""
    weights: Mapping[int, Tensor] = {}
    """Weights of linear maps, by place, that were also used."""
    last: LastStep | None = None
    """Collects the gradient by the state after the window."""


class Graph(NamedTuple):
    """Calls and states of a layer in a window, with their history where they have one."""

    calls: list[Given]
    """Calls of linear maps."""
    before: list[Tensor]
    """The tensors of its state, inside of the gate."""
    after: list[Tensor]
    gate: Gate | None


class Heard(NamedTuple):
    """Inputs of a layer in a window."""

    x: Tensor
    state: State
    """Before the window, without a history."""
    more: dict[str, Tensor]
    """``reset`` and ``dt``, where there are such."""
    graph: Graph = Graph([], [], [], None)
    last: LastStep | None = None
    fresh: bool = False
    """Whether the layer began there by itself."""


def entered(layer: Mixer, layout: Layout, traces: Traces, state: State) -> Entry:
    """The beginning of a window, where a state depends on its layer's parameters as traces say."""
    gate = Gate(layout, traces)
    with_grad = torch.is_grad_enabled()
    maps = weights(layer, layout.linears) if with_grad else {}
    by = {
        **_parameters(layer, layout.named),
        **{linear_name(place): w for place, w in maps.items()},
    }
    inside = gate.state(state, {n: p for n, p in by.items() if with_grad and p.requires_grad})
    return Entry(inside, gate, {i: gate.weight(maps[i]) for i in layout.linears.made if i in maps})


def _parameters(layer: Mixer, names: Sequence[str]) -> dict[str, Tensor]:
    return {n: layer.get_parameter(n) for n in names}


def _carried(direct: Tensor, across: Tensor, trace: Tensor | None, index: Tensor) -> Tensor:
    """``A E + dh/dtheta`` where the latter is laid out, (parts, batch, *shape)."""
    if trace is None:
        return direct
    return direct + kept(_flat(trace, index), across.to(trace.dtype), index).view(direct.shape)


def _flat(trace: Tensor, index: Tensor) -> Tensor:
    """As of a linear map, with an output for each channel that the index names."""
    return trace.reshape(*trace.shape[:2], len(index), -1)  # (parts, batch, outputs, rest)


def advanced(layer: Mixer, layout: Layout, traces: Traces, heard: Heard) -> Traces:
    """The traces after a window: ``E <- A E + dh/dtheta``, with A and dh/dtheta of the window.

    Both come from one backward pass for each part of the state: as channels are apart, the gradient
    of the sum over all channels holds that of each. For parameters beside those of linear maps each
    row's own is asked: of the graph where they are few numbers a channel, else by reading the
    window once more, row by row.
    """
    if not layout.owners.parts:  # no parameter moves the state
        return {}
    derivatives = _by_graph(layer, layout, heard) or _row_by_row(layer, layout, heard)
    with without_autocast(derivatives.across.device):
        return _advanced(layout, traces, heard, derivatives)


def _advanced(layout: Layout, traces: Traces, heard: Heard, derivatives: "_Derivatives") -> Traces:
    index, calls = layout.index, heard.graph.calls
    across = derivatives.across.detach()
    # what an output owes to its bias is what the state owes to the output, at all steps
    direct = {
        n: derivatives.maps[place].sum(2) for place, n in layout.linears.biases.items()
    } | derivatives.direct
    new = {
        n: _carried(wide(v.detach()).transpose(0, 1), across, traces.get(n), index[n])
        for n, v in direct.items()
    }
    for place, g in derivatives.maps.items():
        name, x = linear_name(place), wide(calls[place].x.detach())
        slope, keep, pair = g.detach().to(x.dtype), across.to(x.dtype), layout.pairs.get(name)
        slope = slope if pair is None else slope.index_select(-1, pair[0])
        new[name] = advance(traces.get(name), keep, index[name], slope, x)
    return new


class _Derivatives(NamedTuple):
    """Derivatives of a window, of the sums over all channels of each part of a state."""

    direct: dict[str, Tensor]
    """Derivatives by parameters, (batch, parts, *shape)."""
    across: Tensor
    """Derivatives by the parts before, (batch, after, before, channels)."""
    maps: dict[int, Tensor]
    """Derivatives by outputs of linear maps, (batch, parts, time, outputs)."""


def _by_graph(layer: Mixer, layout: Layout, heard: Heard) -> _Derivatives | None:
    """From what the layer did, where that has a history."""
    graph, parts, mine = heard.graph, layout.owners.parts, _parameters(layer, layout.others)
    max_passes = FEW if heard.x.shape[1] <= _SHORT else len(parts)
    if graph.gate is None or layout.passes > max_passes:
        return None
    ys = [graph.calls[place].y for place in layout.linears.index]
    needed = [*ys, *graph.before, *mine.values(), *(h for h, _ in sums(graph.after, parts))]
    if not all(h.requires_grad for h in needed):
        return None
    slopes, across = by_parts(graph.after, ys, graph.before, parts)
    maps = dict(zip(layout.linears.index, slopes, strict=True))
    with graph.gate.shut():
        direct = of_each_row(graph.after, layout, mine)
    return _Derivatives(direct, across, maps)


def by_parts(
    next_tensors: Sequence[Tensor],
    ys: Sequence[Tensor],
    previous_tensors: Sequence[Tensor],
    parts: Sequence[int],
) -> tuple[list[Tensor], Tensor]:
    """Derivatives of the sum over all channels of each part of a state.

    Returns:
        By each of ``ys``, (batch, parts, ...), and by the parts of the state before, (batch,
        after, before, channels).
    """
    pulled = [
        torch.autograd.grad(
            h, [*ys, *previous_tensors], credit, retain_graph=True, materialize_grads=True
        )
        for h, credit in sums(next_tensors, parts)
    ]
    slopes = [torch.stack([p[i] for p in pulled], 1) for i in range(len(ys))]
    back = [real_parts(p[len(ys) :]) for p in pulled]
    across = torch.stack([torch.stack([of_part[i] for i in parts], 1) for of_part in back], 1)
    return slopes, across


def sums(next_tensors: Sequence[Tensor], parts: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Give for each part of a state its tensor, and the credit that sums over the part."""
    units = [(h, unit) for h in next_tensors for unit in ((1, 1j) if h.is_complex() else (1,))]
    return [(units[i][0], torch.full_like(units[i][0], units[i][1])) for i in parts]


def of_each_row(
    next_tensors: Sequence[Tensor], layout: Layout, mine: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Differentiate each part's sum over channels by parameters: (batch, parts, ...).

    The gradient by a parameter is linear in the credit that the state is given. So its own
    derivative, by the credit of a number of a row, is that of this number by the parameter, of all
    rows and channels at once: one pass for each element of a parameter that a channel has.
    """
    if not mine:
        return {}
    credit = [torch.ones_like(h, requires_grad=True) for h in next_tensors]
    moved = [(h, c) for h, c in zip(next_tensors, credit, strict=True) if h.requires_grad]
    slopes = torch.autograd.grad(
        [h for h, _ in moved],
        list(mine.values()),
        [c for _, c in moved],
        create_graph=True,
        materialize_grads=True,
    )
    return {
        n: _split_rows(slope, credit, layout.turns[n], layout)
        for n, slope in zip(mine, slopes, strict=True)
    }


def _split_rows(slope: Tensor, credit: list[Tensor], turns: Turns, layout: Layout) -> Tensor:
    """Get the slopes of each row by a parameter, from its gradient as a function of the credit."""
    if not slope.requires_grad:  # it moved nothing this time
        return slope.new_zeros(len(credit[0]), len(layout.owners.parts), *slope.shape)
    blocks: list[Tensor] = []
    for elements in turns.mask.to(slope.dtype):
        pulled = torch.autograd.grad(
            slope, credit, elements, retain_graph=True, materialize_grads=True
        )
        parts = real_parts(list(pulled))
        # (batch, channels, parts)
        blocks.append(torch.stack([parts[i] for i in layout.owners.parts], 2))
    flat = torch.cat(blocks, 1)  # (batch, passes and channels, parts)
    if turns.gather_index is not None:  # behind all is 0 for what moves nothing
        flat = pad(flat, (0, 0, 0, 1))[:, turns.gather_index]
    by_row: Tensor = flat.transpose(1, 2).unflatten(2, slope.shape)  # (batch, parts, *shape)
    return by_row


def _row_by_row(layer: Mixer, layout: Layout, heard: Heard) -> _Derivatives:
    """From the window, read once more by each row alone."""
    linears, moving = layout.linears, layout.owners.parts
    parameters = {n: p.detach() for n, p in layer.named_parameters()}
    mine = {n: parameters[n] for n in layout.others}
    remaining = {n: p for n, p in parameters.items() if n not in mine}
    previous_parts = [real_parts(heard.state)[i] for i in moving]
    ys = {place: heard.graph.calls[place].y.detach() for place in linears.index}

    def of_row(
        x: Tensor, state: State, previous_parts: list[Tensor], more: Mapping[str, Tensor], ys: Any
    ) -> _Derivatives:
        def next_parts(
            learned: Mapping[str, Tensor], previous_parts: list[Tensor], ys: Any
        ) -> list[Tensor]:
            def answer(place: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
                if place in linears.still:  # nobody asks for it
                    return x.new_zeros(*x.shape[:-1], len(weight))
                if place not in ys:
                    return linear(x, weight, bias)
                y: Tensor = ys[place][None]
                # adds 0, but for its derivative
                return y if bias is None else y + (bias - bias.detach())

            parts = real_parts(alone(state))
            for i, h in zip(moving, previous_parts, strict=True):
                parts[i] = h[None]
            start = with_real_parts(alone(state), parts)
            named = {n: v[None] for n, v in more.items()}
            with answered(layer, linears.count, answer) if ys else nullcontext():
                _, last = functional_call(layer, {**remaining, **learned}, (x[None], start), named)
            new = real_parts(last)
            return [new[i][0] for i in moving]

        last, pull = vjp(next_parts, mine, previous_parts, ys)  # type: ignore[misc]  # no has_aux, so two
        one, none = [torch.ones_like(h) for h in last], [torch.zeros_like(h) for h in last]
        pulled = [pull([*none[:i], one[i], *none[i + 1 :]]) for i in range(len(last))]
        direct = {n: torch.stack([p[0][n] for p in pulled]) for n in mine}
        maps = {place: torch.stack([p[2][place] for p in pulled]) for place in ys}
        return _Derivatives(direct, torch.stack([torch.stack(p[1]) for p in pulled]), maps)

    with torch.enable_grad():
        arguments = (heard.x, heard.state, previous_parts, heard.more, ys)
        derivatives: _Derivatives = vmap(of_row, randomness="different")(*arguments)
    return derivatives


def begun(layer: Mixer, heard: Heard) -> tuple[State, Tensor | None]:
    """Return the state that a window of one step begins with: new in the rows that it resets.

    Returns:
        The state, and (batch,) whether a row goes on from the one before; None: all do.
    """
    reset = heard.more.get("reset")
    if reset is None:
        return heard.state, None
    ended = reset[:, 0]
    return detach(restarted(layer, heard.state, ended)), ~ended


def restarted(layer: Mixer, state: State, ended: Tensor) -> State:
    """New states in the rows that end, (batch,); old and new have their histories."""
    new = layer.init_state(len(ended), device=ended.device)
    pairs = zip(leaves(state), leaves(new), strict=True)
    return rebuilt(state, (torch.where(like(ended, h), z.to(h), h) for h, z in pairs))


def alone(state: State) -> State:
    """A row as a batch of one."""
    return map_state(lambda h: h[None], state)
