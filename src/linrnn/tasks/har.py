"""Human activity recognition: what somebody does, from the phone at the waist."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from linrnn.errors import DataError, check_in
from linrnn.tasks._kinds.base import Published, Splits, Task, tensors
from linrnn.tasks._kinds.published_text import no_layout
from linrnn.tasks._reading.files import chosen, folder_of
from linrnn.tasks._reading.table import read_table

_STEPS = 128
_SIGNALS = tuple(
    f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
)
_SIX = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
_FIRST = (3, 5, 1)  # of the two groups: sitting, laying and upstairs
_WINDOWS = {"train": 7352, "test": 2947}
_CHANCE = {"six": 0.182, "two": 0.509}  # 537 laying and 1,499 of the first group among 2,947
_HELD_OUT = 7  # one in seven persons of the training part is for validation
_LAYOUT = (
    "the folder UCI HAR Dataset, or its folders train and test, with Inertial Signals/"
    "body_acc_x_train.txt and so on, y_train.txt and subject_train.txt"
)
_CORNN = "Rusch and Mishra 2021, arXiv:2010.00951, HAR-2, as its public code states"

Classes = Literal["six", "two"]


@dataclass(frozen=True, kw_only=True)
class HAROptions:
    """Options of the task `har`."""

    data: str = ""
    """Folder of the unpacked archive. Default: the folder har of `LINRNN_DATA`."""
    classes: Classes = "two"
    """All six activities, or the two groups of HAR-2."""
    check_counts: bool = True
    """Whether there must be the published numbers of windows."""


class HAR(Task):
    """Name the activity of a person from 2.56 seconds of a phone's sensors: 128 steps at 50 Hz.

    A step has nine signals: the acceleration of the body and in all along three axes, in units of
    the standard gravity, and the angular velocity, in radians per second. They are read as the
    files have them. Activities are walking, upstairs, downstairs, sitting, standing and laying.
    HAR-2 (``--task.classes two``, the default) tells sitting, laying and upstairs from the rest.

    The published split has 7,352 windows of 21 persons for training and 2,947 of 9 others for
    testing. Windows overlap by half, so validation has other persons than training: every seventh
    of the 21. Chance is the larger class of the test part, 50.9 %, or 18.2 % with six classes.

    Args:
        options: `HAROptions`.

    Raises:
        UnknownNameError: no such classes.

    Reference:
        Anguita et al. 2013, "A Public Domain Dataset for Human Activity Recognition Using
        Smartphones", ESANN; two groups as in the code of Kusupati et al. 2018, arXiv:1901.02358.
    """

    Options: ClassVar[type] = HAROptions
    summary: ClassVar[str] = "two or six activities from a phone, 128 steps, files of your own"
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="coRNN, 64 hidden units, two classes", value=0.972, source=_CORNN),
    )

    sequence_length = _STEPS
    d_input = len(_SIGNALS)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_in("HAR", "classes", self.options.classes, get_args(Classes))
        groups = ("sitting, laying, upstairs", "standing, walking, downstairs")
        self.class_names = _SIX if self.options.classes == "six" else groups
        self.d_output = len(self.class_names)
        self.chance = _CHANCE[self.options.classes]

    def datasets(self) -> Splits:
        """Splits of x (128, 9) and target (): see `Task.datasets`."""
        x, target, subjects = self._part("train")
        people = subjects.unique()
        held_out = torch.isin(subjects, people[::_HELD_OUT])
        if len(people) < 2:
            raise DataError(
                f"har: there must be at least 2 persons in {self._root / 'train'}, one of them for "
                f"validation, got {len(people)}."
            )
        train, validation = (
            tensors(x[rows], target[rows], str(self._root)) for rows in (~held_out, held_out)
        )
        x, target, _ = self._part("test")
        return Splits(train, validation, tensors(x, target, str(self._root)))

    @property
    def _root(self) -> Path:
        """The folder with train and test."""
        place = folder_of("har", self.options.data)
        inner = place / "UCI HAR Dataset"
        return inner if inner.is_dir() else place

    def _part(self, part: str) -> tuple[Tensor, Tensor, Tensor]:
        """Signals (windows, 128, 9), classes (windows,) and persons (windows,)."""
        signals = [
            read_table(self._file(part, f"Inertial Signals/{name}_{part}.txt"), _STEPS)
            for name in _SIGNALS
        ]
        path = self._file(part, f"y_{part}.txt")
        labels, subjects = (
            read_table(file, 1)[:, 0] for file in (path, self._file(part, f"subject_{part}.txt"))
        )
        sizes = {len(signal) for signal in signals} | {len(labels), len(subjects)}
        expected = {_WINDOWS[part]} if self.options.check_counts else {len(labels)}
        if sizes != expected:
            raise DataError(
                f"har: each file of {self._root / part} must have {max(expected):,} rows, got "
                f"{', '.join(map(str, sorted(sizes)))}. Get the published archive, or say "
                "--task.no-check-counts for other windows in its layout."
            )
        wrong = labels[~torch.isin(labels, torch.arange(1.0, 7.0))]
        if len(wrong):
            raise DataError(f"{path}: an activity must be one of 1 to 6, got {wrong[0].item():g}.")
        classes = labels.long() - 1
        if self.options.classes == "two":
            classes = (~torch.isin(classes, torch.tensor(_FIRST))).long()
        return torch.stack(signals, -1), classes, subjects

    def _file(self, part: str, name: str) -> Path:
        path = self._root / part / name
        if not (self._root / part).is_dir():
            raise no_layout("har", self._root, _LAYOUT)
        return chosen("har", path, self._root)
