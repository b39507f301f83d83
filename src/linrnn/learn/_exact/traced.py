"""Shared by the learners that keep a trace for each parameter of a recurrent layer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from linrnn._process.memory import check_fits
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError
from linrnn.learn._exact.linears import noted
from linrnn.learn._exact.owners import NotDiagonalError, tensors
from linrnn.learn._exact.shared import Shared, has_learned_start, owing, shared
from linrnn.learn._exact.shared import advanced as advance_shared
from linrnn.learn._exact.traces import (
    Entry,
    Graph,
    Heard,
    Layout,
    Traces,
    advanced,
    entered,
    windowed,
)
from linrnn.learn._parts.batch import Batch, read
from linrnn.learn._parts.windows import Window, Windowed
from linrnn.mixers import Mixer, added_losses
from linrnn.nn import Pool
from linrnn.state import detach
from linrnn.typing import State

_PREFIX = "trace"


class Traced(Windowed):
    """Windows between which the state of each recurrent layer goes with its traces.

    Inside a window the gradient is autograd's; where the window begins, the state depends on the
    parameters of its layer as their traces say. A subclass may have other traces: then it says
    what has to be found of a layer beforehand, what a state owes, and how traces go on.
    """

    def __init__(self, window: int, update: Literal["batch", "window"]) -> None:
        super().__init__(window, update)
        self.traces: dict[str, Traces] = {}
        self._found: WeakKeyDictionary[Mixer, Any] = WeakKeyDictionary()

    def check(self, model: nn.Module) -> None:
        """Raise unless each layer has channels apart and each step, or the last, an answer."""
        super().check(model)
        where = type(self).__name__
        check_alone(where, self.layers(model))
        for part in model.modules():
            if isinstance(part, Pool) and part.kind == "mean":
                raise ArgumentError(
                    f"{where}: pool must be 'none' or 'last', got 'mean'. A mean over time depends "
                    "on every step, and this learner has no trace for it. Use rtrl, tbptt or bptt."
                )
        for name, layer in self.layers(model):
            self._check_fits(name, layer, 1)

    def _check_fits(self, name: str, layer: Mixer, rows: int) -> None:
        """Raise unless the traces of ``rows`` rows fit into memory."""
        layout = self._known(name, layer)
        if not isinstance(layout, Shared):  # one for each parameter
            return
        stored, at_once = layout.numbers(layer)
        size = max(wide(p.new_empty(0)).element_size() for p in layer.parameters())
        check_fits(
            f"{type(self).__name__}: {name} ({type(layer).__name__})",
            f"{stored:,} traces a row, and what makes them, of {rows} rows",
            at_once * rows * size,
            "Use fewer rows or channels, or tbptt.",
        )

    def layers(self, model: nn.Module) -> list[tuple[str, Mixer]]:
        """The layers that have traces, by name."""
        return layers(model)

    def begin(self, model: nn.Module, rows: int, *, anew: bool) -> None:
        """Forget the rows that end, and those that are not in this batch."""
        if anew:
            self.traces = {}
        for name, layer in self.layers(model):
            self._check_fits(name, layer, rows)
        shapes = {
            name: self.shapes(layer, self._known(name, layer)) for name, layer in self.layers(model)
        }
        for name, traces in self.traces.items():
            for n, trace in traces.items():
                shape = shapes.get(name, {}).get(n)
                if shape is None or trace.shape[2:] != shape or trace.shape[1] < rows:
                    raise ArgumentError(
                        f"{type(self).__name__}: the traces must be of the model and of {rows} "
                        f"rows at least, got one of {name}.{n} and shape {tuple(trace.shape)}. "
                        "Is it the state of another run?"
                    )
        self.traces = {
            name: {n: t[:, :rows] for n, t in traces.items()}
            for name, traces in self.traces.items()
        }

    def read_window(
        self, model: nn.Module, batch: Batch, window: Window, previous_state: State | None
    ) -> tuple[Tensor, State]:
        """Answer with states that go with their traces, and let the traces go on."""
        layers = self.layers(model)
        with self._listening(layers) as heard:
            y, next_state = read(model, batch, previous_state, slice(window.start, window.stop))
        self.traces = self._advanced(layers, heard)
        return y, detach(next_state)

    def _advanced(
        self, layers: list[tuple[str, Mixer]], heard: Mapping[str, Heard]
    ) -> dict[str, Traces]:
        """The traces after a window of those layers that were heard in it."""
        new: dict[str, Traces] = {}
        for name, layer in layers:
            if name in heard:
                layout, traces = self._known(name, layer), self.traces.get(name, {})
                new[name] = self.advance(layer, layout, traces, heard[name])
        return {name: traces for name, traces in new.items() if traces}

    def find(self, name: str, layer: Mixer) -> Any:
        """Analyse a layer, once.

        Raises:
            ArgumentError: it cannot have such traces.
        """
        where = f"{type(self).__name__}: "
        try:
            if not has_learned_start(layer):  # which moves the state before the first window
                with suppress(NotDiagonalError):
                    return self.look(layer)
            return shared(where + name, layer)
        except NotDiagonalError as error:
            raise ArgumentError(
                f"{where}every layer must have channels apart, got {name} "
                f"({type(layer).__name__}), {error}. Use tbptt, snap, or rtrl where the model is "
                "small."
            ) from None

    def look(self, layer: Mixer) -> Layout:
        """Find the parameters and linear maps that move each channel of a layer."""
        return windowed(layer)

    def shapes(self, layer: Mixer, layout: Any) -> Mapping[str, torch.Size]:
        """The shapes of the parameters and weights of which a layer may have traces, by name."""
        named = {n: p.shape for n, p in layer.named_parameters()}
        if not isinstance(layout, Layout):
            return named
        return {n: shape for n, shape in {**named, **layout.shapes}.items() if n in layout.index}

    def owing(self, layer: Mixer, layout: Any, traces: Traces, state: State) -> Entry:
        """A state of a layer that depends on the layer's parameters as its traces say."""
        if isinstance(layout, Shared):
            return Entry(owing(layer, layout, traces, state))
        return entered(layer, layout, traces, state)

    def advance(self, layer: Mixer, layout: Any, traces: Traces, heard: Heard) -> Traces:
        """The traces after a window."""
        if isinstance(layout, Shared):
            return advance_shared(layer, layout, traces, heard)
        return advanced(layer, layout, traces, heard)

    def _known(self, name: str, layer: Mixer) -> Any:
        if layer not in self._found:
            with added_losses():  # those of looking at it are nobody's
                self._found[layer] = self.find(name, layer)
        return self._found[layer]

    @contextmanager
    def _listening(self, layers: list[tuple[str, Mixer]]) -> Iterator[dict[str, Heard]]:
        """Inside, what each layer is given is noted down, and its state goes with its traces."""
        heard: dict[str, Heard] = {}
        with ExitStack() as handles:
            for name, layer in layers:
                listener = self._listener(name, layer, heard)
                for handle in (
                    layer.register_forward_pre_hook(listener.before, with_kwargs=True),
                    layer.register_forward_hook(listener.after, always_call=True),
                ):
                    handles.callback(handle.remove)
            yield heard

    def _listener(self, name: str, layer: Mixer, heard: dict[str, Heard]) -> "_Listener":
        layout, traces = self._known(name, layer), self.traces.get(name, {})
        timed = isinstance(layout, Layout) and layout.linears.timed
        return _Listener(name, heard, partial(self.owing, layer, layout, traces), timed)

    def state_dict(self) -> dict[str, Tensor]:
        """The traces of every layer, by its name and that of the parameter."""
        return {
            f"{_PREFIX}/{name}/{n}": trace
            for name, traces in self.traces.items()
            for n, trace in traces.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the traces that `state_dict` gave."""
        new: dict[str, Traces] = {}
        for key, trace in state.items():
            prefix, *names = key.split("/")
            if prefix != _PREFIX or len(names) != 2 or trace.ndim < 2:
                raise ArgumentError(
                    f"{type(self).__name__}: the learner's state must be traces of layers, got "
                    f"{key!r}. Is it that of another learner?"
                )
            new.setdefault(names[0], {})[names[1]] = trace
        self.traces = new


class _Listener:
    """Hooks of a layer that note down what it was given, and the graph of what it did."""

    def __init__(
        self, name: str, heard: dict[str, Heard], start: Callable[[State], Entry], timed: bool
    ) -> None:
        self.name, self.heard, self.start, self.timed = name, heard, start, timed
        self.noting = ExitStack()

    def before(self, layer: Mixer, args: Any, kwargs: dict[str, Any]) -> Any:
        """The arguments, with a state that goes with its traces."""
        x, state = args[0], args[1] if len(args) > 1 else kwargs.get("state")
        fresh = state is None
        if state is None:
            state = layer.init_state(len(x), device=x.device)
        if self.timed and kwargs.get("dt") is None:
            kwargs = {**kwargs, "dt": x.new_ones(x.shape[:2])}
        more = {n: kwargs[n] for n in ("reset", "dt") if kwargs.get(n) is not None}
        entry = self.start(state)
        reading = Heard(x.detach(), detach(state), more, last=entry.last, fresh=fresh)
        if entry.gate is not None:
            calls = self.noting.enter_context(noted(entry.weights))
            reading = reading._replace(graph=Graph(calls, tensors(entry.state), [], entry.gate))
        self.heard[self.name] = reading
        return (x, entry.state), {n: v for n, v in kwargs.items() if n != "state"}

    def after(self, layer: Mixer, args: Any, result: Any) -> None:
        """Stop noting, also where the layer raised an error."""
        self.noting.close()
        reading = self.heard.get(self.name)
        if reading is not None and result is not None:
            graph = reading.graph._replace(after=tensors(result[1]))
            self.heard[self.name] = reading._replace(graph=graph)
            if reading.last is not None:
                reading.last.watch(*result)


def check_alone(where: str, layers: list[tuple[str, Mixer]]) -> None:
    """Raise `ArgumentError` unless each layer is a function of its input and parameters alone.

    Credit that goes from one layer to another beside the stream, or to parameters that several have
    in common, is no part of what a layer keeps traces of.
    """
    for name, layer in layers:
        if layer.receives:
            raise ArgumentError(
                f"{where}: every layer must read nothing but the layer before it, got {name} "
                f"({type(layer).__name__}), which receives {', '.join(layer.receives)}. Use rtrl, "
                "tbptt or bptt, or the mixer's option that leaves these out."
            )


def check_no_draws(where: str, name: str, layer: Mixer) -> None:
    """Raise `ArgumentError` for a layer that draws random numbers in training.

    A rule that computes a step once more for its derivatives would compute it of other draws.
    """
    if layer.training and layer.random_training:
        raise ArgumentError(
            f"{where}: no layer must draw random numbers in training, got {name} "
            f"({type(layer).__name__}). Use rtrl or tbptt."
        )


def layers(model: nn.Module) -> list[tuple[str, Mixer]]:
    """Every mixer that is in no other, by name."""
    mixers: list[tuple[str, Mixer]] = []
    for name, layer in model.named_modules():
        inside = any(outer == "" or name.startswith(f"{outer}.") for outer, _ in mixers)
        if isinstance(layer, Mixer) and not inside:
            mixers.append((name, layer))
    return mixers
