"""Which numbers of a layer's state each parameter reaches in a few steps, and their traces."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap

from linrnn.learn._exact.owners import (
    NotDiagonalError,
    moved_state,
    real_parts,
    shaken,
    tensors,
    with_real_parts,
)
from linrnn.learn._exact.traces import Heard, Traces, alone, begun
from linrnn.learn._parts.last_step import LastStep
from linrnn.mixers import Mixer
from linrnn.state import detach, leaves, map_state
from linrnn.typing import State

_ROWS = 32  # enough that no rectifier is shut for all
_LEAD = 2
_PAIRS = 1 << 24  # numbers that are gathered at once
_AT_ONCE = 256  # colours that are differentiated together


class Reached(NamedTuple):
    """The numbers of the state that one parameter reaches.

    A group is a row of a parameter, where all of it reaches the same, or one element.
    """

    units: Tensor
    """(slots, groups): numbers of the flat state; where a group has fewer, number 0."""
    kept: Tensor
    """(slots, groups), 0 or 1: where there is one."""
    direct: Tensor
    """(slots, groups), 0 or 1: those that it moves in the step itself."""


@dataclass(frozen=True)
class Reach:
    """The numbers each parameter of a layer reaches, and how to find all derivatives at once.

    Numbers of the state of one colour are differentiated together: what they depend on is apart.
    """

    by_name: dict[str, Reached]
    colour: Tensor
    """(size,): of derivatives by parameters."""
    mixing: Tensor
    """(size, size), 0 or 1: whether a number depends on another of the step before."""
    mixing_colour: Tensor
    """(size,): of derivatives by states."""

    @cached_property
    def dependent(self) -> tuple[Tensor, Tensor]:
        """(colours, size): of each colour the number that depends on one before, and if any."""
        number = torch.zeros(int(self.mixing_colour.max()) + 1, len(self.mixing), dtype=torch.long)
        exists = torch.zeros(number.shape)
        target, source = self.mixing.nonzero().unbind(1)
        place = (self.mixing_colour[target], source)
        number[place], exists[place] = target, 1.0
        return number, exists


def reach(layer: Mixer, steps: int, *, together: bool = False, starts: bool = False) -> Reach:
    """Find by autograd what each parameter of a layer reaches within ``steps`` steps.

    Args:
        layer: any that reads forward.
        steps: 1 or more. 1: what a parameter moves itself.
        together: count the numbers of a channel, of all parts of the state, as one.
        starts: count what the state begins from as a parameter that moves it.

    Raises:
        NotDiagonalError: the state has no fixed size.
    """
    if "constant_memory" in layer.declared:
        raise NotDiagonalError("one whose state grows with what was read")
    direct, mixing, unit = _patterns(layer, together=together, starts=starts)
    size, step = len(mixing), mixing.to(torch.float32)
    same = unit[:, None] == unit
    by_name, conflicts = {}, torch.zeros(size, size, dtype=torch.bool)
    for name, moved in direct.items():
        reached, count = meet(same, moved), 1
        while count < steps:
            further = reached | meet(same, meet(step, reached))
            if further.equal(reached):
                break
            reached, count = further, count + 1
        by_name[name] = _slots(reached, moved)
        conflicts |= meet(moved, moved.T)
    return Reach(by_name, coloured(conflicts), step, coloured(meet(step, step.T)))


def closure(mixing: Tensor) -> Tensor:
    """Whether a number depends on another of any step before, of whether it does on the last."""
    while True:
        further = (mixing > 0) | meet(mixing, mixing)
        if further.equal(mixing > 0):
            return mixing
        mixing = further.to(mixing.dtype)


def _patterns(
    layer: Mixer, *, together: bool, starts: bool
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Find where one step has derivatives, and the unit that each number belongs to.

    Returns:
        Shapes: (size, groups) for each parameter, (size, size) for the state before, and (size,).
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        probe = shaken(layer)
        x = torch.randn(_ROWS, _LEAD + 1, layer.d_model, dtype=torch.float64)
        # at the very start a part may be at a value that hides what it does
        _, state = probe(x[:, :_LEAD])
        state = map_state(moved_state, detach(state))
        previous_tensors = [h for h in leaves(state) if h.requires_grad]
        parts = real_parts(probe(x[:, _LEAD:], state)[1])
        begun_parts = real_parts(probe(x[:, _LEAD:])[1]) if starts else []
    if not previous_tensors or not sum(h.shape[1] for h in parts):
        raise NotDiagonalError("one without a state of fixed size")
    flat_state = torch.cat(parts, 1)  # (batch, size)
    named = {n: p for n, p in probe.named_parameters() if p.requires_grad}
    where: dict[str, list[Tensor]] = {n: [] for n in named}
    mixing = []
    inputs = [*named.values(), *previous_tensors]
    first = torch.cat(begun_parts, 1).sum(0) if starts else None
    for i, unit in enumerate(flat_state.sum(0)):
        grads = torch.autograd.grad(unit, inputs, retain_graph=True, materialize_grads=True)
        for n, g in zip(named, grads, strict=False):
            where[n].append(g != 0)
        if first is not None and first.requires_grad:
            of_first = torch.autograd.grad(
                first[i], [*named.values()], retain_graph=True, materialize_grads=True
            )
            for n, g in zip(named, of_first, strict=True):
                where[n][-1] |= g != 0
        across = [h for g in grads[len(named) :] for h in real_parts(g)]
        mixing.append((torch.cat(across, 1) != 0).any(0))
    patterns = {n: torch.stack(rows) for n, rows in where.items()}  # (size, *shape)
    direct = {n: _grouped(m) for n, m in patterns.items() if bool(m.any())}
    return direct, torch.stack(mixing), _units(tensors(state), together=together)


def _units(parts: list[Tensor], *, together: bool) -> Tensor:
    """The unit of each number: a complex one is one; together, parts of one size share channels."""
    first: dict[int, int] = {}
    units, count = [], 0
    for h in parts:
        size = h[0].numel()
        start = first.setdefault(size, count) if together else count
        units += [start + torch.arange(size)] * (2 if h.is_complex() else 1)
        count += size
    return torch.cat(units)


def _grouped(moved: Tensor) -> Tensor:
    """(size, groups): one group for each row of a parameter that moves as one, or each element."""
    moved = moved[:, None] if moved.ndim == 1 else moved  # by a parameter that is one number
    rows = moved.flatten(2) if moved.ndim > 2 else moved[:, :, None]
    row_moves = rows.any(2)
    uniform = (rows == row_moves[:, :, None]) | ~rows.any(
        0
    )  # an element that moves nothing fits in
    return row_moves if bool(uniform.all()) else rows.flatten(1)


def _slots(reached: Tensor, direct: Tensor) -> Reached:
    order = reached.to(torch.int8).argsort(dim=0, descending=True, stable=True)
    units = order[: max(1, int(reached.sum(0).max()))]
    valid, moved = (m.gather(0, units) for m in (reached, direct))
    return Reached(torch.where(valid, units, 0), valid.float(), moved.float())


def coloured(conflicts: Tensor) -> Tensor:
    """A colour for each number, such that none has that of one it conflicts with."""
    colour = torch.zeros(len(conflicts), dtype=torch.long)
    for unit in range(len(conflicts)):
        used = torch.zeros(unit + 1, dtype=torch.bool)
        used[colour[:unit][conflicts[unit, :unit]]] = True
        colour[unit] = int(used.to(torch.int8).argmin())
    return colour


def meet(a: Tensor, b: Tensor) -> Tensor:
    """Whether a row of the one and a column of the other have a place in common that is not 0."""
    rows, places = a.nonzero().unbind(1)
    if len(rows) * 16 > a.numel():
        return a.float() @ b.float() > 0
    counts = torch.zeros(len(a), b.shape[1], dtype=torch.int32)
    step = max(1, _PAIRS // max(1, b.shape[1]))
    for row, place in zip(rows.split(step), places.split(step), strict=True):
        counts.index_add_(0, row, b[place].int())
    return counts > 0


class _Owing(torch.autograd.Function):
    """The numbers of a state as they are, and their derivatives by parameters."""

    @staticmethod
    def forward(ctx: Any, owed: Callable[[Tensor], list[Tensor]], h: Tensor, *_: Tensor) -> Tensor:
        ctx.owed = owed
        return h.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return (None, None, *ctx.owed(g))


def _contracted(g: Tensor, reached: Reached, trace: Tensor) -> Tensor:
    credit = g.to(trace.dtype)[:, reached.units.to(g.device)]  # (batch, slots, groups)
    flat = trace.reshape(*trace.shape[:2], credit.shape[2], -1)  # (slots, batch, groups, rest)
    return torch.einsum("bki,kbij->ij", credit, flat).reshape(trace.shape[2:])


def owing(
    layer: Mixer, sparsity: Reach, traces: Traces, state: State, last: LastStep | None = None
) -> State:
    """A state of a layer that depends on the layer's parameters as its traces say.

    With ``last``, a loss that reads the state after the step has no more of them than what is
    kept there: what the step passes on to numbers that are not reached is no part of it.
    """
    parameters = dict(layer.named_parameters())
    names = [n for n in traces if parameters[n].requires_grad]
    if not names:
        return state

    def owed(g: Tensor) -> list[Tensor]:
        credit = None if last is None else last.take()
        if last is None or credit is None:
            return [_contracted(g, sparsity.by_name[n], traces[n]) for n in names]
        # what is left is read of the state before, and of no other
        g = g - _pulled(credit, sparsity, last.across).to(g.dtype)
        return [
            _contracted(g, sparsity.by_name[n], traces[n])
            + _contracted(credit, sparsity.by_name[n], last.carried[n])
            for n in names
        ]

    parts = real_parts(state)
    h: Tensor = _Owing.apply(owed, torch.cat(parts, 1), *(parameters[n] for n in names))
    return with_real_parts(state, h.split([part.shape[1] for part in parts], 1))


def _pulled(credit: Tensor, sparsity: Reach, across: Tensor) -> Tensor:
    """``J^T credit``, (batch, size)."""
    number, exists = (index.to(across.device) for index in sparsity.dependent)
    return (credit.to(across.dtype)[:, number] * across * exists.to(across.dtype)).sum(1)


def advanced(layer: Mixer, sparsity: Reach, traces: Traces, heard: Heard) -> Traces:
    """The traces after a step: ``E <- P (J E + dh/dtheta)``, where P drops what is not reached."""
    state, goes_on = begun(layer, heard)
    times = {n: v for n, v in heard.more.items() if n == "dt"}
    direct, across = derivatives(layer, sparsity, heard.x, state, times)
    if goes_on is not None:
        across = across * goes_on[:, None, None]
    carried = {n: _carried(sparsity, sparsity.by_name[n], across, t) for n, t in traces.items()}
    if heard.last is not None:
        heard.last.carried, heard.last.across = carried, across
    new = {n: moved(sparsity, sparsity.by_name[n], m.detach()) for n, m in direct.items()}
    return {n: m + carried[n] if n in carried else m for n, m in new.items()}


def derivatives(
    layer: Mixer,
    sparsity: Reach,
    x: Tensor,
    state: State | None,
    more: Mapping[str, Tensor],
    *,
    by_states: bool = True,
) -> tuple[dict[str, Tensor], Tensor]:
    """Differentiate the numbers of a state after a window, those of a colour together.

    Args:
        layer, sparsity: whose state it is.
        x: of the window, (batch, time, d_model).
        state: before it; None: where the layer begins.
        more: ``reset`` and ``dt``, where there are such.
        by_states: whether derivatives by the state before are wanted.

    Returns:
        By the parameters, (batch, colours, *shape), and by the numbers of the state before, (batch,
        colours of mixing, size); of these none where they are not wanted.
    """
    parameters = {n: p.detach() for n, p in layer.named_parameters()}
    mine = {n: p for n, p in parameters.items() if n in sparsity.by_name}
    remaining = {n: p for n, p in parameters.items() if n not in sparsity.by_name}
    ways = [_cotangents(c).to(x.device) for c in (sparsity.colour, sparsity.mixing_colour)]

    def of_row(
        x: Tensor, state: State | None, previous_parts: list[Tensor], more: Mapping[str, Tensor]
    ) -> Any:
        def next_parts(learned: Mapping[str, Tensor], previous_parts: list[Tensor]) -> Tensor:
            start = None
            if state is not None:
                start = with_real_parts(alone(state), [h[None] for h in previous_parts])
            named = {n: v[None] for n, v in more.items()}
            _, last = functional_call(layer, {**remaining, **learned}, (x[None], start), named)
            return torch.cat(real_parts(last), 1)[0]

        h, pull = vjp(lambda learned: next_parts(learned, previous_parts), mine)  # type: ignore[misc]
        direct = vmap(pull, chunk_size=_AT_ONCE)(ways[0].to(h.dtype))[0]
        if not by_states:
            return direct, h.new_empty(0)
        _, pull = vjp(lambda parts: next_parts(mine, parts), previous_parts)  # type: ignore[misc]
        across = vmap(pull, chunk_size=_AT_ONCE)(ways[1].to(h.dtype))[0]
        return direct, torch.cat(across, 1)

    # a state that there is not has no rows
    rows = (0, None, None, 0) if state is None else 0
    with torch.enable_grad():
        direct, across = vmap(of_row, in_dims=rows, randomness="different")(
            x, state, [] if state is None else real_parts(state), more
        )
    return direct, across.detach()


def _cotangents(colour: Tensor) -> Tensor:
    """(colours, size): ones at each colour's numbers."""
    return torch.nn.functional.one_hot(colour).T.float()


def moved(sparsity: Reach, reached: Reached, direct: Tensor) -> Tensor:
    """Compute what a step itself adds to the trace (slots, batch, *shape) of a parameter.

    Args:
        sparsity: of the layer.
        reached: by the parameter.
        direct: (batch, colours, *shape), derivatives of the step by it.
    """
    units, groups = reached.units.to(direct.device), reached.units.shape[1]
    flat = direct.reshape(*direct.shape[:2], groups, -1)  # (batch, colours, groups, rest)
    place = torch.arange(groups, device=direct.device)
    new = flat[:, sparsity.colour.to(direct.device)[units], place]  # (batch, slots, groups, rest)
    new = (new * reached.direct.to(flat)[..., None]).transpose(0, 1)
    return new.reshape(*new.shape[:2], *direct.shape[2:])


def _carried(sparsity: Reach, reached: Reached, across: Tensor, trace: Tensor) -> Tensor:
    """Carry a trace through a step to the numbers that are reached, in the trace's shape."""
    units = reached.units.to(trace.device)
    old = trace.reshape(*trace.shape[:2], units.shape[1], -1)  # (slots, batch, groups, rest)
    return _through(sparsity, reached, units, across.to(old.dtype), old).reshape(trace.shape)


def _through(
    sparsity: Reach, reached: Reached, units: Tensor, across: Tensor, old: Tensor
) -> Tensor:
    """Compute ``J E`` at the numbers that are reached."""
    colour, mixing = sparsity.mixing_colour.to(units.device), sparsity.mixing.to(across)
    if bool((units == units[:, :1]).all()):  # every group reaches the same
        shared = units[:, 0]
        # (batch, target, source)
        J = across[:, colour[shared]][:, :, shared] * mixing[shared][:, shared]
        return torch.einsum("bpq,qbij->pbij", J, old) * reached.kept.to(old)[:, None, :, None]
    target_units = units[:, None, :].expand(-1, len(units), -1)  # (target, source, groups)
    source_units = target_units.transpose(0, 1)
    # (batch, target, source, groups)
    J = across[:, colour[target_units], source_units] * mixing[target_units, source_units]
    J = J * reached.kept.to(J)[:, None]
    return torch.einsum("bpqi,qbij->pbij", J, old)
