"""Endless streams: a model and the state it has reached, fed whenever there is input.

A state has a fixed size, so a stream may run for ever at constant memory and constant time a step.
`Session` is one stream; `Sessions` are many that share the model and its matrix products, and are
joined, fed and dropped at any moment.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from linrnn._process.turns import Turns, in_turn
from linrnn.errors import check_kind, check_positive_int
from linrnn.streaming.files import fingerprint as fingerprint
from linrnn.streaming.files import load_read
from linrnn.streaming.files import load_stream as load_stream
from linrnn.streaming.files import save_stream as save_stream
from linrnn.streaming.input import Streamable as Streamable
from linrnn.streaming.input import as_input, as_times, check_finite, check_state, check_state_of
from linrnn.streaming.input import check_streamable as check_streamable
from linrnn.streaming.reading import CHUNK as CHUNK
from linrnn.streaming.reading import fresh as fresh
from linrnn.streaming.reading import read as read
from linrnn.streaming.sessions import Fed as Fed
from linrnn.streaming.sessions import Sessions as Sessions
from linrnn.typing import State

__all__ = [
    "CHUNK",
    "Fed",
    "Session",
    "Sessions",
    "Streamable",
    "check_streamable",
    "fingerprint",
    "fresh",
    "load_stream",
    "read",
    "save_stream",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class Session:
    """One stream: a model in evaluation mode and the state after everything fed so far.

    ``feed`` takes a step or a chunk of steps of any length and returns the outputs for them; how
    the stream is cut changes the outputs by rounding alone. Nothing but the state is kept.

    One NaN in a state would make every later output NaN. So input that is not finite, or too large
    for the model's dtype, is refused, and so is an output or a state that is not finite: `feed`
    raises, and the stream is where it was before. This costs a sum over outputs and state a call,
    and on a GPU waits for them.

    It may be fed from several threads: each call happens as a whole, before or after every other.

    Args:
        model: a causal mixer or `linrnn.SequenceModel` in evaluation mode.
        state: of one row, such as `Sessions.drop` returns. Default: nothing read yet.
        chunk: most steps computed at once; bounds the memory that a long input takes.
        growing: allow attention without a window, whose state and time a step grow with
            everything read; otherwise such a model is refused.
        allow_nonfinite: take NaN and infinity in input, output, state and files, and look for
            none.

    Raises:
        ArgumentError: the model reads backward, is in training mode, or its state grows; the state
            is of several rows or not finite.

    Example:
        >>> from linrnn import SequenceModel
        >>> session = Session(SequenceModel(1, 3, d_model=8, n_layers=1, pool="none").eval())
        >>> session.feed([[0.5], [0.25]]).shape  # two steps
        torch.Size([2, 3])
        >>> session.feed([0.125]).shape  # one step
        torch.Size([3])
        >>> session.steps
        3
    """

    def __init__(
        self,
        model: Streamable,
        *,
        state: State | None = None,
        chunk: int = CHUNK,
        growing: bool = False,
        allow_nonfinite: bool = False,
    ) -> None:
        check_positive_int("Session", chunk=chunk)
        for name, flag in (("growing", growing), ("allow_nonfinite", allow_nonfinite)):
            check_kind("Session", name, flag, bool)
        check_streamable("Session", model, growing=growing, optional=True)
        self.model, self.chunk, self.allow_nonfinite = model, chunk, allow_nonfinite
        self.steps = 0
        """Steps read by this stream, those before `load` included."""
        self._turn = Turns()
        if state is not None:
            check_state_of("Session", model, state, growing=growing)
        self.state: State = fresh(model, 1) if state is None else state
        if not allow_nonfinite:
            check_state("Session", self.state)

    @in_turn
    def feed(self, x: Any, dt: Any = None) -> Tensor:
        """Read a step or a chunk, and return what the model says to it.

        Args:
            x: one step (channels,) or a chunk (time, channels); of token ids, one integer or
                (time,). A tensor, an array or a list.
            dt: time since the step before, a number for a step, (time,) for a chunk; default: 1.
                Only where a layer is `timed`, see `linrnn.mixers.Mixer.forward`.

        Returns:
            One output (d_output,) for a step. For a chunk (time, d_output), or, of a model that
            pools over time, one (d_output,) for all that was read so far.

        Raises:
            ShapeError, DTypeError, ArgumentError: input that does not fit, by its numbers too; the
                state is unchanged.
            NonFiniteError: the outputs, or the state after them, are not finite; the state is
                unchanged.
        """
        where = "Session.feed"
        batch, single = as_input(where, self.model, x, finite=not self.allow_nonfinite)
        dt = as_times(where, self.model, dt, len(batch), single)
        dt = None if dt is None else dt[None]
        y, state = read(self.model, batch[None], self.state, chunk=self.chunk, dt=dt)
        if not self.allow_nonfinite:
            check_finite(where, y, state)
        self.state = state
        self.steps += len(batch)
        return y[0, 0] if single and y.ndim == 3 else y[0]

    @in_turn
    def save(self, path: Path | str) -> None:
        """Write the state with a description of the model it is of; see `save_stream`.

        Raises:
            NonFiniteError: the state is not finite, and that was not allowed.
            StorageError: the file cannot be written.
        """
        allow = self.allow_nonfinite
        save_stream(path, self.model, self.state, self.steps, allow_nonfinite=allow)

    @in_turn
    def load(self, path: Path | str) -> None:
        """Go on where a stream of the same model was saved; on an error nothing changes.

        Raises:
            DataError: no such file, damaged, not finite where that was not allowed, or of a newer
                linrnn.
            ArgumentError: it is the state of another model, or of several streams.
        """
        self.state, self.steps = load_read(path, self.model, self.allow_nonfinite)
