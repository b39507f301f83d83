"""Which channel of a layer's state each of its parameters moves: found by asking autograd."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from linrnn.mixers import Mixer
from linrnn.state import leaves, map_state, ordered
from linrnn.typing import State

_STEPS = 3
_ROWS = 32  # enough that no rectifier is shut for all


@dataclass(frozen=True)
class Owners:
    """How the state of a layer depends on its parameters.

    A part is a tensor of the state with one axis of ``channels``, real; a complex tensor is two.
    """

    parts: tuple[int, ...]
    """Those that depend on a parameter: numbers in `real_parts`."""
    channels: int
    index: dict[str, Tensor]
    """By the name of a parameter, the channel that its first axis, or each element, moves."""
    elements: dict[str, Tensor]
    """The same of each element, (*shape), with -1 where it moves none."""


class NotDiagonalError(Exception):
    """The layer is not of the required kind; the text ends a sentence on what it must be."""


def tensors(state: State) -> list[Tensor]:
    """The tensors of a state, integers left out."""
    return [h for h in leaves(state) if h.is_floating_point() or h.is_complex()]


def with_tensors(state: State, new: Iterable[Tensor]) -> State:
    """A state with other tensors instead of its `tensors`."""
    remaining = iter(new)

    def rebuilt(h: Tensor) -> Tensor:
        return next(remaining) if h.is_floating_point() or h.is_complex() else h

    return map_state(rebuilt, ordered(state))


def real_parts(state: State) -> list[Tensor]:
    """The parts of a state, flat: (batch, channels) each, integers left out."""
    parts: list[Tensor] = []
    for h in tensors(state):
        rows = h[:, None] if h.ndim == 1 else h.flatten(1)
        parts += [rows.real, rows.imag] if h.is_complex() else [rows]
    return parts


def with_real_parts(state: State, parts: Iterable[Tensor]) -> State:
    """A state with other numbers instead of its `real_parts`."""
    remaining = iter(parts)

    def rebuilt(h: Tensor) -> Tensor:
        if h.is_complex():
            return torch.complex(next(remaining), next(remaining)).view_as(h)
        return next(remaining).view_as(h)

    return with_tensors(state, map(rebuilt, tensors(state)))


def owners(layer: Mixer) -> Owners:
    """Find the channel that each parameter of a layer moves.

    Every parameter must move one channel of the state, and the state before must move its own
    channel alone, too, over several steps. Autograd decides that, on a copy of the
    layer in float64 with its parameters shaken, so that none is at a special value: with the sums
    of what a parameter moves, weighted by 1, u and u^2 of each channel, one channel alone has
    ``s_0 s_2 = s_1^2``, and is ``u = s_1 / s_0``.

    Args:
        layer: any that reads forward.

    Raises:
        NotDiagonalError: a parameter moves several channels, or a channel others.
    """
    if "constant_memory" in layer.declared:
        raise NotDiagonalError("one whose state grows with what was read")
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        probe = shaken(layer)
        x = torch.randn(_ROWS, _STEPS, layer.d_model, dtype=torch.float64)
        state = map_state(moved_state, probe.init_state(_ROWS, device=x.device, dtype=x.dtype))
        previous_tensors = [h for h in leaves(state) if h.requires_grad]
        next_parts = real_parts(probe(x, state)[1])
    if not previous_tensors or any(h.shape[1] == 0 for h in next_parts):
        raise NotDiagonalError("one without a state of fixed size")
    named = {n: p for n, p in probe.named_parameters() if p.requires_grad}
    sums = [weighted(part, [*named.values(), *previous_tensors]) for part in next_parts]
    moved = [any(_nonzero(s) for s in part[: len(named)]) for part in sums]
    parts = tuple(i for i, is_moved in enumerate(moved) if is_moved)
    sizes = sorted({next_parts[i].shape[1] for i in parts})
    if len(sizes) > 1:
        raise NotDiagonalError(f"one whose state has parts of {sizes[0]} and {sizes[-1]} channels")
    channels = sizes[0] if sizes else 0
    elements: dict[str, Tensor] = {}
    for place, name in enumerate(named):
        channel_index = owner_of([sums[i][place] for i in parts], channels, f"its parameter {name}")
        if channel_index is not None:
            elements[name] = channel_index
    _check_diagonal([sums[i][len(named) :] for i in parts], previous_tensors, parts, channels)
    index = {name: _by_first_axis(owner) for name, owner in elements.items()}
    return Owners(parts, channels, index, elements)


def shaken(layer: Mixer) -> Mixer:
    """A copy of a layer in float64, none of whose parameters is at a special value."""
    probe = copy.deepcopy(layer).cpu().double().requires_grad_(True).train(layer.training)
    with torch.no_grad():
        for p in probe.parameters():
            scale = p.abs().mean().clamp(min=0.1)
            p.add_(0.1 * scale * torch.randn(p.shape, dtype=torch.float64))
    return probe


def moved_state(h: Tensor) -> Tensor:
    """A part of a state at no special value, of which derivatives may be asked."""
    if not (h.is_floating_point() or h.is_complex()):
        return h
    return (h.detach() + 0.5 * torch.rand(h.shape, dtype=h.dtype)).requires_grad_(True)


def weighted(part: Tensor, inputs: list[Tensor]) -> list[list[Tensor]]:
    """For each input, its gradients of sums over the channels weighted by 1, u and u^2."""
    u = _labels(part.shape[1])
    if not part.requires_grad:
        return [[torch.zeros_like(p)] * 3 for p in inputs]
    grads = [
        torch.autograd.grad(
            part, inputs, (u**k).expand_as(part), retain_graph=True, materialize_grads=True
        )
        for k in range(3)
    ]
    return [list(of_one) for of_one in zip(*grads, strict=True)]


def _labels(channels: int) -> Tensor:
    return 1 + torch.arange(channels, dtype=torch.float64) / channels


def _nonzero(sums: list[Tensor]) -> bool:
    return any(bool((s != 0).any()) for s in sums)


def owner_of(parts: list[list[Tensor]], channels: int, what: str) -> Tensor | None:
    """The channel of each element, or -1 where it moves none; None where all are -1."""
    owner = None
    for s0, s1, s2 in parts:
        moves = s0.abs() + s1.abs() + s2.abs() > 1e-14
        number = (s1 / torch.where(moves, s0, 1) - 1) * channels
        near = (number - number.round()).abs() < 1e-4
        alone = (s0 * s2 - s1**2).abs() <= 1e-9 * (s1**2 + s0.abs() * s2.abs())
        if not bool((~moves | (near & alone)).all()):
            raise NotDiagonalError(f"one where {what} moves several channels of the state")
        part_owner = torch.where(moves, number.round(), -1).long()
        both = owner is not None and (owner >= 0) & moves & (owner != part_owner)
        if owner is not None and bool(torch.as_tensor(both).any()):
            raise NotDiagonalError(f"one where {what} moves several channels of the state")
        owner = part_owner if owner is None else torch.where(moves, part_owner, owner)
    return None if owner is None or bool((owner < 0).all()) else owner


def _by_first_axis(owner: Tensor) -> Tensor:
    """One channel for each row of a parameter where it has one, else for each element."""
    rows = owner.flatten(1) if owner.ndim > 1 else owner[:, None]
    first = rows.amax(1)
    if bool(((rows == first[:, None]) | (rows < 0)).all()):
        return first.clamp(min=0)
    return owner.flatten().clamp(min=0)


def _check_diagonal(
    sums: list[list[list[Tensor]]],
    previous_tensors: list[Tensor],
    parts: tuple[int, ...],
    channels: int,
) -> None:
    channel_index = torch.arange(channels)
    numbers = _numbers(previous_tensors)
    for place, h in enumerate(previous_tensors):
        if not set(numbers[place]) & set(parts):
            continue
        for read in (torch.real, torch.imag) if h.is_complex() else (torch.Tensor.clone,):
            owner = owner_of(
                [[read(s) for s in part[place]] for part in sums], channels, "a channel"
            )
            if owner is None:
                continue
            flat = owner.flatten(1)
            if not bool(((flat == channel_index) | (flat < 0)).all()):
                raise NotDiagonalError("one that mixes the channels of its state")


def _numbers(previous_tensors: list[Tensor]) -> list[list[int]]:
    """Number the parts of each tensor of a state."""
    numbers: list[list[int]] = []
    count = 0
    for h in previous_tensors:
        numbers.append([count, count + 1] if h.is_complex() else [count])
        count += len(numbers[-1])
    return numbers
