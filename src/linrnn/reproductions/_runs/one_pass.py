"""Gradients of rules that go step by step, of whole sequences at once, in stacks of LRUs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Learner, Loop, Step, layers, read
from linrnn.mixers.lru import LRU
from linrnn.ops import linear_scan
from linrnn.reproductions._runs.lessons import Rule
from linrnn.state import detach
from linrnn.typing import State

EXACT, ONLINE, CUT = "bptt", "diagonal_rtrl", "tbptt, window 1"
RULES: Mapping[str, Rule] = {
    EXACT: Rule(learner="bptt"),
    ONLINE: Rule(learner="diagonal_rtrl", faster=lambda: OnePass(traces=True)),
    CUT: Rule(learner="tbptt", options={"window": 1}, faster=lambda: OnePass(traces=False)),
}
"""Back-propagation, and the rules of single steps with traces and without."""
NOTES = (
    f"weights are held over a sequence: a rule sums what it finds at each step for one update. "
    f"Gradients of {ONLINE} and of {CUT} are found in one pass, in place of one a step, which is "
    "the same number but for rounding: a test compares the two in float64, to 1e-12.",
    f"{CUT} is a stack whose states are given: each step learns what it did itself, and nothing "
    "goes back in time. The states are carried, and the weights above read them.",
)


class OnePass(Learner):
    r"""The gradient that a rule of single steps has of a batch, its weights held meanwhile.

    Errors go down a stack through the layers at the step at hand alone; with traces each layer
    credits its own parameters along the whole past, without them for the step at hand. In one pass
    the first is the adjoint of a layer whose input is cut off, beside the layer without a
    recurrence, and the second the layer read from each of its states as if they were given.

    Equation::

        y_t = LRU(stop(x))_t + W x_t - stop(W x_t)          W = Re(C diag(gamma) B) + diag(D)
        y_t = LRU(x_t; stop(h_{t-1}))                       without traces

    Args:
        traces: as ``diagonal_rtrl``; without, as ``tbptt`` with a window of 1.

    Raises:
        ArgumentError: a layer that is no LRU in the form of a scan.
    """

    def __init__(self, *, traces: bool) -> None:
        self.traces = traces

    def check(self, model: nn.Module) -> None:
        """Raise unless each layer is an LRU."""
        for name, layer in layers(model):
            if not isinstance(layer, LRU) or layer.form != "scan":
                raise ArgumentError(
                    f"OnePass: every layer must be an LRU in the form of a scan, got {name} "
                    f"({type(layer).__name__}). Use diagonal_rtrl or tbptt."
                )

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """One pass forward, one backward; nothing is carried into it."""
        with self._in_place(model):
            y, next_state = read(model, batch, None)
        loss = loop.loss(y, batch.target)
        loop.backward(loss)
        return Step(loss.detach(), y.detach(), detach(next_state))

    @contextmanager
    def _in_place(self, model: nn.Module) -> Iterator[None]:
        """Inside, layers have their usual outputs and the gradients of the rule."""
        parts = (_Online() if self.traces else _Cut() for _ in layers(model))
        handles = [
            handle
            for (_, layer), part in zip(layers(model), parts, strict=True)
            for handle in (
                layer.register_forward_pre_hook(part.before),
                layer.register_forward_hook(part.after),
            )
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _Online:
    """Hooks on a layer's input and output, with traces."""

    def before(self, layer: nn.Module, args: Any) -> Any:
        self.x = args[0]
        return (self.x.detach(), *args[1:])

    def after(self, layer: Any, args: Any, output: Any) -> Any:
        y, state = output
        through = F.linear(self.x, _of_one_step(layer))  # (B, T, D)
        return y + (through - through.detach()), state


class _Cut:
    """Hooks on a layer's input and output, without: steps are rows, each with its state."""

    def before(self, layer: Any, args: Any) -> Any:
        x = args[0]
        self.shape = x.shape[:2]
        with torch.no_grad():
            b = torch.view_as_complex(layer._project_in(x))
            h, _ = linear_scan(layer.eigenvalues(), b, torch.zeros_like(b[:, 0]))  # (B, T, N)
        previous_state = F.pad(torch.view_as_real(h)[:, :-1], (0, 0, 0, 0, 1, 0))
        # (B * T, 1, D), (B * T, N)
        return x.flatten(0, 1)[:, None], torch.view_as_complex(previous_state).flatten(0, 1)

    def after(self, layer: nn.Module, args: Any, output: Any) -> Any:
        y, state = output
        # (B, T, D), (B, N)
        return y.unflatten(0, self.shape)[:, :, 0], state.unflatten(0, self.shape)[:, -1]


@torch.no_grad()
def _of_one_step(layer: Any) -> Tensor:
    """Return the matrix from a layer's input to its output in the same step."""
    B = layer.B if layer.gamma_log is None else layer.B * layer.gamma_log.exp()[:, None, None]
    response: Tensor = layer.C.flatten(1) @ B.flatten(0, 1) + torch.diag(layer.D)  # (D, D)
    return response
