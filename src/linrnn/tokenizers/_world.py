"""RWKV's vocabularies: the longest token at each place."""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from linrnn._files.reading import reading
from linrnn.errors import DataError
from linrnn.tokenizers._base import MAX_PAIRS, Stream, Tokenizer, as_bytes
from linrnn.tokenizers._characters import ByteStream
from linrnn.typing import Integer

WORLD_LINE = re.compile(r"(\d{1,7}) (b?(?:'.*'|\".*\")) (\d{1,9})", re.ASCII | re.DOTALL)
"""A line of a vocabulary file: an id, a token as Python has it, and its size in bytes."""


class WorldTokenizer(Tokenizer):
    """RWKV's: the longest of the tokens that begins at a byte, then the next behind it.

    Args:
        tokens: the bytes of each, by id. An id between them that has none, as 0, which ends a text,
            is the text of nothing.
        where: whence they are, for the message.

    Raises:
        DataError: no tokens, an empty one or one twice, or an id that is negative or above
            `MAX_PAIRS`.

    Example:
        >>> world = WorldTokenizer({1: b"a", 2: b"b", 3: b"ab"})
        >>> world.encode("aab").tolist(), world.decode([3, 0, 1])
        ([1, 3], 'aba')

    Reference:
        The package ``rwkv`` (0.8.32), ``TRIE_TOKENIZER``, whose ``decode`` of bytes that are no
        UTF-8 is one U+FFFD.
    """

    kind: ClassVar[str] = "world"

    def __init__(self, tokens: Mapping[int, bytes], *, where: str = "WorldTokenizer") -> None:
        self._tokens = dict(tokens)
        self._ids = {token: i for i, token in self._tokens.items()}
        wrong = [i for i, token in self._tokens.items() if not token or not 0 <= i < MAX_PAIRS]
        if not self._tokens or wrong or len(self._ids) != len(self._tokens):
            raise DataError(
                f"{where}: tokens must be different bytes by ids in 0..{MAX_PAIRS - 1:,}, got "
                f"{f'id {wrong[0]}' if wrong else f'{len(self._ids)} different tokens'} among "
                f"{len(self._tokens)}."
            )
        self.vocabulary_size = max(self._tokens) + 1
        lengths: dict[bytes, set[int]] = {}
        for token in self._ids:
            lengths.setdefault(token[:2], set()).add(len(token))
        # of the tokens that begin with these two bytes
        self._lengths = {start: sorted(sizes, reverse=True) for start, sizes in lengths.items()}

    @classmethod
    def from_text(cls, text: str, *, where: str = "WorldTokenizer") -> "WorldTokenizer":
        """Read a vocabulary file: of each token its id, text or bytes as Python has it, and size.

        Raises:
            DataError: a line of something else.
        """
        tokens: dict[int, bytes] = {}
        for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
            if not line:
                continue
            match = WORLD_LINE.fullmatch(line)
            value: object = None
            with reading(f"{where}, line {number}", DataError, "hold a token"):
                value = ast.literal_eval(match[2]) if match else None
            token = value.encode() if isinstance(value, str) else value
            same = isinstance(token, bytes) and match and len(token) == int(match[3])
            if not same or not match or int(match[1]) in tokens:
                raise DataError(
                    f"{where}: line {number} must be a new id, a token and its number of "
                    f"bytes, as in 65 'a' 1, got {line!r:.60}."
                )
            assert isinstance(token, bytes)
            tokens[int(match[1])] = token
        return cls(tokens, where=where)

    def encode(
        self, text: str | bytes, *, where: str = "encode", offset: int = 0
    ) -> Integer[np.ndarray, " time"]:
        """The longest token at each place, from the first byte on."""
        text = as_bytes(text, where, offset)
        ids, at = [], 0
        while at < len(text):
            for length in (*self._lengths.get(text[at : at + 2], ()), 1):
                token = text[at : at + length]
                if token in self._ids and len(token) == length:
                    break
            else:
                raise DataError(
                    f"{where}: text must begin with a token of the vocabulary at every place, got "
                    f"the byte 0x{text[at]:02x} at byte {offset + at}. RWKV's vocabularies have "
                    "all single bytes."
                )
            ids.append(self._ids[token])
            at += length
        return np.array(ids, self.dtype)

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " time"]) -> str:
        """The bytes read as UTF-8."""
        return self._bytes(ids).decode(errors="replace")

    def _bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        return b"".join(self._tokens.get(i, b"") for i in self._check_ids(ids).tolist())

    def stream(self) -> Stream:
        """Return a stream that decodes ids as they arrive."""
        return ByteStream(self._bytes)

    def _parameters(self) -> dict[str, Any]:
        return {"tokens": {str(i): token.decode("latin-1") for i, token in self._tokens.items()}}
