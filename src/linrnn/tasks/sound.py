"""Raw sound: say which sample comes next."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn import sound
from linrnn._files.door import read_bytes
from linrnn.errors import DataError, check_in, check_positive_int
from linrnn.sound import Coding
from linrnn.tasks._kinds.base import Given, Published, Splits, Task
from linrnn.tasks._kinds.token_windows import TokenWindows, check_parts
from linrnn.tasks._reading.audio import read_wav
from linrnn.tasks._reading.files import chosen, read_tar
from linrnn.tasks.spoken_digits import archive_of, place_of

_GOEL = "Goel et al. 2022, arXiv:2202.09729, {}"
_DOCUMENTS = ("one", "files")


@dataclass(frozen=True, kw_only=True)
class SoundOptions:
    """Options of the task `sound`."""

    data: str = ""
    """Folder of .wav files, one such file, or an archive. Default: the spoken digits."""
    rate: int = 8_000
    """Samples a second, the same in all files."""
    coding: Coding = "mu-law"
    """How a sample is one of 256 codes: closer together where it is quiet, or evenly."""
    length: int = 2_048
    """Samples of a training window."""
    stride: int = 0
    """From one training window to the next, in samples; 0: the length, so that none overlap."""
    validation: float = 0.1
    """Part of the samples for validation, those before the test part; not of the spoken digits."""
    test: float = 0.1
    """Part of the samples for testing, the last ones; 0: the validation part is the test part."""
    documents: Literal["one", "files"] = "one"
    """Bounds of memory: files, or none (one), where clips follow one another."""


class Clips(NamedTuple):
    """Codes of some clips, one after the other."""

    codes: np.ndarray
    """(samples,) uint8."""
    starts: np.ndarray
    """Places of the first sample of each, rising."""


class Sound(Task):
    """Predict each sample of raw sound from those before it, as one of 256 codes.

    Give a folder of .wav files (one channel, 16 bits) as ``--data FOLDER``, with their
    ``--task.rate``; all clips, in the order of their names, are one row of samples, which is cut
    into parts for training, validation and testing by position. Without a folder, and for any
    archive of its recordings, it is the Free Spoken Digit Dataset with its own splits, see
    `spoken_digits`. A window is ``length`` samples; what fills no whole window is left out.

    The metric is the negative logarithm of the likelihood in bits per sample, the loss over ln 2.
    Chance, 8 bits, says that every code is equally likely. 8 bits of mu-law are defined by
    `linrnn.sound.encode`.

    Args:
        options: `SoundOptions`.

    Raises:
        ArgumentError: a size below 1, a part outside (0, 1), no training part.
        UnknownNameError: an unknown coding.
    """

    Options: ClassVar[type] = SoundOptions
    summary: ClassVar[str] = "predict the next sample of raw sound: --data FOLDER of .wav"
    metric: ClassVar[str] = "bits per sample"
    higher_is_better: ClassVar[bool] = False
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)
    published: ClassVar[tuple[Published, ...]] = tuple(
        Published(model=f"{model}, SC09, 16 kHz, mu-law", value=value, source=source)
        for model, value, source in (
            ("SaShiMi", 1.891, _GOEL.format("Table 6")),
            ("SaShiMi, as a U-Net", 1.873, _GOEL.format("notes of its public code")),
            ("WaveNet", 1.925, _GOEL.format("Table 6")),
            ("SampleRNN", 2.042, _GOEL.format("Table 6")),
        )
    )

    chance = 8.0
    d_input = d_output = sound.CODES

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_parts("Sound", self.options)
        check_positive_int("Sound", rate=self.options.rate)
        check_in("Sound", "coding", self.options.coding, sound.CODINGS)
        check_in("Sound", "documents", self.options.documents, _DOCUMENTS)
        self.rate, self.coding = self.options.rate, self.options.coding
        self.sequence_length = self.options.length
        self.contiguous = self.options.stride in (0, self.options.length)

    def datasets(self) -> Splits:
        """Windows of each part.

        Raises:
            DataError: a file cannot be used, or a part holds no whole window.
        """
        length, splits = self.options.length, []
        for name, part in zip(Splits._fields, self.clips, strict=True):
            stride = self.options.stride if name == "train" else 0
            starts = part.starts if self.options.documents == "files" else part.starts[:0]
            windows = TokenWindows(part.codes, starts, length, stride or length)
            if not len(windows):
                raise DataError(
                    f"sound: the {name} part must hold a window of {length} samples and one more, "
                    f"got {len(part.codes)} samples. Choose a smaller length, or give more sound."
                )
            splits.append(windows)
        return Splits(*splits)

    @cached_property
    def clips(self) -> tuple[Clips, Clips, Clips]:
        """The codes for training, validation and testing."""
        names, codes = [], []
        for name, where, content in self._files():
            names.append(name)
            samples = read_wav(where, content, self.rate).astype(np.float32) / 32768
            codes.append(sound.encode(samples, self.coding))
        places = [place_of(name) for name in names]
        if all(places):
            splits = [place[0] for place in places if place is not None]
            parts = [
                [c for c, split in zip(codes, splits, strict=True) if split == name]
                for name in Splits._fields
            ]
            train, validation, test = map(_joined, parts)
            return train, validation, test
        return self._by_position(_joined(codes))

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """Bits per sample of each window."""
        nats = F.cross_entropy(y.flatten(0, 1).float(), target.flatten(), reduction="none")
        return nats.view_as(target).mean(1) / math.log(2)

    def read(self, path: Path) -> Tensor:
        """Windows of a user's .wav, or rows of codes as other tasks read them."""
        return self.read_given(path).x

    def read_given(self, path: Path) -> Given:
        """The same; the last window of a .wav is padded with silence: see `Task.read_given`."""
        if path.suffix.lower() != ".wav":
            return Given(super().read(path))
        codes, length = self.read_codes(path), self.sequence_length
        rows = -(-len(codes) // length)
        padded = np.full(rows * length, sound.silence(self.coding))
        padded[: len(codes)] = codes
        lengths = torch.full((rows,), length)
        lengths[-1] = len(codes) - (rows - 1) * length
        return Given(torch.from_numpy(padded.reshape(rows, length)), lengths)

    def read_codes(self, path: Path) -> np.ndarray:
        """The codes of a user's .wav.

        Raises:
            DataError: it cannot be read, or is of another kind or rate.
        """
        content = _content(path, None)
        samples = read_wav(str(path), content, self.rate).astype(np.float32) / 32768
        return sound.encode(samples, self.coding)

    def example(self) -> str:
        """A window of a sine; nothing is read for it."""
        codes = sound.encode(np.sin(np.arange(21) / 3), self.coding)
        return f"input {codes[:-1].tolist()}\ntarget {codes[1:].tolist()}"

    def _by_position(self, clips: Clips) -> tuple[Clips, Clips, Clips]:
        size, test = len(clips.codes), self.options.test
        first = int(size * (1 - self.options.validation - test))
        second = int(size * (1 - test)) if test else size
        train, validation, tested = (
            Clips(clips.codes[a:b], clips.starts[(clips.starts > a) & (clips.starts < b)] - a)
            for a, b in ((0, first), (first, second), (second, size))
        )
        return train, validation, tested if test else validation

    def _files(self) -> Iterator[tuple[str, str, bytes]]:
        """Name, name for messages, and content of every clip, in the order of their names."""
        place = Path(self.options.data).expanduser() if self.options.data else None
        if place is not None and place.suffix.lower() == ".wav":
            yield place.name, str(place), _content(place, None)
            return
        paths = sorted(place.rglob("*.wav")) if place is not None and place.is_dir() else []
        if place is not None and paths:
            for path in paths:
                name = str(path.relative_to(place))
                yield name, str(path), _content(chosen("sound", path, place), place)
            return
        archive = archive_of("sound", self.options.data)
        clips = dict(read_tar(archive, lambda name: name.endswith(".wav"), "an archive of clips"))
        if not clips:
            raise DataError(f"{archive}: there must be .wav files in it, got none.")
        for name in sorted(clips):
            yield name, f"{archive}: {name}", clips[name]


def _content(path: Path, inside: Path | None) -> bytes:
    try:
        return read_bytes(path, inside=inside)
    except OSError as error:
        raise DataError(f"{path}: the data file must be readable, got {error}.") from error


def _joined(codes: list[np.ndarray]) -> Clips:
    lengths = [0, *map(len, codes)]
    samples = np.concatenate(codes) if codes else np.zeros(0, np.uint8)
    return Clips(samples, np.cumsum(lengths)[:-1])
