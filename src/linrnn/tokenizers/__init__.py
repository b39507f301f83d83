"""Text to integers and back: bytes, characters, or the units of the library ``tokenizers``.

A tokenizer is made once, from the training files, and kept with the model as JSON; reading that
back runs no code. ``byte`` needs nothing, ``char`` a pass over the text, ``bpe`` and files of the
library need the extra ``text``. A vocabulary of RWKV's is a file of the user's. Word-level
benchmarks make a `WordTokenizer` from their training part.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from linrnn._files.reading import reading
from linrnn._files.storage import read_text
from linrnn.errors import DataError, UnknownNameError, check_positive_int, show
from linrnn.tokenizers._base import FORMAT, Stream, Tokenizer, as_text
from linrnn.tokenizers._base import MAX_PAIRS as MAX_PAIRS
from linrnn.tokenizers._characters import ByteTokenizer, CharTokenizer
from linrnn.tokenizers._library import LibraryTokenizer
from linrnn.tokenizers._words import WordTokenizer
from linrnn.tokenizers._world import WORLD_LINE, WorldTokenizer

__all__ = [
    "KINDS",
    "MAX_FILE",
    "MAX_PAIRS",
    "ByteTokenizer",
    "CharTokenizer",
    "LibraryTokenizer",
    "Stream",
    "Tokenizer",
    "WordTokenizer",
    "WorldTokenizer",
    "as_text",
    "from_json",
    "load",
    "make",
]


def __dir__() -> list[str]:
    return sorted(__all__)


KINDS = ("byte", "char", "bpe")
"""Kinds that `make` builds from text; it also accepts the path of a file."""

MAX_FILE = 64 << 20
"""Bytes of a tokenizer's file at most: a larger one is not read."""


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
        if WORLD_LINE.match(text):
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
    if version != FORMAT or not isinstance(kind, str) or kind not in _STORED:
        raise DataError(
            f"{where}: the tokenizer must be of format {FORMAT} and a kind of "
            f"{', '.join(_STORED)}, got format {show(version)} and kind {show(kind)}. A higher "
            "format is of a newer version: pip install --upgrade linrnn"
        )
    return _STORED[kind](record, where)


def _bytes(record: Mapping[str, Any], where: str) -> Tokenizer:
    return ByteTokenizer()


def _characters(record: Mapping[str, Any], where: str) -> Tokenizer:
    characters = record.get("characters")
    if not isinstance(characters, str) or not characters:
        raise DataError(f"{where}: the tokenizer must name its characters, got none.")
    if any("\ud800" <= c <= "\udfff" for c in characters):
        raise DataError(f"{where}: the tokenizer must name characters, got half of a pair.")
    return CharTokenizer(characters)


def _of_library(record: Mapping[str, Any], where: str) -> Tokenizer:
    return LibraryTokenizer(json.dumps(record.get("tokenizer")), where=where)


def _world(record: Mapping[str, Any], where: str) -> Tokenizer:
    tokens = record.get("tokens")
    with reading(where, DataError, "name its tokens, by their ids"):
        if not isinstance(tokens, dict):
            raise ValueError(f"{tokens!r:.40}, which is no table")
        by_id = {int(i): token.encode("latin-1") for i, token in tokens.items()}
    return WorldTokenizer(by_id, where=where)


def _of_words(record: Mapping[str, Any], where: str) -> Tokenizer:
    words = record.get("words")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DataError(f"{where}: the tokenizer must list its words, got {show(words)}.")
    with reading(where, DataError, "list its words"):
        "".join(words).encode()  # half of a pair of UTF-16 is no word
        return WordTokenizer(words)


_STORED: dict[str, Callable[[Mapping[str, Any], str], Tokenizer]] = {
    "byte": _bytes,
    "char": _characters,
    "bpe": _of_library,
    "word": _of_words,
    "world": _world,
}
"""By kind, a tokenizer of its JSON table."""
