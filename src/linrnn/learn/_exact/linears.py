"""The linear maps inside a layer: what they are given, and what each of their outputs moves.

What a state owes to the weight of a linear map is, at a step, the product of what it owes to the
outputs and of the input. Found so, it is added to a trace as it is made, where autograd would lay
out the product of every row first.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from linrnn.learn._exact.owners import (
    NotDiagonalError,
    Owners,
    moved_state,
    owner_of,
    real_parts,
    shaken,
    tensors,
    weighted,
)
from linrnn.mixers import Mixer
from linrnn.state import map_state
from linrnn.typing import State

_ROWS, _STEPS = 32, 3

Answer = Callable[[int, Tensor, Tensor, Tensor | None], Tensor]
"""Output of a linear map, from its place in the layer, its input, weight and bias."""


@dataclass(frozen=True)
class Linears:
    """The linear maps of a layer, by their place, in the order in which they are called."""

    count: int
    index: Mapping[int, Tensor]
    """For maps that move the state: the channel that each output moves."""
    pairs: Mapping[int, Tensor]
    """For some of them, (2, channels): outputs, of which the second moves i times what the first of
    its channel does, so that what is owed to the one tells what is owed to the other."""
    names: Mapping[int, str]
    """Names of the parameters that are weights of some of them."""
    biases: Mapping[int, str]
    """Names of the parameters that are only their biases."""
    weight_shapes: Mapping[int, torch.Size]
    """The shapes of their weights."""
    shapes: Mapping[int, torch.Size]
    """Shapes of their traces: those of the weights; of a pair, the first weight's."""
    still: frozenset[int]
    """Those that move nothing of the state, such as the map to the output."""
    others: tuple[str, ...]
    """The parameters that move the state by another way than those weights and biases, too."""
    timed: bool
    """Whether steps that are given their times call others: then all have to be given them."""

    @property
    def made(self) -> list[int]:
        """The places of maps whose weights may depend on parameters of ``others``."""
        if not self.others:
            return []
        return [i for i in self.index if i not in self.names or self.names[i] in self.others]


NO_LINEARS = Linears(0, {}, {}, {}, {}, {}, {}, frozenset(), (), False)


class Given(NamedTuple):
    """The arguments of one call of a linear map, and its output."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    y: Tensor


class _Calls(TorchFunctionMode):
    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer, self.count = answer, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not linear:
            return func(*args, **(kwargs or {}))
        self.count += 1
        return self.answer(self.count - 1, *_arguments(*args, **(kwargs or {})))


def _arguments(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


@contextmanager
def answered(layer: Mixer, count: int, answer: Answer) -> Iterator[None]:
    """Inside, where the layer reads once, another function answers for its linear maps.

    Raises:
        RuntimeError: the layer called more or fewer of them than ``count``.
    """
    with _Calls(answer) as calls:
        yield
    if calls.count != count:
        raise RuntimeError(
            f"{type(layer).__name__}: a layer must call the same linear maps whenever it reads, "
            f"got {calls.count} calls instead of {count}."
        )


class _EnoughError(Exception):
    """A linear map was called behind which nobody asks."""


@contextmanager
def noted(
    weights: Mapping[int, Tensor] | None = None, constant: Collection[int] = ()
) -> Iterator[list[Given]]:
    """Inside, all calls of linear maps are noted down, in their order.

    Args:
        weights: of some calls, by place, used instead of the layer's own.
        constant: places of calls whose weights are taken for constants.
    """
    calls: list[Given] = []

    def note(place: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        used = weights.get(place, weight) if weights else weight
        y = linear(x, used.detach() if place in constant else used, bias)
        if place in constant and not y.requires_grad:
            y.requires_grad_()  # so that it has a gradient, whatever it was made of
        calls.append(Given(x, weight, bias, y))
        return y

    with _Calls(note):
        yield calls


def by_window(layer: Mixer, x: Tensor, state: State, *, timed: bool = False) -> State:
    """The state after a window; with ``timed``, one whose steps are given times of 1."""
    dt = x.new_ones(x.shape[:2]) if timed else None
    _, next_state = layer.forward(x, state, dt=dt)  # past the hooks, which may be why we ask
    return next_state


def by_step(layer: Mixer, x: Tensor, state: State, *, timed: bool = False) -> State:
    """The state after a window of one step, as `Mixer.step` makes it."""
    dt = x.new_ones(len(x)) if timed else None
    _, next_state = layer.step(x[:, 0], state, dt=dt)
    return next_state


Read = Callable[..., State]


def calls_of(layer: Mixer, x: Tensor, state: State, read: Read) -> tuple[list[Given], State]:
    """Read once; returns the calls of the layer's linear maps, and the state after."""
    with torch.enable_grad(), noted() as calls:
        next_state = read(layer, x, state)
    return calls, next_state


def weights(layer: Mixer, linears: Linears, read: Read = by_window) -> dict[int, Tensor]:
    """The weights of maps that move the state, as functions of the layer's parameters."""
    shapes, names = linears.weight_shapes, linears.names
    by_place = {i: layer.get_parameter(name).view(shapes[i]) for i, name in names.items()}
    derived = [place for place in linears.index if place not in by_place]
    if not derived:
        return by_place

    def note(place: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if place in derived:
            by_place[place] = weight
        if place == max(derived):
            raise _EnoughError
        return linear(x, weight, bias)

    p = next(layer.parameters())
    x = torch.zeros(1, 1, layer.d_model, device=p.device, dtype=p.dtype)
    state = layer.init_state(1, device=p.device)
    with suppress(_EnoughError), torch.enable_grad(), _Calls(note):
        read(layer, x, state, timed=linears.timed)
    return by_place


def linears_of(layer: Mixer, owners: Owners, read: Read = by_window) -> Linears:
    """Find the linear maps of a layer whose outputs move one channel each.

    Args:
        layer: any that reads forward.
        owners: of its parameters.
        read: how it will read; there may be other maps in its steps.
    """
    by_steps = read is by_step
    steps = 1 if by_steps else _STEPS
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        probe = shaken(layer)
        x, previous_state = _random_call(probe, steps)
        calls, next_state = calls_of(probe, x, previous_state, read)
        timed = layer.timed and layer.form not in layer.without_dt
        if timed:  # such steps may be given to other maps
            timed_reading = calls_of(probe, x, previous_state, partial(read, timed=True))
            timed = not _same_weights(calls, timed_reading[0])
        if timed:
            read, (calls, next_state) = partial(read, timed=True), timed_reading
        if not _same_weights(calls, calls_of(probe, *_random_call(probe, 1), read)[0]):
            return NO_LINEARS
        axes = {tuple(x.shape[:2]), *([(_ROWS,)] if by_steps else [])}
        index, still = _moved(calls, real_parts(next_state), owners, axes)
        if not index:
            return NO_LINEARS
        other_names = _remaining_names(probe, len(calls), index, read, steps)
        pairs = _pairs(calls, previous_state, next_state, index, owners.parts)
    weight_shapes = {place: calls[place].weight.shape for place in index}
    shapes = weight_shapes | {
        place: torch.Size([len(pair[0]), *weight_shapes[place][1:]])
        for place, pair in pairs.items()
    }
    named = {id(p): name for name, p in probe.named_parameters()}
    names = {i: n for i in index if (n := _name(calls[i].weight, probe)) is not None}
    biases = {i: named[id(calls[i].bias)] for i in index if id(calls[i].bias) in named}
    if len({*biases.values()} - {*other_names}) < len(biases):
        return NO_LINEARS  # one is used twice
    mine = tuple(n for n in other_names if n in owners.index)
    return Linears(
        len(calls), index, pairs, names, biases, weight_shapes, shapes, still, mine, timed
    )


def _name(weight: Tensor, layer: Mixer) -> str | None:
    """Name the parameter that a weight is, maybe in another shape."""

    def is_all_of(p: Tensor) -> bool:
        same = weight.data_ptr() == p.data_ptr() and weight.numel() == p.numel()
        return same and weight.is_contiguous() and p.is_contiguous()

    return next((name for name, p in layer.named_parameters() if is_all_of(p)), None)


def _random_call(layer: Mixer, steps: int) -> tuple[Tensor, State]:
    x = torch.randn(_ROWS, steps, layer.d_model, dtype=torch.float64)
    start = layer.init_state(_ROWS, device=x.device, dtype=x.dtype)
    return x, map_state(moved_state, start)


def _same_weights(first: Sequence[Given], second: Sequence[Given]) -> bool:
    """Whether two readings called the same maps, so that no weight depends on what is read."""
    return len(first) == len(second) and all(
        one.weight.equal(counterpart.weight) for one, counterpart in zip(first, second, strict=True)
    )


def _moved(
    calls: Sequence[Given],
    next_parts: Sequence[Tensor],
    owners: Owners,
    axes: Collection[tuple[int, ...]],
) -> tuple[dict[int, Tensor], frozenset[int]]:
    """The channels that maps move, and the places of maps that move nothing."""
    index: dict[int, Tensor] = {}
    still = set()
    for place, call in enumerate(calls):
        sums = [weighted(part, [call.y])[0] for part in next_parts]
        if not any(bool((s != 0).any()) for part in sums for s in part):
            still.add(place)
        elif tuple(call.y.shape[:-1]) in axes:
            channels = _channels([sums[i] for i in owners.parts], owners.channels)
            if channels is not None:
                index[place] = channels
    return index, frozenset(still)


def _pairs(
    calls: Sequence[Given],
    previous_state: State,
    next_state: State,
    index: Mapping[int, Tensor],
    parts: Sequence[int],
) -> dict[int, Tensor]:
    """Pairs of outputs where the state is one complex tensor and goes on as complex numbers do."""
    (h, *more), start = tensors(next_state), tensors(previous_state)[0]
    if more or len(parts) != 2 or not h.is_complex():
        return {}
    places = [place for place in index if len(index[place]) == 2 * h.flatten(1).shape[1]]
    inputs = [start, *(calls[place].y for place in places)]
    grads = (
        torch.autograd.grad(
            h, inputs, torch.full_like(h, unit), retain_graph=True, materialize_grads=True
        )
        for unit in (1, 1j)
    )
    (real, imag), *slopes = zip(*grads, strict=True)
    if not _close(imag, 1j * real):
        return {}
    pairs = {}
    for place, (re, im) in zip(places, slopes, strict=True):
        slope, one, two = torch.complex(re, im), *index[place].argsort(stable=True).view(-1, 2).T
        for first, second in ((one, two), (two, one)):
            same = index[place][first].equal(index[place][second])
            if same and _close(slope[..., second], 1j * slope[..., first]):
                pairs[place] = torch.stack([first, second])
    return pairs


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-9, atol=1e-14)


def _channels(sums: list[list[Tensor]], channels: int) -> Tensor | None:
    try:
        owner = owner_of(sums, channels, "an output")
    except NotDiagonalError:
        return None
    if owner is None:
        return None
    rows = owner.flatten(0, -2)
    first = rows.amax(0)
    consistent = (rows == first) | (rows < 0)
    return first.clamp(min=0) if bool(consistent.all()) else None


def _remaining_names(
    layer: Mixer, count: int, index: Mapping[int, Tensor], read: Read, steps: int
) -> list[str]:
    """Names of parameters that move the state where those maps are taken for constants."""
    parameter_ids = {id(p) for p in layer.parameters()}

    def constant(place: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if place not in index:
            return linear(x, weight, bias)
        if bias is not None and id(bias) in parameter_ids:
            bias = bias.detach()
        return linear(x, weight.detach(), bias)

    with answered(layer, count, constant):
        next_state = read(layer, *_random_call(layer, steps))
    named = dict(layer.named_parameters())
    sums = torch.stack([(part * torch.rand_like(part)).sum() for part in real_parts(next_state)])
    grads = torch.autograd.grad(
        sums.sum(), list(named.values()), allow_unused=True, materialize_grads=True
    )
    return [name for name, g in zip(named, grads, strict=True) if bool((g != 0).any())]
