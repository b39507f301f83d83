"""Shared by the learners that read a batch window by window."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.learn._parts.base import Learner, Loop, Step
from linrnn.learn._parts.batch import Batch
from linrnn.mixers import Mixer
from linrnn.tasks import IGNORE
from linrnn.typing import State


class Windowed(Learner):
    """A learner that reads time in windows, and says in `read_window` what passes between them.

    Args:
        window: steps of a window; the last of a sequence may be shorter.
        update: batch sums the gradients of all windows for one step of the optimiser; window
            takes one after each, with the gradient of that window's own mean.

    Raises:
        ArgumentError: a window below 1.
    """

    def __init__(self, window: int, update: Literal["batch", "window"]) -> None:
        check_positive_int(type(self).__name__, window=window)
        check_in(type(self).__name__, "update", update, ("batch", "window"))
        self.window, self.update = window, update

    def check(self, model: nn.Module) -> None:
        """Raise unless every layer reads forward in time, and one document at a time."""
        check_windows(type(self).__name__, model)

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Forward and backward, window by window."""
        self.begin(model, len(batch.x), anew=carried is None)
        state, losses, pending = carried, [], False
        answers: Answers | None = None
        for window in self._windows(batch.x.shape[1]):
            if pending and self.update == "window":
                loop.update()
                pending = False
            silent = answers is not None and not answers.weight(window)
            with torch.no_grad() if silent else nullcontext():
                y, state = self.read_window(model, batch, window, state)
            answers = answers or Answers(batch, per_step=y.ndim > 2)
            outputs, target = answers.add(window, y)
            weight = answers.weight(window)
            if weight:
                loss = loop.loss(outputs, target)
                loop.backward(loss if self.update == "window" else loss * weight)
                losses.append(loss.detach() * weight)
                pending = True
            self.end_window()
        assert answers is not None
        return Step(torch.stack(losses).sum(), answers.whole(), cast(State, state))

    def begin(self, model: nn.Module, rows: int, *, anew: bool) -> None:
        """Before the first window of a batch; ``anew``: no state is carried into it."""

    def end_window(self) -> None:
        """After the gradients of a window, where any were asked."""

    @abstractmethod
    def read_window(
        self, model: nn.Module, batch: Batch, window: "Window", previous_state: State | None
    ) -> tuple[Tensor, State | None]:
        """Answer, and the state with which the next window begins to read, without a history."""

    def _windows(self, time: int) -> Iterator["Window"]:
        for start in range(0, max(time, 1), self.window):
            stop = min(start + self.window, time)
            yield Window(start, start, stop, stop)


def check_windows(where: str, model: nn.Module, instead: str = "bptt") -> None:
    """Raise unless a model can be read window by window.

    Args:
        where: who asks.
        model: whose layers are looked at.
        instead: the learner that can do without.

    Raises:
        ArgumentError: it compares documents, or a layer, which is named, reads backward.
    """
    if getattr(model, "documents", 1) > 1:
        raise ArgumentError(
            f"{where}: a model must read one sequence a row to be cut into windows, got one "
            f"that compares whole documents. Use the learner {instead}."
        )
    for name, layer in model.named_modules():
        if isinstance(layer, Mixer) and not layer.causal:
            raise ArgumentError(
                f"{where}: every layer must read forward in time to be cut into windows, got "
                f"{name} ({type(layer).__name__}), which reads in both directions. Use the "
                f"learner {instead}."
            )


class Window(NamedTuple):
    """Some steps of a sequence."""

    lead: int
    """Where reading begins."""
    start: int
    """Where what is asked begins."""
    stop: int
    following: int
    """Where the next window begins to read, which may be before this one ends."""


class Answers:
    """The targets of each window of a batch, and the answers of all windows.

    Args:
        batch: the whole.
        per_step: whether there is an answer to each step, or one to each row.
    """

    def __init__(self, batch: Batch, *, per_step: bool) -> None:
        self.batch, self.per_step = batch, per_step
        self.parts: list[Tensor] = []
        time, rows = batch.x.shape[1], len(batch.x)
        # a row is asked about at its end
        ends = [time] * rows if batch.lengths is None else batch.lengths.clamp(1).tolist()
        self.ends = torch.tensor(ends, device=batch.x.device)
        self.asked = (
            _targets(batch.target) if per_step else [ends.count(t + 1) for t in range(time)]
        )
        if not any(self.asked):
            self.asked[-1:] = [1]  # the loss is what it is of nothing, as it is without windows

    def weight(self, window: Window) -> float:
        """The share of the targets that fall into a window."""
        return sum(self.asked[window.start : window.stop]) / sum(self.asked)

    def add(self, window: Window, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return a window's answers and targets: of its steps, or of the rows that end in it."""
        target = self.batch.target
        if self.per_step:
            self.parts.append(y.detach())
            return y, target[:, window.start : window.stop]
        ending = (self.ends > window.start) & (self.ends <= window.stop)
        accumulated = self.parts.pop() if self.parts else torch.zeros_like(y)
        self.parts.append(torch.where(ending[:, None], y.detach(), accumulated))
        return (y, target) if bool(ending.all()) else (y[ending], target[ending])

    def whole(self) -> Tensor:
        """The answers to the whole batch."""
        return torch.cat(self.parts, 1) if self.per_step else self.parts[0]


def _targets(target: Tensor) -> list[int]:
    """How much each step asks about, over all rows: classes that count, or numbers."""
    if target.is_floating_point():
        return [1] * target.shape[1]
    counts = (target != IGNORE).transpose(0, 1).flatten(1).sum(1)
    return [int(n) for n in counts.tolist()]
