"""How sequences of different lengths lie in a batch, and how a mixer reads them all."""

from typing import Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from linrnn.errors import ArgumentError
from linrnn.mixers._base import Mixer
from linrnn.mixers._bidirectional import reverse, until_next
from linrnn.state import map_state
from linrnn.typing import State


@runtime_checkable  # as the shape checker of the test run needs it to be
class Layout(Protocol):
    """How the sequences of a batch lie in (batch, time, channels)."""

    def reverse(self, x: Tensor) -> Tensor:
        """Every sequence read backward; its own inverse."""

    def reverse_times(self, dt: Tensor) -> Tensor:
        """The times between the steps (batch, time) of every sequence read backward."""

    def read(
        self, mixer: Mixer, x: Tensor, state: State | None, dt: Tensor | None
    ) -> tuple[Tensor, State]:
        """The mixer over every sequence, and its state after the last step of each."""

    def last(self, y: Tensor) -> Tensor:
        """The step of (batch, time, channels), of which there is one, that each read last."""


class Rows:
    """A sequence is a whole row."""

    def reverse(self, x: Tensor) -> Tensor:
        """See `Layout.reverse`."""
        return x.flip(1)

    def reverse_times(self, dt: Tensor) -> Tensor:
        """See `Layout.reverse_times`."""
        return self.reverse(until_next(dt))

    def read(
        self, mixer: Mixer, x: Tensor, state: State | None, dt: Tensor | None
    ) -> tuple[Tensor, State]:
        """See `Layout.read`."""
        y, after = mixer(x, state, **_given(dt))
        return y, after

    def last(self, y: Tensor) -> Tensor:
        """See `Layout.last`."""
        return y[:, -1]


class EndTogether:
    """Padding comes first: one call reads all, and its final states are those of all."""

    def __init__(self, lengths: Tensor, time: int, device: torch.device) -> None:
        self.start = (time - lengths).to(device)
        self.reset = torch.arange(time, device=device) == self.start[:, None]

    def reverse(self, x: Tensor) -> Tensor:
        """See `Layout.reverse`."""
        return reverse(x, start=self.start)

    def reverse_times(self, dt: Tensor) -> Tensor:
        """See `Layout.reverse_times`."""
        return self.reverse(until_next(dt))

    def read(
        self, mixer: Mixer, x: Tensor, state: State | None, dt: Tensor | None
    ) -> tuple[Tensor, State]:
        """See `Layout.read`."""
        y, after = mixer(x, reset=self.reset, **_given(dt))
        return y, after

    def last(self, y: Tensor) -> Tensor:
        """See `Layout.last`."""
        return y[:, -1]


class Shrinking:
    """Padding comes last, rows from long to short: each call reads up to the next one's end."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths
        ends = lengths.unique().tolist()
        alive = [int((lengths >= end).sum()) for end in ends]
        self.calls = list(zip([0, *ends[:-1]], ends, alive, [*alive[1:], 0], strict=True))

    def reverse(self, x: Tensor) -> Tensor:
        """See `Layout.reverse`."""
        return reverse(x, self.lengths)

    def reverse_times(self, dt: Tensor) -> Tensor:
        """See `Layout.reverse_times`."""
        return self.reverse(until_next(dt, self.lengths))

    def read(
        self, mixer: Mixer, x: Tensor, state: State | None, dt: Tensor | None
    ) -> tuple[Tensor, State]:
        """See `Layout.read`."""
        outputs, finished = [], []
        for begin, end, rows, going_on in self.calls:
            times = None if dt is None else dt[:rows, begin:end]
            y, after = mixer(x[:rows, begin:end], state, **_given(times))
            outputs.append(F.pad(y, (0, 0, 0, 0, 0, len(x) - rows)))
            finished.append(map_state(lambda h, n=going_on: h[n:], after))  # type: ignore[misc]
            state = map_state(lambda h, n=going_on: h[:n], after)  # type: ignore[misc]
        states = tree_map(lambda *h: torch.cat(h), *reversed(finished))
        return torch.cat(outputs, 1), cast(State, states)

    def last(self, y: Tensor) -> Tensor:
        """See `Layout.last`."""
        at = self.lengths.to(y.device) - 1
        return y[torch.arange(len(y), device=y.device), at]


def _given(dt: Tensor | None) -> dict[str, Tensor]:
    """As an argument: not every mixer has it."""
    return {} if dt is None else {"dt": dt}


def check_packed(packed: PackedSequence) -> None:
    """Raise `ArgumentError` unless every sequence has a step and all steps are there."""
    sizes, order = packed.batch_sizes, packed.sorted_indices
    fits = len(sizes) > 0 and bool((sizes > 0).all()) and bool((sizes.diff() <= 0).all())
    if not fits or int(sizes.sum()) != len(packed.data):
        raise ArgumentError(
            "PackedSequence: batch_sizes must be positive, never grow and sum up to the "
            f"{len(packed.data)} steps there are, got {sizes.tolist()}. "
            "Pack with torch.nn.utils.rnn.pack_padded_sequence."
        )
    if order is not None and len(order) != int(sizes[0]):
        raise ArgumentError(
            "PackedSequence: every sequence must have at least one step, got "
            f"{len(order)} sequences of which {int(sizes[0])} have a first one. "
            "Leave empty sequences out."
        )


def packed_alike(where: str, name: str, given: object, packed: PackedSequence) -> Tensor:
    """The data of what is packed as a sequence is.

    Raises:
        ArgumentError: it is not packed, or in another way.
    """
    kind = type(given).__name__
    if isinstance(given, PackedSequence):
        orders = (given.sorted_indices, packed.sorted_indices)
        same = len({x is None for x in orders}) == 1 and (
            orders[0] is None or torch.equal(*cast(tuple[Tensor, Tensor], orders))
        )
        if same and torch.equal(given.batch_sizes, packed.batch_sizes):
            return given.data
        kind = f"a PackedSequence with batch_sizes {given.batch_sizes.tolist()}"
    raise ArgumentError(
        f"{where}: {name} must be a PackedSequence like the input, in the same order, got {kind}. "
        "Pack both with pack_padded_sequence and the same lengths."
    )
