"""WikiText-2 and WikiText-103: the next word of articles of Wikipedia."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from linrnn.errors import check_in
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.published_text import PublishedText, Sizes, find_file, words_of
from linrnn.tasks._reading.corpus import Corpus, read_corpus
from linrnn.tokenizers import Tokenizer

_LAYOUT = (
    "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, or train.txt, valid.txt and "
    "test.txt (each as it is, .gz or .xz)"
)
_FILES = {"train": "train", "validation": "valid", "test": "test"}
_SIZES = {
    "wikitext2": Sizes(2_088_628, 217_646, 245_569, 33_278),
    "wikitext103": Sizes(103_227_021, 217_646, 245_569, 267_735),
}
_UNCHECKED = "not checked against the paper"
_PUBLISHED = (
    ("AWD-LSTM", "wikitext2", 65.8, "Merity et al. 2018, arXiv:1708.02182, abstract"),
    ("S4, updated", "wikitext103", 20.95, "notes of the public code of arXiv:2111.00396"),
    ("S4, first release", "wikitext103", 21.28, "notes of the public code of arXiv:2111.00396"),
    ("HGRN", "wikitext103", 24.82, f"Qin et al. 2023, arXiv:2311.04823; {_UNCHECKED}"),
    ("LRU", "wikitext103", 31.12, "a listing that is not the authors', in the set-up of HGRN"),
)

Set = Literal["wikitext2", "wikitext103"]


@dataclass(frozen=True, kw_only=True)
class WikiTextOptions:
    """Options of the task `wikitext`."""

    data: str = ""
    """Folder of the three files. Default: the folder of the set's name in `LINRNN_DATA`."""
    set: Set = "wikitext2"
    """WikiText-2 has 2 million words for training, WikiText-103 a hundred million."""
    length: int = 70
    """Words of a window."""
    check_counts: bool = True
    """Whether the files must have the published numbers of words."""


class WikiText(PublishedText):
    """Predict the next word of articles of Wikipedia, the rare ones being ``<unk>``.

    Files are the tokenised ones, not the raw ones. Words for training are 2,088,628 of 33,278 kinds
    (WikiText-2) or 103,227,021 of 267,735 kinds (WikiText-103), the end of a line counted as
    ``<eos>``. Both have the same 217,646 words for validation and 245,569 for testing, but for
    which of them are rare. Articles follow one another without a mark.

    The loss is in nats per word, its exponential the perplexity that papers print; the metric is in
    bits per word. Chance says that all words are equally likely. ``linrnn show wikitext`` computes
    what counts of words and of pairs of words reach, where the files are there.

    Args:
        options: `WikiTextOptions`.
        tokenizer: one that is there already; None makes it from the training part.

    Raises:
        UnknownNameError: no such set.
        ArgumentError: a length below 1.

    Reference:
        Merity et al. 2016, arXiv:1609.07843.
    """

    Options: ClassVar[type] = WikiTextOptions
    summary: ClassVar[str] = "the next word of WikiText-2 or WikiText-103, files of your own"
    metric: ClassVar[str] = "bits per word"
    published: ClassVar[tuple[Published, ...]] = tuple(
        Published(
            model=f"{model}, {name}, perplexity {perplexity}",
            value=round(math.log2(perplexity), 3),
            source=source,
        )
        for model, name, perplexity, source in _PUBLISHED
    )

    def __init__(self, options: Any = None, tokenizer: Tokenizer | None = None) -> None:
        options = WikiTextOptions() if options is None else options
        check_in("WikiText", "set", options.set, get_args(Set))
        super().__init__(options, tokenizer)

    @property
    def name(self) -> str:
        """The name of the set."""
        return str(self.options.set)

    @property
    def sizes(self) -> Sizes:
        """Words of each part, and of the vocabulary."""
        return _SIZES[self.options.set]

    def make_tokenizer(self) -> Tokenizer:
        """All words of the training part."""
        return words_of(self._file("train"))

    def read_part(self, part: str) -> Corpus:
        """The words of a file, which is one document."""
        return read_corpus([self._file(part)], self.tokenizer, "one")

    def _file(self, part: str) -> Path:
        stem = _FILES[part]
        return find_file(self.name, self.place, [f"wiki.{stem}.tokens", f"{stem}.txt"], _LAYOUT)
