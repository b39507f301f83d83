"""Raw audio: .wav files in an archive, as sequences of samples in [-1, 1)."""

import io
import wave
from abc import abstractmethod
from dataclasses import dataclass
from math import ceil, gcd
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn._files.door import read_bytes
from linrnn.errors import DataError, MissingExtraError, check_positive_int
from linrnn.tasks._kinds.base import Given, Splits, Task
from linrnn.tasks._reading.files import read_tar
from linrnn.tasks._reading.ragged import join


@dataclass(frozen=True, kw_only=True)
class AudioOptions:
    """Options of the tasks that read sound."""

    frame: int = 1
    """Samples of a step; more make shorter sequences, of which less is to be remembered."""


class AudioTask(Task):
    """Which word is spoken in a clip? Clips are cut to `length` samples and padded with silence.

    A step is `frame` consecutive samples; the last of a clip may be padded as well.
    """

    rate: ClassVar[int]
    """Samples a second."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        length, frame = self.options.length, self.options.frame
        check_positive_int(type(self).__name__, length=length, frame=frame)
        self.d_input, self.sequence_length = frame, ceil(length / frame)

    @abstractmethod
    def archive(self, download: bool = True) -> Path:
        """The .tar.gz or .tar.xz with the clips."""

    @abstractmethod
    def place(self, name: str) -> tuple[str, str] | None:
        """Split and class of a file of the archive by its name; None if it is not asked about."""

    def lists(self, name: str, content: bytes) -> None:
        """Take note of a file that is no clip. Default: leave it."""

    def datasets(self) -> Splits:
        """Read the clips: see `Task.datasets`."""
        path = self.archive()
        clips = {}
        for name, content in read_tar(path, lambda name: True, "an archive of clips"):
            if name.endswith(".wav"):
                clips[name] = read_wav(f"{path}: {name}", content, self.rate)
            else:
                self.lists(name, content)
        parts: dict[str, list[tuple[np.ndarray, int]]] = {"train": [], "validation": [], "test": []}
        for name in sorted(clips):
            if placed := self.place(name):
                parts[placed[0]].append((clips[name], self.class_names.index(placed[1])))
        for split, part in parts.items():
            if not part:
                raise DataError(f"{path}: there must be clips for {split}, got none.")
        return Splits(
            *(
                join([clip for clip, _ in part], np.array([label for _, label in part]), self._pad)
                for part in parts.values()
            )
        )

    def read(self, path: Path) -> Tensor:
        """A clip from a user's .wav, or a table as other tasks read it."""
        return self.read_given(path).x

    def read_given(self, path: Path) -> Given:
        """The same with the clip's length: see `Task.read_given`."""
        if path.suffix.lower() != ".wav":
            return Given(super().read(path))
        try:
            content = read_bytes(path, inside=None)
        except OSError as error:
            raise DataError(f"{path}: the data file must be readable, got {error}.") from error
        clip, length = self._pad(read_wav(str(path), content, self.rate))
        return Given(clip[None], torch.tensor([length]))

    def _pad(self, clip: np.ndarray) -> tuple[Tensor, int]:
        clip = clip[: self.options.length]
        x = torch.zeros(self.sequence_length, self.d_input)
        x.view(-1)[: len(clip)] = torch.from_numpy(clip.astype(np.float32)) / 32768
        return x, ceil(len(clip) / self.d_input)


MAX_RATE = 1_000_000
"""Samples a second; the filter that resamples is as long as a rate may be."""


class Clip(NamedTuple):
    """Samples of one channel."""

    samples: np.ndarray
    """(time,) float32 in [-1, 1)."""
    rate: int
    """Samples a second."""


class _Wave(NamedTuple):
    """The format and the samples of a .wav file."""

    channels: int
    bits: int
    rate: int
    content: np.ndarray
    """Bytes."""
    announced: int
    """How many of them there should be."""


def read_wav(where: str, content: bytes, rate: int) -> np.ndarray:
    """The samples of a clip: one channel, 16 bits.

    Raises:
        DataError: damaged, or of another kind.
    """
    recording = _read(where, content)
    if recording[:3] != (1, 16, rate):
        raise DataError(
            f"{where} must have 1 channel of 16 bits and {rate} samples a second, got "
            f"{recording.channels}, {recording.bits} and {recording.rate}. Convert it."
        )
    _check_whole(where, recording)
    return recording.content.view("<i2")


def decode_wav(where: str, content: bytes) -> tuple[np.ndarray, int]:
    """The samples (time, channels) of a clip, float32 in [-1, 1), and how many there are a second.

    Raises:
        DataError: damaged, or of other samples than integers of 8, 16, 24 or 32 bits, or of a rate
            that no sound has.
    """
    recording = _read(where, content)
    _check_whole(where, recording)
    if not 1 <= recording.rate <= MAX_RATE:
        raise DataError(
            f"{where} must have 1 to {MAX_RATE:,} samples a second, got {recording.rate:,}. "
            "Convert it."
        )
    width = recording.bits // 8
    if recording.bits == 8:  # the one kind without a sign
        integers = recording.content.astype(np.int32) - 128
    elif width in (2, 3, 4):
        padded = np.zeros((recording.content.size // width, 4), np.uint8)
        padded[:, 4 - width :] = recording.content.reshape(-1, width)  # (samples, bytes)
        integers = padded.view("<i4")[:, 0] >> (32 - recording.bits)
    else:
        raise DataError(
            f"{where} must have 8, 16, 24 or 32 bits, got {recording.bits}. Convert it."
        )
    samples = integers.astype(np.float32) / np.float32(2 ** (recording.bits - 1))
    return samples.reshape(-1, recording.channels), recording.rate


def resampled(clip: Clip, rate: int) -> Clip:
    """A clip at another rate, by SciPy's polyphase filter; the same one where it has that rate.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    if clip.rate == rate:
        return clip
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise MissingExtraError("resampling", "scipy", "train") from error
    common = gcd(clip.rate, rate)
    samples = resample_poly(clip.samples, rate // common, clip.rate // common)
    return Clip(samples.astype(np.float32), rate)


def _read(where: str, content: bytes) -> _Wave:
    try:
        with wave.open(io.BytesIO(content)) as clip:
            channels, bits, rate = clip.getnchannels(), 8 * clip.getsampwidth(), clip.getframerate()
            samples = np.frombuffer(clip.readframes(clip.getnframes()), np.uint8)
            announced = clip.getnframes() * clip.getsampwidth() * clip.getnchannels()
    except (wave.Error, EOFError, RuntimeError) as error:  # the last: a chunk beyond the end
        raise DataError(f"{where} must be a complete .wav, got: {error or 'its end'}.") from error
    return _Wave(channels, bits, rate, samples, announced)


def _check_whole(where: str, recording: _Wave) -> None:
    if recording.content.size != recording.announced or not recording.content.size:
        raise DataError(
            f"{where} must be a complete .wav, got {recording.content.size} bytes of "
            f"{recording.announced}."
        )
