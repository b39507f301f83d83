"""PG-19: whole books of Project Gutenberg, scored by the word whatever a token is."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from linrnn import tokenizers
from linrnn.errors import DataError
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.published_text import PublishedText, Sizes, no_layout
from linrnn.tasks._reading.corpus import Corpus, pieces, read_corpus
from linrnn.tasks._reading.files import chosen
from linrnn.tasks._reading.known import kept_text, read_kept
from linrnn.tokenizers import Tokenizer

KEPT = "words.json"

_BOOKS = {"train": 28_602, "validation": 50, "test": 100}
_TEST_WORDS = 6_966_499
_LAYOUT = "the folders train, validation and test with a file <id>.txt for each book"
_RAE = "Rae et al. 2020, arXiv:1911.05507"
_UNCHECKED = "; not checked against the paper"


@dataclass(frozen=True, kw_only=True)
class PG19Options:
    """Options of the task `pg19`."""

    data: str = ""
    """Folder of train, validation and test. Default: the folder pg19 of `LINRNN_DATA`."""
    tokenizer: str = "byte"
    """Kind of token: byte, char, bpe, or the path of a tokenizer.json."""
    vocabulary_size: int = 4096
    """Tokens of bpe, the 256 bytes among them."""
    length: int = 2048
    """Tokens of a window."""
    check_counts: bool = True
    """Whether there must be the published numbers of books, and of words of the test part."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Size of the test part, as a run folder stores it."""

    words: int
    tokens: int

    def __post_init__(self) -> None:
        if min(self.words, self.tokens) < 1:
            raise ValueError("not a number of words and of tokens above 0")


class PG19(PublishedText):
    """Predict the next token of books published before 1919.

    28,602 books are for training, 50 for validation and 100 for testing. A book is a document: the
    state is reset where one begins. The loss is in nats per token. The metric is in bits per word,
    so that tokenizers can be compared: all bits of the test part over its 6,966,499 words, which
    are what lies between blanks. Two to the power of it is the perplexity that papers print; the
    perplexity beside the loss is per token. Chance says that all tokens are equally likely.

    Args:
        options: `PG19Options`.
        tokenizer: one that is there already; None makes the one the options name.

    Raises:
        ArgumentError: a size below 1.
        UnknownNameError: an unknown tokenizer.

    Reference:
        Rae et al. 2020, arXiv:1911.05507.
    """

    Options: ClassVar[type] = PG19Options
    summary: ClassVar[str] = "the next token of whole books (PG-19), files of your own"
    metric: ClassVar[str] = "bits per word"
    short_options: ClassVar[Mapping[str, str]] = {
        "tokenizer": "task.tokenizer",
        "bptt": "task.length",
        "carry-state": "train.carry-state",
    }
    published: ClassVar[tuple[Published, ...]] = tuple(
        Published(
            model=f"{model}, perplexity {perplexity}",
            value=round(math.log2(perplexity), 3),
            source=source,
        )
        for model, perplexity, source in (
            ("Transformer-XL", 36.3, f"{_RAE}{_UNCHECKED}"),
            ("Compressive Transformer", 33.6, _RAE),
        )
    )

    @property
    def name(self) -> str:
        """The name of the text."""
        return "pg19"

    @property
    def sizes(self) -> Sizes:
        """Books of each part, and tokens of the vocabulary."""
        train, validation, test = _BOOKS.values()
        return Sizes(train, validation, test, self.tokenizer.vocabulary_size)

    def vocabulary(self) -> int:
        """Tokens of the tokenizer, which all kinds but bytes are made of the books for."""
        return self.tokenizer.vocabulary_size

    def make_tokenizer(self) -> Tokenizer:
        """Make the one that the options name; char and bpe read the training part."""
        kind, size = self.options.tokenizer, self.options.vocabulary_size
        return tokenizers.make(kind, self._texts(), size)

    def _texts(self) -> Iterator[str]:
        for path in self._books("train"):
            for piece in pieces(path):
                yield tokenizers.as_text(piece.text, str(path), piece.offset)

    def read_part(self, part: str) -> Corpus:
        """The tokens of the books of a part, in the order of their numbers."""
        return read_corpus(self._books(part), self.tokenizer, "files")

    def check_sizes(self, parts: Mapping[str, Corpus]) -> None:
        """Raise `DataError` unless there are the published books, and words of the test part."""
        for part, expected in _BOOKS.items():
            self.check_size(f"books in {part}", expected, len(self._books(part)))
        self.check_size("words in test", _TEST_WORDS, self._words)

    @property
    def held_out(self) -> np.ndarray:
        """The test part; the others are not read for it."""
        return self._test.tokens

    @cached_property
    def _test(self) -> Corpus:
        return self.read_part("test")

    @cached_property
    def _words(self) -> int:
        """Words of the test part, whatever the tokens are."""
        return sum(
            len(piece.text.split()) for path in self._books("test") for piece in pieces(path)
        )

    @property
    def unit(self) -> float:  # type: ignore[override]
        """Words of a token of the test part, as the run folder keeps them or as counted."""
        return self._counts.words / self._counts.tokens

    @cached_property
    def _counts(self) -> Counts:
        return Counts(words=self._words, tokens=len(self.held_out))

    def run_files(self) -> Mapping[str, str]:
        """The tokenizer, the checksum of the text, and how many words a token is."""
        return {**super().run_files(), KEPT: kept_text(self._counts)}

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "PG19":
        """The task with what a run folder keeps; the books are not needed to use its model."""
        task = super().of_run(options, folder)
        assert isinstance(task, PG19)
        vars(task)["_counts"] = read_kept(folder, KEPT, Counts, "the books")
        return task

    @property
    def chance(self) -> float:  # type: ignore[override]
        """The metric where all tokens are equally likely; per token where no data is there."""
        try:
            return math.log2(self.d_input) / self.unit
        except DataError:
            return math.log2(self.d_input)

    def _books(self, part: str) -> list[Path]:
        """The files of a part.

        Raises:
            DataError: there are none, or something else is among them.
        """
        root = self.place
        folder = root / part
        paths = sorted(folder.glob("*.txt")) if folder.is_dir() else []
        if not paths:
            raise no_layout("pg19", folder if folder.is_dir() else root, _LAYOUT)
        return [chosen("pg19", path, root) for path in paths]
