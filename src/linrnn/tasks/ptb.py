"""Penn Treebank: the next word, or the next character, of articles of the Wall Street Journal."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from linrnn import tokenizers
from linrnn.errors import check_in
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.published_text import PublishedText, Sizes, find_file, words_of
from linrnn.tasks._reading.corpus import Corpus, pieces, read_corpus, stripped
from linrnn.tokenizers import Tokenizer

_LAYOUT = "ptb.train.txt, ptb.valid.txt and ptb.test.txt (each as it is, .gz or .xz)"
_FILES = {"train": "train", "validation": "valid", "test": "test"}
_SIZES = {
    "word": Sizes(929_589, 73_760, 82_430, 10_000),
    "char": Sizes(5_017_482, 393_042, 442_423, 50),
}
_ZAREMBA = "Zaremba, Sutskever and Vinyals 2014, arXiv:1409.2329, Table 1"
_AWD = "Merity, Keskar and Socher 2018, arXiv:1708.02182, abstract"
_SCALES = "Merity, Keskar and Socher 2018, arXiv:1803.08240"

Level = Literal["word", "char"]


@dataclass(frozen=True, kw_only=True)
class PTBOptions:
    """Options of the task `ptb`."""

    data: str = ""
    """Folder of the three files. Default: the folder ptb of `LINRNN_DATA`."""
    level: Level = "word"
    """Whether a token is a word or a character."""
    length: int = 35
    """Tokens of a window."""
    check_counts: bool = True
    """Whether the files must have the published numbers of tokens."""


class PTB(PublishedText):
    """Predict the next word, or character, of Penn Treebank in Mikolov's preprocessing.

    Text of the Wall Street Journal in lower case, numbers as ``N``, with 10,000 words at most:
    929,589 words for training, 73,760 for validation and 82,430 for testing, the end of a line
    counted as the word ``<eos>``. By characters (``--task.level char``) the same lines, without the
    blanks at their ends, are 5.02, 0.39 and 0.44 million characters of 50 kinds, the line feed
    among them. No file can be downloaded, for its licence is the Linguistic Data Consortium's.

    The loss is in nats per token, its exponential the perplexity that papers print for words. The
    metric is in bits per word, or per character. Chance says that all are equally likely. To keep
    the state from a window to the next, as papers do: ``--carry-state``.

    Counts of the training part predict the test part with a perplexity of 640 per word (unigrams)
    and 4.35 bits per character, of 200 and 3.37 where the token before is known (bigrams, smoothed
    by Witten and Bell): ``linrnn show ptb`` computes them.

    Args:
        options: `PTBOptions`.
        tokenizer: one that is there already; None makes it from the training part.

    Raises:
        UnknownNameError: no such level.
        ArgumentError: a length below 1.
    """

    Options: ClassVar[type] = PTBOptions
    summary: ClassVar[str] = "the next word or character of Penn Treebank, files of your own"
    metric: ClassVar[str] = "bits per word"
    published: ClassVar[tuple[Published, ...]] = (
        *(
            Published(
                model=f"{model}, words, perplexity {perplexity}",
                value=round(math.log2(perplexity), 3),
                source=source,
            )
            for model, perplexity, source in (
                ("LSTM, 2 layers of 650, dropout", 82.7, _ZAREMBA),
                ("LSTM, 2 layers of 1500, dropout", 78.4, _ZAREMBA),
                ("AWD-LSTM, 24 million weights", 57.3, _AWD),
            )
        ),
        Published(model="AWD-LSTM, characters", value=1.175, source=_SCALES),
    )

    def __init__(self, options: Any = None, tokenizer: Tokenizer | None = None) -> None:
        options = PTBOptions() if options is None else options
        check_in("PTB", "level", options.level, get_args(Level))
        super().__init__(options, tokenizer)
        if options.level == "char":
            self.metric = "bits per character"  # type: ignore[misc]

    @property
    def name(self) -> str:
        """The name of the text."""
        return "ptb"

    @property
    def sizes(self) -> Sizes:
        """Tokens of each part, and of the vocabulary."""
        return _SIZES[self.options.level]

    def make_tokenizer(self) -> Tokenizer:
        """All words of the training part, or all of its characters."""
        path = self._file("train")
        if self.options.level == "word":
            return words_of(path)
        return tokenizers.make("char", (stripped(piece.text) for piece in pieces(path)))

    def read_part(self, part: str) -> Corpus:
        """The tokens of a file, which is one document."""
        strip = self.options.level == "char"
        return read_corpus([self._file(part)], self.tokenizer, "one", strip=strip)

    def _file(self, part: str) -> Path:
        return find_file("ptb", self.place, [f"ptb.{_FILES[part]}.txt"], _LAYOUT)
