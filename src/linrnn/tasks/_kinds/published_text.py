"""Texts with a published split: a file, or some files, for each part, and how large they are."""

import math
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from linrnn.errors import DataError, check_positive_int
from linrnn.tasks._kinds.base import Splits, Task
from linrnn.tasks._kinds.generated import SPLITS
from linrnn.tasks._kinds.markov import markov_baselines
from linrnn.tasks._kinds.text import TextTask, kept_text_of, read_kept_text
from linrnn.tasks._kinds.token_windows import TokenWindows
from linrnn.tasks._reading.corpus import Corpus, pieces
from linrnn.tasks._reading.files import chosen, folder_of
from linrnn.tasks._reading.known import checksum
from linrnn.tokenizers import Tokenizer, WordTokenizer, as_text

PACKED = ("", ".gz", ".xz")


class Sizes(NamedTuple):
    """Tokens of the parts of a text, and of its vocabulary, as published."""

    train: int
    validation: int
    test: int
    vocabulary: int


class PublishedText(TextTask):
    """Language modelling on a text with a published split.

    A subclass says where the parts lie (`paths`, `read_part`), how the vocabulary is made
    (`make_tokenizer`) and how large everything is (`sizes`). Training, validation and test windows
    do not overlap, and what fills no whole window is left out. Where ``options.check_counts``,
    data of other sizes is refused.

    Args:
        options: with ``data``, ``length`` and ``check_counts``.
        tokenizer: one that is there already; None makes the one of the task from its data.

    Raises:
        ArgumentError: a length below 1.
    """

    unit: ClassVar[float] = 1.0
    orders: ClassVar[Mapping[str, int]] = {"unigram counts": 0, "bigram counts": 1}

    def __init__(self, options: Any = None, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(options)
        check_positive_int(type(self).__name__, length=self.options.length)
        self._sha256: str | None = None
        if tokenizer is not None:
            self.tokenizer = tokenizer
        self.sequence_length, self.contiguous = self.options.length, True
        self.d_input = self.d_output = self.vocabulary()

    @property
    def chance(self) -> float:  # type: ignore[override]
        """The metric where all tokens are equally likely."""
        return math.log2(self.d_input) / self.unit

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the text, for messages."""

    @property
    def place(self) -> Path:
        """The folder of the text, or its file."""
        return folder_of(self.name, self.options.data)

    @property
    def sizes(self) -> Sizes | None:
        """Tokens of each part, and of the vocabulary; None where files of any size are taken."""
        return None

    @abstractmethod
    def make_tokenizer(self) -> Tokenizer:
        """Make the tokenizer from the training part."""

    @abstractmethod
    def read_part(self, part: str) -> Corpus:
        """The tokens of ``train``, ``validation`` or ``test``."""

    @cached_property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        """The tokenizer of the run, or one made from the training part."""
        return self.make_tokenizer()

    @property
    def exact(self) -> bool:
        """Whether the data must have the published sizes."""
        return self.sizes is not None and bool(self.options.check_counts)

    def vocabulary(self) -> int:
        """Tokens of the vocabulary: as published, unless the data may be others and is there."""
        if "tokenizer" in vars(self):
            return self.tokenizer.vocabulary_size
        if not self.exact:
            try:
                return self.tokenizer.vocabulary_size
            except DataError:  # said where the data is read
                pass
        assert self.sizes is not None
        return self.sizes.vocabulary

    @cached_property
    def parts(self) -> dict[str, Corpus]:
        """The tokens of the three parts, by their names.

        Raises:
            DataError: the data is missing, damaged, of another size than published, or another
                than the one a run began with.
        """
        parts = {part: self.read_part(part) for part in SPLITS}
        if self.exact:
            self.check_sizes(parts)
        sha256 = checksum(corpus.sha256 for corpus in parts.values())
        if self._sha256 not in (None, sha256):
            raise DataError(
                f"{self.name}: the text in {self.place} must be the one the run was trained on, "
                f"SHA-256 {self._sha256:.12}, got {sha256:.12}. Restore the files."
            )
        self._sha256 = sha256
        return parts

    def check_sizes(self, parts: Mapping[str, Corpus]) -> None:
        """Raise `DataError` unless the parts are as large as the published ones."""
        assert self.sizes is not None
        train, validation, test = (len(corpus.tokens) for corpus in parts.values())
        seen = Sizes(train, validation, test, self.tokenizer.vocabulary_size)
        for what, expected, actual in zip(Sizes._fields, self.sizes, seen, strict=True):
            self.check_size(f"{what} tokens", expected, actual)

    def check_size(self, what: str, expected: int, actual: int) -> None:
        """Raise `DataError` unless a count is the published one."""
        if expected != actual:
            raise DataError(
                f"{self.name}: there must be {expected:,} {what} in {self.place} as published, got "
                f"{actual:,}. Get the published files, or pass --task.no-check-counts for others "
                "of their layout."
            )

    @property
    def held_out(self) -> np.ndarray:
        """The test part."""
        return self.parts["test"].tokens

    def datasets(self) -> Splits:
        """Windows of each part: see `Task.datasets`."""
        length, windows = self.options.length, []
        for part, corpus in self.parts.items():
            starts = corpus.starts[corpus.starts > 0]
            windows.append(TokenWindows(corpus.tokens, starts, length, length))
            if not len(windows[-1]):
                raise DataError(
                    f"{self.name}: the {part} part of {self.place} must hold a window of {length} "
                    f"tokens and one more, got {len(corpus.tokens)}. Choose a smaller length."
                )
        return Splits(*windows)

    def at_length(self, length: int) -> Task:
        """The same text in other windows."""
        task = type(self)(replace(self.options, length=length), self.tokenizer)
        task._sha256 = self._sha256
        vars(task).update({k: v for k, v in vars(self).items() if k == "parts"})
        return task

    def baselines(self) -> dict[str, float]:
        """Markov chains that are counted on the training part: `markov_bits`."""
        parts = self.parts
        bits = markov_baselines(
            parts["train"].tokens,
            parts["test"].tokens,
            self.tokenizer.vocabulary_size,
            self.orders,
        )
        return {name: value / self.unit for name, value in bits.items()}

    def run_files(self) -> Mapping[str, str]:
        """The tokenizer, and the checksum of the text."""
        tokens = sum(len(corpus.tokens) for corpus in self.parts.values())
        assert self._sha256 is not None
        return kept_text_of(self.tokenizer, self._sha256, tokens)

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "PublishedText":
        """The task with the tokenizer of a run; the text is not needed to use its model."""
        tokenizer, sha256 = read_kept_text(folder)
        task = cls(options, tokenizer)
        task._sha256 = sha256
        return task

    def example(self) -> str:
        """The beginning of the training text."""
        ids = self.parts["train"].tokens[:25]
        shown = [self.tokenizer.decode(part) for part in (ids[:-1], ids[1:])]
        return "input {!r}\ntarget {!r}".format(*shown)


def find_file(task: str, folder: Path, names: Sequence[str], layout: str) -> Path:
    """The first of some files that is in a folder, perhaps packed as .gz or .xz.

    Args:
        task: its name, for messages.
        folder: in which they are looked for.
        names: in the order of preference.
        layout: how the folder must be laid out, for messages.

    Raises:
        DataError: none is there; the text says what is. Or it is no regular file.
    """
    for name in names:
        for suffix in PACKED:
            path = folder / f"{name}{suffix}"
            if os.path.lexists(path):
                return chosen(task, path, folder)
    raise no_layout(task, folder, layout)


def no_layout(task: str, folder: Path, layout: str) -> DataError:
    """The one message about data that is not there, or laid out in another way."""
    seen = "no such folder"
    if folder.is_dir():
        names = sorted(path.name for path in folder.iterdir())
        seen = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        seen = seen or "an empty folder"
    elif os.path.lexists(folder):
        seen = "no folder"
    return DataError(
        f"{task}: the folder {folder} must hold {layout}, got {seen}. Nothing is downloaded: put "
        "the files there, or name their folder with --data FOLDER."
    )


def words_of(path: Path) -> WordTokenizer:
    """A vocabulary of all words of a file, the most frequent first, with the end of a line.

    Raises:
        DataError: the file is missing, damaged, or no UTF-8.
    """
    counts: dict[str, int] = {}
    for piece in pieces(path):
        words = as_text(piece.text, str(path), piece.offset).split()
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    if not counts:
        raise DataError(f"{path}: the file must hold words, got none.")
    return WordTokenizer(sorted(counts, key=lambda word: (-counts[word], word)))
