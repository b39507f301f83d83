"""Tokenizers of the library ``tokenizers``, which is imported where one is made."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from linrnn._files.reading import reading
from linrnn.errors import ArgumentError, DataError, MissingExtraError, show
from linrnn.tokenizers._base import MAX_PAIRS, Stream, Tokenizer, as_bytes, as_text
from linrnn.typing import Integer


class _LibraryStream(Stream):
    """Decodes with the token before, for some decoders treat the first one apart."""

    _PATIENCE = 8  # tokens without a complete character: the bytes are no UTF-8

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
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
        if not text.isascii():
            as_bytes(text, where, offset, errors="strict")  # says of halves of characters where
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


def _library() -> Any:
    try:
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("this tokenizer", "tokenizers", "text") from error
    return tokenizers
