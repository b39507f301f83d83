"""Sessions of a run that reads series: inputs and answers in the units of its data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import (
    ArgumentError,
    DTypeError,
    LinrnnError,
    ShapeError,
    check_shape,
    show,
)
from linrnn.serve.limits import Limits
from linrnn.serve.metrics import Metrics
from linrnn.serve.problems import RequestError
from linrnn.serve.store import SessionStore
from linrnn.serve.worker import Order, Worker
from linrnn.streaming import Fed
from linrnn.streaming.input import as_tensor
from linrnn.train.context import Trained
from linrnn.train.scales import named
from linrnn.train.suits import no_times


@dataclass(eq=False)
class Feed(Order):
    """Sessions to feed, each once."""

    names: list[str]
    x: list[Tensor]
    """Input of each, (time, channels), (channels,), or token ids, as the model reads it."""
    dt: list[Any] | None


@dataclass(eq=False)
class Open(Order):
    """Sessions to open."""

    names: list[str]


@dataclass(eq=False)
class Call(Order):
    """Anything else that is done to a session."""

    what: str
    name: str
    data: bytes = b""


class Series:
    """A run that answers to series, and its sessions.

    Args:
        name: of the run.
        run: it.
        folder: where sessions are kept; None: they end with the process.
        limits: of the service.
        metrics: of the service.
    """

    def __init__(
        self, name: str, run: Trained, folder: Path | None, limits: Limits, metrics: Metrics
    ) -> None:
        self.name, self.run = name, run
        self._limits, self._metrics = limits, metrics
        self._task, self._weight = run.task, run.model.head.weight
        self._scales = _scales_steps(run)
        self._width = run.task.channels if self._scales else run.model.d_input
        self.store = SessionStore(run.model, folder, limits.journal)
        self.worker = Worker(self._work, f"series {name}", self.store.close)
        metrics.gauge("linrnn_sessions", lambda: len(self.store.sessions), model=name)
        metrics.gauge("linrnn_waiting", lambda: self.worker.waiting, model=name)

    def described(self) -> dict[str, Any]:
        """Describe the model for a client."""
        tokens = self._task.encoder == "tokens"
        return {
            "channels": None if tokens else self._width,
            "tokens": self._task.d_input if tokens else None,
            "scaled": self._scales or tokens,
            "dt": self.run.reads_dt,
            "kind": self._task.kind,
            "classes": list(self._task.class_names or ()),
        }

    def read(
        self, names: Sequence[Any], x: Any, dt: Any
    ) -> tuple[Feed, list[int], dict[int, LinrnnError]]:
        """Read a feed request: an order, the places of its sessions, and their errors.

        Raises:
            LinrnnError: the request as a whole makes no sense.
        """
        for what, values in (("ids", names), ("x", x), *([("dt", dt)] if dt is not None else [])):
            if not isinstance(values, list) or len(values) != len(names):
                raise RequestError(
                    400,
                    f"feed: {what} must be a list with one entry a session, got {show(values)}.",
                )
        errors: dict[int, LinrnnError] = {}
        stacked = self._stacked(x)
        order, places = Feed([], [], None if dt is None else []), []
        for i, name in enumerate(names):
            where = f"feed: session {show(name)}"
            try:
                one = self._input(where, x[i]) if stacked is None else stacked[i]
                times = None if dt is None else dt[i]
                self._check(where, name, one, times)
            except LinrnnError as error:
                errors[i] = error
                continue
            order.names.append(name)
            order.x.append(one)
            places.append(i)
            if order.dt is not None:
                order.dt.append(times)
        return order, places, errors

    def _stacked(self, x: list[Any]) -> Tensor | None:
        """All inputs at once, where they are numbers of one shape; else None."""
        if self._task.encoder == "tokens":
            return None
        try:
            numbers = np.array(x)
        except ValueError:
            return None
        if numbers.dtype.kind not in "fi" or numbers.ndim not in (2, 3) or _has_truth(x):
            return None
        if numbers.shape[-1] != self._width or numbers.shape[1] == 0:
            return None
        return self._scaled(torch.from_numpy(numbers).double())

    def _input(self, where: str, raw: Any) -> Tensor:
        """A step or a chunk of one session, as the model reads it."""
        x = as_tensor(where, raw)
        if _has_truth(raw):
            raise DTypeError(f"{where}: x must be numbers, got a truth value in {show(raw)}.")
        if self._task.encoder == "tokens":
            if x.is_floating_point():
                raise DTypeError(f"{where}: x must be integer token ids, got {show(raw)}.")
            if x.ndim > 1 or not x.numel():
                raise ShapeError(f"{where}: x must be one token or a row of them.")
            return x.long()
        axes: dict[str, int | None] = {"time": None, "channels": self._width}
        if x.ndim == 1:
            del axes["time"]
        fix = "Send one step (channels,) or a chunk (time, channels)."
        check_shape(where, "x", x.shape, axes, fix)
        if not len(x):
            raise ShapeError(f"{where}: x must hold a step, got none.")
        return self._scaled(x.double()[None])[0]

    def _scaled(self, x: Tensor) -> Tensor:
        """Inputs (streams, ..., channels) as the model reads them."""
        if not self._scales:
            return x
        rows = self._task.scaled(x.reshape(1, -1, self._width))
        return rows.reshape(*x.shape[:-1], -1).double()

    def _check(self, where: str, name: Any, x: Tensor, dt: Any) -> None:
        if not isinstance(name, str):
            raise ArgumentError(f"{where}: ids must be texts.")
        steps = 1 if x.ndim == (0 if self._task.encoder == "tokens" else 1) else len(x)
        if steps > self._limits.steps:
            raise RequestError(
                413, f"{where}: there must be at most {self._limits.steps:,} steps, got {steps:,}."
            )
        if self.run.reads_dt and dt is None:
            raise no_times(where, "Send dt, the time since the step before.")
        if _has_truth(dt):
            raise DTypeError(f"{where}: dt must be numbers, got a truth value in {show(dt)}.")

    def _work(self, orders: Sequence[Order]) -> bool:
        """Do what has arrived: feeds of different sessions in one call, all else in its turn."""
        feeds: list[Feed] = []
        fed: set[str] = set()
        for order in orders:
            if isinstance(order, Feed) and fed.isdisjoint(order.names):
                feeds.append(order)
                fed.update(order.names)
                continue
            self._feed(feeds)
            feeds, fed = [], set()
            if isinstance(order, Feed):
                feeds, fed = [order], set(order.names)
            elif isinstance(order, Open):
                self._open(order)
            elif isinstance(order, Call):
                self._call(order)
        self._feed(feeds)
        return False

    def _open(self, order: Open) -> None:
        """Open the sessions whose names are new, and say of each what became of it."""
        sessions, limit = self.store.sessions, self._limits.sessions
        answers: list[Any] = []
        names: list[str] = []
        for name in order.names:
            if name in sessions or name in names:
                answers.append(_taken(name))
            elif len(sessions) + len(names) >= limit:
                answers.append(_too_many(limit))
            else:
                names.append(name)
                answers.append({"id": name, "model": self.name, "steps": 0})
        try:
            if names:
                self.store.begin(names)
            order.done(answers)
        except Exception as error:  # noqa: BLE001 - who asked hears of it
            order.failed(error)

    def _call(self, order: Call) -> None:
        try:
            order.done(self._called(order))
        except Exception as error:  # noqa: BLE001 - who asked hears of it
            order.failed(error)

    def _called(self, order: Call) -> Any:
        store, name = self.store, order.name
        if order.what == "restore":
            if name in store.sessions:
                raise _taken(name)
            if len(store.sessions) >= self._limits.sessions:
                raise _too_many(self._limits.sessions)
            store.restore(name, order.data)
        elif name not in store.sessions:
            raise no_session(name)
        if order.what == "snapshot":
            return store.snapshot(name)
        steps = store.sessions.steps(name)
        if order.what == "close":
            store.drop(name)
        return {"id": name, "model": self.name, "steps": steps}

    def _feed(self, feeds: Sequence[Feed]) -> None:
        """One call for all, whose answers are told apart again."""
        if not feeds:
            return
        names = [name for order in feeds for name in order.names]
        x = [one for order in feeds for one in order.x]
        dt = None
        if any(order.dt is not None for order in feeds):
            dt = [t for order in feeds for t in (order.dt or [None] * len(order.names))]
        rows = [i for i, name in enumerate(names) if name in self.store.sessions]
        try:
            answers: list[Any] = [no_session(name) for name in names]
            if rows:
                times = None if dt is None else [dt[i] for i in rows]
                fed = self.store.feed([names[i] for i in rows], [x[i] for i in rows], times)
                self._answer(fed, [x[i] for i in rows], rows, answers)
        except Exception as error:  # noqa: BLE001 - all who asked hear of it
            for order in feeds:
                order.failed(error)
            return
        at = 0
        for order in feeds:
            order.done(answers[at : at + len(order.names)])
            at += len(order.names)
        self._metrics.count("linrnn_calls_total", model=self.name)
        self._metrics.count("linrnn_fed_total", len(rows), model=self.name)

    def _answer(
        self, fed: Fed, x: Sequence[Tensor], places: Sequence[int], answers: list[Any]
    ) -> None:
        """Set the answer, or the error, of each session that was fed."""
        y = fed.y  # (streams, outputs) or (streams, time, outputs)
        words = named(self._task, y.nan_to_num()) if len(fed.errors) else named(self._task, y)
        shares = None if self._task.kind == "regression" else y.double().softmax(-1).cpu().numpy()
        sizes = [len(one) if one.ndim else 1 for one in x] if y.ndim == 3 else None
        single = 0 if self._task.encoder == "tokens" else 1
        for i, place in enumerate(places):
            if i in fed.errors:
                answers[place] = fed.errors[i]
                continue
            part: Any = slice(None)
            if sizes is not None:
                part = 0 if x[i].ndim == single else slice(sizes[i])
            one = {"y": words[i][part].tolist() if sizes is not None else words[i].tolist()}
            if shares is not None:
                one["probabilities"] = shares[i][part].tolist()
            answers[place] = one


def _has_truth(value: Any, axes: int = 3) -> bool:
    """Whether a truth value of JSON is among numbers, where NumPy would read it as 0 or 1."""
    if not isinstance(value, list):
        return isinstance(value, bool)
    kinds = set(map(type, value))
    return bool in kinds or (
        axes > 0 and list in kinds and any(_has_truth(v, axes - 1) for v in value)
    )


def no_session(name: str) -> RequestError:
    """The error of an id that is of no open session."""
    return RequestError(
        404,
        f"serve: the id must be of an open session, got {show(name)}. Open it with POST /sessions.",
        "no_session",
    )


def _taken(name: str) -> RequestError:
    return RequestError(409, f"serve: the id of a session must be new, got {show(name)}.", "taken")


def _too_many(limit: int) -> RequestError:
    what = f"serve: there must be at most {limit:,} sessions, got one more. Close some."
    return RequestError(429, what, "too_many")


def _scales_steps(run: Trained) -> bool:
    """Whether single steps come in the units of the data; else as the model reads them."""
    if run.task.encoder == "tokens":
        return False
    try:
        run.task.scaled(torch.zeros(1, 1, run.task.channels, device="cpu"))
    except ArgumentError:
        return False
    return True
