"""Your own recordings, a folder for each class: .wav."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from linrnn._files.door import read_bytes
from linrnn.errors import DataError, check_at_most, check_not_negative, check_positive_int
from linrnn.tasks._kinds.base import Given
from linrnn.tasks._kinds.labelled_files import FileOptions, LabelledFiles
from linrnn.tasks._reading.audio import MAX_RATE, Clip, decode_wav, resampled
from linrnn.tasks._reading.ragged import Ragged, join


@dataclass(frozen=True, kw_only=True)
class SoundsOptions(FileOptions):
    """Options of the task `sounds`."""

    rate: int = 0
    """Samples a second that all are resampled to; 0: that of all files."""
    mix: bool = False
    """Whether several channels become their mean; else they are an error."""
    length: int = 0
    """Samples that clips are cut to; 0: none is cut."""
    frame: int = 1
    """Samples of a step; more make shorter sequences, of which less is to be remembered."""


class Sounds(LabelledFiles[Clip]):
    """Classes for recordings of your own, read sample by sample.

    Give a folder with a folder for each class as ``--data FOLDER``, or a .csv or .parquet with
    the columns ``file``, relative to the table, and ``label``. They are .wav of 8, 16, 24 or 32
    bits; samples become numbers in [-1, 1). All must have one rate, or are resampled to
    ``--task.rate``, and one channel, or are mixed with ``--task.mix``. Clips may differ in length:
    they are padded to the longest, and a batch carries their lengths.

    Nothing is left out but names that begin with a dot: a file of another kind, a class with a
    single file, a clip that cannot be read are errors. In each class a fifth is for testing,
    where ``--task.test`` names no second folder, and a tenth for validation; ``--task.data-seed``
    chooses which. The run folder keeps classes and rate, so its model answers without the clips
    it was trained on. Before a folder is given, the numbers that describe the data are
    placeholders.

    Args:
        options: `SoundsOptions`.

    Raises:
        DataError: a file cannot be used, or rates differ.
        ArgumentError: a rate, length or frame that is none.
        MissingExtraError: SciPy is not installed, and clips are to be resampled.
    """

    Options: ClassVar[type] = SoundsOptions
    summary: ClassVar[str] = "your own .wav files, a folder for each class: --data FOLDER"
    suffixes: ClassVar[tuple[str, ...]] = (".wav",)

    rate = 1
    """Samples a second of what is read."""

    def check(self) -> None:
        """Sizes."""
        options = self.options
        check_not_negative("Sounds", rate=options.rate, length=options.length)
        check_at_most("Sounds", MAX_RATE, rate=options.rate)
        check_positive_int("Sounds", frame=options.frame)
        self.d_input = options.frame

    def content(self, path: Path, inside: Path | None) -> Clip:
        """The samples of a clip."""
        try:
            content = read_bytes(path, inside=inside)
        except OSError as error:
            raise DataError(f"{path}: the data file must be readable, got {error}.") from error
        samples, rate = decode_wav(str(path), content)
        if samples.shape[1] > 1 and not self.options.mix:
            raise DataError(
                f"{path}: a clip must have one channel, got {samples.shape[1]}. Mix them with "
                "--task.mix, or convert it."
            )
        clip = Clip(samples.mean(1, dtype=np.float32), rate)
        clip = resampled(clip, self.options.rate) if self.options.rate else clip
        return clip._replace(samples=clip.samples[: self.options.length or None])

    def measure(self, paths: Sequence[Path], contents: Sequence[Clip]) -> dict[str, int]:
        """Rate, and samples of the longest."""
        for path, clip in zip(paths, contents, strict=True):
            _check_rate(path, clip, contents[0].rate, f"as {paths[0]}")
        return {
            "rate": contents[0].rate,
            "samples": max(len(clip.samples) for clip in contents),
        }

    def describe(self, measured: Mapping[str, int]) -> None:
        """The shape of what is read."""
        self.rate = measured["rate"]
        self.sequence_length = ceil(measured["samples"] / self.options.frame)

    def dataset(self, contents: Sequence[Clip], labels: np.ndarray) -> Ragged:
        """Padded batches of clips that lie in memory without padding."""
        return join([clip.samples for clip in contents], labels, self._pad)

    def given(self, paths: Sequence[Path], contents: Sequence[Clip]) -> Given:
        """Clips to predict, padded to the longest of them."""
        for path, clip in zip(paths, contents, strict=True):
            _check_rate(path, clip, self.rate, "as in training")
        steps = max(ceil(len(clip.samples) / self.options.frame) for clip in contents)
        rows, lengths = zip(*(self._pad(clip.samples, steps) for clip in contents), strict=True)
        return Given(torch.stack(rows), torch.tensor(lengths))

    def _pad(self, samples: np.ndarray, steps: int | None = None) -> tuple[Tensor, int]:
        x = torch.zeros(steps or self.sequence_length, self.options.frame)
        x.view(-1)[: len(samples)] = torch.from_numpy(samples)
        return x, ceil(len(samples) / self.options.frame)


def _check_rate(path: Path, clip: Clip, rate: int, whose: str) -> None:
    if clip.rate != rate:
        raise DataError(
            f"{path}: a clip must have {rate} samples a second, {whose}, got {clip.rate}. Resample "
            "all with --task.rate."
        )
