"""Truncated back-propagation through time."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError
from linrnn.learn._parts.batch import Batch, read
from linrnn.learn._parts.windows import Window, Windowed
from linrnn.state import detach
from linrnn.typing import State


class TBPTT(Windowed):
    r"""Truncated back-propagation: time is cut into windows, and the state carried between them.

    Every number of the forward pass is that of the whole sequence, but for what depends on a batch
    or is random: statistics of a batch norm are those of a window, and dropout is drawn for each.
    The gradient stops where a window begins, so the activations of one window are all that is
    kept, and what a step owes to inputs before its window is not learned from. With a window at
    least as long as the sequence this is back-propagation, to the bit.

    Where a model answers once a step, each window has the loss of its steps, in proportion to
    how many are asked about. Where it answers once a sequence, a row has its loss in the window
    that it ends in. Windows in which nothing is asked are only read.

    Equation::

        dL/dtheta = sum_t sum_{s = w(t)}^{t} (dh_s/dtheta)^T (J_{s+1} ... J_t)^T dl_t/dh_t

    with w(t) the first step of the window of t, or ``overlap`` steps before it.

    Args:
        window: steps of a window; the last of a sequence may be shorter.
        overlap: steps before a window that are read once more, for gradients alone: of every
            step, at least this many before it are learned from. Costs (window + overlap) / window
            times as much.
        update: batch sums the gradients of all windows for one step of the optimiser; window
            takes one after each, with the gradient of that window's own mean. The rest of a
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
        super().__init__(window, update)
        if overlap < 0:
            raise ArgumentError(f"TBPTT: overlap must be at least 0, got {overlap}.")
        self.overlap = overlap

    def _windows(self, time: int) -> Iterator[Window]:
        for start in range(0, max(time, 1), self.window):
            stop = min(start + self.window, time)
            following = stop if stop == time else max(0, stop - self.overlap)
            yield Window(max(0, start - self.overlap), start, stop, following)

    def read_window(
        self, model: nn.Module, batch: Batch, window: Window, previous_state: State | None
    ) -> tuple[Tensor, State | None]:
        """Answer, and the state with which the next window begins to read."""
        lead, start, stop, following = window
        ends = (following, stop) if lead < following < stop else (stop,)
        states: list[State] = []
        answers, at = [], lead
        for end in ends:
            y, state = read(model, batch, states[-1] if states else previous_state, slice(at, end))
            answers.append(y)
            states.append(state)
            at = end
        y = torch.cat(answers, 1)[:, start - lead :] if y.ndim > 2 else y
        # the next may begin to read where this one did
        return y, previous_state if following == lead < stop else detach(states[0])
