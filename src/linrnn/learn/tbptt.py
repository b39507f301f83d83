"""Truncated back-propagation through time."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.learn._base import Learner, Loop, Step
from linrnn.learn._batch import Batch, read
from linrnn.mixers import Mixer
from linrnn.state import detach
from linrnn.tasks._base import IGNORE
from linrnn.typing import State


class TBPTT(Learner):
    r"""Truncated back-propagation: time is cut into windows, and the state carried between them.

    Every number of the forward pass is that of the whole sequence, but for what depends on a batch
    or is random: statistics of a batch norm are those of a window, and dropout is drawn for each.
    The gradient stops where a window begins, so the activations of one window are all that is
    kept, and what a step owes to inputs before its window is not learned from. With a window at
    least as long as the sequence this is back-propagation, to the bit.

    Where a model answers once a step, each window has the loss of its own steps, in proportion to
    how many are asked about. Where it answers once a sequence, a row has its loss in the window
    that it ends in. Windows in which nothing is asked are only read.

    Equation::

        dL/dtheta = sum_t sum_{s = w(t)}^{t} (dh_s/dtheta)^T (J_{s+1} ... J_t)^T dl_t/dh_t

    with w(t) the first step of the window of t, or ``overlap`` steps before it.

    Args:
        window: steps of a window; the last of a sequence may be shorter.
        overlap: steps before a window that are read once more, for gradients alone: of every
            step, at least so many before it are learned from. Costs (window + overlap) / window
            times as much.
        update: batch sums the gradients of all windows for one step of the optimiser; window
            takes one after each, with the gradient of that window's own mean. What is left of a
            sequence is read with the new weights then, after a state of the old ones.

    Raises:
        ArgumentError: a window below 1, an overlap below 0, or a model that does not read forward
            in time.

    Example:
        >>> from linrnn import learn
        >>> learn.build("tbptt", {"window": 128, "update": "window"}).window
        128

    Reference:
        Williams and Peng 1990, An efficient gradient-based algorithm for on-line training of
        recurrent network trajectories.
    """

    exact: ClassVar[Mapping[str, Any]] = {"window": 64}

    def __init__(
        self,
        *,
        window: int = 64,
        overlap: int = 0,
        update: Literal["batch", "window"] = "batch",
    ) -> None:
        check_positive_int("TBPTT", window=window)
        if overlap < 0:
            raise ArgumentError(f"TBPTT: overlap must be at least 0, got {overlap}.")
        check_in("TBPTT", "update", update, ("batch", "window"))
        self.window, self.overlap, self.update = window, overlap, update

    def check(self, model: nn.Module) -> None:
        """Raise unless every layer reads forward in time, and one document at a time."""
        if getattr(model, "documents", 1) > 1:
            raise ArgumentError(
                "TBPTT: a model must read one sequence a row to be cut into windows, got one that "
                "compares whole documents. Use the learner bptt."
            )
        for name, layer in model.named_modules():
            if isinstance(layer, Mixer) and not layer.causal:
                raise ArgumentError(
                    "TBPTT: every layer must read forward in time to be cut into windows, got "
                    f"{name} ({type(layer).__name__}), which reads in both directions. Use the "
                    "learner bptt."
                )

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Forward and backward, window by window."""
        state, losses, pending = carried, [], False
        answers: _Answers | None = None
        for window in self._windows(batch.x.shape[1]):
            if pending and self.update == "window":
                loop.update()
                pending = False
            silent = answers is not None and not answers.weight(window)
            with torch.no_grad() if silent else nullcontext():
                y, state = self._read(model, batch, window, state)
            answers = answers or _Answers(batch, per_step=y.ndim > 2)
            own, target = answers.add(window, y)
            weight = answers.weight(window)
            if not weight:
                continue
            loss = loop.loss(own, target)
            loop.backward(loss if self.update == "window" else loss * weight)
            losses.append(loss.detach() * weight)
            pending = True
        assert answers is not None
        return Step(torch.stack(losses).sum(), answers.whole(), cast(State, state))

    def _windows(self, time: int) -> Iterator["_Window"]:
        for start in range(0, max(time, 1), self.window):
            stop = min(start + self.window, time)
            following = stop if stop == time else max(0, stop - self.overlap)
            yield _Window(max(0, start - self.overlap), start, stop, following)

    def _read(
        self, model: nn.Module, batch: Batch, window: "_Window", before: State | None
    ) -> tuple[Tensor, State | None]:
        """Answer, and the state with which the next window begins to read."""
        lead, start, stop, following = window
        ends = (following, stop) if lead < following < stop else (stop,)
        states: list[State] = []
        answers, at = [], lead
        for end in ends:
            y, state = read(model, batch, states[-1] if states else before, slice(at, end))
            answers.append(y)
            states.append(state)
            at = end
        y = torch.cat(answers, 1)[:, start - lead :] if y.ndim > 2 else y
        # the next may begin to read where this one did
        return y, before if following == lead < stop else detach(states[0])


class _Window(NamedTuple):
    """Some steps of a sequence."""

    lead: int
    """Where reading begins."""
    start: int
    """Where what is asked begins."""
    stop: int
    following: int
    """Where the next window begins to read, which may be before this one ends."""


class _Answers:
    """What is asked of each window of a batch, and what came of all.

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
        self.asked = _asked(batch.target) if per_step else [ends.count(t + 1) for t in range(time)]
        if not any(self.asked):
            self.asked[-1:] = [1]  # the loss is what it is of nothing, as it is without windows

    def weight(self, window: _Window) -> float:
        """The part of what is asked that is asked in a window."""
        return sum(self.asked[window.start : window.stop]) / sum(self.asked)

    def add(self, window: _Window, y: Tensor) -> tuple[Tensor, Tensor]:
        """What is asked of a window: answers and targets, of its steps or of the rows that end."""
        target = self.batch.target
        if self.per_step:
            self.parts.append(y.detach())
            return y, target[:, window.start : window.stop]
        here = (self.ends > window.start) & (self.ends <= window.stop)
        whole = self.parts.pop() if self.parts else torch.zeros_like(y)
        self.parts.append(torch.where(here[:, None], y.detach(), whole))
        return (y, target) if bool(here.all()) else (y[here], target[here])

    def whole(self) -> Tensor:
        """The answers to the whole batch."""
        return torch.cat(self.parts, 1) if self.per_step else self.parts[0]


def _asked(target: Tensor) -> list[int]:
    """How much each step asks about, over all rows: classes that count, or numbers."""
    if target.is_floating_point():
        return [1] * target.shape[1]
    counts = (target != IGNORE).transpose(0, 1).flatten(1).sum(1)
    return [int(n) for n in counts.tolist()]
