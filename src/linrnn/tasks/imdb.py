"""Long Range Arena's Text: is a film review good or bad? Read byte by byte."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from linrnn._files.door import read_bytes
from linrnn.errors import DataError, check_positive_int
from linrnn.tasks._kinds.base import Given, Published, Splits, Task
from linrnn.tasks._kinds.long_range import long_range
from linrnn.tasks._reading.files import Source, chosen, folder_of, obtain, read_tar
from linrnn.tasks._reading.ragged import Ragged, join

_ARCHIVE = Source(
    "aclImdb_v1.tar.gz",
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "md5:7c2ac02c03563afcf9b574c7e56c153a",
)
_MEMBER = re.compile(r"(?:\./)?aclImdb/(train|test)/(neg|pos)/\d+_\d+\.txt")
_SPLIT_SEED = 0  # the split is part of the task: never the run's seed
_EOS, _FIRST = 1, 2  # ids of the end and of byte 0; 0 is padding

_LRA = "Tay et al. 2021, arXiv:2011.04006, Table 1"
_LRU = "Orvieto et al. 2023, arXiv:2303.06349, Table {}"
_S4 = "Gu, Goel and Re 2022, arXiv:2111.00396"
_S4D = "public code of Gu et al. 2022, arXiv:2206.11893"
_S5 = "Smith, Warrington and Linderman 2023, arXiv:2208.04933"


@dataclass(frozen=True, kw_only=True)
class IMDbOptions:
    """Options of the task `imdb`."""

    data: str = ""
    """Folder of the archive or archives. Default: downloaded once, into `LINRNN_DATA`."""
    length: int = 4096
    """Steps of a sequence at most; of a longer review the beginning is read."""
    validation_size: int = 2_500
    """How many of the 25,000 training reviews are for validation."""


class IMDb(Task):
    """Is a film review good or bad? 50,000 reviews, read byte by byte; half are good.

    A sequence is a review's bytes, an end, and padding to 4,096 steps; the lengths come with a
    batch. Symbols are 256 bytes, padding and an end, where Long Range Arena's usual code has the
    some 130 characters that occur at least 15 times.

    The data has 25,000 reviews for training and as many for testing. For the published numbers
    the weights were mostly chosen by their result on the test reviews; here a tenth of the training
    reviews, always the same, is for validation, so numbers are a little lower.

    The archive is read as it was distributed, or as ``aclImdb_train`` and ``aclImdb_test`` in
    .tar.gz or .tar.xz; nothing is unpacked to disk.

    Args:
        options: `IMDbOptions`.

    Raises:
        ArgumentError: a length or validation_size below 1.
    """

    Options: ClassVar[type] = IMDbOptions
    summary: ClassVar[str] = "good or bad film reviews, up to 4,096 bytes (LRA Text)"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="Transformer", value=0.6427, source=_LRA),
        Published(model="Linear Transformer", value=0.6590, source=_LRA),
        Published(model="deep RNN, dense, ReLU", value=0.880, source=_LRU.format(1)),
        Published(model="deep RNN, dense, tanh", value=0.872, source=_LRU.format(1)),
        Published(model="deep RNN, dense, linear", value=0.891, source=_LRU.format(1)),
        Published(model="LRU", value=0.894, source=_LRU.format(8)),
        Published(model="S4, first release", value=0.7602, source=_S4),
        Published(model="S4-LegS, updated", value=0.8682, source=_S4),
        Published(model="S4D-LegS", value=0.8618, source=_S4D),
        Published(model="S5", value=0.8931, source=_S5),
        *long_range(dss=0.763, liquid_s4=0.8902, sgconv=0.892, mega=0.9043),
    )

    chance = 0.5
    d_input = _FIRST + 256
    d_output = 2
    class_names = ("negative", "positive")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        names = ("length", "validation_size")
        check_positive_int("IMDb", **{name: getattr(self.options, name) for name in names})
        self.sequence_length = self.options.length

    def datasets(self) -> Splits:
        """Read the archive, or download and read it: see `Task.datasets`."""
        parts = self._reviews()
        train, validation_size = parts["train"], self.options.validation_size
        if len(train) <= validation_size:
            raise DataError(
                f"imdb: there must be more than validation_size = {validation_size} reviews for "
                f"training, got {len(train)}. Get the archive anew, or choose a smaller "
                "validation_size."
            )
        # RandomState's stream is frozen by NumPy's compatibility promise; Generator's is not
        order = np.random.RandomState(_SPLIT_SEED).permutation(len(train))
        return Splits(
            train.take(order[validation_size:]), train.take(order[:validation_size]), parts["test"]
        )

    def read(self, path: Path) -> Tensor:
        """Reviews from a user's file of text, a review a line."""
        return self.read_given(path).x

    def read_given(self, path: Path) -> Given:
        """The same with their lengths: see `Task.read_given`."""
        try:
            lines = read_bytes(path, inside=None).splitlines()
        except OSError as error:
            raise DataError(f"{path}: the data file must be readable, got {error}.") from error
        if not lines:
            raise DataError(f"{path}: the data file must hold a line of text, got none.")
        rows, lengths = zip(*(self._pad(np.frombuffer(line, "u1")) for line in lines), strict=True)
        return Given(torch.stack(rows), torch.tensor(lengths))

    def example(self) -> str:
        """The beginning of a review; nothing is downloaded for it."""
        x, target, length = self._reviews(download=False)["test"][0]
        text = bytes((x[: min(length - 1, 160)] - _FIRST).tolist()).decode(errors="replace")
        return f"input {text} ...\ntarget {self.class_names[target]}"

    def _reviews(self, download: bool = True) -> dict[str, Ragged]:
        texts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
        labels: dict[str, list[int]] = {"train": [], "test": []}
        paths = self._paths(download)
        for path in paths:
            for name, content in read_tar(path, _is_review, "an archive of IMDb reviews"):
                split, kind = _MEMBER.fullmatch(name).groups()  # type: ignore[union-attr]
                texts[split].append(np.frombuffer(content, "u1"))
                labels[split].append(int(kind == "pos"))
        for split, classes in labels.items():
            if len(set(classes)) < 2:
                raise DataError(
                    f"{' and '.join(map(str, paths))}: there must be good and bad reviews in "
                    f"aclImdb/{split}, got {len(classes)} of {len(set(classes))} kinds. Get "
                    f"{_ARCHIVE.name} from {_ARCHIVE.url}."
                )
        return {s: join(texts[s], np.array(labels[s]), self._pad) for s in texts}

    def _paths(self, download: bool) -> list[Path]:
        place = folder_of("imdb", self.options.data)
        if place.is_file():
            return [place]
        if not (place / _ARCHIVE.name).is_file():
            two = [sorted(place.glob(f"aclImdb_{part}.tar.?z")) for part in ("train", "test")]
            if all(two):
                return [chosen("imdb", archives[0], place) for archives in two]
        return [obtain("imdb", _ARCHIVE, "imdb", self.options.data, download)]

    def _pad(self, text: np.ndarray) -> tuple[Tensor, int]:
        text = text[: self.options.length - 1]
        x = torch.zeros(self.options.length, dtype=torch.int64)
        x[: len(text)] = torch.from_numpy(text.astype(np.int64)) + _FIRST
        x[len(text)] = _EOS
        return x, len(text) + 1


def _is_review(name: str) -> bool:
    return _MEMBER.fullmatch(name) is not None
