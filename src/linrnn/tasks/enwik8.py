"""enwik8 and text8: the next byte, or letter, of the first 100 million of English Wikipedia."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

from linrnn.errors import DataError, check_in, check_positive_int
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.published_text import PublishedText, Sizes, find_file
from linrnn.tasks._reading.corpus import Corpus, read_corpus
from linrnn.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer

_LETTERS = " abcdefghijklmnopqrstuvwxyz"
_RWKV = "Peng et al. 2023, arXiv:2305.13048, as that paper lists it"
_XL = "Dai et al. 2019, arXiv:1901.02860, abstract"
_AWD = "Merity, Keskar and Socher 2018, arXiv:1803.08240, in listings of its results"

Set = Literal["enwik8", "text8"]


@dataclass(frozen=True, kw_only=True)
class Enwik8Options:
    """Options of the task `enwik8`."""

    data: str = ""
    """The file, or its folder. Default: the folder of the set's name in `LINRNN_DATA`."""
    set: Set = "enwik8"
    """Bytes of the dump as it is (enwik8), or small letters and blanks alone (text8)."""
    length: int = 512
    """Tokens of a window."""
    train_size: int = 90_000_000
    """Tokens for training, the first ones."""
    validation_size: int = 5_000_000
    """Tokens for validation, the next ones."""
    test_size: int = 5_000_000
    """Tokens for testing, the next ones."""


class Enwik8(PublishedText):
    """Predict the next byte of English Wikipedia as of March 2006, markup included.

    Parts go by position: 90 million bytes for training, 5 million for validation and as many for
    testing. text8 is the same text in 26 small letters and blanks, with numbers spelled out. Other
    sizes are for tests; their results are no benchmark's.

    The loss is in nats per token, the metric in bits per byte, which papers print as bits per
    character. Chance says that all 256 bytes, or 27 letters, are equally likely. ``linrnn show
    enwik8`` computes what counts of bytes, and of those after one and two others, reach, where the
    file is there; 16,777,216 bytes are counted.

    Args:
        options: `Enwik8Options`.
        tokenizer: one that is there already; None makes it.

    Raises:
        UnknownNameError: no such set.
        ArgumentError: a size below 1.

    Reference:
        Mahoney, Large Text Compression Benchmark, 2006.
    """

    Options: ClassVar[type] = Enwik8Options
    summary: ClassVar[str] = "the next byte of enwik8, or letter of text8, a file of your own"
    metric: ClassVar[str] = "bits per byte"
    orders: ClassVar[Mapping[str, int]] = {**PublishedText.orders, "trigram counts": 2}
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="Transformer, 12 layers of 512, enwik8", value=1.137, source=_RWKV),
        Published(model="Reformer, 12 layers of 512, enwik8", value=1.195, source=_RWKV),
        Published(model="Linear Transformer, 12 layers of 512, enwik8", value=1.207, source=_RWKV),
        Published(model="RWKV-4, 12 layers of 512, enwik8", value=1.178, source=_RWKV),
        Published(model="Transformer-XL, 277 million weights, enwik8", value=0.99, source=_XL),
        Published(model="Transformer-XL, 277 million weights, text8", value=1.08, source=_XL),
        Published(model="LSTM, 47 million weights, enwik8", value=1.232, source=_AWD),
    )

    def __init__(self, options: Any = None, tokenizer: Tokenizer | None = None) -> None:
        options = Enwik8Options() if options is None else options
        check_in("Enwik8", "set", options.set, get_args(Set))
        names = ("train_size", "validation_size", "test_size")
        check_positive_int("Enwik8", **{name: getattr(options, name) for name in names})
        super().__init__(options, tokenizer)

    @property
    def name(self) -> str:
        """The name of the set."""
        return str(self.options.set)

    @property
    def exact(self) -> bool:
        """True: the parts are as large as the options say."""
        return True

    @property
    def sizes(self) -> Sizes:
        """Tokens of each part, and of the vocabulary."""
        o = self.options
        vocabulary = 256 if o.set == "enwik8" else len(_LETTERS)
        return Sizes(o.train_size, o.validation_size, o.test_size, vocabulary)

    def make_tokenizer(self) -> Tokenizer:
        """Bytes, or 27 letters."""
        return ByteTokenizer() if self.options.set == "enwik8" else CharTokenizer(_LETTERS)

    def read_part(self, part: str) -> Corpus:
        """The tokens of a part, by position."""
        corpus, sizes = self._whole, self.sizes
        ends = {"train": sizes.train, "validation": sizes.train + sizes.validation}
        ends["test"] = ends["validation"] + sizes.test
        if len(corpus.tokens) < ends["test"]:
            raise DataError(
                f"{self.name}: the file of {self.place} must hold {ends['test']:,} tokens, got "
                f"{len(corpus.tokens):,}. Get the whole file; for another text take the task lm, "
                "or say the sizes of its parts, --task.train-size and so on."
            )
        begin = ends[part] - getattr(sizes, part)
        return Corpus(corpus.tokens[begin : ends[part]], corpus.starts[:1], corpus.sha256)

    @cached_property
    def _whole(self) -> Corpus:
        """The tokens of the file."""
        place = self.place
        layout = f"a file {self.name}, unpacked from {self.name}.zip or packed as .gz or .xz"
        path = place if place.is_file() else find_file(self.name, place, [self.name], layout)
        return read_corpus([path], self.tokenizer, "one")
