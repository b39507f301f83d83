"""Endless streams: a model and the state it has reached, fed whenever there is input.

A state has a fixed size, so a stream may run for ever at constant memory and constant time a step.
`Session` is one stream; `Sessions` are many that share the model and its matrix products, and are
joined, fed and dropped at any moment.
"""

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from linrnn import __version__
from linrnn import state as states
from linrnn._files.reading import reading
from linrnn._files.storage import checksum
from linrnn._options.schema import check_type
from linrnn._process.memory import check_fits
from linrnn._process.turns import Turns, in_turn
from linrnn.backbone import SequenceModel
from linrnn.compute.finite import all_finite
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    check_kind,
    check_positive_int,
    show,
)
from linrnn.streaming.input import Streamable as Streamable
from linrnn.streaming.input import (
    as_input,
    as_times,
    check_finite,
    check_path,
    check_state,
    check_state_of,
    is_tree_of,
    pools,
)
from linrnn.streaming.input import check_streamable as check_streamable
from linrnn.typing import State

CHUNK = 4096
"""Steps computed at once by default: enough to fill a processor, and few megabytes."""


_TIMES = 2  # the states before a call, and those after it
_NAME = 64  # bytes of a place that no stream has yet


class Session:
    """One stream: a model in evaluation mode and the state after everything fed so far.

    ``feed`` takes a step or a chunk of steps of any length and returns the outputs for them; how
    the stream is cut changes the outputs by rounding alone. Nothing but the state is kept.

    One NaN in a state would make every later output NaN. So input that is not finite, or too large
    for the model's dtype, is refused, and so is an output or a state that is not finite: `feed`
    raises, and the stream is where it was before. That costs a sum over outputs and state a call,
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
        check_streamable("Session", model, growing=growing)
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
        self.state, self.steps = _load_read(path, self.model, self.allow_nonfinite)


class Sessions:
    """Many streams of one model, computed together.

    Streams have names, join and leave at any moment, and are fed when they have input: a step
    each, or chunks of any lengths, of which those of equal length are computed in one call. Rows
    of a batch do not see each other, so a stream gives what it would alone, up to rounding: without
    ``capacity`` a call computes just the streams that are fed, and matrix products of other sizes
    round otherwise. With ``capacity`` every call computes that many rows and a stream keeps its
    row, so its outputs are the same bits whatever other streams do. The state of a stream that is
    not fed is never touched. What is not finite is refused as by `Session`.

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
        >>> pool = Sessions(SequenceModel(1, 3, d_model=8, n_layers=1, pool="none").eval())
        >>> pool.join("a")
        >>> pool.join("b")
        >>> {name: tuple(y.shape) for name, y in pool.feed({"a": [0.5], "b": [0.1]}).items()}
        {'a': (3,), 'b': (3,)}
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
        self._bank: State = fresh(model, capacity or 1)
        self._rows: dict[Hashable, int] = {}
        self._free = list(range(capacity or 1))[::-1]
        self._steps: dict[Hashable, int] = {}
        self._turn = Turns()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Any:
        return iter(list(self._rows))  # which may change while somebody goes through them

    def __contains__(self, name: Hashable) -> bool:
        return _hashable(name) and name in self._rows

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
        row = self._free.pop()
        states.put(self._bank, [row], state)
        self._rows[name], self._steps[name] = row, steps

    @in_turn
    def feed(
        self, inputs: Mapping[Hashable, Any], dt: Mapping[Hashable, Any] | None = None
    ) -> dict[Hashable, Tensor]:
        """Read input of some of the streams.

        Args:
            inputs: the name of a stream to what `Session.feed` takes.
            dt: the name of a stream to the times `Session.feed` takes; of others they are 1.

        Returns:
            The name to what `Session.feed` returns.

        Raises:
            ArgumentError: no such stream.
            ShapeError, DTypeError, ArgumentError: input that does not fit, by its numbers too; no
                stream has read anything then.
            NonFiniteError: the outputs of a stream, or its state after them, are not finite; no
                stream has read anything then.
        """
        check_kind("Sessions.feed", "inputs", inputs, Mapping)
        if dt is not None:
            check_kind("Sessions.feed", "dt", dt, Mapping)
        groups: dict[tuple[int, bool], list[Hashable]] = {}
        batches, times = {}, {}
        for name in (*inputs, *(dt or {})):
            self._row(name)
        for name, x in inputs.items():
            where = f"Sessions.feed: stream {name!r}"
            chunk, single = as_input(where, self.model, x, finite=not self.allow_nonfinite)
            times[name] = as_times(where, self.model, (dt or {}).get(name), len(chunk), single)
            batches[name] = chunk, single
            groups.setdefault((len(chunk), times[name] is None), []).append(name)
        outputs, next_states = {}, []
        for (_, untimed), names in groups.items():
            x = torch.stack([batches[name][0] for name in names])  # (streams, time, ...)
            gaps = None if untimed else torch.stack([cast(Tensor, times[name]) for name in names])
            y, rows, state = self._read(names, x, gaps)
            next_states.append((rows, state))
            for name, y_row in zip(names, y, strict=True):
                single = batches[name][1] and y_row.ndim == 2
                outputs[name] = y_row[0] if single else y_row
        for rows, state in next_states:  # all of them, once none has failed
            states.put(self._bank, rows, state)
        for name in inputs:
            self._steps[name] += len(batches[name][0])
        return {name: outputs[name] for name in inputs}

    @in_turn
    def state(self, name: Hashable) -> State:
        """A copy of the state of a stream, of one row."""
        return states.select(self._bank, self._row(name))

    @in_turn
    def drop(self, name: Hashable) -> State:
        """Remove a stream and return its state, with which it may join again, here or elsewhere."""
        state = self.state(name)
        self._free.append(self._rows.pop(name))
        del self._steps[name]
        return state

    def save(self, name: Hashable, path: Path | str) -> None:
        """Write the state of a stream: see `Session.save`, whose files are the same."""
        with self._turn:
            state, steps = self.state(name), self._steps[name]
        save_stream(path, self.model, state, steps, allow_nonfinite=self.allow_nonfinite)

    def load(self, name: Hashable, path: Path | str) -> None:
        """Add a stream that goes on where a saved one was: see `Session.load`."""
        state, steps = _load_read(path, self.model, self.allow_nonfinite)
        self.join(name, state, steps=steps)

    def _row(self, name: Hashable) -> int:
        _check_name("Sessions", name)
        if name not in self._rows:
            raise ArgumentError(
                f"Sessions: the name must be of a stream that has joined, got {show(name)}. "
                f"There are {len(self)}; add one with .join(name)."
            )
        return self._rows[name]

    def _make_room(self) -> None:
        """Double the rows where none is free: a stream joins in constant time on average."""
        if self._free:
            return
        rows = states.batch_size(self._bank)
        if self.capacity is not None:
            raise ArgumentError(
                f"Sessions.join: there must be at most capacity={self.capacity} streams, got one "
                "more. Drop one, or ask for a larger capacity."
            )
        rows = max(rows, len(self._rows))
        self._bank = states.concat([self._bank, fresh(self.model, rows)])
        self._free = list(range(rows, 2 * rows))[::-1]

    def _read(
        self, names: Sequence[Hashable], x: Tensor, dt: Tensor | None
    ) -> tuple[Tensor, Tensor, State]:
        """Outputs for the rows of ``x``; rows of the bank, and the states to be put there."""
        rows = torch.tensor([self._rows[name] for name in names], device=x.device)
        if self.capacity is None:
            previous_state = states.select(self._bank, rows)
            y, next_state = read(self.model, x, previous_state, chunk=self.chunk, dt=dt)
        else:
            padded = x.new_zeros(self.capacity, *x.shape[1:]).index_copy_(0, rows, x)
            if dt is not None:
                dt = dt.new_ones(self.capacity, dt.shape[1]).index_copy_(0, rows, dt)
            y, next_state = read(self.model, padded, self._bank, chunk=self.chunk, dt=dt)
            y, next_state = y[rows], states.select(next_state, rows)
        if not self.allow_nonfinite and not all_finite([y, *states.leaves(next_state)]):
            for i, name in enumerate(names):
                where = f"Sessions.feed: stream {name!r}"
                check_finite(where, y[i : i + 1], states.select(next_state, i))
        return y, rows, next_state


def _hashable(name: object) -> bool:
    try:
        hash(name)
    except TypeError:
        return False
    return True


def _check_name(where: str, name: object) -> None:
    if not _hashable(name):
        raise ArgumentTypeError(
            f"{where}: name must be hashable, as texts, numbers and tuples are, got {show(name)}."
        )


@torch.no_grad()
def fresh(model: Streamable, rows: int) -> State:
    """The state before the first step, in memory of its own, without a history of gradients."""
    return states.map_state(lambda h: h.clone(), model.init_state(rows))


@torch.no_grad()
def read(
    model: Streamable,
    x: Tensor,
    state: State,
    *,
    chunk: int = CHUNK,
    dt: Tensor | None = None,
) -> tuple[Tensor, State]:
    """``model(x, state)`` without gradients, at most ``chunk`` steps at once.

    Args:
        model: in evaluation mode.
        x: (batch, time, channels), or (batch, time) of token ids.
        state: of as many rows.
        chunk: bounds the memory a call takes; a single step is read by ``model.step``.
        dt: times between steps (batch, time), or None.

    Returns:
        ``(y, state)`` as the model's `forward` gives them.
    """
    if x.shape[1] == 1:
        times: dict[str, Any] = {} if dt is None else {"dt": dt[:, 0]}
        y, state = model.step(x[:, 0], state, **times)
        return (y if pools(model) else y[:, None]), state
    if x.shape[1] <= chunk:
        y, state = model(x, state, **({} if dt is None else {"dt": dt}))
        return y, state
    ys = []
    for i, part in enumerate(x.split(chunk, 1)):
        times = {} if dt is None else {"dt": dt[:, i * chunk :][:, :chunk]}
        y, state = model(part, state, **times)
        ys.append(y)
    return (ys[-1] if pools(model) else torch.cat(ys, 1)), state


def save_stream(
    path: Path | str,
    model: Streamable,
    state: State,
    steps: int = 0,
    pending: Sequence[int] = (),
    *,
    allow_nonfinite: bool = False,
) -> None:
    """Write a state and what says which model it is of: safetensors, no code, all or nothing.

    Args:
        path: the file, replaced if it exists.
        model: whose state it is.
        state: of any number of rows.
        steps: how many the stream has read.
        pending: tokens among those that are not in the state yet.
        allow_nonfinite: write NaN and infinity as well.

    Raises:
        NonFiniteError: the state is not finite; the file is as it was.
        StorageError: the file cannot be written; it is as it was.
    """
    check_path("save_stream", path)
    check_streamable("save_stream", model, growing=True)
    if not is_tree_of(model.init_state(1), state):
        raise ArgumentTypeError(f"save_stream: state must be one of the model, got {show(state)}.")
    check_type("save_stream", "steps and pending", tuple[int, ...], (steps, *_listed(pending)))
    header: dict[str, Any] = {"linrnn": __version__, "steps": steps, "pending": list(pending)}
    header["model"] = fingerprint(model)
    states.save(state, path, header, allow_nonfinite=allow_nonfinite)


def load_stream(
    path: Path | str, model: Streamable, *, rows: int = 1, allow_nonfinite: bool = False
) -> tuple[State, int, list[int]]:
    """Load what `save_stream` wrote: state (on the model's device), steps and pending tokens.

    Raises:
        DataError: no such file, damaged, larger than such a state can be, not finite where that is
            not allowed, or of a newer linrnn.
        ArgumentError: it is of another model, of other weights, or of another number of rows.
    """
    check_path("load_stream", path)
    check_streamable("load_stream", model, growing=True)
    check_positive_int("load_stream", rows=rows)
    header = states.read_header(path)
    ours, theirs = fingerprint(model), header.get("model")
    if theirs != ours:
        raise ArgumentError(
            f"{path}: the state must be of this model, {_describe(ours)}, got one of "
            f"{_describe(theirs)}. Start from a fresh state, or take the model it was saved with."
        )
    state = states.load(path, model.init_state(rows), allow_nonfinite=allow_nonfinite)
    if states.batch_size(state) not in (0, rows):
        raise ArgumentError(
            f"{path}: the state must have {rows} rows, got {states.batch_size(state)}."
        )
    with reading(path, DataError, "say what was read"):
        past = (header["steps"], *header["pending"])
        check_type("the header", "steps and pending", tuple[int, ...], past)
        if min(past) < 0:
            raise ValueError(f"{past[0]} steps, and {min(past)}")
    return states.to(state, device=next(model.parameters()).device), past[0], list(past[1:])


def _listed(pending: Any) -> tuple[Any, ...]:
    check_kind("save_stream", "pending", pending, list, tuple)
    return tuple(pending)


def _load_read(path: Path | str, model: Streamable, allow: bool) -> tuple[State, int]:
    """The state that has read everything, pending tokens too, and how many steps those were."""
    state, steps, pending = load_stream(path, model, allow_nonfinite=allow)
    if pending:
        tokens, _ = as_input(str(path), model, pending)
        y, state = read(model, tokens[None], state)
        if not allow:
            check_finite(str(path), y, state)
    return state, steps


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """The fingerprint of a model: its name, its size, hashes of its shapes and weights.

    Example:
        >>> from linrnn.mixers import LRU
        >>> torch.manual_seed(0) and fingerprint(LRU(4))["name"]
        'LRU'
    """
    weights = {n: p.detach().cpu() for n, p in model.state_dict().items()}
    shapes = {n: [str(p.dtype), list(p.shape)] for n, p in weights.items()}
    name = type(model).__name__
    if isinstance(model, SequenceModel):
        first = type(model.mixers[0]).__name__
        name = f"{name} of {len(model.mixers)} x {first}, width {model.d_model}"
    text = json.dumps(shapes, sort_keys=True).encode()
    return {
        "name": name,
        "parameters": sum(p.numel() for p in weights.values()),
        "shapes": hashlib.sha256(text).hexdigest(),
        "weights": checksum(weights, {}),
    }


def _describe(model: Any) -> str:
    """A fingerprint in words."""
    if not isinstance(model, dict):
        return "an unknown model"
    weights = show(model.get("weights", "?"), 12).strip("'")[:8]
    name, size = (show(model.get(key, "?"), 60).strip("'") for key in ("name", "parameters"))
    return f"{name} with {size} numbers, weights {weights}"
