"""Pieces of time that meet in states: each a function of the state that it begins with."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from linrnn.learn._exact.owners import real_parts, with_real_parts
from linrnn.learn._parts.again import drawn_again, generators
from linrnn.learn._parts.batch import Batch, read
from linrnn.learn._parts.windows import Answers, Window
from linrnn.mixers import Mixer
from linrnn.state import concat, detach, select
from linrnn.typing import State

Values = Sequence[Sequence[Tensor]]
"""For each state between two pieces, its real parts (batch, size)."""


class Heard(NamedTuple):
    """Loss, answers and states of a batch that is read in pieces."""

    loss: Tensor
    answers: Tensor
    after: list[list[Tensor]]
    """Predictions: the real parts of the state that each piece ends with, but for the last."""
    state: State
    """After the last piece."""


class Pieces:
    """A batch cut into pieces, to be read again and again with other states between them.

    Every reading draws the same random numbers and begins with the same running statistics, so
    that states alone make a difference; the model's own statistics are those of the first.

    Args:
        model: what reads.
        batch: the whole.
        carried: the state before it, without a history; None: nothing was read yet.
        window: steps of a piece; the last may be shorter.
        loss: of answers and targets, a mean.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        carried: State | None,
        window: int,
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.model, self.batch, self.carried, self.loss = model, batch, carried, loss
        time = batch.x.shape[1]
        cuts = [*range(0, time, window), time] if time else [0, 0]
        self.windows = [Window(a, a, b, b) for a, b in pairwise(cuts)]
        self._buffers = {n: b.detach().clone() for n, b in model.named_buffers()}
        self._random = generators(batch.x.device)
        self._groups = self._grouped()
        self._between: list[State] = []
        self.first = self._first()

    def _grouped(self) -> list["_Group"]:
        """Pieces that are read at once, as rows of one batch, where rows are read apart."""
        last = len(self.windows) - 1
        if not last or any(map(_mixes_rows, self.model.modules())):
            groups = [[place] for place in range(last + 1)]
        else:
            full = [p for p, w in enumerate(self.windows) if w.stop - w.start == self._size()]
            groups = [[0], full[1:], [last] if full[-1] < last else []]
        return [_Group(places, self._stacked(places)) for places in groups if places]

    def _size(self) -> int:
        return self.windows[0].stop - self.windows[0].start

    def _stacked(self, places: Sequence[int]) -> Batch:
        """The steps of some pieces, one below the other."""
        x, target, *more = zip(
            *(_steps_of(self.batch, self.windows[p]) for p in places), strict=True
        )
        lengths, reset, dt = (None if m[0] is None else torch.cat(m) for m in more)
        return Batch(torch.cat(x), torch.cat(target), lengths, reset, dt)

    def _first(self) -> Heard:
        """Read forward, each piece from where the one before ended."""
        states: list[State | None] = [self.carried]
        answers: Answers | None = None
        with torch.no_grad():
            for window in self.windows:
                steps = slice(window.start, window.stop)
                y, state = read(self.model, self.batch, states[-1], steps)
                answers = answers or Answers(self.batch, per_step=y.ndim > 2)
                answers.add(window, y)
                states.append(detach(state))
            assert answers is not None
            self._between = cast(list[State], states[1:-1])
            loss = self.loss(answers.whole(), self.batch.target)
        next_parts = [real_parts(state) for state in self._between]
        return Heard(loss, answers.whole(), next_parts, cast(State, states[-1]))

    def values(self) -> list[list[Tensor]]:
        """The states between the pieces as they were read first: new tensors that ask for grads."""
        return [
            [h.detach().clone().requires_grad_() for h in real_parts(state)]
            for state in self._between
        ]

    def gaps(self, values: Values, heard: Heard) -> list[list[Tensor]]:
        """How far each state is from its prediction; 0 where either is infinite, or a row ended."""

        def gap(h: Tensor, predicted: Tensor, counts: Tensor) -> Tensor:
            finite = h.isfinite() & predicted.isfinite()
            return torch.where(finite & counts, h - predicted, 0)

        together = zip(values, heard.after, self._counts(), strict=True)
        return [
            [gap(h, predicted, counts) for h, predicted in zip(parts, predictions, strict=True)]
            for parts, predictions, counts in together
        ]

    def _counts(self) -> list[Tensor]:
        """For each state between pieces, (batch, 1): whether the row continues after it."""
        lengths, x = self.batch.lengths, self.batch.x
        if lengths is None:
            return [torch.ones(len(x), 1, dtype=torch.bool, device=x.device)] * len(self._between)
        return [(lengths > w.stop)[:, None] for w in self.windows[:-1]]

    def read(self, values: Values) -> Heard:
        """Read each piece from the state before it that ``values`` gives."""
        buffers = {n: b.clone() for n, b in self._buffers.items()}  # that a norm changes

        def called(*args: Any, **kwargs: Any) -> Any:
            return functional_call(self.model, buffers, args, kwargs)

        with drawn_again(self.batch.x.device, self._random):
            read_ones = [one for group in self._groups for one in self._ones(called, group, values)]
        answers: Answers | None = None
        losses = []
        for window, (y, _) in zip(self.windows, read_ones, strict=True):
            answers = answers or Answers(self.batch, per_step=y.ndim > 2)
            outputs, target = answers.add(window, y)
            if weight := answers.weight(window):
                losses.append(self.loss(outputs, target) * weight)
        assert answers is not None
        next_parts = [real_parts(state) for _, state in read_ones[:-1]]
        return Heard(torch.stack(losses).sum(), answers.whole(), next_parts, read_ones[-1][1])

    def _ones(
        self, called: Callable[..., Any], group: "_Group", values: Values
    ) -> list[tuple[Tensor, State]]:
        """Answers and last states of the pieces of a group."""
        if group.places[0] == 0:
            return [read(called, group.batch, self.carried)]
        previous_states = [
            with_real_parts(self._between[p - 1], values[p - 1]) for p in group.places
        ]
        y, next_states = read(called, group.batch, concat(previous_states))
        rows = len(self.batch.x)
        starts = range(0, len(group.places) * rows, rows)
        states = [select(next_states, slice(start, start + rows)) for start in starts]
        return list(zip(y.split(rows), states, strict=True))


class _Group(NamedTuple):
    places: list[int]
    batch: Batch
    """Their steps, one below the other."""


def _steps_of(batch: Batch, window: Window) -> Batch:
    steps = slice(window.start, window.stop)
    x, target, lengths, reset, dt = batch
    if lengths is not None:
        lengths = (lengths - window.start).clamp(0, window.stop - window.start)
    reset, dt = (None if v is None else v[:, steps] for v in (reset, dt))
    return Batch(x[:, steps], target, lengths, reset, dt)


def _mixes_rows(part: nn.Module) -> bool:
    """Whether a batch of other rows would be read otherwise, or its states do not fit together."""
    if isinstance(part, Mixer):
        return part.random_training or "constant_memory" in part.declared
    random = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
    return random or isinstance(part, nn.modules.batchnorm._NormBase)
