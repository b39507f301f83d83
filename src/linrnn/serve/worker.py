"""A thread that works off what has arrived, all of it at once."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from linrnn.serve.problems import RequestError


@dataclass(eq=False)
class Order:
    """Something to be done by a worker, and the future of what comes of it."""

    future: "Future[Any]" = field(default_factory=Future, init=False)

    def done(self, result: Any) -> None:
        """Hand over the result, where somebody still waits for it."""
        if not self.future.done():
            self.future.set_result(result)

    def failed(self, error: BaseException) -> None:
        """Hand over an error."""
        if not self.future.done():
            self.future.set_exception(error)


class Worker:
    """One thread in which a model computes.

    Args:
        work: does some orders, those that have arrived since it was last called; called again
            with none while it returns True.
        name: of the thread.
        finish: called in the thread when all is done.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Any]], bool],
        name: str,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self._work, self._finish = work, finish
        self._orders: list[Any] = []
        self._changed = threading.Condition()
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Orders that nobody has looked at."""
        return len(self._orders)

    def submit(self, order: Order) -> "Future[Any]":
        """Let something be done.

        Raises:
            RequestError: the service is about to end.
        """
        with self._changed:
            if self._closing:
                raise RequestError(
                    503, "serve: the service must be running, got its end. Try again."
                )
            self._orders.append(order)
            self._changed.notify()
        return order.future

    def close(self) -> None:
        """Do what has arrived, and end.

        Raises:
            LinrnnError: what is done at the end has failed.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        busy = False
        while True:
            with self._changed:
                while not (self._orders or busy or self._closing):
                    self._changed.wait()
                orders, self._orders = self._orders, []
                ends = self._closing and not orders and not busy
            if ends:
                break
            try:
                busy = self._work(orders)
            except BaseException as error:  # noqa: BLE001 - who waits for an answer hears of it
                busy = False
                for order in orders:
                    order.failed(error)
        try:
            self._finish()
        except BaseException as error:  # noqa: BLE001 - raised where the service is closed
            self._error = error
