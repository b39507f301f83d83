"""Words between blanks, and one symbol for the end of a line, as word-level benchmarks have it."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from linrnn.errors import ArgumentError, DataError
from linrnn.tokenizers._base import MAX_PAIRS, Tokenizer, as_text
from linrnn.typing import Integer


class WordTokenizer(Tokenizer):
    r"""Every word between blanks is a token, and so is the end of each line, ``<eos>``.

    A word outside the vocabulary becomes ``<unk>`` if that is in it. Decoded text has a blank
    before every word and before the end of a line, as the files of Penn Treebank have.

    Args:
        words: the vocabulary, in the order of the ids; ``<eos>`` is put last if it is not there.

    Raises:
        ArgumentError: no words, more than `MAX_PAIRS`, one twice, or one that holds a blank.

    Example:
        >>> words = WordTokenizer(["a", "b", "<unk>"])
        >>> words.encode("a b\nz").tolist(), words.decode([0, 1, 3])
        ([0, 1, 3, 2], ' a b \n')
    """

    kind: ClassVar[str] = "word"
    end_of_line: ClassVar[str] = "<eos>"
    """The token at the end of each line."""
    unknown: ClassVar[str] = "<unk>"
    """The token in place of a word that is not in the vocabulary."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = list(words)
        self._ids = {word: i for i, word in enumerate(self._words)}
        wrong = [word for word in self._words if word.split() != [word]]
        if not self._words or wrong or len(self._ids) != len(self._words):
            raise ArgumentError(
                "WordTokenizer: words must be different texts without blanks, got "
                f"{repr(wrong[0]) if wrong else f'{len(self._ids)} different'} among "
                f"{len(self._words)}."
            )
        if self._ids.setdefault(self.end_of_line, len(self._words)) == len(self._words):
            self._words.append(self.end_of_line)
        self.vocabulary_size = len(self._words)
        if self.vocabulary_size > MAX_PAIRS:
            raise ArgumentError(
                f"WordTokenizer: words must be at most {MAX_PAIRS:,}, got {self.vocabulary_size:,}."
            )

    def encode(
        self, text: str | bytes, *, where: str = "encode", offset: int = 0
    ) -> Integer[np.ndarray, " time"]:
        """The ids of the words, with that of ``<eos>`` at each line feed."""
        words = as_text(text, where, offset).replace("\n", f" {self.end_of_line} ").split()
        unknown = self._ids.get(self.unknown, -1)
        ids = np.fromiter((self._ids.get(w, unknown) for w in words), np.int64, len(words))
        if len(ids) and ids.min() < 0:
            raise DataError(
                f"{where}: text must hold words of the vocabulary only, which has no "
                f"{self.unknown}, got {words[int(ids.argmin())]!r:.60} after byte {offset}. Make "
                "the vocabulary from this text too."
            )
        return ids.astype(self.dtype)

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " time"]) -> str:
        """The words, each behind a blank; a line feed for ``<eos>``."""
        words = [self._words[i] for i in self._check_ids(ids).tolist()]
        return "".join(" \n" if word == self.end_of_line else f" {word}" for word in words)

    def _parameters(self) -> dict[str, Any]:
        return {"words": self._words}
