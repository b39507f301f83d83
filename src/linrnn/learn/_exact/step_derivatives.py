"""Derivatives of one step of a layer with channels apart, as operators of PyTorch.

Whoever asks gives tensors by name and gets tensors by name, so that one program can be made of all
that lies between (`linrnn.engine.replay.program`).
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.compute.replay import Replays
from linrnn.learn._exact.linears import Given, by_step, linears_of, noted
from linrnn.learn._exact.owners import owners, real_parts, tensors
from linrnn.learn._exact.traces import FEW, Layout, by_parts, of_each_row, windowed
from linrnn.mixers import Mixer, added_losses
from linrnn.ops.linear.traces import carried
from linrnn.state import rebuilt
from linrnn.typing import State

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Stepped(Layout):
    """Layout of the traces of a layer that learns step by step, and its recorded programs."""

    kinds: Replays = field(default_factory=Replays)
    """Kinds of programs that find derivatives."""

    def __deepcopy__(self, memo: object) -> "Stepped":
        """The same layout, which never changes; a copy records new programs."""
        return replace(self, kinds=Replays())

    @cached_property
    def constants(self) -> list[Tensor]:
        """The index tensors that `derivatives` reads."""
        turns = [z for turn in self.turns.values() for z in turn if z is not None]
        places = [z for z in self.traced.values() if isinstance(z, Tensor)]
        return [*self.index.values(), *places, *turns]

    @cached_property
    def traced(self) -> dict[int, slice | Tensor]:
        """By the place of a linear map, the outputs that have traces, where not all do."""
        pairs = self.linears.pairs.items()
        return {place: _regular(pair[0], self.device) for place, pair in pairs}


def _regular(index: Tensor, device: torch.device) -> slice | Tensor:
    """A slice where places are as far apart as each other, else their numbers on a device."""
    first, *more = index.tolist()
    by = more[0] - first if more else 1
    end = first + by * len(index)
    regular = by > 0 and [first, *more] == [*range(first, end, by)]
    return slice(first, end, by) if regular else index.to(device)


def stepped(layer: Mixer) -> Layout:
    """Find what has to be known of a layer: `Stepped`, if its steps can be learned from apart.

    Raises:
        NotDiagonalError: it cannot have traces.
    """
    layer_owners = owners(layer)
    device = next((p.device for p in layer.parameters()), torch.device("cpu"))
    steps = Stepped(layer_owners, linears_of(layer, layer_owners, by_step), device)
    # a step gives no separate loss, and ignores what somebody has assigned to forward
    if (
        not layer_owners.parts
        or steps.passes > FEW
        or "forward" in vars(layer)
        or _adds_losses(layer)
    ):
        return windowed(layer)
    return steps


def _adds_losses(layer: Mixer) -> bool:
    """Whether a layer has training minimise something beside the loss of its model."""
    probe = copy.deepcopy(layer).train()
    p = next(probe.parameters())
    x = torch.zeros(1, 2, layer.d_model, device=p.device, dtype=p.dtype)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), added_losses() as added:
        probe(x)
    return added.take() is not None


class _Graph(NamedTuple):
    """A step with its history."""

    x: Tensor
    before: list[Tensor]
    """Tensors of the state."""
    y: Tensor
    after: list[Tensor]
    calls: dict[int, Given]
    """Calls of the linear maps that have traces."""


def derivatives(
    layer: Mixer,
    layout: Stepped,
    state: State,
    arguments: Mapping[str, Tensor],
    parameters: Sequence[str],
    wrt: Sequence[str],
) -> Named:
    """Compute the parts of a step's traces and gradients.

    Args:
        layer, layout: whose step it is.
        state: one that is made of tensors as the state before is.
        arguments: ``x`` (batch, d_model), ``state i`` of all tensors of the state before, ``dt``
            where there is one, ``trace n`` of parameters beside weights of linear maps, and the
            credit that comes back, ``credit y`` of the answer and ``credit i`` of the state after.
            Without credit no gradient is computed.
        parameters: names of those that have gradients.
        wrt: ``x`` or numbers of tensors of the state, which have gradients as well.

    Returns:
        ``keep`` (batch, after, before, channels), how the parts of the state go on; ``credit``
        (parts, batch, channels) of the parts before; ``slope i`` (batch, parts, outputs) of the
        parts after by a map's outputs, ``gain i`` (batch, all outputs) their gradient, ``input i``
        (batch, inputs) what it was given; ``trace n`` after the step; ``grad n`` of parameters, of
        weights with traces without what these add; and those of ``wrt``.
    """
    graph = _read(layer, layout, state, arguments, "x" in wrt)
    named = {n: layer.get_parameter(n) for n in parameters}
    results, credit = _gradients(graph, layout, arguments, named, wrt)
    slopes, keep = _slopes(graph, layout)
    results |= {"credit": credit, "keep": keep}
    row_slopes = of_each_row(
        graph.after, layout, {n: p for n, p in named.items() if n in layout.others}
    )
    for place, call in graph.calls.items():
        if place in layout.linears.biases:
            row_slopes[layout.linears.biases[place]] = slopes[place]
        results[f"slope {place}"] = slopes[place][..., layout.traced.get(place, slice(None))]
        results[f"input {place}"] = wide(call.x.detach()).flatten(1)
    has_credit = any(n.startswith("credit ") for n in arguments)
    for n, slope in row_slopes.items():
        new, total = _numbers(layout, n, arguments[f"trace {n}"], slope, keep, credit)
        results[f"trace {n}"] = new
        if has_credit and n in named:
            key = f"grad {n}"
            results[key] = results[key] + total if key in results else total.to(named[n].dtype)
    return {n: z.detach() for n, z in results.items()}


def _read(
    layer: Mixer, layout: Stepped, state: State, arguments: Mapping[str, Tensor], by_x: bool
) -> _Graph:
    state_tensors = (arguments[n].detach() for n in arguments if n.startswith("state "))
    with torch.enable_grad(), noted(constant=layout.linears.index) as calls:
        x, state = arguments["x"].detach().requires_grad_(by_x), rebuilt(state, state_tensors)
        previous_tensors = tensors(state)
        for h in previous_tensors:
            h.requires_grad_()
        y, next_state = layer.step(x, state, dt=arguments.get("dt"))
    return _Graph(
        x, previous_tensors, y, tensors(next_state), {i: calls[i] for i in layout.linears.index}
    )


def _gradients(
    graph: _Graph,
    layout: Stepped,
    arguments: Mapping[str, Tensor],
    named: Mapping[str, Tensor],
    wrt: Sequence[str],
) -> tuple[Named, Tensor]:
    """Gradients of this step, the state before it a constant; and the credit of that state."""
    ends = {"y": graph.y, **{str(i): h for i, h in enumerate(graph.after)}}
    credit = {n: arguments[f"credit {n}"] for n in ends if f"credit {n}" in arguments}
    inputs = {str(i): h for i, h in enumerate(graph.before)}
    inputs |= {f"gain {place}": call.y for place, call in graph.calls.items()}
    inputs |= {f"grad {n}": p for n, p in named.items()}
    inputs |= {"x": graph.x} if "x" in wrt else {}
    grads: Named = {}
    if credit:
        pulled = torch.autograd.grad(
            [ends[n] for n in credit],
            [*inputs.values()],
            [*credit.values()],
            retain_graph=True,
            allow_unused=True,
        )
        grads = {n: g for n, g in zip(inputs, pulled, strict=True) if g is not None}
    results = {n: g for n, g in grads.items() if n.startswith("grad ") or n in wrt}
    for place, call in graph.calls.items():
        gain = grads.get(f"gain {place}")
        gain = torch.zeros_like(call.y) if gain is None else gain
        results[f"gain {place}"] = wide(gain).flatten(1)
    back = [grads.get(str(i)) for i in range(len(graph.before))]
    pairs = zip(graph.before, back, strict=True)
    parts = real_parts([torch.zeros_like(h) if g is None else g for h, g in pairs])
    return results, wide(torch.stack([parts[i] for i in layout.owners.parts]))


def _slopes(graph: _Graph, layout: Stepped) -> tuple[dict[int, Tensor], Tensor]:
    """Differentiate the sum over all channels of each part by map outputs and previous parts."""
    ys = [call.y for call in graph.calls.values()]
    by_outputs, keep = by_parts(graph.after, ys, graph.before, layout.owners.parts)
    slopes = {i: wide(slope).flatten(2) for i, slope in zip(graph.calls, by_outputs, strict=True)}
    return slopes, wide(keep)


def _numbers(
    layout: Stepped, name: str, trace: Tensor, slope: Tensor, keep: Tensor, credit: Tensor
) -> tuple[Tensor, Tensor]:
    """A trace of numbers after the step, and what it adds to their gradient."""
    if name not in layout.in_order:
        keep, credit = (z[..., layout.index[name]] for z in (keep, credit))
    flat = trace.reshape(*trace.shape[:2], keep.shape[-1], -1)  # (parts, batch, channels, rest)
    direct = wide(slope).transpose(0, 1).reshape(flat.shape)
    # as `credited` has it, but for a product of many small matrices, of which a record is slow
    total = (credit[..., None] * flat).sum((0, 1)).view(trace.shape[2:])
    return (carried(flat, keep) + direct).view_as(trace), total
