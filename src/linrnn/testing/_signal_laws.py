"""The law of signals: layers that hand something to one another are a stack that keeps the laws."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError
from linrnn.mixers import Mixer
from linrnn.state import leaves
from linrnn.state_spec import Part
from linrnn.testing._mixer_runs import (
    BATCH,
    FORM_ROUNDINGS,
    TIME,
    WIDTH,
    MakeMixer,
    build,
    busy_state,
    compare,
    in_pieces,
    results,
    signal,
    stepwise,
)
from linrnn.testing._tolerance import BrokenPropertyError, check_close, check_true
from linrnn.typing import Signals, State

DEPTH = 3


def signals(make: MakeMixer) -> None:
    """Three layers with what goes between them: one pass, splits and steps, all gradients.

    What the class ``carries`` is made by the first layer alone, at each step; what it ``shares`` is
    of one part. Both are read, the state is as large as without, or smaller where the first layer
    holds what grows for all, and a layer that is not given what it receives says so. For a class
    without either, signals are an error.
    """
    alone = build(make)
    if not (alone.carries or alone.shares):
        _refused("signals of a layer that has none", lambda: alone(_x(), signals={}))
        return
    stack: Any = _Stack(make)
    x, state = _x(), busy_state(stack)
    expected = results(stack, stack, x, state)
    compare("loop of steps", results(stepwise(stack), stack, x, state), expected, FORM_ROUNDINGS)
    got = results(in_pieces(stack, 1, 7, 0, 11), stack, x, state)
    compare("split", got, expected, FORM_ROUNDINGS)
    for name in dict(stack.named_parameters()):
        grad = expected.get(f"grad {name}")
        check_true(f"{name} has no gradient", grad is not None and bool(grad.any()))
    _reset(stack, x, state)
    _first_is_alone(stack.layers[0], x)
    _read(stack, x)
    one_holds = any(None in part.axes.values() for part in alone.signal_spec().values())
    for i, layer in enumerate(stack.layers):
        sizes = [h.shape for h in leaves(layer.init_state(BATCH))]
        sizes_alone = [h.shape for h in leaves(alone.init_state(BATCH))]
        smaller = len(sizes) < len(sizes_alone) and {*sizes} <= {*sizes_alone}
        right = smaller if one_holds and i else sizes == sizes_alone
        check_true(f"the state is of {sizes}, alone of {sizes_alone}", right)


class _Stack(Mixer):
    """Layers with skips, which hand one another their signals: itself read as a layer."""

    family = "stack"

    def __init__(self, make: MakeMixer) -> None:
        super().__init__()
        first = build(make)
        self.d_model = first.d_model
        self.constant_state = first.constant_state  # type: ignore[misc]
        layers = [first if not first.shares else build(make, receives=first.shares)]
        every = (*first.carries, *first.shares)
        layers += [build(make, receives=every) for _ in range(DEPTH - 1)]
        self.layers: Any = nn.ModuleList(layers)
        self.shared = type(first).shared_part(layers) if first.shares else None
        for i, parameter in enumerate(self.parameters()):  # `build` draws the same ones each time
            parameter.data += 0.1 * signal(*parameter.shape, seed=i).to(parameter)

    def each(self, x: Tensor, states: Any, call: Callable[..., Any]) -> tuple[Tensor, State]:
        common = [{}] * DEPTH if self.shared is None else self.shared()
        carried: dict[str, Tensor] = {}
        new = []
        for layer, state, shared in zip(self.layers, states, common, strict=True):
            y, next_state, outgoing = call(layer, x, state, {**carried, **shared})
            x, carried = x + y, {**carried, **outgoing}
            new.append(next_state)
        return x, new

    def init_state(self, batch_size: int, **to: Any) -> State:
        return [layer.init_state(batch_size, **to) for layer in self.layers]

    def forward(  # type: ignore[override]
        self, x: Tensor, state: Any = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        def read(layer: Mixer, z: Tensor, state: State, incoming: Signals) -> tuple[Any, ...]:
            outputs: tuple[Any, ...] = layer(z, state, reset=reset, signals=incoming)
            return outputs

        return self.each(x, [None] * DEPTH if state is None else state, read)

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, State]:  # type: ignore[override]
        return self.each(
            x_t, state, lambda layer, z, h, incoming: layer.step(z, h, signals=incoming)
        )


def _x() -> Tensor:
    return signal(BATCH, TIME, WIDTH)


def _reset(stack: Any, x: Tensor, state: State) -> None:
    reset = torch.zeros(x.shape[:2], dtype=torch.bool)
    reset[:, 8] = True
    y, _ = stack(x, state, reset=reset)
    parts = [stack(x[:, :8], state)[0], stack(x[:, 8:])[0]]
    check_close("with a reset", y, torch.cat(parts, 1), roundings=FORM_ROUNDINGS)


def _first_is_alone(layer: Mixer, x: Tensor) -> None:
    """Check the outputs and signals of a first layer against the layer alone, also at no steps."""
    if layer.receives:
        return
    y, _, outgoing = layer(x, signals={})
    check_close("the first layer, and alone", y, layer(x)[0], roundings=0)
    spec = layer.signal_spec()
    check_true(
        f"it makes {sorted(outgoing)}, not {layer.carries}", set(outgoing) == set(layer.carries)
    )
    for steps in (x, x[:, :0]):
        for name, z in layer(steps, signals={})[2].items():
            sizes, expected = tuple(z.shape), (*steps.shape[:2], *_of_one(spec[name]))
            check_true(f"{name} is of {sizes}, not {expected}", sizes == expected)


def _read(stack: Any, x: Tensor) -> None:
    """Each signal makes a difference, at its step and no earlier, and is missed."""
    layer: Mixer = stack.layers[-1]
    common = {} if stack.shared is None else stack.shared()[-1]
    spec = layer.signal_spec()
    carried = {n: signal(*x.shape[:2], *_of_one(spec[n]), seed=5) for n in layer.carries}
    incoming = {name: z.detach().requires_grad_() for name, z in {**carried, **common}.items()}
    y, _, outgoing = layer(x, signals=incoming)
    check_true(f"a later layer makes {sorted(outgoing)}", not outgoing)
    half = TIME // 2
    for name, z in incoming.items():
        (grad,) = torch.autograd.grad(y.sum(), z, retain_graph=True)
        check_true(f"{name} makes no difference", bool(grad.any()))
        if name in layer.carries:
            (grad,) = torch.autograd.grad(y[:, :half].sum(), z, retain_graph=True)
            check_true(f"a later {name} makes a difference", not grad[:, half:].any())
        remaining = {n: s for n, s in incoming.items() if n != name}
        _refused(f"no {name}", lambda remaining=remaining: layer(x, signals=remaining))  # type: ignore[misc]
    _refused("a layer of a stack alone", lambda: layer(x))


def _of_one(part: Part) -> list[int]:
    """The sizes of a step's part, also of what has an entry for each step."""
    return [size for size in part.axes.values() if size is not None]


def _refused(what: str, attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except ArgumentError as error:
        check_true(f"{what}: message {error} has no values", "got" in str(error))
    else:
        raise BrokenPropertyError(f"{what}: must raise ArgumentError, raised nothing")
