"""How sequences of different lengths lie in a batch, and how a mixer reads them all."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from linrnn.errors import ArgumentError
from linrnn.mixers import Mixer
from linrnn.nn.lengths import reverse, until_next
from linrnn.state import map_state
from linrnn.typing import Signals, State


class Marks(NamedTuple):
    """Times and resets of every step; (batch, time) each, or None."""

    dt: Tensor | None = None
    """The time since the step before."""
    reset: Tensor | None = None
    """Whether a new sequence starts there."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "Marks":
        """Apply ``function`` to both."""
        return Marks(*(None if z is None else function(z) for z in self))

    def backward(self, layout: "Layout", stop: Tensor | None = None) -> "Marks":
        """For who reads backward: times until the next step, and marks where a sequence ends.

        Args:
            layout: how the sequences lie.
            stop: (batch,), where each row stops, exclusive; None is the end of the row.
        """
        # a sequence that starts at t ends, read backward, with t; the next to be read is t - 1
        ends = None
        if self.reset is not None:
            ends = F.pad(self.reset[:, 1:], (0, 1))[:, : self.reset.shape[1]]
        dt = None if self.dt is None else until_next(self.dt, stop, ends)
        return Marks(dt, ends).map(layout.reverse)

    def padded(self, places: tuple[Tensor, Tensor], shape: tuple[int, int]) -> "Marks":
        """Marks of all steps (steps,), at ``places`` of (batch, time).

        Padding starts no sequence, and takes the time of a step.
        """
        return self.map(lambda z: z.new_full(shape, z.dtype != torch.bool).index_put(places, z))

    def of(self, mixer: Mixer) -> dict[str, Tensor]:
        """The arguments of a mixer: times only where it is `timed`, and not every one has them."""
        arguments = {"dt": self.dt if mixer.timed else None, "reset": self.reset}
        return {name: z for name, z in arguments.items() if z is not None}


@runtime_checkable  # as the shape checker of the test run needs it to be
class Layout(Protocol):
    """How the sequences of a batch lie in (batch, time, channels)."""

    def reverse(self, x: Tensor) -> Tensor:
        """Every sequence read backward; its own inverse."""

    def backward(self, marks: Marks) -> Marks:
        """The marks of every sequence, for a cell that reads it backward."""

    def read(
        self, mixer: Mixer, x: Tensor, state: State | None, marks: Marks, signals: Signals | None
    ) -> tuple[Tensor, State, Signals]:
        """The mixer over every sequence, its state after the last step of each, and its signals.

        Those it is given, and makes, lie as x does; None and none are those of one without any.
        """

    def last(self, y: Tensor) -> Tensor:
        """The step of (batch, time, channels), of which there is one, that each read last."""


class Rows:
    """A sequence is a whole row."""

    def reverse(self, x: Tensor) -> Tensor:
        """See `Layout.reverse`."""
        return x.flip(1)

    def backward(self, marks: Marks) -> Marks:
        """See `Layout.backward`."""
        return marks.backward(self)

    def read(
        self, mixer: Mixer, x: Tensor, state: State | None, marks: Marks, signals: Signals | None
    ) -> tuple[Tensor, State, Signals]:
        """See `Layout.read`."""
        y, next_state, *outgoing = mixer(x, state, signals=signals, **marks.of(mixer))
        return y, next_state, outgoing[0] if outgoing else {}

    def last(self, y: Tensor) -> Tensor:
        """See `Layout.last`."""
        return y[:, -1]


class Single:
    """A sequence is a step, with a state before it and no marks."""

    _rows = Rows()

    def reverse(self, x: Tensor) -> Tensor:
        """See `Layout.reverse`."""
        return x

    def backward(self, marks: Marks) -> Marks:
        """See `Layout.backward`."""
        return marks.backward(self)

    def last(self, y: Tensor) -> Tensor:
        """See `Layout.last`."""
        return self._rows.last(y)

    def read(
        self, mixer: Mixer, x: Tensor, state: State | None, marks: Marks, signals: Signals | None
    ) -> tuple[Tensor, State, Signals]:
        """See `Layout.read`; a step may have a shorter way than a sequence of one."""
        if not mixer.causal or state is None:
            return self._rows.read(mixer, x, state, marks, signals)
        at = signals and {n: z[:, 0] if n in mixer.carries else z for n, z in signals.items()}
        y, next_state, *outgoing = mixer.step(x[:, 0], state, signals=at)
        new = {n: z[:, None] for part in outgoing for n, z in part.items()}
        return y[:, None], next_state, new


class EndTogether:
    """Padding comes first: one call reads all, and its final states are those of all."""

    def __init__(self, lengths: Tensor, time: int, device: torch.device) -> None:
        self.start = (time - lengths).to(device)
        self.reset = torch.arange(time, device=device) == self.start[:, None]

    def reverse(self, x: Tensor) -> Tensor:
        """See `Layout.reverse`."""
        return reverse(x, start=self.start)

    def backward(self, marks: Marks) -> Marks:
        """See `Layout.backward`."""
        return marks.backward(self)

    def read(
        self, mixer: Mixer, x: Tensor, state: State | None, marks: Marks, signals: Signals | None
    ) -> tuple[Tensor, State, Signals]:
        """See `Layout.read`."""
        reset = self.reset if marks.reset is None else self.reset | marks.reset
        y, next_state, *outgoing = mixer(
            x, signals=signals, **marks._replace(reset=reset).of(mixer)
        )
        return y, next_state, outgoing[0] if outgoing else {}

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

    def backward(self, marks: Marks) -> Marks:
        """See `Layout.backward`."""
        return marks.backward(self, self.lengths)

    def read(
        self, mixer: Mixer, x: Tensor, state: State | None, marks: Marks, signals: Signals | None
    ) -> tuple[Tensor, State, Signals]:
        """See `Layout.read`."""
        outputs, finished = [], []
        made_parts: list[Signals] = []
        for begin, end, rows, going_on in self.calls:
            part = marks.map(lambda z, r=rows, b=begin, e=end: z[:r, b:e])  # type: ignore[misc]
            cut = signals and {
                n: z[:rows, begin:end] if n in mixer.carries else z for n, z in signals.items()
            }
            y, next_state, *outgoing = mixer(
                x[:rows, begin:end], state, signals=cut, **part.of(mixer)
            )
            outputs.append(_with_rows(y, len(x)))
            made_parts += [{n: _with_rows(z, len(x)) for n, z in new.items()} for new in outgoing]
            finished.append(map_state(lambda h, n=going_on: h[n:], next_state))  # type: ignore[misc]
            state = map_state(lambda h, n=going_on: h[:n], next_state)  # type: ignore[misc]
        states = tree_map(lambda *h: torch.cat(h), *reversed(finished))
        names = made_parts[0] if made_parts else {}
        new = {name: torch.cat([part[name] for part in made_parts], 1) for name in names}
        return torch.cat(outputs, 1), cast(State, states), new

    def last(self, y: Tensor) -> Tensor:
        """See `Layout.last`."""
        at = self.lengths.to(y.device) - 1
        return y[torch.arange(len(y), device=y.device), at]


def _with_rows(y: Tensor, rows: int) -> Tensor:
    """Zeros below (batch, time, ...), for rows that have ended."""
    return F.pad(y, (*[0, 0] * (y.ndim - 1), 0, rows - len(y)))


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


def packed_alike(where: str, name: str, sequence: object, packed: PackedSequence) -> Tensor:
    """The data of what is packed as a sequence is.

    Raises:
        ArgumentError: it is not packed, or in another way.
    """
    kind = type(sequence).__name__
    if isinstance(sequence, PackedSequence):
        orders = (sequence.sorted_indices, packed.sorted_indices)
        same = len({x is None for x in orders}) == 1 and (
            orders[0] is None or torch.equal(*cast(tuple[Tensor, Tensor], orders))
        )
        if same and torch.equal(sequence.batch_sizes, packed.batch_sizes):
            return sequence.data
        kind = f"a PackedSequence with batch_sizes {sequence.batch_sizes.tolist()}"
    raise ArgumentError(
        f"{where}: {name} must be a PackedSequence like the input, in the same order, got {kind}. "
        "Pack both with pack_padded_sequence and the same lengths."
    )


def ends_of(output: Tensor | PackedSequence) -> tuple[Tensor, Tensor]:
    """The last and first step of what is packed or has no batch."""
    if isinstance(output, Tensor):
        return output[-1], output[0]
    data, sizes, _, back = output
    check_packed(output)
    batch = int(sizes[0])
    rows = torch.arange(batch, device=sizes.device)
    lengths = (rows < sizes[:, None]).sum(0)
    starts = F.pad(sizes.cumsum(0), (1, 0))  # where each step begins in the data
    last, first = data[(starts[lengths - 1] + rows).to(data.device)], data[:batch]
    return (last, first) if back is None else (last[back], first[back])
