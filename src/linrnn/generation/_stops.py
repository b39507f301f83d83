"""Texts that end before a string."""

from collections.abc import Iterator, Sequence
from typing import Any

from linrnn.errors import ArgumentError, show


class StopText:
    """A text that comes in pieces and ends before the first of some strings.

    What may begin one of them is held back until it is certain.

    Args:
        stop: the strings.

    Example:
        >>> text = StopText(["END"])
        >>> text.feed("an E"), text.feed("EN"), text.feed("D, and more"), text.ended
        ('an ', 'E', '', True)
    """

    def __init__(self, stop: Sequence[str]) -> None:
        check_stop(stop)
        self._stop, self._held = stop, ""
        self.ended = False
        """Whether one of the strings has come."""

    def feed(self, piece: str) -> str:
        """The text that is certain now and was not before."""
        self._held += piece
        ends = [place for s in self._stop if (place := self._held.find(s)) >= 0]
        if ends:
            self.ended = True
            return self._release(min(ends))
        return self._release(
            len(self._held) - max((_overlap(self._held, s) for s in self._stop), default=0)
        )

    def close(self) -> str:
        """The text that was held back, where none of the strings has come."""
        return "" if self.ended else self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text


def until(pieces: Iterator[str], stop: Sequence[str]) -> Iterator[str]:
    """The text before the first stop string; what may begin one is held back."""
    text = StopText(stop)
    for piece in pieces:
        if certain := text.feed(piece):
            yield certain
        if text.ended:
            return
    if last := text.close():
        yield last


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with."""
    return next((n for n in range(min(len(text), len(stop)), 0, -1) if text.endswith(stop[:n])), 0)


def check_stop(stop: Any) -> None:
    """Raise `ArgumentError` unless these are strings with text."""
    listed = isinstance(stop, (list, tuple))
    if not listed or not all(isinstance(text, str) and text for text in stop):
        raise ArgumentError(
            f"generate: stop must be a list of strings with text, got {show(stop)}."
        )
