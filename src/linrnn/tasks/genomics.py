"""DNA: the next base of a genome."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.published_text import PublishedText, find_file
from linrnn.tasks._reading.corpus import Corpus, hash_files
from linrnn.tasks._reading.fasta import LETTERS, Interval, read_bed, read_fasta
from linrnn.tokenizers import CharTokenizer, Tokenizer

_NAMES = ("hg38.fa", "hg38.ml.fa", "genome.fa")
_LAYOUT = f"a FASTA file of the name {', '.join(_NAMES[:-1])} or {_NAMES[-1]} (or .gz, .xz)"
_PARTS = (("train", 0.0, 0.9), ("validation", 0.9, 0.95), ("test", 0.95, 1.0))
_HYENA = "Nguyen et al. 2023, arXiv:2306.15794; not checked against the paper"


@dataclass(frozen=True, kw_only=True)
class GenomicsOptions:
    """Options of the task `genomics`."""

    data: str = ""
    """The FASTA file, or its folder. Default: the folder genomics of `LINRNN_DATA`."""
    intervals: str = ""
    """A BED file with a fourth column of train, valid or test. Default: parts by position."""
    length: int = 1024
    """Bases of a window."""


class Genomics(PublishedText):
    """Predict the next base of DNA: A, C, G, T, or N, which no one has read.

    Give a FASTA file as ``--data FILE``, packed as .gz or .xz or not. Small letters, which mark
    repeats, are read as large ones, and the codes of several bases as N. A BED file
    (``--task.intervals``) says in its fourth column what each interval is for: train, valid or
    test. Without one the first 90 % of every sequence are for training, the next 5 % for
    validation, the last 5 % for testing. An interval, or a part of a sequence, is a document: the
    state is reset where it begins. All bases are in memory, a byte each.

    The loss is in nats per base, its exponential the perplexity that papers print. The metric is in
    bits per base; chance is 2, four bases equally likely. ``linrnn show genomics`` computes what
    Markov chains of orders 0, 3, 6 and 10 reach, counted on 16,777,216 bases at most: a model that
    is no better than these has learned no more than short words.

    Args:
        options: `GenomicsOptions`.
        tokenizer: one that is there already; None makes it.

    Raises:
        ArgumentError: a length below 1.
    """

    Options: ClassVar[type] = GenomicsOptions
    summary: ClassVar[str] = "the next base of a genome, a FASTA file of your own"
    metric: ClassVar[str] = "bits per base"
    orders: ClassVar[Mapping[str, int]] = {f"Markov chain of order {k}": k for k in (0, 3, 6, 10)}
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            model="HyenaDNA, context of a million, human genome, perplexity 2.9",
            value=round(math.log2(2.9), 3),
            source=_HYENA,
        ),
    )

    chance = 2.0

    @property
    def name(self) -> str:
        """The name of the data."""
        return "genomics"

    def vocabulary(self) -> int:
        """Four bases, and N."""
        return len(LETTERS)

    def make_tokenizer(self) -> Tokenizer:
        """One letter is one token."""
        return CharTokenizer(LETTERS)

    def read_part(self, part: str) -> Corpus:
        """The intervals of a part, one after the other."""
        sequences, intervals, sha256 = self._genome
        rows = [i for i in intervals if i.part == part]
        bases = [sequences[i.sequence][i.begin : i.end] for i in rows]
        ends = np.cumsum([len(row) for row in bases], dtype=np.int64)
        tokens = np.concatenate(bases) if bases else np.zeros(0, np.uint8)
        return Corpus(tokens, np.concatenate([[0], ends[:-1]]), sha256)

    @cached_property
    def _genome(self) -> tuple[dict[str, np.ndarray], list[Interval], str]:
        place, intervals = self.place, self.options.intervals
        path = place if place.is_file() else find_file("genomics", place, _NAMES, _LAYOUT)
        sequences, paths = read_fasta(path), [path]
        if not intervals:
            return sequences, _by_position(sequences), hash_files(paths)
        paths.append(Path(intervals).expanduser())
        return sequences, read_bed(paths[1], sequences), hash_files(paths)


def _by_position(sequences: Mapping[str, np.ndarray]) -> list[Interval]:
    """Every sequence cut at 90 % and 95 %."""
    cut = []
    for name, bases in sequences.items():
        for part, begin, end in _PARTS:
            bounds = int(len(bases) * begin), int(len(bases) * end)
            if bounds[0] < bounds[1]:
                cut.append(Interval(name, *bounds, part))
    return cut
