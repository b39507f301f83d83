"""Bytes and characters: vocabularies that need no library."""

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from linrnn.errors import ArgumentError, DataError
from linrnn.tokenizers._base import Stream, Tokenizer, as_bytes, as_text
from linrnn.typing import Integer


class ByteStream(Stream):
    """Decodes bytes; the standard library knows when a character is complete.

    Args:
        bytes_of: the bytes of some ids.
    """

    def __init__(self, bytes_of: Callable[[Sequence[int]], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        return self._decoder.decode(self._bytes_of([token]))

    def close(self) -> str:
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text


class ByteTokenizer(Tokenizer):
    """Every byte is a token: 256 of them, and nothing is unknown.

    Example:
        >>> ByteTokenizer().encode("hé").tolist()
        [104, 195, 169]
        >>> ByteTokenizer().decode([104, 195, 169])
        'hé'
    """

    kind: ClassVar[str] = "byte"
    vocabulary_size = 256

    def encode(
        self, text: str | bytes, *, where: str = "encode", offset: int = 0
    ) -> Integer[np.ndarray, " time"]:
        """A string's bytes in UTF-8; surrogate escapes become the bytes they encode."""
        return np.frombuffer(as_bytes(text, where, offset), np.uint8)

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " time"]) -> str:
        """The bytes read as UTF-8."""
        return self._bytes(ids).decode(errors="replace")

    def _bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        return self._check_ids(ids).astype(np.uint8).tobytes()

    def stream(self) -> Stream:
        """Return a stream that decodes ids as they arrive."""
        return ByteStream(self._bytes)

    def _parameters(self) -> dict[str, Any]:
        return {}


class CharTokenizer(Tokenizer):
    """Every character is a token.

    Args:
        characters: the vocabulary; its order does not matter, for ids go by code point.

    Raises:
        ArgumentError: no characters, or half of one.

    Example:
        >>> CharTokenizer("abc").encode("cab").tolist()
        [2, 0, 1]
    """

    kind: ClassVar[str] = "char"

    def __init__(self, characters: Iterable[str]) -> None:
        self._points = np.array(sorted({ord(c) for c in characters}), np.uint32)
        self.vocabulary_size = len(self._points)
        if not self.vocabulary_size:
            raise ArgumentError("CharTokenizer: characters must hold at least one, got none.")
        halves = self._points[(self._points >= 0xD800) & (self._points <= 0xDFFF)]
        if len(halves):
            raise ArgumentError(
                f"CharTokenizer: characters must be whole, got U+{halves[0]:04X}, half of a pair "
                "of UTF-16. Leave it out, or take the tokenizer byte."
            )

    def encode(
        self, text: str | bytes, *, where: str = "encode", offset: int = 0
    ) -> Integer[np.ndarray, " time"]:
        """The place of each character in the vocabulary."""
        came_as_bytes = isinstance(text, bytes)
        text = as_text(text, where, offset)
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        ids = np.searchsorted(self._points, points).clip(max=self.vocabulary_size - 1)
        unknown = np.flatnonzero(self._points[ids] != points)
        if len(unknown):
            first = int(unknown[0])
            place = f"character {offset + first}"
            if came_as_bytes:
                place = f"byte {offset + len(text[:first].encode())}"
            raise DataError(
                f"{where}: text must hold characters of the vocabulary only, got {text[first]!r} "
                f"(U+{ord(text[first]):04X}) at {place}. The tokenizer byte takes any text."
            )
        return ids.astype(self.dtype)

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " time"]) -> str:
        """The characters."""
        points: np.ndarray = self._points[self._check_ids(ids)]
        return points.astype("<u4").tobytes().decode("utf-32-le")

    def _parameters(self) -> dict[str, Any]:
        return {"characters": "".join(map(chr, self._points.tolist()))}
