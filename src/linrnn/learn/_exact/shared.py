"""Exact traces of layers whose parameters are shared by several numbers of the state.

What a number of the state owes to a parameter is kept for each pair of which the one ever reaches
the other: of a coefficient that all channels share one trace a channel, of a projection in front of
a nonlinear map as many as there are numbers in the state. Which pairs these are, and which numbers
go on apart, is found by asking autograd.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn._process.memory import check_fits
from linrnn.compute.precision import wide, without_autocast
from linrnn.learn._exact import sparse
from linrnn.learn._exact.owners import NotDiagonalError, moved_state, real_parts, shaken
from linrnn.learn._exact.sparse import (
    Reach,
    Reached,
    closure,
    coloured,
    derivatives,
    meet,
    moved,
    reach,
)
from linrnn.learn._exact.traces import Heard, Traces
from linrnn.mixers import Mixer
from linrnn.state import detach, map_state
from linrnn.typing import State

_ROWS = 32  # enough that no rectifier is shut for all
_AT_ONCE = 1 << 24  # pairs of slots of all groups that are looked at together
_COPIES = 4  # of the traces: before and after a window, what it adds, and what it carries


class Sources(NamedTuple):
    """For each number that a parameter reaches: the numbers before a window that determine it."""

    slots: Tensor
    """(sources, slots, groups): places of them among the parameter's own; where fewer, 0."""
    exists: Tensor
    """(sources, slots, groups), 0 or 1: where there is one."""


@dataclass(frozen=True)
class Shared:
    """Layout of the traces of such a layer."""

    few: Reach
    """Reach of parameters that each move a small part of the state."""
    many: Reach
    """Reach of all other parameters."""
    sources: Mapping[str, Sources]
    """By the names of parameters."""

    @cached_property
    def by_name(self) -> dict[str, Reached]:
        """The numbers that each parameter reaches."""
        return {**self.few.by_name, **self.many.by_name}

    def numbers(self, layer: Mixer) -> tuple[int, int]:
        """Count the numbers of a row: of its traces, and of all during learning from a window."""
        stored = at_once = 0
        for of_some in (self.few, self.many):
            colours = int(of_some.colour.max()) + 1 if of_some.by_name else 0
            for name, reached in of_some.by_name.items():
                elements = layer.get_parameter(name).numel()
                stored += len(reached.units) * elements
                at_once += (_COPIES * len(reached.units) + colours) * elements
        return stored, at_once


def owing(layer: Mixer, layout: Shared, traces: Traces, state: State) -> State:
    """A state of a layer that depends on the layer's parameters as its traces say."""
    return sparse.owing(layer, replace(layout.many, by_name=layout.by_name), traces, state)


def has_learned_start(layer: Mixer) -> bool:
    """Whether a parameter is what the state begins from, and moves it there alone."""
    if "constant_memory" in layer.declared:
        return False
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        probe = shaken(layer)
        x = torch.randn(_ROWS, 2, layer.d_model, dtype=torch.float64)
        first = probe(x[:, :1])[1]
        later = probe(x[:, 1:], map_state(moved_state, detach(first)))[1]
        return bool(_moving(probe, first) - _moving(probe, later))


def _moving(layer: Mixer, state: State) -> set[str]:
    """The parameters that a state depends on."""
    named = {n: p for n, p in layer.named_parameters() if p.requires_grad}
    total = sum((h * torch.rand_like(h)).sum() for h in real_parts(state))
    if not isinstance(total, Tensor) or not total.requires_grad:
        return set()
    grads = torch.autograd.grad(total, [*named.values()], allow_unused=True)
    return {n for n, g in zip(named, grads, strict=True) if g is not None and bool((g != 0).any())}


def shared(name: str, layer: Mixer) -> Shared:
    """Find what has to be known of a layer.

    Args:
        name: of the layer, for the message.
        layer: any that reads forward.

    Raises:
        NotDiagonalError: the state has no fixed size, more than two numbers of one part of it move
            one another, or the layer decides by numbers or at random how it reads.
        ArgumentError: what reaches what does not fit into memory.
    """
    if "constant_memory" in layer.declared:
        raise NotDiagonalError("one whose state grows with what was read")
    parts = real_parts(layer.init_state(1))
    size = sum(h.shape[1] for h in parts)
    elements = sum(p.numel() for p in layer.parameters() if p.requires_grad)
    check_fits(
        f"{name} ({type(layer).__name__})",
        f"which of {elements:,} parameters reaches which of {size:,} numbers of the state",
        size * (elements + 4 * _COPIES * size),
        "Use fewer channels, or tbptt.",
    )
    reached = reach(layer, size, starts=has_learned_start(layer))
    mixing = closure(reached.mixing)
    _check_apart(mixing, [h.shape[1] for h in parts])
    conflicts = {n: _conflicts(size, one) for n, one in reached.by_name.items()}
    crowded = {n for n, c in conflicts.items() if 2 * int(c.sum(1).max()) > size}
    few, many = (
        _reach(reached, mixing, conflicts, [n for n in conflicts if (n in crowded) == is_many])
        for is_many in (False, True)
    )
    sources = {n: _sources(mixing, one) for n, one in reached.by_name.items()}
    layout = Shared(few, many, sources)
    _rehearse(layer, layout)
    return layout


def _rehearse(layer: Mixer, layout: Shared) -> None:
    """Raise unless a window can be read once more, and rows of it be differentiated at once."""
    part = next((one for one in (layout.few, layout.many) if one.by_name), None)
    if part is None:
        return
    p = next(layer.parameters())
    x = torch.ones(2, 2, layer.d_model, device=p.device, dtype=p.dtype)
    state = layer.init_state(2, device=p.device, dtype=p.dtype)
    with torch.random.fork_rng(devices=[]):
        with torch.no_grad():
            once, repeated = (real_parts(layer(x, state)[1]) for _ in range(2))
        if not all(map(torch.equal, once, repeated)):
            raise NotDiagonalError("one that draws random numbers while it reads")
        try:
            derivatives(layer, part, x, state, {}, by_states=False)
        except RuntimeError as error:  # of vmap
            raise NotDiagonalError("one that looks at numbers while it reads") from error


def _check_apart(mixing: Tensor, sizes: list[int]) -> None:
    """Raise unless at most two numbers of a part of the state move one another.

    Two are a complex number, if the state has it as such.
    """
    part = torch.cat([torch.full((n,), i) for i, n in enumerate(sizes)])
    together = (mixing > 0) & (mixing.T > 0) & (part[:, None] == part)
    if bool((together.fill_diagonal_(True).sum(1) > 2).any()):
        raise NotDiagonalError("one that mixes the channels of its state")


def _conflicts(size: int, reached: Reached) -> Tensor:
    """(size, size): whether two numbers are reached by the same group."""
    groups = torch.zeros(size, reached.units.shape[1])
    groups.scatter_add_(0, reached.units, reached.kept)
    return meet(groups, groups.T)


def _reach(
    reached: Reach, mixing: Tensor, conflicts: Mapping[str, Tensor], names: list[str]
) -> Reach:
    """Within a window of any length a parameter moves all that it reaches."""
    by_name = {n: reached.by_name[n]._replace(direct=reached.by_name[n].kept) for n in names}
    together = torch.zeros(mixing.shape, dtype=torch.bool)
    for n in names:
        together |= conflicts[n]
    return Reach(by_name, coloured(together), mixing, coloured(meet(mixing, mixing.T)))


def _sources(mixing: Tensor, reached: Reached) -> Sources:
    """For each number that a group reaches, those it is made of that the group reaches too."""
    units, is_reached = reached.units, reached.kept > 0
    slots, groups = units.shape
    step = max(1, _AT_ONCE // slots**2)
    blocks: list[tuple[Tensor, Tensor]] = []
    for start in range(0, groups, step):
        block_units, exists = units[:, start : start + step], is_reached[:, start : start + step]
        pairs = mixing[block_units[:, None], block_units[None]] > 0  # (target, source, groups)
        pairs &= exists[:, None] & exists[None]
        count = max(1, int(pairs.sum(1).max()))
        order = pairs.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
        blocks.append((order.transpose(0, 1), pairs.gather(1, order).transpose(0, 1)))
    longest = max(len(order) for order, _ in blocks)
    fill = torch.nn.functional.pad
    padded = [[fill(z, (0, 0, 0, 0, 0, longest - len(z))) for z in block] for block in blocks]
    order, exists = (torch.cat([block[i] for block in padded], 2) for i in (0, 1))
    return Sources(torch.where(exists, order, 0), exists.float())


def advanced(layer: Mixer, layout: Shared, traces: Traces, heard: Heard) -> Traces:
    """The traces after a window: ``E <- J E + dh/dtheta``, with J and dh/dtheta of the window."""
    state = None if heard.fresh else heard.state
    new: Traces = {}
    across: Tensor | None = None
    for of_some in (layout.few, layout.many):
        if not of_some.by_name:
            continue
        by_states = across is None and bool(traces)
        direct, slope_by_states = derivatives(
            layer, of_some, heard.x, state, heard.more, by_states=by_states
        )
        across = slope_by_states if by_states else across
        with without_autocast(heard.x.device):
            for name, slope in direct.items():
                new[name] = moved(of_some, of_some.by_name[name], wide(slope.detach()))
    with without_autocast(heard.x.device):
        for name, trace in traces.items():
            if name in new and across is not None:
                _carry(new[name], trace, layout, name, across)
    return new


def _carry(trace: Tensor, old: Tensor, layout: Shared, name: str, across: Tensor) -> None:
    """Add to a trace what the one before the window becomes in it, ``J E``."""
    device, sources = trace.device, layout.sources[name]
    units = layout.by_name[name].units.to(device)
    colour = layout.many.mixing_colour.to(device)
    flat_shape = (*trace.shape[:2], units.shape[1], -1)  # (slots, batch, groups, rest)
    new, flat = trace.view(flat_shape), old.to(trace.dtype).reshape(flat_shape)
    pairs = zip(sources.slots.to(device), sources.exists.to(device), strict=True)
    for slots, exists in pairs:
        # (batch, slots, groups)
        J = across[:, colour[units], units.gather(0, slots)].to(trace.dtype) * exists.to(trace)
        index = slots[:, None, :, None].expand(new.shape)
        new.addcmul_(flat.gather(0, index), J.transpose(0, 1).unsqueeze(-1))
