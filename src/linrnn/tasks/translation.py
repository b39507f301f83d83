"""Translation of sentences in pairs, whole or while they are read, scored by BLEU."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from linrnn._files.reading import reading
from linrnn._files.storage import read_json
from linrnn._options.schema import record
from linrnn.errors import ArgumentError, DataError, check_not_negative, check_positive_int
from linrnn.tasks._kinds.base import IGNORE, Splits, Task
from linrnn.tasks._kinds.bleu import COUNTS, bleu_contributions, bleu_counts
from linrnn.tasks._kinds.generated import BatchDataset
from linrnn.tasks._kinds.published_text import find_file
from linrnn.tasks._reading.files import folder_of, read_packed
from linrnn.tasks._reading.known import check_same, checksum

PAD, UNKNOWN, END, SOURCE_END = range(4)
"""Ids of padding, of an unknown word, and of the end of a translation and of a source."""
_SPECIAL = ("<pad>", "<unk>", "</s>", "<src>")
_KEPT = "vocabulary.json"
_PARTS = {"train": "train", "validation": "valid", "test": "test"}
_ROOM = 10  # words a translation may have beyond twice its source


@dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """Options of the task `translation`."""

    data: str = ""
    """Folder of the files. Default: the folder translation of `LINRNN_DATA`."""
    source: str = "de"
    """Ending of the files of sentences to translate, such as train.de; of .tsv the first column."""
    target: str = "en"
    """Ending of the files of their translations, such as train.en; of .tsv the second column."""
    wait: int = 0
    """Words that are read before the first is written, then one a word; 0: the whole sentence."""
    vocabulary: int = 10_000
    """Words of both languages that are known, the most frequent of the training part."""
    longest: int = 50
    """Training pairs with a longer sentence, in words, are left out."""
    joiner: str = "@@"
    """Mark at the end of a piece that goes on in the next, which are joined for BLEU."""


Pair = tuple[tuple[str, ...], tuple[str, ...]]
"""Words of a sentence and of its translation."""


class Encoded(NamedTuple):
    """Ids of a sentence, with `SOURCE_END`, and of its translation, with `END`."""

    source: list[int]
    target: list[int]


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Vocabulary, steps and checksum of the data, as a run folder has them."""

    words: tuple[str, ...]
    steps: int
    sha256: str


def stream(pair: Encoded, wait: int) -> tuple[list[int], list[int]]:
    """Inputs and targets of a pair, in the order in which words are read and written.

    Before the translation's word i, counted from 1, ``min(wait + i - 1, n)`` of n source tokens are
    read, or all with ``wait`` 0. A written word is read next.

    Example:
        >>> stream(Encoded([7, 8, 3], [5, 6, 2]), 1)
        ([7, 5, 8, 6, 3], [5, -100, 6, -100, 2])
        >>> stream(Encoded([7, 8, 3], [5, 6, 2]), 0)
        ([7, 8, 3, 5, 6], [-100, -100, 5, 6, 2])
    """
    x: list[int] = []
    target: list[int] = []
    n_read = 0
    for written, word in enumerate(pair.target):
        if written:
            x.append(pair.target[written - 1])
            target.append(IGNORE)
        needed = read_before(written, len(pair.source), wait)
        x += pair.source[n_read:needed]
        target += [IGNORE] * (needed - n_read)
        n_read = max(n_read, needed)
        target[-1] = word
    return x, target


def read_before(written: int, n_source: int, wait: int) -> int:
    """Source tokens that are read before the next word, ``written`` words being there."""
    return min(wait + written, n_source) if wait else n_source


class Streams(BatchDataset):
    """Pairs as sequences of tokens, padded to the longest of a batch.

    Args:
        pairs: in memory.
        wait: see `stream`.
    """

    def __init__(self, pairs: Sequence[Encoded], wait: int) -> None:
        self.pairs, self.wait = pairs, wait

    def __len__(self) -> int:
        return len(self.pairs)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Tokens (batch, time), targets (batch, time) and lengths (batch,)."""
        rows = [stream(self.pairs[i], self.wait) for i in indices]
        lengths = torch.tensor([len(x) for x, _ in rows])
        shape = (len(rows), int(lengths.max()))
        x, target = torch.full(shape, PAD), torch.full(shape, IGNORE)
        for row, (tokens, words) in enumerate(rows):
            x[row, : len(tokens)] = torch.tensor(tokens)
            target[row, : len(tokens)] = torch.tensor(words)
        return x, target, lengths


class Translation(Task):
    """Translate sentences, given in pairs of text files, word by word.

    A sequence is one stream of tokens. With ``--task.wait 0`` it is the source sentence, a token
    for its end, and the translation; so the model reads all before it writes. With ``wait`` k it
    reads k words, then writes and reads one in turn: word i is written after
    ``min(k + i - 1, n)`` of n source tokens (Ma et al. 2019). The loss is the cross-entropy of
    the translation's words, with the true ones before them.

    **Scoring.** In validation and testing the model translates by itself: the likeliest word is
    read next, until the end of the translation or twice the words of the source and ten. The metric
    is BLEU of all sentences together, from 0 to 100, with orders 1 to 4 and nothing smoothed; it is
    no mean over sentences. Pieces that end in ``joiner`` are joined first; an unknown word never
    matches. Texts are taken as they are: numbers of papers need the papers' tokens. In training the
    metric is that of the likeliest words after the true ones, which is larger. Average lagging
    stands beside BLEU: how many source words the writing is behind an ideal that keeps pace.

    **Files** are ``train.de`` and ``train.en``, ``valid.de``, ..., a sentence a line, for the
    languages ``source`` and ``target``; or ``train.tsv``, ``valid.tsv`` and ``test.tsv`` with a
    pair a line, between a tab. They may be packed as .gz or .xz. Both languages share a
    vocabulary of the most frequent words of the training part.

    Chance is 0. `baselines` has the source itself as its translation. No published number is given:
    those we know of are of attention, other tokens or other data.

    Args:
        options: `TranslationOptions`.
        kept: facts about the data from a run folder.

    Raises:
        ArgumentError: negative wait, a vocabulary below 5 or longest below 1.

    Reference:
        Papineni et al. 2002 (BLEU); Ma et al. 2019, "STACL: Simultaneous Translation with Implicit
        Anticipation and Controllable Latency using Prefix-to-Prefix Framework", arXiv:1810.08398;
        Press and Smith 2018, "You May Not Need Attention", arXiv:1810.13409, on one recurrent
        model that reads and writes in turn.
    """

    Options: ClassVar[type] = TranslationOptions
    summary: ClassVar[str] = "translate pairs of sentences, whole or wait-k, by BLEU; your files"
    metric: ClassVar[str] = "BLEU"
    pooled: ClassVar[bool] = True
    decodes: ClassVar[bool] = True
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    chance = 0.0

    def __init__(self, options: Any = None, kept: _Kept | None = None) -> None:
        super().__init__(options)
        options = self.options
        check_not_negative("Translation", wait=options.wait)
        check_positive_int("Translation", longest=options.longest)
        if options.vocabulary <= len(_SPECIAL):
            raise ArgumentError(
                f"Translation: vocabulary must be at least {len(_SPECIAL) + 1}, got "
                f"{options.vocabulary}."
            )
        self._kept = kept
        self.sequence_length = kept.steps if kept else 2 * (options.longest + 1)
        self.d_input = self.d_output = len(kept.words) if kept else options.vocabulary
        if kept is None and self._is_there:
            self.d_input = self.d_output = len(self.words)
            self.sequence_length = self._steps

    @property
    def _place(self) -> Path:
        return folder_of("translation", self.options.data)

    @property
    def _is_there(self) -> bool:
        """Whether the training files can be found; reading them raises what is wrong."""
        try:
            self._files("train")
        except DataError:
            return False
        return True

    def _files(self, part: str) -> list[Path]:
        """The file or the two files of a part."""
        name, options = _PARTS[part], self.options
        endings = (options.source, options.target)
        layout = (
            f"{name}.{endings[0]} and {name}.{endings[1]}, or {name}.tsv, and so for train, valid "
            "and test (each as it is, .gz or .xz)"
        )
        names = [f"{name}.tsv", f"{name}.{endings[0]}"]
        first = find_file("translation", self._place, names, layout)
        if ".tsv" in first.suffixes:
            return [first]
        return [first, find_file("translation", self._place, [f"{name}.{endings[1]}"], layout)]

    @cached_property
    def _texts(self) -> dict[str, list[Pair]]:
        """Words of the pairs of each part."""
        texts = {part: read_pairs(self._files(part)) for part in _PARTS}
        longest = self.options.longest
        texts["train"] = [p for p in texts["train"] if max(map(len, p)) <= longest]
        if not texts["train"]:
            raise DataError(
                f"translation: {self._place} must hold training pairs of at most {longest} words, "
                "got longer ones alone. Raise --task.longest."
            )
        if self._kept is not None:
            check_same(str(self._place), self._kept.sha256, _hash(texts))
        return texts

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The vocabulary, in the order of the ids."""
        if self._kept is not None:
            return self._kept.words
        counts = Counter(word for pair in self._texts["train"] for text in pair for word in text)
        for word in _SPECIAL:
            counts.pop(word, None)
        order = sorted(counts, key=lambda word: (-counts[word], word))
        return (*_SPECIAL, *order[: self.options.vocabulary - len(_SPECIAL)])

    @cached_property
    def _ids(self) -> dict[str, int]:
        known = list(enumerate(self.words))[len(_SPECIAL) :]
        return {word: i for i, word in known}

    @cached_property
    def _pairs(self) -> dict[str, list[Encoded]]:
        return {part: [self.encode(p) for p in pairs] for part, pairs in self._texts.items()}

    def encode(self, pair: Pair) -> Encoded:
        """The ids of a pair."""
        source, target = ([self._ids.get(w, UNKNOWN) for w in text] for text in pair)
        return Encoded([*source, SOURCE_END], [*target, END])

    @property
    def _steps(self) -> int:
        pairs = (pair for part in self._pairs.values() for pair in part)
        return max(len(pair.source) + len(pair.target) - 1 for pair in pairs)

    def datasets(self) -> Splits:
        """Splits of x (time,), target (time,) and length (): see `Task.datasets`."""
        return Splits(*(Streams(pairs, self.options.wait) for pairs in self._pairs.values()))

    def text(self, ids: Sequence[int], unknown: str = _SPECIAL[UNKNOWN]) -> list[str]:
        """Words of ids up to the end of the translation, with pieces joined.

        Args:
            ids: as a model writes them.
            unknown: stands for a word outside the vocabulary.
        """
        end = list(ids).index(END) if END in ids else len(ids)
        words = [unknown if i == UNKNOWN else self.words[i] for i in ids[:end]]
        joiner = self.options.joiner
        return " ".join(words).replace(f"{joiner} ", "").split() if joiner else words

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """Counts of BLEU for the likeliest words after the true ones: (batch, 11)."""
        rows = []
        for ids, row in zip(y.argmax(-1), target, strict=True):
            asked = row != IGNORE
            rows.append(self._counts(ids[asked].tolist(), row[asked].tolist(), math.nan))
        return torch.tensor(rows, dtype=torch.float64)

    def decoded_scores(self, model: Any, x: Tensor, target: Tensor) -> Tensor:
        """Counts of BLEU for a model's own translations, and their average lagging: (batch, 11)."""
        after_target = torch.nn.functional.pad(target[:, :-1] != IGNORE, (1, 0))
        is_source = (x != PAD) & ~after_target
        sources = [row[used].tolist() for row, used in zip(x, is_source, strict=True)]
        references = [row[row != IGNORE].tolist() for row in target]
        rows = []
        for source, ours, theirs in zip(
            sources, self.translate(model, sources), references, strict=True
        ):
            lagging = average_lagging(len(source) - 1, len(ours), self.options.wait)
            rows.append(self._counts(ours, theirs, lagging))
        return torch.tensor(rows, dtype=torch.float64)

    def _counts(self, ours: Sequence[int], theirs: Sequence[int], lagging: float) -> list[float]:
        """Counts of BLEU, in which an unknown word is no match for another; and the lagging."""
        return [*bleu_counts(self.text(ours), self.text(theirs, unknown="<other>")), lagging]

    @torch.no_grad()
    def translate(self, model: Any, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """The likeliest word after the likeliest words before it, for each sentence.

        Args:
            model: with one output a step, in evaluation mode.
            sources: ids of each sentence, with `SOURCE_END`.

        Returns:
            Ids of each translation, without `END`.
        """
        device = next(model.parameters()).device
        writers = [_Writer(source, self.options.wait) for source in sources]
        state = model.init_state(len(writers), device=device)
        while not all(writer.done for writer in writers):
            tokens = torch.tensor([writer.next_token() for writer in writers], device=device)
            y, state = model.step(tokens, state)
            for writer, word in zip(writers, y.argmax(-1).tolist(), strict=True):
                writer.take(word)
        return [writer.words for writer in writers]

    def contributions(self, scores: Tensor) -> Tensor:
        """Numbers (sentences,) whose mean is the BLEU of all."""
        return bleu_contributions(scores[:, :COUNTS])

    def side_metrics(self, scores: Tensor) -> Mapping[str, float]:
        """Average lagging in source words, where the model translated by itself."""
        lagging = scores[:, COUNTS]
        return {} if lagging.isnan().any() else {"average lagging": lagging.mean().item()}

    def baselines(self) -> Mapping[str, float]:
        """BLEU of the source as its own translation."""
        rows = [bleu_counts(*map(_joined_by(self.options.joiner), p)) for p in self._texts["test"]]
        contributions = bleu_contributions(torch.tensor(rows, dtype=torch.float64))
        return {"the source itself": contributions.mean().item()}

    def example(self) -> str:
        """The first training pair in words."""
        source, target = (" ".join(text) for text in self._texts["train"][0])
        return f"source {source}\ntarget {target}"

    def run_files(self) -> Mapping[str, str]:
        """The vocabulary and the checksum of the data, as a file of a run folder."""
        facts = {"words": self.words, "steps": self.sequence_length, "sha256": self._sha256}
        return {_KEPT: json.dumps(facts, indent=2) + "\n"}

    @property
    def _sha256(self) -> str:
        return self._kept.sha256 if self._kept else _hash(self._texts)

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "Translation":
        """The task with the vocabulary of a run folder."""
        file, fix = folder / _KEPT, "Restore it from a copy."
        with reading(file, DataError, "hold the vocabulary of a translation", fix):
            return cls(options, _Kept(**record(_KEPT, _Kept, read_json(file, inside=folder))))


class _Writer:
    """One sentence that is translated word by word.

    Args:
        source: its ids, with `SOURCE_END`.
        wait: see `stream`.
    """

    def __init__(self, source: Sequence[int], wait: int) -> None:
        self.source, self.wait = source, wait
        self.words: list[int] = []
        self.done, self._n_read = False, 0
        self._written: int | None = None  # the word that is read next

    def next_token(self) -> int:
        """The next token that the model reads: the word it wrote, or one of the source."""
        if self.done:
            return PAD
        if self._written is not None:
            token, self._written = self._written, None
            return token
        self._n_read += 1
        return self.source[self._n_read - 1]

    def take(self, word: int) -> None:
        """Write a word, if enough of the source is read for it."""
        needed = read_before(len(self.words), len(self.source), self.wait)
        if self.done or self._n_read < needed:
            return
        if word == END or len(self.words) >= 2 * len(self.source) + _ROOM:
            self.done = True
            return
        self.words.append(word)
        self._written = word


def average_lagging(n_source: int, n_target: int, wait: int) -> float:
    """Source words by which writing lags behind one that keeps pace with the source.

    ``AL = (1 / tau) sum_{t = 1}^{tau} g(t) - (t - 1) / gamma`` with ``g(t)`` the source words that
    are read before the word t, ``gamma`` words of the translation over those of the source, and
    ``tau`` the first t at which all of the source is read.

    Args:
        n_source: words of the source.
        n_target: words of the translation; 0 counts as 1.
        wait: see `stream`.

    Example:
        >>> average_lagging(6, 6, 2), average_lagging(6, 6, 0)
        (2.0, 6.0)

    Reference:
        Ma et al. 2019, arXiv:1810.08398, equations 8 and 9.
    """
    gamma, total, t = max(1, n_target) / max(1, n_source), 0.0, 0
    while True:
        read = min(read_before(t, n_source + 1, wait), n_source)
        total += read - t / gamma
        t += 1
        if read == n_source or t >= max(1, n_target):
            return total / t


def read_pairs(files: Sequence[Path]) -> list[Pair]:
    """Words of the pairs of one .tsv, or of two files with as many lines.

    Raises:
        DataError: a file is damaged, holds no pairs, or others than the other.
    """
    texts = [_lines(path) for path in files]
    if len(files) == 1:
        cells = [line.split("\t") for line in texts[0]]
        wrong = next((i for i, row in enumerate(cells) if len(row) != 2), None)
        if wrong is not None:
            raise DataError(
                f"{files[0]}: a line must hold a sentence, a tab and its translation, got "
                f"{len(cells[wrong])} cells in line {wrong + 1}."
            )
        texts = [[row[i] for row in cells] for i in (0, 1)]
    if len(texts[0]) != len(texts[1]):
        raise DataError(
            f"{files[1]}: the file must have {len(texts[0]):,} lines, as {files[0].name} has, got "
            f"{len(texts[1]):,}."
        )
    pairs = [
        (tuple(source.split()), tuple(target.split()))
        for source, target in zip(*texts, strict=True)
    ]
    pairs = [pair for pair in pairs if pair[0] and pair[1]]
    if not pairs:
        raise DataError(f"{files[0]}: the file must hold sentences, got none.")
    return pairs


def _lines(path: Path) -> list[str]:
    try:
        text = read_packed(path, "sentences").decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the file must be UTF-8, got other bytes. Convert it.") from error
    return text.removesuffix("\n").split("\n")


def _joined_by(joiner: str) -> Callable[[Sequence[str]], list[str]]:
    def join(words: Sequence[str]) -> list[str]:
        return " ".join(words).replace(f"{joiner} ", "").split() if joiner else list(words)

    return join


def _hash(texts: Mapping[str, Sequence[Pair]]) -> str:
    return checksum("\t".join(map(" ".join, pair)) for part in texts.values() for pair in part)
