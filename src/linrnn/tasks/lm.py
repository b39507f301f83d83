"""Language modelling: say what comes next in a text."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from linrnn import tokenizers
from linrnn.errors import DataError, check_in
from linrnn.tasks._kinds.base import Published, Splits, Task
from linrnn.tasks._kinds.text import TextTask, kept_text_of, read_kept_text
from linrnn.tasks._kinds.token_windows import TokenWindows, check_parts
from linrnn.tasks._reading.corpus import Corpus, pieces, read_corpus
from linrnn.tasks._reading.files import Source, fetch, folder_of
from linrnn.tokenizers import Tokenizer

_SHAKESPEARE = Source(
    "input.txt",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)

_MINRNN = "Feng et al. 2024, arXiv:2410.01201: best test loss {} nats per character"
_DOCUMENTS = ("files", "blank-lines", "one")


@dataclass(frozen=True, kw_only=True)
class LMOptions:
    """Options of the task `lm`."""

    data: tuple[str, ...] = ()
    """Text files, also as .gz or .xz. Default: tiny Shakespeare, downloaded once."""
    tokenizer: str = "byte"
    """Kind of token: byte, char, bpe, or the path of a tokenizer.json."""
    vocabulary_size: int = 4096
    """Tokens of bpe, the 256 bytes among them."""
    length: int = 256
    """Tokens of a training window."""
    stride: int = 0
    """From one training window to the next, in tokens; 0: the length, so that none overlap."""
    validation: float = 0.1
    """Part of the tokens for validation: the last ones, or those before the test part."""
    test: float = 0.0
    """Part of the tokens for testing, the last ones; 0: the validation part is the test part."""
    documents: Literal["files", "blank-lines", "one"] = "files"
    """Bounds of memory: files, parts between blank lines, or none (one)."""


class LM(TextTask):
    """Predict each token of a text from those before it.

    Give files as ``--data FILE ...``; without any it is tiny Shakespeare (1,115,394 characters,
    all ASCII). The first 90 % of the tokens are for training and the last 10 % for validation, by
    position, as is usual for it; test is the validation part unless ``test`` says otherwise. A
    window is ``length`` tokens; those for validation do not overlap, and what fills no whole
    window is left out.

    The loss is in nats per token. The metric is in bits per byte of the text, whatever a token
    is, so that tokenizers can be compared: the loss over ln 2, over the bytes of a token, which
    are counted over the held-out text (1,048,576 tokens of it at most). For ASCII text it is bits
    per character as well. Chance, 8 bits, says that every byte is equally likely.

    The state is reset where a document begins. Tokens are kept on disk (see ``LINRNN_DATA``) in
    the smallest type that holds them, and mapped, not loaded; a large file costs no memory. The
    tokenizer is kept in the run folder as ``tokenizer.json``.

    Args:
        options: `LMOptions`.
        tokenizer: one that is there already; None makes the one the options name.

    Raises:
        ArgumentError: a size below 1, a part outside (0, 1), no training part.
        UnknownNameError: an unknown tokenizer.
        DataError: the tokenizer cannot be made out of the files.
    """

    Options: ClassVar[type] = LMOptions
    summary: ClassVar[str] = "predict the next token of your own text: --data FILE ..."
    metric: ClassVar[str] = "bits per byte"
    short_options: ClassVar[Mapping[str, str]] = {
        "tokenizer": "task.tokenizer",
        "bptt": "task.length",
        "carry-state": "train.carry-state",
    }
    published: ClassVar[tuple[Published, ...]] = tuple(
        Published(
            model=f"{model}, tiny Shakespeare, window 256, bits per character",
            value=round(nats / math.log(2), 3),
            source=_MINRNN.format(nats),
        )
        for model, nats in (
            ("minGRU", 1.548),
            ("minLSTM", 1.555),
            ("Mamba", 1.575),
            ("Transformer", 1.547),
        )
    )

    chance = 8.0

    def __init__(self, options: Any = None, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(options)
        _check(self.options)
        self._sha256: str | None = None
        if tokenizer is None:
            kind, size = self.options.tokenizer, self.options.vocabulary_size
            tokenizer = tokenizers.make(kind, self._texts(), size)
        self.tokenizer = tokenizer
        self.sequence_length = self.options.length
        self.d_input = self.d_output = tokenizer.vocabulary_size
        self.contiguous = self.options.stride in (0, self.options.length)

    def datasets(self) -> Splits:
        """Windows of each part; the tokens are made where they are not there yet.

        Raises:
            DataError: a file cannot be used, the parts hold no whole window, or a run is continued
                on other text than it began with.
        """
        corpus, length = self.corpus, self.options.length
        first, second = self._bounds
        ends = (0, first, second or len(corpus.tokens), len(corpus.tokens))
        strides = (self.options.stride or length, length, length)
        parts = [
            self._windows(corpus, *bounds)
            for bounds in zip(ends[:-1], ends[1:], strides, strict=True)
        ]
        if not second:
            parts[2] = parts[1]
        for name, part in zip(Splits._fields, parts, strict=True):
            if not len(part):
                raise DataError(
                    f"lm: the {name} part must hold a window of {length} tokens and one more, got "
                    f"{len(part.tokens)} of the {len(corpus.tokens)} tokens of the text. Choose a "
                    "smaller length, or give more text."
                )
        return Splits(*parts)

    @cached_property
    def corpus(self) -> Corpus:
        """The tokens of all files."""
        return read_corpus(self._paths(), self.tokenizer, self.options.documents, self._sha256)

    @property
    def held_out(self) -> np.ndarray:
        """The tokens that are not for training."""
        return self.corpus.tokens[self._bounds[0] :]

    @property
    def unit(self) -> float:
        """Bytes of a token: see the class."""
        return self.bytes_per_token

    def at_length(self, length: int) -> Task:
        """The same text in other windows."""
        task = type(self)(replace(self.options, length=length, stride=0), self.tokenizer)
        task._sha256 = self._sha256
        vars(task).update({k: v for k, v in vars(self).items() if k == "corpus"})
        return task

    def run_files(self) -> Mapping[str, str]:
        """The tokenizer, and the checksum of the text."""
        return kept_text_of(self.tokenizer, self.corpus.sha256, len(self.corpus.tokens))

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "LM":
        """The task with the tokenizer of a run; the text is not needed to use its model."""
        tokenizer, sha256 = read_kept_text(folder)
        task = cls(options, tokenizer)
        task._sha256 = sha256
        return task

    def example(self) -> str:
        """The beginning of the text; nothing is downloaded for it."""
        path = self._paths(download=False)[0]
        text = next(pieces(path)).text[:1000].decode(errors="replace")
        ids = self.tokenizer.encode(text)[:41]
        shown = [self.tokenizer.decode(part) for part in (ids[:-1], ids[1:])]
        return "input {!r}\ntarget {!r}".format(*shown)

    @property
    def _bounds(self) -> tuple[int, int]:
        """Where validation begins, and where the test part does, or 0."""
        size = len(self.corpus.tokens)
        validation, test = self.options.validation, self.options.test
        return int(size * (1 - validation - test)), int(size * (1 - test)) if test else 0

    def _windows(self, corpus: Corpus, begin: int, end: int, stride: int) -> TokenWindows:
        starts = corpus.starts[(corpus.starts > begin) & (corpus.starts < end)] - begin
        return TokenWindows(corpus.tokens[begin:end], starts, self.options.length, stride)

    def _paths(self, download: bool = True) -> list[Path]:
        if self.options.data:
            return [Path(name).expanduser() for name in self.options.data]
        path = folder_of("tinyshakespeare") / _SHAKESPEARE.name
        try:
            if not path.is_file():
                if not download:
                    raise DataError("it is not there yet.")
                fetch(_SHAKESPEARE.url, _SHAKESPEARE.checksum, path)
        except DataError as error:
            raise DataError(
                f"lm: the data must be files of text, got none, and tiny Shakespeare is not at "
                f"{path}: {error} Say --data FILE, or put {_SHAKESPEARE.url} there."
            ) from error
        return [path]

    def _texts(self) -> Iterator[str]:
        for path in self._paths():
            for piece in pieces(path):
                yield tokenizers.as_text(piece.text, str(path), piece.offset)


def _check(options: LMOptions) -> None:
    check_parts("LM", options)
    check_in("LM", "documents", options.documents, _DOCUMENTS)
