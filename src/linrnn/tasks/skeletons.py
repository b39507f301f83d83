"""Actions from skeletons: 25 joints of one or two bodies in some frames, as NTU RGB+D has them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from linrnn.errors import DataError, check_in, check_positive_int
from linrnn.tasks._kinds.base import Given, Published, Splits, Task, tensors
from linrnn.tasks._kinds.published_text import no_layout
from linrnn.tasks._reading.file_listing import files_below, split
from linrnn.tasks._reading.files import chosen, folder_of
from linrnn.tasks._reading.series import Layout, read_series
from linrnn.tasks._reading.skeleton import JOINTS, Recording, parse_name, read_skeleton

_CLASSES = 60
_SPINE = 1  # the joint of the middle of the spine
_TRAINING_PEOPLE = frozenset((1, 2, 4, 5, 8, 9, *range(13, 20), 25, 27, 28, 31, 34, 35, 38))
_TEST_CAMERA = 1
_FILES = (56_880, 56_578)  # all, or without the 302 whose skeletons are known to be missing
_HELD_OUT = 7  # one in seven persons of the training part is for validation
_SEED = 0  # of the validation part of an archive, which names no persons
_LAYOUT = "files such as S001C002P003R002A013.skeleton, or be a .npz of arrays"
_UNCHECKED = "; not checked against the paper"
_INDRNN = f"Li et al. 2018, arXiv:1803.04831{_UNCHECKED}"
_ST_LSTM = "Liu et al. 2016, arXiv:1607.07043"

Protocol = Literal["subject", "view"]


@dataclass(frozen=True, kw_only=True)
class SkeletonsOptions:
    """Options of the task `skeletons`."""

    data: str = ""
    """Folder of the .skeleton files, or a .npz. Default: the folder skeletons of `LINRNN_DATA`."""
    protocol: Protocol = "subject"
    """Whether the test part has other persons (subject) or another camera (view)."""
    frames: int = 20
    """Steps of a sequence: the middle frames of as many parts of equal length."""
    bodies: int = 2
    """Bodies that are read, those that move most."""
    check_counts: bool = True
    """Whether there must be the published number of .skeleton files."""


class _Example(NamedTuple):
    """A recording and what is read of it."""

    name: Recording
    x: np.ndarray
    """(frames, bodies * 75)."""


class Skeletons(Task):
    """Name one of 60 actions from the joints of one or two bodies over time.

    A step is a frame with 25 joints of ``bodies`` bodies, three coordinates each, in metres: 150
    numbers with two. They are relative to the middle of the spine of the first body in the first
    frame it is in. A body that is not in a frame is 0. Of a recording of n frames the step i of
    ``frames`` is the frame ``floor((i + 1/2) n / frames)``.

    **Files** are named ``SsssCcccPpppRrrrAaaa.skeleton`` after setup, camera, person, repetition
    and action. With ``--task.protocol subject`` 20 of 40 persons are for training; with ``view``
    the cameras 2 and 3 are, and camera 1 is for testing. Papers have no validation part; here it is
    every seventh person of the training part. Recordings without any body are left out; 302 of the
    56,880 published ones are known to lack skeletons.

    **An archive** .npz has ``x_train`` and ``x_test`` (sequences, frames, numbers), 75 a body, and
    ``y_train`` and ``y_test``, actions from 0 to 59. Frames of zeros at the end are padding. A
    tenth of each class is for validation.

    Chance is 1/60. `baselines` has the class whose mean sequence is nearest.

    Args:
        options: `SkeletonsOptions`.

    Raises:
        UnknownNameError: no such protocol.
        ArgumentError: frames or bodies below 1.

    Reference:
        Shahroudy et al. 2016, "NTU RGB+D: A Large Scale Dataset for 3D Human Activity Analysis",
        arXiv:1604.02808; 20 frames as in Li et al. 2018, arXiv:1803.04831.
    """

    Options: ClassVar[type] = SkeletonsOptions
    summary: ClassVar[str] = "60 actions from joints of bodies, files of NTU RGB+D or .npz"
    length_option: ClassVar[str] = "frames"
    pools: ClassVar[tuple[str, ...]] = ("last", "mean")
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="ST-LSTM with trust gates, subject", value=0.692, source=_ST_LSTM),
        Published(model="ST-LSTM with trust gates, view", value=0.777, source=_ST_LSTM),
        Published(model="IndRNN, subject", value=0.818, source=_INDRNN),
        Published(model="IndRNN, view", value=0.880, source=_INDRNN),
    )

    chance = 1 / _CLASSES
    d_output = _CLASSES
    class_names = tuple(f"A{action:03d}" for action in range(1, _CLASSES + 1))

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_in("Skeletons", "protocol", options.protocol, get_args(Protocol))
        check_positive_int("Skeletons", frames=options.frames, bodies=options.bodies)
        self.sequence_length = options.frames
        self.d_input = options.bodies * JOINTS * 3

    def datasets(self) -> Splits:
        """Splits of x (frames, bodies * 75) and target (): see `Task.datasets`."""
        return self._splits

    @cached_property
    def _splits(self) -> Splits:
        place = folder_of("skeletons", self.options.data)
        if place.suffix.lower() == ".npz":
            return self._of_archive(place)
        return self._of_files(place)

    def _of_files(self, place: Path) -> Splits:
        paths = files_below(place) if place.is_dir() else []
        paths = [p for p in paths if ".skeleton" in p.suffixes]
        if not paths:
            raise no_layout("skeletons", place, _LAYOUT)
        paths = [chosen("skeletons", path, place) for path in paths]
        examples = [_Example(parse_name(p), self._sampled(self._joints(p))) for p in paths]
        if self.options.check_counts and len(paths) not in _FILES:
            raise DataError(
                f"skeletons: there must be {_FILES[0]:,} files in {place} as published, or "
                f"{_FILES[1]:,} without those that lack skeletons, got {len(paths):,}. Get the "
                "published files, or pass --task.no-check-counts for others of their layout."
            )
        examples = [example for example in examples if len(example.x)]
        wrong = [e.name.action for e in examples if not 1 <= e.name.action <= _CLASSES]
        if wrong:
            raise DataError(
                f"skeletons: actions in {place} must be A001 to A060, got A{wrong[0]:03d}. Take "
                "out the files of further actions."
            )
        return self._by_protocol(place, examples)

    def _by_protocol(self, place: Path, examples: Sequence[_Example]) -> Splits:
        def trains(name: Recording) -> bool:
            if self.options.protocol == "view":
                return name.camera != _TEST_CAMERA
            return name.person in _TRAINING_PEOPLE

        people = sorted({e.name.person for e in examples if trains(e.name)})
        held_out = frozenset(people[::_HELD_OUT])
        rules: Mapping[str, Callable[[Recording], bool]] = {
            "training": lambda n: trains(n) and n.person not in held_out,
            "validation": lambda n: trains(n) and n.person in held_out,
            "testing": lambda n: not trains(n),
        }
        parts = []
        for part, rule in rules.items():
            members = [e for e in examples if rule(e.name)]
            if not members:
                raise DataError(
                    f"skeletons: {place} must hold recordings for {part} by the protocol "
                    f"{self.options.protocol}, got none: its persons are "
                    f"{', '.join(map(str, sorted({e.name.person for e in examples})))}."
                )
            x = torch.from_numpy(np.stack([e.x for e in members]))
            target = torch.tensor([e.name.action - 1 for e in members])
            parts.append(TensorDataset(x, target))
        return Splits(*parts)

    def _of_archive(self, path: Path) -> Splits:
        parts = read_series(path, Layout(1, False))
        if "test" not in parts:
            raise DataError(
                f"{path}: the archive must hold x_train, y_train, x_test and y_test, got no "
                "test part."
            )
        x, target = [], []
        for part in ("train", "test"):
            series = parts[part]
            width = series.x[0].shape[1]
            if width not in (JOINTS * 3, self.d_input):
                raise DataError(
                    f"{path}: a frame must have {JOINTS * 3} numbers a body, of 1 or "
                    f"{self.options.bodies} bodies, got {width}."
                )
            x.append(torch.from_numpy(np.stack([self._padded(row) for row in series.x])))
            target.append(_actions(path, series.y))
        names = [str(action) for action in target[0].tolist()]
        rows, _, held_out = (torch.tensor(part) for part in _tenth(names))
        where = str(path)
        return Splits(
            tensors(x[0][rows], target[0][rows], where),
            tensors(x[0][held_out], target[0][held_out], where),
            tensors(x[1], target[1], where),
        )

    def _padded(self, row: np.ndarray) -> np.ndarray:
        """Steps (frames, d_input) of a row (time, numbers), whose frames of zeros end it."""
        used = np.flatnonzero(row.any(1))
        row = row[: used[-1] + 1] if len(used) else row[:1]
        joints = np.zeros((len(row), self.options.bodies, JOINTS, 3), np.float32)
        joints.reshape(len(row), -1)[:, : row.shape[1]] = row
        return self._sampled(joints)

    def _joints(self, path: Path) -> np.ndarray:
        return read_skeleton(path, self.options.bodies)

    def _sampled(self, joints: np.ndarray) -> np.ndarray:
        """Steps (frames, d_input) of (time, bodies, 25, 3); no step where there is no frame."""
        if not len(joints):
            return np.zeros((0, self.d_input), np.float32)
        present: np.ndarray = np.abs(joints).max((2, 3)) > 0  # (time, bodies)
        first = int(present[:, 0].argmax())
        centred = np.where(present[..., None, None], joints - joints[first, 0, _SPINE], 0)
        frames = self.options.frames
        steps = ((2 * np.arange(frames) + 1) * len(joints)) // (2 * frames)
        x: np.ndarray = centred[steps].reshape(frames, -1).astype(np.float32)
        return x

    def baselines(self) -> Mapping[str, float]:
        """Accuracy of the class whose mean training sequence is nearest."""
        (x, target), (tested, truth) = (part[:] for part in (self._splits.train, self._splits.test))
        counts = torch.bincount(target, minlength=_CLASSES).float()
        sums = torch.zeros(_CLASSES, x[0].numel()).index_add_(0, target, x.flatten(1))
        centres = sums / counts.clamp(min=1)[:, None]
        distance = torch.cdist(tested.flatten(1), centres).masked_fill(counts == 0, torch.inf)
        return {"nearest mean sequence": (distance.argmin(1) == truth).double().mean().item()}

    def read_given(self, path: Path) -> Given:
        """A recording from a .skeleton file, or a table as other tasks read it."""
        if ".skeleton" not in path.suffixes:
            return super().read_given(path)
        x = self._sampled(self._joints(path))
        if not len(x):
            raise DataError(f"{path}: the file must hold a body in some frame, got none.")
        return Given(torch.from_numpy(x)[None])

    def picture(self, x: Tensor) -> Tensor:
        """Front views of the first body in up to ten steps side by side: (48, 24 * steps)."""
        steps = x[:: max(1, len(x) // 10)][:10]
        joints = steps[:, : JOINTS * 3].reshape(len(steps), JOINTS, 3)[..., :2]
        low, high = joints.amin((0, 1)), joints.amax((0, 1))
        scaled = (joints - low) / (high - low).clamp(min=1e-6)
        image = torch.zeros(48, 24 * len(steps))
        for step, one in enumerate(scaled):
            rows, columns = (47 * (1 - one[:, 1])).long(), (23 * one[:, 0]).long()
            image[rows, 24 * step + columns] = 1.0
        return image


def _actions(path: Path, labels: Sequence[str]) -> Tensor:
    """Classes (sequences,) of labels 0 to 59."""
    wrong = [label for label in labels if not (label.isdecimal() and int(label) < _CLASSES)]
    if wrong:
        raise DataError(f"{path}: an action must be one of 0 to 59, got {wrong[0]!r:.60}.")
    return torch.tensor([int(label) for label in labels])


def _tenth(labels: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
    """Rows for training, none, and a tenth of each class."""
    train, validation, test = split(labels, _SEED, test=False)
    return train, test, validation
