"""Long Range Arena's Retrieval: whether one of two papers cites the other, read by characters."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import DataError, check_positive_int
from linrnn.tasks._kinds.base import Given, Published, Splits, Task
from linrnn.tasks._kinds.long_range import long_range
from linrnn.tasks._reading.files import chosen, folder_of, read_packed
from linrnn.tasks._reading.pairs import SYMBOLS, Pairs, decode, encode

_RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
_FILES = {
    split: f"new_aan_pairs.{name}.tsv"
    for split, name in (("train", "train"), ("validation", "eval"), ("test", "test"))
}
_BELOW = ("", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")
_SHOWN = 120  # characters of an example

_LRA = "Tay et al. 2021, arXiv:2011.04006, Table 1, as its public code"
_LRU = "Orvieto et al. 2023, arXiv:2303.06349, Table {}"
_S4 = "Gu, Goel and Re 2022, arXiv:2111.00396"
_S4D = "public code of Gu et al. 2022, arXiv:2206.11893"
_S5 = "Smith, Warrington and Linderman 2023, arXiv:2208.04933"


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """Options of the task `retrieval`."""

    data: str = ""
    """Folder of the three .tsv files, or of the release. Default: the folder in `LINRNN_DATA`."""
    length: int = 4000
    """Steps of a document at most; of a longer one the beginning is read."""


class Retrieval(Task):
    """Does one of two papers cite the other? Pairs of the ACL Anthology Network, by characters.

    Each document is read on its own, by the same layers; the two results of pooling are
    compared: see `linrnn.nn.Pair`. A sequence is a document's characters, an end, and padding to
    4,000 steps; the lengths come with a batch. There are 147,086 pairs for training, 18,090 for
    validation and 17,437 for testing, half of them connected.

    Symbols are the 95 printable characters of ASCII, padding, an end, and one for all others: 98,
    as many as in Long Range Arena's usual code, which takes those that occur ten times in the
    training file. The files stay where they are and are read a batch at a time.

    The release is one archive of 7.7 GB with all of Long Range Arena and has no published checksum:
    nothing is downloaded here.

    Args:
        options: `RetrievalOptions`.

    Raises:
        ArgumentError: a length below 1.
    """

    Options: ClassVar[type] = RetrievalOptions
    summary: ClassVar[str] = "does one of two papers cite the other? 2 x 4,000 characters (LRA)"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    documents: ClassVar[int] = 2
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="Transformer", value=0.5746, source=_LRA),
        Published(model="Linear Transformer", value=0.5309, source=_LRA),
        Published(model="deep RNN, dense, ReLU", value=0.885, source=_LRU.format(1)),
        Published(model="deep RNN, dense, tanh", value=0.889, source=_LRU.format(1)),
        Published(model="deep RNN, dense, linear", value=0.891, source=_LRU.format(1)),
        Published(model="LRU", value=0.899, source=_LRU.format(8)),
        Published(model="S4, first release", value=0.8709, source=_S4),
        Published(model="S4-LegS, updated", value=0.9090, source=_S4),
        Published(model="S4D-LegS", value=0.8946, source=_S4D),
        Published(model="S4D-Lin", value=0.9096, source=_S4D),
        Published(model="S5", value=0.9140, source=_S5),
        *long_range(dss=0.878, liquid_s4=0.912, sgconv=0.9111, mega=0.9125),
    )

    chance = 0.5
    d_input = SYMBOLS
    d_output = 2
    class_names = ("apart", "cited")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_positive_int("Retrieval", length=self.options.length)
        self.sequence_length = self.options.length

    def datasets(self) -> Splits:
        """Splits of x (2, time), target () and lengths (2,): see `Task.datasets`."""
        return Splits(*(self._pairs(split) for split in _FILES))

    def example(self) -> str:
        """The beginnings of the first two documents of the test file."""
        x, target, _ = self._pairs("test")[0]
        texts = "\n".join(f"input {decode(row[:_SHOWN])} ..." for row in x)
        return f"{texts}\ntarget {self.class_names[target]}"

    def read_given(self, path: Path) -> Given:
        """Pairs of documents from a user's file, two texts a line with a tab between them."""
        lines = read_packed(path, "two texts a line with a tab between them").splitlines()
        x = np.zeros((len(lines), 2, self.options.length), np.uint8)
        lengths = np.zeros((len(lines), 2), np.int64)
        for row, line in enumerate(lines):
            texts = line.split(b"\t")
            if len(texts) != 2:
                raise DataError(
                    f"{path}: line {row + 1} must hold two texts with a tab between them, got "
                    f"{len(texts)}."
                )
            lengths[row] = [encode(text, x[row, i]) for i, text in enumerate(texts)]
        return Given(torch.from_numpy(x).long(), torch.from_numpy(lengths))

    def read(self, path: Path) -> Tensor:
        """Pairs of documents from a user's file: see `read_given`."""
        return self.read_given(path).x

    def _pairs(self, split: str) -> Pairs:
        place, name = folder_of("retrieval", self.options.data), _FILES[split]
        for below in _BELOW:
            path = place / below / name
            if os.path.lexists(path):
                return Pairs(chosen("retrieval", path, place), self.options.length)
        raise DataError(
            f"retrieval: the data file {place / name} must exist, got no such file. Unpack "
            f"lra_release.gz from {_RELEASE} and put {', '.join(_FILES.values())} of its folder "
            "tsv_data there, or name the folder that has them: --data FOLDER."
        )
