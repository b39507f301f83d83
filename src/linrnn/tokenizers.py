"""Text to integers and back: bytes, characters, or the units of the library ``tokenizers``.

A tokenizer is made once, from the training files, and kept with the model as JSON; reading that
back runs no code. ``byte`` needs nothing, ``char`` a pass over the text, ``bpe`` and files of the
library need the extra ``text``. A vocabulary of RWKV's is a file of the user's.
"""

import ast
import codecs
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from linrnn._files.reading import reading
from linrnn._files.storage import read_text
from linrnn.errors import (
    ArgumentError,
    DataError,
    MissingExtraError,
    UnknownNameError,
    check_positive_int,
    show,
)
from linrnn.typing import Integer

__all__ = [
    "KINDS",
    "MAX_FILE",
    "MAX_PAIRS",
    "ByteTokenizer",
    "CharTokenizer",
    "LibraryTokenizer",
    "Stream",
    "Tokenizer",
    "WorldTokenizer",
    "as_text",
    "from_json",
    "load",
    "make",
]

KINDS = ("byte", "char", "bpe")
"""Kinds that `make` builds from text; it also accepts the path of a file."""

MAX_FILE = 64 << 20
"""Bytes of a tokenizer's file at most: a larger one is not read."""

MAX_PAIRS = 1 << 20
"""Tokens of byte-pair encoding at most: memory for all is taken before the first is found."""

_FORMAT = 1
_STORED = (*KINDS, "world")
_WORLD_LINE = re.compile(r"(\d{1,7}) (b?(?:'.*'|\".*\")) (\d{1,9})", re.ASCII | re.DOTALL)


class Tokenizer(ABC):
    """Text to token ids and back.

    Attributes:
        kind: ``byte``, ``char`` or ``bpe``, the last also for any file of the library; or
            ``world``, of RWKV.
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
        return Stream(self)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest of uint8, uint16 and uint32 that holds every id."""
        return np.min_scalar_type(self.vocabulary_size - 1)

    @abstractmethod
    def _parameters(self) -> dict[str, Any]:
        """Return the entries of the JSON form other than the kind."""

    def to_json(self) -> str:
        """Everything `from_json` needs, as text that is the same for equal tokenizers."""
        record = {"format": _FORMAT, "kind": self.kind, **self._parameters()}
        return json.dumps(record, ensure_ascii=False, sort_keys=True) + "\n"

    def _check_ids(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        array = np.asarray(ids, np.int64).reshape(-1)
        wrong = array[(array < 0) | (array >= self.vocabulary_size)]
        if len(wrong):
            raise ArgumentError(
                f"decode: ids must be in 0..{self.vocabulary_size - 1}, got {wrong[0]}. "
                "Were they made with another tokenizer?"
            )
        return array


class Stream:
    """Decodes ids as they come, and holds back the bytes of a character that is not complete.

    The pieces together are what `Tokenizer.decode` gives for all ids at once.

    Args:
        tokenizer: whose ids they are.

    Example:
        >>> stream = ByteTokenizer().stream()
        >>> [stream.feed(i) for i in "é!".encode()], stream.close()
        (['', 'é', '!'], '')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def feed(self, token: int) -> str:
        """The text that is certain now and was not before; often empty."""
        return self._tokenizer.decode([token])

    def close(self) -> str:
        """Return the text held back, with incomplete bytes as U+FFFD, and reset the stream."""
        return ""


class _ByteStream(Stream):
    """The standard library knows when a character is complete."""

    _tokenizer: "ByteTokenizer | WorldTokenizer"

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        return self._decoder.decode(self._tokenizer._bytes([token]))

    def close(self) -> str:
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text


class _LibraryStream(Stream):
    """Decodes with the token before, for some decoders treat the first one apart."""

    _PATIENCE = 8  # tokens without a complete character: the bytes are no UTF-8

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._ids: list[int] = []
        self._text_so_far = ""

    def feed(self, token: int) -> str:
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text.endswith("\ufffd") and len(self._ids) < self._PATIENCE:
            return ""
        new = text[len(self._text_so_far) :]
        self._ids = self._ids[-1:]
        self._text_so_far = self._tokenizer.decode(self._ids)
        return new

    def close(self) -> str:
        text = self._tokenizer.decode(self._ids)[len(self._text_so_far) :]
        self._ids, self._text_so_far = [], ""
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
        if isinstance(text, str):
            with reading(where, DataError, "be text"):
                text = text.encode("utf-8", "surrogateescape")
        return np.frombuffer(text, np.uint8)

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " time"]) -> str:
        """The bytes read as UTF-8."""
        return self._bytes(ids).decode(errors="replace")

    def _bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        return self._check_ids(ids).astype(np.uint8).tobytes()

    def stream(self) -> Stream:
        """Return a stream that decodes ids as they arrive."""
        return _ByteStream(self)

    def _parameters(self) -> dict[str, Any]:
        return {}


class CharTokenizer(Tokenizer):
    """Every character is a token.

    Args:
        characters: the vocabulary; its order does not matter, for ids go by code point.

    Raises:
        ArgumentError: no characters.

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


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the library ``tokenizers``, such as byte-pair encoding.

    Args:
        text: the library's own JSON, what its ``tokenizer.json`` holds.
        where: whence it is, for the message.

    Raises:
        MissingExtraError: the library is not installed.
        DataError: the text is not what the library writes.
    """

    kind: ClassVar[str] = "bpe"

    def __init__(self, text: str, *, where: str = "LibraryTokenizer") -> None:
        library = _library()
        with reading(where, DataError, "be JSON of the library tokenizers"):
            _check_vocabulary(json.loads(text), len(text))
            self._inner = library.Tokenizer.from_str(text)
            # of a text every token counts, and none but those of the text
            self._inner.no_truncation()
            self._inner.no_padding()
            self._text = self._inner.to_str()
        self.vocabulary_size = max(self._inner.get_vocab().values(), default=-1) + 1
        if not self.vocabulary_size:
            raise DataError(f"{where}: the tokenizer must have a vocabulary, got an empty one.")

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary_size: int) -> "LibraryTokenizer":
        """Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) over bytes.

        No character is unknown, and the space before a word belongs to it.

        Args:
            texts: of any length each.
            vocabulary_size: tokens, the 256 bytes among them; fewer where the text has no more
                pairs that occur twice.

        Raises:
            ArgumentError: a vocabulary below 257 or above `MAX_PAIRS`.
            MissingExtraError: the library is not installed.
        """
        if isinstance(vocabulary_size, bool) or not 257 <= vocabulary_size <= MAX_PAIRS:
            raise ArgumentError(
                "bpe: vocabulary_size must be at least 257, the 256 bytes and a pair, and at most "
                f"{MAX_PAIRS:,}, got {show(vocabulary_size)}. For single bytes take the tokenizer "
                "byte."
            )
        library = _library()
        inner = library.Tokenizer(library.models.BPE())
        inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            min_frequency=2,
            initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        inner.train_from_iterator(texts, trainer)
        return cls(inner.to_str())

    def encode(
        self, text: str | bytes, *, where: str = "encode", offset: int = 0
    ) -> Integer[np.ndarray, " time"]:
        """The library's ids, without the special tokens it may add around a text."""
        text = as_text(text, where, offset)
        with reading(where, DataError, "be text that the tokenizer takes"):
            ids = self._inner.encode(text, add_special_tokens=False).ids
        if text.strip() and not ids:
            raise DataError(
                f"{where}: text must hold something the tokenizer knows, got {text[:20]!r}. "
                "The tokenizer byte takes any text."
            )
        return np.array(ids, self.dtype)

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " time"]) -> str:
        """The library's text, special tokens included."""
        checked_ids = self._check_ids(ids).tolist()
        with reading("decode", DataError, "be one of a tokenizer that can decode"):
            text: str = self._inner.decode(checked_ids, skip_special_tokens=False)
        return text

    def stream(self) -> Stream:
        """Return a stream that decodes ids as they arrive."""
        return _LibraryStream(self)

    def _parameters(self) -> dict[str, Any]:
        return {"tokenizer": json.loads(self._text)}


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
            match = _WORLD_LINE.fullmatch(line)
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
        if isinstance(text, str):
            with reading(where, DataError, "be text"):
                text = text.encode("utf-8", "surrogateescape")
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
        return _ByteStream(self)

    def _parameters(self) -> dict[str, Any]:
        return {"tokens": {str(i): token.decode("latin-1") for i, token in self._tokens.items()}}


def make(
    kind: str, texts: Iterator[str] | Iterator[bytes], vocabulary_size: int = 4096
) -> Tokenizer:
    """A tokenizer for some text.

    Args:
        kind: ``byte``, ``char``, ``bpe``, or the path of a ``tokenizer.json``, ours or the
            library's, or of the folder that holds it; or of a vocabulary of RWKV's, a ``.txt``.
        texts: the text in pieces, strings or UTF-8; ``byte`` and a path do not look at it.
        vocabulary_size: tokens of ``bpe``.

    Raises:
        UnknownNameError: no such kind and no such file.
        DataError: text that is no UTF-8, none at all, or a file that is no tokenizer.
        MissingExtraError: the library is needed and not installed.
    """
    check_positive_int("tokenizer", vocabulary_size=vocabulary_size)
    if kind == "byte":
        return ByteTokenizer()
    if kind == "char":
        characters: set[str] = set()
        for piece in texts:
            characters.update(as_text(piece, "char"))
        return CharTokenizer(characters)
    if kind == "bpe":
        return LibraryTokenizer.train((as_text(t, "bpe") for t in texts), vocabulary_size)
    path = Path(kind).expanduser()
    folder = path if path.is_dir() else None
    if folder is not None:
        path = folder / "tokenizer.json"
    if not os.path.lexists(path):
        raise UnknownNameError("tokenizer, nor a file of one,", kind, KINDS)
    return load(path, inside=folder)


def _check_vocabulary(tree: Any, length: int) -> None:
    """Raise `ValueError` where an id is not below ``length``, that of the whole text.

    The library makes lists as long as the largest id says.
    """
    model = tree.get("model") if isinstance(tree, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    added = tree.get("added_tokens") if isinstance(tree, dict) else None
    ids += [t.get("id") for t in added or () if isinstance(t, dict)]
    wrong = [i for i in ids if type(i) is not int or not 0 <= i < length]
    if wrong:
        raise ValueError(f"the id {show(wrong[0])} in a file of {length:,} characters")


def load(path: Path, *, inside: Path | None = None) -> Tokenizer:
    """Read a file: one that `Tokenizer.to_json` made, or one of the library ``tokenizers``.

    Or a vocabulary of RWKV's: see `WorldTokenizer.from_text`.

    Args:
        path: of the file, which may be a link.
        inside: the folder that names it, in which no link is followed.

    Raises:
        DataError: no such file, one larger than `MAX_FILE`, or no tokenizer.
        MissingExtraError: the library is needed and not installed.
    """
    with reading(path, DataError, "hold a tokenizer"):
        text = read_text(path, MAX_FILE, inside=inside)
        if _WORLD_LINE.match(text):
            return WorldTokenizer.from_text(text, where=str(path))
        return from_json(text, where=str(path))


def from_json(text: str, *, where: str = "from_json") -> Tokenizer:
    """The tokenizer of a JSON text: see `load`.

    Raises:
        DataError: it is no tokenizer.

    Example:
        >>> from_json(CharTokenizer("ab").to_json()).encode("ba").tolist()
        [1, 0]
    """
    with reading(where, DataError, "be JSON"):
        record = json.loads(text)
    if not isinstance(record, dict):
        raise DataError(f"{where}: the tokenizer must be a JSON table, got {text!r:.40}.")
    if "model" in record:  # the library's own form
        return LibraryTokenizer(text, where=where)
    kind, version = record.get("kind"), record.get("format")
    if version != _FORMAT or not isinstance(kind, str) or kind not in _STORED:
        raise DataError(
            f"{where}: the tokenizer must be of format {_FORMAT} and a kind of "
            f"{', '.join(_STORED)}, got format {show(version)} and kind {show(kind)}. A higher "
            "format is of a newer version: pip install --upgrade linrnn"
        )
    if kind == "byte":
        return ByteTokenizer()
    if kind == "world":
        tokens = record.get("tokens")
        with reading(where, DataError, "name its tokens, by their ids"):
            if not isinstance(tokens, dict):
                raise ValueError(f"{tokens!r:.40}, which is no table")
            by_id = {int(i): token.encode("latin-1") for i, token in tokens.items()}
        return WorldTokenizer(by_id, where=where)
    if kind == "char":
        characters = record.get("characters")
        if not isinstance(characters, str) or not characters:
            raise DataError(f"{where}: the tokenizer must name its characters, got none.")
        if any("\ud800" <= c <= "\udfff" for c in characters):
            raise DataError(f"{where}: the tokenizer must name characters, got half of a pair.")
        return CharTokenizer(characters)
    return LibraryTokenizer(json.dumps(record.get("tokenizer")), where=where)


def as_text(text: str | bytes, where: str, offset: int = 0) -> str:
    """A string as it is, bytes as UTF-8.

    Raises:
        DataError: they are none; the text says where.
    """
    if isinstance(text, str):
        return text
    try:
        return codecs.decode(text, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: the text must be valid UTF-8, got the byte 0x{text[error.start]:02x} at "
            f"byte {offset + error.start}. The tokenizer byte takes any bytes."
        ) from error


def _library() -> Any:
    try:
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("this tokenizer", "tokenizers", "text") from error
    return tokenizers
