"""Many streams of one model, joined, fed and dropped at any moment."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn import state as states
from linrnn._process.memory import check_fits
from linrnn._process.turns import Turns, in_turn
from linrnn.backbone import Model
from linrnn.compute.finite import all_finite
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    LinrnnError,
    NonFiniteError,
    check_kind,
    check_positive_int,
    show,
)
from linrnn.streaming.bank import Bank, hashable, repeated
from linrnn.streaming.files import load_read, load_streams, save_stream, save_streams
from linrnn.streaming.input import (
    Streamable,
    check_finite,
    check_state,
    check_state_of,
    check_streamable,
    pools,
)
from linrnn.streaming.many import Group, as_inputs
from linrnn.streaming.reading import CHUNK, fresh, read
from linrnn.typing import State

_TIMES = 2  # the states before a call, and those after it
_NAME = 64  # bytes of a place that no stream has yet


class Fed(NamedTuple):
    """The outputs of `Sessions.feed_rows`, and which streams were not fed.

    Example:
        >>> from linrnn import SequenceModel
        >>> pool = Sessions(SequenceModel(1, 3, d_model=8, n_layers=1, pool="none").eval())
        >>> pool.join("a")
        >>> fed = pool.feed_rows(["a", "b"], torch.ones(2, 1))
        >>> fed.y.shape, fed.y.isnan().any(1)
        (torch.Size([2, 3]), tensor([False,  True]))
        >>> {error.stream: type(error).__name__ for error in fed.errors.values()}
        {'b': 'ArgumentError'}
    """

    y: Tensor
    """(streams, d_output), or (streams, time, d_output) where chunks were fed; NaN in the rows of
    streams that were not, and after the last step of a chunk that is shorter than others."""
    errors: dict[int, LinrnnError]
    """The place of each stream that was not fed, to the reason, whose ``stream`` is its name."""


class _Part(NamedTuple):
    """The results of streams that were read in one call."""

    places: np.ndarray
    rows: np.ndarray
    steps: int
    y: Tensor
    state: State


class Sessions:
    """Many streams of one model, computed together.

    Streams have names, join and leave at any moment, and are fed when they have input: a step
    each, or chunks of any lengths, of which those of equal length are computed in one call. Rows
    of a batch do not see each other, so a stream gives what it would alone, up to rounding: without
    ``capacity`` a call computes just the streams that are fed, and matrix products of other sizes
    round otherwise. With ``capacity`` every call computes that many rows and a stream keeps its
    row, so its outputs are the same bits whatever other streams do, unless one of them has read as
    many steps as the model takes. The state of a stream that is not fed is never touched. What is
    not finite is refused as by `Session`.

    `feed` takes inputs by name, and feeds all of them or none. `feed_rows` takes one array for
    thousands of streams, at little more than the model costs; an input that does not fit fails its
    stream alone.

    Memory is that of the largest number of streams there were at once.

    Streams may join, be fed, saved and dropped from any number of threads: each call happens as a
    whole, before or after every other. Calls take turns, so one that feeds many streams is faster
    than many threads that feed one each.

    Args:
        model: a causal mixer or `linrnn.SequenceModel` in evaluation mode.
        capacity: the most streams at once, and the rows of every call. Default: no limit.
        chunk: most steps computed at once.
        allow_nonfinite: as of `Session`.

    Raises:
        ArgumentError: the model reads backward, is in training mode, or its state grows with
            what was read; the states of ``capacity`` streams do not fit into memory.

    Example:
        >>> from linrnn import SequenceModel
        >>> pool = Sessions(SequenceModel(1, 3, d_model=8, n_layers=1, pool="none").eval())
        >>> pool.join("a")
        >>> pool.join("b")
        >>> {name: tuple(y.shape) for name, y in pool.feed({"a": [0.5], "b": [0.1]}).items()}
        {'a': (3,), 'b': (3,)}
        >>> pool.feed_rows(["b", "a"], torch.zeros(2, 1)).y.shape
        torch.Size([2, 3])
        >>> state = pool.drop("a")
        >>> list(pool)
        ['b']
    """

    def __init__(
        self,
        model: Streamable,
        *,
        capacity: int | None = None,
        chunk: int = CHUNK,
        allow_nonfinite: bool = False,
    ) -> None:
        check_positive_int("Sessions", chunk=chunk)
        check_kind("Sessions", "allow_nonfinite", allow_nonfinite, bool)
        if capacity is not None:
            check_positive_int("Sessions", capacity=capacity)
        check_streamable("Sessions", model, growing=False)
        self.model, self.capacity, self.chunk = model, capacity, chunk
        self.allow_nonfinite = allow_nonfinite
        if capacity is not None:
            one = sum(h.numel() * h.element_size() for h in states.leaves(fresh(model, 1)))
            needed = capacity * (_TIMES * one + _NAME)
            check_fits("Sessions", f"{capacity:,} streams", needed, "Lower capacity.")
        self._bank = Bank(model, capacity or 1)
        self._turn = Turns()

    def __len__(self) -> int:
        return len(self._bank.rows)

    def __iter__(self) -> Iterator[Hashable]:
        # a list, which others may not change while somebody goes through it
        return iter(list(self._bank.rows))

    def __contains__(self, name: Hashable) -> bool:
        return hashable(name) and name in self._bank.rows

    @in_turn
    def join(self, name: Hashable, state: State | None = None, *, steps: int = 0) -> None:
        """Add a stream.

        Args:
            name: anything hashable that no other stream is called.
            state: of one row, of the same model. Default: nothing read yet.
            steps: how many it has read before, for `save`.

        Raises:
            ArgumentError: the name is taken, there is no room, or the state does not fit or is
                not finite.
        """
        if name in self:
            raise ArgumentError(
                f"Sessions.join: name must be new, got {show(name)}, which is a stream."
            )
        _check_name("Sessions.join", name)
        if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps < 2**63:
            raise ArgumentError(
                f"Sessions.join: steps must be an integer of at least 0, got {show(steps)}."
            )
        if state is None:
            state = fresh(self.model, 1)
        else:
            check_state_of("Sessions.join", self.model, state)
        if not self.allow_nonfinite:
            check_state("Sessions.join", state)
        self._make_room()
        self._bank.add(name, state, steps)

    @in_turn
    def feed(
        self, inputs: Mapping[Hashable, Any], dt: Mapping[Hashable, Any] | None = None
    ) -> dict[Hashable, Tensor]:
        """Read input of some of the streams, of all that are named or of none.

        Args:
            inputs: the name of a stream to what `Session.feed` takes.
            dt: the name of a stream to the times `Session.feed` takes; of others they are 1.

        Returns:
            The name to what `Session.feed` returns.

        Raises:
            ArgumentError: no such stream.
            ShapeError, DTypeError, ArgumentError: input that does not fit, by its numbers too; no
                stream has read anything then. The ``stream`` of the error is its name.
            NonFiniteError: the outputs of a stream, or its state after them, are not finite; no
                stream has read anything then.
        """
        check_kind("Sessions.feed", "inputs", inputs, Mapping)
        if dt is not None:
            check_kind("Sessions.feed", "dt", dt, Mapping)
        for name in dt or ():
            self._row(name)
        names = list(inputs)
        times = [dt.get(name) for name in names] if dt else None
        parts, single, errors = self._read("Sessions.feed", names, list(inputs.values()), times)
        if errors:
            raise errors[min(errors)]
        self._commit(parts)
        outputs: list[Any] = [None] * len(names)
        for part in parts:
            for place, y in zip(part.places.tolist(), part.y.unbind(0), strict=True):
                outputs[place] = y[0] if y.ndim == 2 and single[place] else y
        return dict(zip(names, outputs, strict=True))

    @in_turn
    def feed_rows(self, names: Sequence[Hashable], x: Any, dt: Any = None) -> Fed:
        """Read input of many streams that lies in one array, a row for each.

        A stream whose input does not fit is not fed, and stays where it was; all others are.

        Args:
            names: of streams, each once.
            x: (streams, channels), a step of each, or (streams, time, channels); of token ids
                (streams,) or (streams, time). A list with what `Session.feed` takes for each
                stream is taken too: chunks may then differ in length, and a wrong shape or dtype
                is an error of that stream.
            dt: times since the step before, (streams,) or (streams, time), or a list. Default: 1.

        Returns:
            Outputs, row by row, and the errors of streams that were not fed: there is no such
            stream, it is named twice, its input is not finite or not in the vocabulary, or what
            the model made of it is not finite.

        Raises:
            ShapeError, DTypeError, ArgumentError: an array that fits no stream. Nothing was fed.
        """
        where = "Sessions.feed_rows"
        if isinstance(names, np.ndarray):
            names = names.tolist()
        check_kind(where, "names", names, list, tuple)
        parts, single, errors = self._read(where, names, x, dt)
        self._commit(parts)
        return Fed(self._in_rows(len(names), parts, bool(single.all())), errors)

    @in_turn
    def state(self, name: Hashable) -> State:
        """A copy of the state of a stream, of one row."""
        return states.select(self._bank.state, self._row(name))

    @in_turn
    def steps(self, name: Hashable) -> int:
        """How many steps a stream has read, those before it joined or was loaded included."""
        return int(self._bank.steps[self._row(name)])

    @in_turn
    def drop(self, name: Hashable) -> State:
        """Remove a stream and return its state, with which it may join again, here or elsewhere."""
        state = self.state(name)
        self._bank.remove(name)
        return state

    def save(self, name: Hashable, path: Path | str) -> None:
        """Write the state of a stream: see `Session.save`, whose files are the same."""
        with self._turn:
            state, steps = self.state(name), self.steps(name)
        save_stream(path, self.model, state, steps, allow_nonfinite=self.allow_nonfinite)

    def load(self, name: Hashable, path: Path | str) -> None:
        """Add a stream that goes on where a saved one was: see `Session.load`."""
        state, steps = load_read(path, self.model, self.allow_nonfinite)
        self.join(name, state, steps=steps)

    def save_all(self, path: Path | str, *, mark: Mapping[str, Any] | None = None) -> None:
        """Write the states of all streams, whose names are texts or integers, to one file.

        Args:
            path: the file, replaced if it exists.
            mark: the `fingerprint` of the model, where somebody has taken it before.

        Raises:
            ArgumentError: a name of another type.
            NonFiniteError: a state is not finite, and that was not allowed.
            StorageError: the file cannot be written; it is as it was.
        """
        with self._turn:
            names = list(self._bank.rows)
            rows = self._bank.find(names)
            state = states.select(self._bank.state, torch.from_numpy(rows))
            steps = self._bank.steps[rows]
        allow = self.allow_nonfinite
        save_streams(path, self.model, names, state, steps, allow_nonfinite=allow, mark=mark)

    @in_turn
    def load_all(self, path: Path | str, *, mark: Mapping[str, Any] | None = None) -> None:
        """Add the streams of a file of `save_all`; on an error none is added.

        Args:
            path: the file.
            mark: as of `save_all`.

        Raises:
            DataError: no such file, damaged, not finite where that was not allowed, or of a newer
                linrnn.
            ArgumentError: it is of another model; a name is taken; there is no room.
        """
        allow = self.allow_nonfinite
        names, state, steps = load_streams(path, self.model, allow_nonfinite=allow, mark=mark)
        for name in names:
            if name in self:
                raise ArgumentError(
                    f"{path}: the names of streams must be new, got {show(name)}, which is one."
                )
        if self.capacity is not None and len(self) + len(names) > self.capacity:
            raise ArgumentError(
                f"{path}: there must be at most capacity={self.capacity} streams, got "
                f"{len(names)} more than the {len(self)} there are."
            )
        for i, (name, read_before) in enumerate(zip(names, steps, strict=True)):
            self._make_room()
            self._bank.add(name, states.select(state, slice(i, i + 1)), read_before)

    def _row(self, name: Hashable) -> int:
        _check_name("Sessions", name)
        row = self._bank.rows.get(name)
        if row is None:
            raise _of_stream(name, self._no_such(name))
        return row

    def _no_such(self, name: Hashable) -> LinrnnError:
        return ArgumentError(
            f"Sessions: the name must be of a stream that has joined, got {show(name)}. "
            f"There are {len(self)}; add one with .join(name)."
        )

    def _make_room(self) -> None:
        if not self._bank.full:
            return
        if self.capacity is not None:
            raise ArgumentError(
                f"Sessions.join: there must be at most capacity={self.capacity} streams, got one "
                "more. Drop one, or ask for a larger capacity."
            )
        self._bank.grow()

    def _read(
        self, where: str, names: Sequence[Hashable], x: Any, dt: Any
    ) -> tuple[list[_Part], np.ndarray, dict[int, LinrnnError]]:
        """Read without a change: what to commit, whether inputs are one step, and errors."""
        rows = self._bank.find(names)
        errors = self._strangers(where, names, rows)
        finite = not self.allow_nonfinite
        inputs = as_inputs(where, self.model, names, x, dt, finite=finite)
        for place, error in inputs.errors.items():
            errors.setdefault(place, error)
        fits = np.ones(len(names), bool)
        fits[list(errors)] = False
        parts: list[_Part] = []
        for group in inputs.groups:
            # inputs are put in the order of the states, which are larger
            group = group.only(fits).by(rows)
            parts += self._compute(where, names, rows, group, errors)
        for place, error in errors.items():
            _of_stream(names[place], error)
        return parts, inputs.single, errors

    def _strangers(
        self, where: str, names: Sequence[Hashable], rows: np.ndarray
    ) -> dict[int, LinrnnError]:
        """Errors of names that are of no stream, or come twice."""
        errors: dict[int, LinrnnError] = {}
        for place in (rows < 0).nonzero()[0].tolist():
            name = names[place]
            errors[place] = self._no_such(name) if hashable(name) else _no_name("Sessions", name)
        for place in repeated(rows):
            errors[place] = ArgumentError(
                f"{where}: names must each come once, got {show(names[place])} twice. Feed a chunk "
                "of several steps, or call again."
            )
        return errors

    def _compute(
        self,
        where: str,
        names: Sequence[Hashable],
        rows: np.ndarray,
        group: Group,
        errors: dict[int, LinrnnError],
    ) -> list[_Part]:
        """Outputs and next states of a group, without the streams that turn out to fail."""
        if not len(group.places):
            return []
        try:
            y, state = self._call(rows[group.places], group)
        except LinrnnError as error:  # an input beyond a limit of the model's form
            if len(group.places) == 1:
                errors[int(group.places[0])] = error
                return []
            halves = group.halves()
            parts = [self._compute(where, names, rows, half, errors) for half in halves]
            return [*parts[0], *parts[1]]
        part = _Part(group.places, rows[group.places], group.x.shape[1], y, state)
        if self.allow_nonfinite or all_finite([y, *states.leaves(state)]):
            return [part]
        return [_finite_rows(where, names, part, errors)]

    def _call(self, rows: np.ndarray, group: Group) -> tuple[Tensor, State]:
        """The model's outputs for a group, and its states after them."""
        x, dt = group.x, group.dt
        if self.capacity is None:
            return self._call_alone(rows, group)
        index = torch.from_numpy(rows).to(x.device)
        padded = x.new_zeros(self.capacity, *x.shape[1:]).index_copy_(0, index, x)
        if dt is not None:
            dt = dt.new_ones(self.capacity, dt.shape[1]).index_copy_(0, index, dt)
        try:
            y, state = read(self.model, padded, self._bank.state, chunk=self.chunk, dt=dt)
        except LinrnnError:  # a stream at a limit of the model's form, which need not be fed
            return self._call_alone(rows, group)
        return y[index], states.select(state, index)

    def _call_alone(self, rows: np.ndarray, group: Group) -> tuple[Tensor, State]:
        """The same, computed of these streams alone."""
        before = self._bank.select(rows)
        y, state = read(self.model, group.x, before, chunk=self.chunk, dt=group.dt)
        return self._bank.apart(y, state)

    def _commit(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            self._bank.put(part.rows, part.state, part.steps)

    def _in_rows(self, count: int, parts: Sequence[_Part], single: bool) -> Tensor:
        """Outputs of all streams in the order of the call."""
        pooled = pools(self.model)
        ys = [part.y[:, 0] if single and not pooled else part.y for part in parts]
        if len(parts) == 1 and np.array_equal(parts[0].places, np.arange(count)):
            return ys[0]
        weight = next(self.model.parameters())
        width = self.model.d_output if isinstance(self.model, Model) else self.model.d_model
        shape = [count, width]
        if not single and not pooled:
            shape.insert(1, max((y.shape[1] for y in ys), default=0))
        kind = ys[0] if ys else weight
        rows = kind.new_full(shape, float("nan"))
        for part, y in zip(parts, ys, strict=True):
            places = torch.from_numpy(part.places).to(y.device)
            if y.ndim == 3:
                rows[places, : y.shape[1]] = y
            else:
                rows[places] = y
        return rows


def _finite_rows(
    where: str, names: Sequence[Hashable], part: _Part, errors: dict[int, LinrnnError]
) -> _Part:
    """A part without the streams whose outputs or states are not finite."""
    fits = torch.ones(len(part.places), dtype=torch.bool, device="cpu")
    for h in (part.y, *states.leaves(part.state)):
        if h.numel():
            fits &= h.reshape(len(h), -1).isfinite().all(1).cpu()
    for i in (~fits).nonzero().flatten().tolist():
        place = int(part.places[i])
        try:
            row = states.select(part.state, i)
            check_finite(f"{where}: stream {names[place]!r}", part.y[i : i + 1], row)
        except NonFiniteError as error:
            errors[place] = error
    index, mask = fits.nonzero().flatten(), fits.numpy()
    state = states.select(part.state, index)
    y = part.y[index.to(part.y.device)]
    return part._replace(places=part.places[mask], rows=part.rows[mask], y=y, state=state)


def _of_stream(name: Hashable, error: LinrnnError) -> LinrnnError:
    error.stream = name
    return error


def _no_name(where: str, name: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{where}: name must be hashable, as texts, numbers and tuples are, got {show(name)}."
    )


def _check_name(where: str, name: object) -> None:
    if not hashable(name):
        raise _no_name(where, name)
