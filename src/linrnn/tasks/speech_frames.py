"""Phones of each frame of speech, recordings with .phn files as TIMIT has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from linrnn.errors import DataError, check_in
from linrnn.tasks._kinds.base import IGNORE, Given, Published, Splits, Task
from linrnn.tasks._kinds.counted import fraction_contributions
from linrnn.tasks._kinds.published_text import no_layout
from linrnn.tasks._reading.cepstra import FEATURES, cepstra, frame_centres
from linrnn.tasks._reading.file_listing import files_below
from linrnn.tasks._reading.files import chosen, folder_of
from linrnn.tasks._reading.known import check_same, checksum, find_kept, kept_text, scale_of
from linrnn.tasks._reading.phones import PHONES_39, PHONES_61, fold, read_phones, read_recording

_KEPT = "frames.json"
_RATE = 16_000
_CORE = frozenset(
    (
        *("mdab0", "mwbt0", "felc0", "mtas1", "mwew0", "fpas0", "mjmp0", "mlnt0"),
        *("fpkt0", "mlll0", "mtls0", "fjlm0", "mbpm0", "mklt0", "fnlp0", "mcmj0"),
        *("mjdh0", "fmgd0", "mgrt0", "mnjm0", "fdhc0", "mjln0", "mpam0", "fmld0"),
    )
)
_SENTENCES = {"train": 3_696, "core": 192, "complete": 1_344}
_HELD_OUT = 20  # one in twenty speakers of the training part is for validation
_LAYOUT = "folders TRAIN and TEST with a folder for each region and speaker, DR1/FCJF0/SI648.PHN"
_ENDINGS = (".wav", ".wav.wav", ".sph", ".nist")
_UNCHECKED = "; not checked against the paper"
_GRAVES = f"Graves and Schmidhuber 2005, Neural Networks 18, complete test part{_UNCHECKED}"

Classes = Literal["39", "61"]
Test = Literal["core", "complete"]


@dataclass(frozen=True, kw_only=True)
class SpeechFramesOptions:
    """Options of the task `speech_frames`."""

    data: str = ""
    """Folder with TRAIN and TEST. Default: the folder timit of `LINRNN_DATA`."""
    classes: Classes = "39"
    """All 61 phones, or the 39 classes they are folded to."""
    test: Test = "core"
    """The 24 speakers of the core test part, or all of TEST."""
    check_counts: bool = True
    """Whether there must be the published numbers of sentences."""


@dataclass(frozen=True, kw_only=True)
class FrameFacts:
    """Facts about the training frames that a model needs; its run folder stores them."""

    mean: tuple[float, ...]
    """Mean of each of 26 features."""
    std: tuple[float, ...]
    """Standard deviation of each."""
    longest: int
    """Frames of the longest sentence."""
    chance: float
    """Share of the test frames that the most frequent class of training has."""
    sha256: str
    """Hash of all sentences."""

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.std) == FEATURES or min(*self.std, self.longest) <= 0:
            raise ValueError(f"not {FEATURES} means and deviations above 0, and a length")


class _Sentence(NamedTuple):
    """The frames of a sentence."""

    x: np.ndarray
    """(frames, 26)."""
    target: np.ndarray
    """(frames,): class of each, or `IGNORE`."""


class SpeechFrames(Task):
    """Name the phone that is spoken in each frame of a sentence.

    A step is a frame of 25 ms, every 10 ms: twelve mel-frequency cepstra and the log energy, with
    their slopes, 26 numbers that are brought to mean 0 and variance 1 over the training frames. Its
    target is the phone at the frame's middle. The 61 phones are folded to 39 classes by default.
    Frames in no phone, and among 39 classes those of the glottal stop, are not counted. The metric
    is the share of all counted frames that are right, so a long sentence counts more than a short
    one.

    **Files** lie in ``TRAIN/DR1/FCJF0/SI648.WAV`` beside ``SI648.PHN``, in capitals or not.
    Recordings are NIST sphere, unpacked, or .wav, of 16,000 samples a second. The sentences SA1
    and SA2, which everybody reads, are left out. The published parts are 3,696 sentences of 462
    speakers for training and 192 of 24 speakers for testing (``--task.test core``), or 1,344
    of 168 (``complete``). Papers choose validation in several ways; here it is every twentieth
    training speaker.

    Until the data is read, chance is 1 over the number of classes; then it is the share of the test
    frames with the most frequent class of training. `baselines` has the class with the nearest mean
    frame.

    Args:
        options: `SpeechFramesOptions`.
        known: what a run folder keeps of the data.

    Raises:
        UnknownNameError: no such classes or test part.

    Reference:
        Garofolo et al. 1993, TIMIT, LDC93S1; classes as Lee and Hon 1989; features as Graves and
        Schmidhuber 2005, "Framewise phoneme classification with bidirectional LSTM and other neural
        network architectures".
    """

    Options: ClassVar[type] = SpeechFramesOptions
    summary: ClassVar[str] = "phones of frames of speech, files of TIMIT"
    pooled: ClassVar[bool] = True
    pools: ClassVar[tuple[str, ...]] = ("none",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="BLSTM, 93 cells, 61 classes", value=0.698, source=_GRAVES),
        Published(model="LSTM, 140 cells, 61 classes", value=0.646, source=_GRAVES),
        Published(model="MLP, 10 frames on each side, 61 classes", value=0.631, source=_GRAVES),
    )

    sequence_length = 800  # 8 seconds; that of the longest sentence once the data is read
    d_input = FEATURES

    def __init__(self, options: Any = None, known: FrameFacts | None = None) -> None:
        super().__init__(options)
        options = self.options
        check_in("SpeechFrames", "classes", options.classes, get_args(Classes))
        check_in("SpeechFrames", "test", options.test, get_args(Test))
        self.class_names = PHONES_39 if options.classes == "39" else PHONES_61
        self.d_output = len(self.class_names)
        self._stored = known
        if known is not None or not options.check_counts:
            self.sequence_length = self.known.longest

    @property
    def chance(self) -> float:  # type: ignore[override]
        """The share of the most frequent class, once the data is read."""
        facts = self._stored or vars(self).get("known")
        return facts.chance if facts else 1 / self.d_output

    @cached_property
    def known(self) -> FrameFacts:
        """Facts about the training part that a model needs."""
        if self._stored is not None:
            return self._stored
        train, _, test = self._parts
        mean, std = scale_of(np.concatenate([s.x for s in train]).astype(np.float64))
        counts, tested = (self._class_counts(part) for part in (train, test))
        return FrameFacts(
            mean=tuple(mean.tolist()),
            std=tuple(std.tolist()),
            longest=max(len(s.x) for part in self._parts for s in part),
            chance=float(tested[counts.argmax()] / max(1, tested.sum())),
            sha256=_hash(self._parts),
        )

    def _class_counts(self, part: Sequence[_Sentence]) -> np.ndarray:
        target = np.concatenate([s.target for s in part])
        return np.bincount(target[target != IGNORE], minlength=self.d_output)

    @cached_property
    def _parts(self) -> tuple[list[_Sentence], ...]:
        place = folder_of("timit", self.options.data)
        paths = files_below(place) if place.is_dir() else []
        names = {str(path.relative_to(place)).lower(): path for path in paths}
        sentences = [name for name in names if name.endswith(".phn") and _is_read(name)]
        if not sentences:
            raise no_layout("speech_frames", place, _LAYOUT)
        names |= {name: chosen("speech_frames", names[name], place) for name in sentences}
        parts = self._divide(sentences)
        read = tuple([self._sentence(place, names, name) for name in part] for part in parts)
        if self.options.check_counts:
            self._check_counts(place, parts)
        if self._stored is not None:
            check_same(str(place), self._stored.sha256, _hash(read))
        return read

    def _divide(self, sentences: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """Names of the .phn files for training, validation and testing."""
        train = [name for name in sentences if "train" in name.split("/")[:-3]]
        test = [name for name in sentences if "test" in name.split("/")[:-3]]
        if self.options.test == "core":
            test = [name for name in test if _speaker(name) in _CORE]
        held_out = frozenset(sorted({_speaker(name) for name in train})[::_HELD_OUT])
        parts = (
            [name for name in train if _speaker(name) not in held_out],
            [name for name in train if _speaker(name) in held_out],
            test,
        )
        for what, part in zip(("training", "validation", "testing"), parts, strict=True):
            if not part:
                raise DataError(
                    f"speech_frames: the folder must hold {_LAYOUT}, with sentences for {what}, "
                    f"got none among {len(sentences)}, such as {sentences[0]}."
                )
        return parts

    def _check_counts(self, place: Path, parts: Sequence[Sequence[str]]) -> None:
        train, validation, test = map(len, parts)
        expected = {"train": train + validation, self.options.test: test}
        for what, count in expected.items():
            if count != _SENTENCES[what]:
                raise DataError(
                    f"speech_frames: there must be {_SENTENCES[what]:,} sentences of {what} in "
                    f"{place} as published, got {count:,}. Get the published files, or say "
                    "--task.no-check-counts for others of their layout."
                )

    def _sentence(self, place: Path, names: Mapping[str, Path], name: str) -> _Sentence:
        """The frames of a sentence, with the phone at the middle of each."""
        path, stem = names[name], name.removesuffix(".phn")
        audio = next((names[stem + e] for e in _ENDINGS if stem + e in names), None)
        if audio is None:
            raise DataError(
                f"{path}: beside a .phn there must be its recording (.wav or .sph), got none."
            )
        x, centres = _features(chosen("speech_frames", audio, place), place)
        spans, phones = read_phones(path, place)
        place_of = {phone: i for i, phone in enumerate(self.class_names)}
        folded = phones if self.options.classes == "61" else [fold(phone) for phone in phones]
        classes = np.array([place_of.get(phone, IGNORE) for phone in folded])
        index = np.searchsorted(spans[:, 0], centres, side="right") - 1
        inside = (index >= 0) & (centres < spans[index, 1])
        return _Sentence(x, np.where(inside, classes[index], IGNORE))

    def datasets(self) -> Splits:
        """Splits of x (time, 26), target (time,) and length (): see `Task.datasets`."""
        steps, datasets = self.known.longest, []
        for part in self._parts:
            x = torch.zeros(len(part), steps, FEATURES)
            target = torch.full((len(part), steps), IGNORE)
            for row, sentence in enumerate(part):
                count = len(sentence.x)
                x[row, :count] = self.scaled(torch.from_numpy(sentence.x))
                target[row, :count] = torch.from_numpy(sentence.target)
            lengths = torch.tensor([len(sentence.x) for sentence in part])
            datasets.append(TensorDataset(x, target, lengths))
        return Splits(*datasets)

    def scaled(self, x: Tensor) -> Tensor:
        """Features brought to mean 0 and variance 1 over the training frames."""
        mean, std = torch.tensor([self.known.mean, self.known.std], dtype=torch.float64)
        scaled: Tensor = (x.double() - mean) / std
        return scaled.to(x.dtype)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """Right and counted frames of each sentence: (batch, 2)."""
        counted = target != IGNORE
        right = (y.argmax(-1) == target) & counted
        return torch.stack([right.sum(1), counted.sum(1)], 1).double()

    def contributions(self, scores: Tensor) -> Tensor:
        """Numbers (sentences,) whose mean is the share of all counted frames that are right."""
        return fraction_contributions(scores[:, 0], scores[:, 1])

    def baselines(self) -> Mapping[str, float]:
        """Accuracy of the class with the nearest mean frame."""
        (x, target, _), (tested, truth, _) = (
            part.tensors
            for part in (self.datasets().train, self.datasets().test)
            if isinstance(part, TensorDataset)
        )
        counted = target != IGNORE
        labels = target[counted]
        counts = torch.bincount(labels, minlength=self.d_output).float()
        sums = torch.zeros(self.d_output, FEATURES).index_add_(0, labels, x[counted])
        centres = sums / counts.clamp(min=1)[:, None]
        counted = truth != IGNORE
        distance = torch.cdist(tested[counted], centres).masked_fill(counts == 0, torch.inf)
        right = (distance.argmin(1) == truth[counted]).double().mean().item()
        return {"most frequent class": self.known.chance, "nearest mean frame": right}

    def read_given(self, path: Path) -> Given:
        """A recording from a .wav or sphere file, or a table as other tasks read it."""
        if path.suffix.lower() not in (".wav", ".sph", ".nist"):
            return super().read_given(path)
        x = self.scaled(torch.from_numpy(_features(path, None)[0]))
        return Given(x[None])

    def run_files(self) -> Mapping[str, str]:
        """The facts about the data that a model needs, as a file of a run folder."""
        return {_KEPT: kept_text(self.known)}

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "SpeechFrames":
        """The task with the facts of a run folder; the data are not needed to use its model."""
        return cls(options, find_kept(folder, _KEPT, FrameFacts, "the frames"))


def _features(path: Path, inside: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Features (frames, 26) of a recording, and the sample (frames,) in the middle of each."""
    clip = read_recording(path, inside)
    if clip.rate != _RATE:
        raise DataError(
            f"{path}: a recording must have {_RATE:,} samples a second, got {clip.rate:,}. "
            "Resample it."
        )
    return cepstra(clip.samples, clip.rate), frame_centres(len(clip.samples), clip.rate)


def _is_read(name: str) -> bool:
    """Whether a sentence is one of its speaker's own, and lies below a part and a region."""
    parts = name.split("/")
    return len(parts) >= 4 and not parts[-1].startswith("sa")


def _speaker(name: str) -> str:
    return name.split("/")[-2]


def _hash(parts: Sequence[Sequence[_Sentence]]) -> str:
    return checksum(content for part in parts for s in part for content in (s.x, s.target))
