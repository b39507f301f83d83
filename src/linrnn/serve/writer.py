"""A language model that writes many texts at once; texts begin and end at any token."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from linrnn.generation import Sampling, StopText, TokenStream, check_tokenizer, generator_of
from linrnn.serve.limits import Limits
from linrnn.serve.metrics import Metrics
from linrnn.serve.problems import RequestError
from linrnn.serve.worker import Order, Worker
from linrnn.streaming import Sessions
from linrnn.train.context import Trained


def _unheard(piece: str) -> None:
    """Nobody reads the pieces of a text."""


@dataclass(eq=False)
class Text(Order):
    """A text to write after a prompt."""

    prompt: Sequence[int]
    count: int
    """Tokens at most."""
    sampling: Sampling
    seed: int | None
    stop: Sequence[str]
    deadline: float
    """Time by the clock of `time.monotonic`."""
    said: Callable[[str], None] = _unheard
    """Called in the writer's thread with each piece of the text."""
    cancelled: bool = False
    """Set where nobody reads the text any more."""
    made: int = field(default=0, init=False)
    """Tokens so far."""


class _Row:
    """A text that is being written."""

    def __init__(self, order: Text, stream: TokenStream, decoder: Any) -> None:
        assert stream.last is not None
        self.order, self.last, self._decoder = order, stream.last, decoder
        self._generator = generator_of(order.seed)
        self._end = StopText(order.stop)

    def take(self, logits: torch.Tensor) -> str | None:
        """Draw the next token, say what is certain, and return why the text ends, if it does."""
        order = self.order
        self.last = order.sampling.draw(logits, self._generator)
        order.made += 1
        self._say(self._end.feed(self._decoder.feed(self.last)))
        if self._end.ended:
            return "stop"
        if order.made < order.count:
            return None
        self._say(self._end.feed(self._decoder.close()))
        self._say(self._end.close())
        return "stop" if self._end.ended else "length"

    def _say(self, piece: str) -> None:
        if piece:
            self.order.said(piece)


class Writer:
    """A run of a language model that writes.

    A prompt is read on its own, then its text is a row of a batch that makes a token of each text
    at a time. Rows do not see each other.

    Args:
        name: of the run.
        run: it.
        limits: of the service.
        metrics: of the service.
    """

    def __init__(self, name: str, run: Trained, limits: Limits, metrics: Metrics) -> None:
        self.name, self.run = name, run
        self.tokenizer = cast(Any, run.task.tokenizer)
        check_tokenizer(TokenStream(run.layers), self.tokenizer)
        self._limits, self._metrics = limits, metrics
        self._sessions = Sessions(run.model)
        self._rows: dict[int, _Row] = {}
        self._waiting: list[Text] = []
        self._next = 0
        self.worker = Worker(self._work, f"writer {name}")
        metrics.gauge("linrnn_texts", lambda: len(self._rows), model=name)
        metrics.gauge("linrnn_waiting", self._count_waiting, model=name)

    def _count_waiting(self) -> int:
        return len(self._waiting) + self.worker.waiting

    def _work(self, orders: Sequence[Text]) -> bool:
        """Begin what may begin, and make a token of each text."""
        self._waiting += orders
        try:
            if self._waiting and len(self._rows) < self._limits.rows:
                # one prompt between two tokens, so that the other texts go on
                self._begin(self._waiting.pop(0))
            self._step()
        except BaseException as error:
            self._fail(error)
            raise
        return bool(self._waiting or self._rows)

    def _fail(self, error: BaseException) -> None:
        for order in [row.order for row in self._rows.values()] + self._waiting:
            order.failed(error)
        for name in list(self._rows):
            self._end(name)
        self._waiting = []

    def _begin(self, order: Text) -> None:
        try:
            if _over(order):
                return
            stream = TokenStream(self.run.layers)
            stream.read(torch.tensor(order.prompt, dtype=torch.long, device="cpu"))
            if not order.count:
                order.done("length")
                return
            row = _Row(order, stream, self.tokenizer.stream())
            self._sessions.join(self._next, stream.state)
        except Exception as error:  # noqa: BLE001 - who asked hears of it, and nobody else
            order.failed(error)
            return
        self._rows[self._next] = row
        self._next += 1
        self._metrics.count("linrnn_prompt_tokens_total", len(order.prompt), model=self.name)

    def _step(self) -> None:
        for name in [name for name, row in self._rows.items() if _over(row.order)]:
            self._end(name)
        names = list(self._rows)
        if not names:
            return
        last = torch.tensor([self._rows[name].last for name in names], device="cpu")
        fed = self._sessions.feed_rows(names, last)
        for i, name in enumerate(names):
            row = self._rows[name]
            try:
                if i in fed.errors:
                    raise fed.errors[i]
                reason = row.take(fed.y[i])
            except Exception as error:  # noqa: BLE001 - who asked hears of it, and nobody else
                row.order.failed(error)
                self._end(name)
                continue
            if reason is not None:
                row.order.done(reason)
                self._end(name)
        self._metrics.count("linrnn_calls_total", model=self.name)
        self._metrics.count("linrnn_new_tokens_total", len(names), model=self.name)

    def _end(self, name: int) -> None:
        del self._rows[name]
        self._sessions.drop(name)


def _over(order: Text) -> bool:
    """Whether nobody waits for a text any more, or has waited for too long."""
    if order.cancelled:
        order.done("cancelled")
        return True
    if time.monotonic() > order.deadline:
        order.failed(
            RequestError(
                504, f"serve: the text must be written in time, got {order.made} tokens.", "timeout"
            )
        )
        return True
    return False
