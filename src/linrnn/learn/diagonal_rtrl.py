"""Real-time recurrent learning of layers with channels apart."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.layout import like
from linrnn.learn._exact.owners import tensors, with_tensors
from linrnn.learn._exact.step_derivatives import Stepped, stepped
from linrnn.learn._exact.stepwise import Call, Learned
from linrnn.learn._exact.traced import Traced
from linrnn.learn._exact.traces import Layout, Traces, restarted
from linrnn.learn._parts.batch import Batch, read
from linrnn.learn._parts.windows import Window
from linrnn.mixers import Mixer
from linrnn.state import detach
from linrnn.typing import State


class DiagonalRTRL(Traced):
    r"""Real-time recurrent learning of diagonal recurrences: a step is learned from as it comes.

    Nothing of the past is kept but a trace for each row of a batch and each parameter of a
    recurrent layer, or, where parameters are shared, each pair of a number of the state and a
    parameter, so that memory and time a step do not depend on the length. The gradient is
    exact for the parameters of a recurrent layer whose output reaches the loss through no other
    recurrence, and for what follows it. In a stack it is approximate below the last recurrent
    layer: errors go down through the layers at the step at hand alone, and the encoder learns from
    that step. `chunked_rtrl` is the same with more than one step at once, and faster.

    Layers are those of `chunked_rtrl`; another is refused by name.

    Equation::

        E_t = a_t E_{t-1} + dh_t/dtheta,   dL/dtheta = sum_t dl_t/dh_t E_t

    Args:
        update: batch sums the gradients of all steps for one step of the optimiser; step takes
            one after each. Traces that were made with older weights are kept then.

    Raises:
        ArgumentError: a layer whose channels are not apart, or whose traces do not fit into memory.

    Example:
        >>> from linrnn import learn
        >>> learn.build("diagonal_rtrl", {"update": "step"}).window
        1

    Reference:
        Zucchet et al. 2023, Online learning of long-range dependencies, arXiv:2305.15947; Irie,
        Gopalakrishnan and Schmidhuber 2023, Exploring the promise and limits of real-time
        recurrent learning, arXiv:2305.19044.
    """

    def __init__(self, *, update: Literal["batch", "step"] = "batch") -> None:
        super().__init__(1, "window" if update == "step" else "batch")
        self._calls: dict[str, Call] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the calls of a window that something has ended in the middle."""
        return {**vars(self), "_calls": {}}

    def look(self, layer: Mixer) -> Layout:
        """Analyse a layer; see `stepped`."""
        return stepped(layer)

    def read_window(
        self, model: nn.Module, batch: Batch, window: Window, previous_state: State | None
    ) -> tuple[Tensor, State]:
        """Answer by steps of the layers, which learn when the gradient is computed."""
        layers = self.layers(model)
        steps = {n: z for n, z in layers if isinstance(self._known(n, z), Stepped)}
        with (
            self._answering(steps) as calls,
            self._listening([(n, z) for n, z in layers if n not in steps]) as heard,
        ):
            y, next_state = read(model, batch, previous_state, slice(window.start, window.stop))
        waiting = {n: self.traces.get(n, {}) for n in calls}
        self.traces = {**waiting, **self._advanced(layers, heard)}
        self._calls = calls
        return y, detach(next_state)

    def end_window(self) -> None:
        """Let all traces go on that wait for it."""
        calls, self._calls = self._calls, {}
        for name, call in calls.items():
            self.traces[name] = call.finish()
        self.traces = {name: traces for name, traces in self.traces.items() if traces}

    @contextmanager
    def _answering(self, layers: Mapping[str, Mixer]) -> Iterator[dict[str, Call]]:
        """Inside, layers answer by steps, which are noted down."""
        calls: dict[str, Call] = {}
        try:
            for name, layer in layers.items():
                vars(layer)["forward"] = partial(self._answer, name, layer, calls)
            yield calls
        finally:
            for layer in layers.values():
                vars(layer).pop("forward", None)

    def _answer(
        self,
        name: str,
        layer: Mixer,
        calls: dict[str, Call],
        x: Tensor,
        state: State | None = None,
        *,
        reset: Tensor | None = None,
        dt: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        layer._check_input(x, time=True)
        if reset is not None:
            layer._check_reset(reset, x)
        if x.shape[1] == 0:
            return type(layer).forward(layer, x, state, reset=reset, dt=dt)
        if state is None:
            state = layer.init_state(len(x), device=x.device)
        traces: Traces = self.traces.get(name, {})
        if reset is not None:
            ended = reset[:, 0]
            state = restarted(layer, state, ended)
            traces = {n: torch.where(like(ended, t[0]), 0, t) for n, t in traces.items()}
        layout = self._known(name, layer)
        if layout.linears.timed and dt is None:
            dt = x.new_ones(x.shape[:2])
        time = None if dt is None else dt[:, 0]
        call = calls[name] = Call(layer, layout, traces, x[:, 0].detach(), detach(state), time)
        inputs = {"x": x[:, 0], **{str(i): h for i, h in enumerate(tensors(state))}}
        inputs |= call.parameters
        y, *next_tensors = Learned.apply(call, tuple(inputs), *inputs.values())
        return y.unsqueeze(1), with_tensors(call.after, next_tensors)
