"""The interface of tokenizers, and the sizes that they keep to."""

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from linrnn.errors import ArgumentError, DataError, DTypeError, check_kind, show
from linrnn.typing import Integer

MAX_PAIRS = 1 << 20
"""Tokens of byte-pair encoding at most: memory for all is taken before the first is found."""

FORMAT = 1
"""Version of the JSON form."""


class Tokenizer(ABC):
    """Text to token ids and back.

    Attributes:
        kind: ``byte``, ``char`` or ``bpe``, the last also for any file of the library;
            ``world``, of RWKV, or ``word``.
        vocabulary_size: ids are below it.
    """

    kind: ClassVar[str]
    vocabulary_size: int

    @abstractmethod
    def encode(
        self, text: str | bytes, *, where: str = "encode", offset: int = 0
    ) -> Integer[np.ndarray, " time"]:
        """The ids of a text, in the smallest unsigned type that holds the vocabulary.

        Args:
            text: a string, or its UTF-8 bytes.
            where, offset: whence the text is, and bytes before it there, for the message.

        Raises:
            DataError: bytes that are no UTF-8, or a character outside the vocabulary; the text
                says where.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " time"]) -> str:
        """The text of some ids; bytes that are no UTF-8 become U+FFFD.

        Raises:
            ArgumentError: an id is not below ``vocabulary_size``.
        """

    def stream(self) -> "Stream":
        """Return a stream that decodes ids as they arrive."""
        return WholeStream(self)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest of uint8, uint16 and uint32 that holds every id."""
        return np.min_scalar_type(self.vocabulary_size - 1)

    @abstractmethod
    def _parameters(self) -> dict[str, Any]:
        """Return the entries of the JSON form other than the kind."""

    def to_json(self) -> str:
        """Everything `from_json` needs, as text that is the same for equal tokenizers."""
        record = {"format": FORMAT, "kind": self.kind, **self._parameters()}
        return json.dumps(record, ensure_ascii=False, sort_keys=True) + "\n"

    def _check_ids(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        try:
            array = np.asarray(ids).reshape(-1)
        except ValueError:  # rows of several lengths
            array = np.array([None])
        if array.size and array.dtype.kind not in "iu":  # a fraction would be rounded
            raise DTypeError(f"decode: ids must be integers, got {show(ids, 60)}.")
        array = array.astype(np.int64)
        wrong = array[(array < 0) | (array >= self.vocabulary_size)]
        if len(wrong):
            raise ArgumentError(
                f"decode: ids must be in 0..{self.vocabulary_size - 1}, got {wrong[0]}. "
                "Were they made with another tokenizer?"
            )
        return array


class Stream(ABC):
    """Decodes ids as they come, and holds back the bytes of a character that is not complete.

    The pieces together are what `Tokenizer.decode` gives for all ids at once.

    Example:
        >>> from linrnn.tokenizers import ByteTokenizer
        >>> stream = ByteTokenizer().stream()
        >>> [stream.feed(i) for i in "é!".encode()], stream.close()
        (['', 'é', '!'], '')
    """

    @abstractmethod
    def feed(self, token: int) -> str:
        """The text that is certain now and was not before; often empty."""

    @abstractmethod
    def close(self) -> str:
        """Return the text held back, with incomplete bytes as U+FFFD, and reset the stream."""


class WholeStream(Stream):
    """Decodes tokens that are whole characters or words, so that nothing is held back.

    Args:
        tokenizer: whose ids they are.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def feed(self, token: int) -> str:
        return self._tokenizer.decode([token])

    def close(self) -> str:
        return ""


def as_bytes(
    text: str | bytes, where: str, offset: int = 0, errors: str = "surrogateescape"
) -> bytes:
    """A string in UTF-8, its surrogate escapes as the bytes they stand for; bytes as they are.

    With ``errors="strict"`` a surrogate escape is refused as well.

    Raises:
        ArgumentTypeError: neither.
        DataError: half of a pair of UTF-16 is in it; the text says where.
    """
    check_kind(where, "text", text, str, bytes)
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError as error:
        place = offset + error.start
        raise DataError(
            f"{where}: the text must hold whole characters, got U+{ord(text[error.start]):04X}, "
            f"half of a pair of UTF-16, at character {place}. Leave it out."
        ) from error


def as_text(text: str | bytes, where: str, offset: int = 0) -> str:
    """A string as it is, bytes as UTF-8.

    Raises:
        DataError: they are none; the text says where.
    """
    check_kind(where, "text", text, str, bytes)
    if isinstance(text, str):
        return text
    try:
        return codecs.decode(text, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: the text must be valid UTF-8, got the byte 0x{text[error.start]:02x} at "
            f"byte {offset + error.start}. The tokenizer byte takes any bytes."
        ) from error
