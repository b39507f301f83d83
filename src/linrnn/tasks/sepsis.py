"""Sepsis from the first days in intensive care, by the area under the ROC curve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError, DataError, check_positive_int
from linrnn.tasks._kinds.base import Given, Published, Splits, Task
from linrnn.tasks._kinds.published_text import no_layout
from linrnn.tasks._kinds.ranking import auroc_contributions, average_precision
from linrnn.tasks._reading.file_listing import files_below
from linrnn.tasks._reading.files import chosen, folder_of
from linrnn.tasks._reading.known import check_same, checksum, find_kept, kept_text, scale_of
from linrnn.tasks._reading.missing import forward_filled
from linrnn.tasks._reading.patients import MEASUREMENTS, STATIC, Patient, read_patient
from linrnn.tasks._reading.ragged import Ragged, join

_KEPT = "patients.json"
_PATIENTS = 40_336  # 20,336 of set A and 20,000 of set B
_SHORTEST = 3  # hours: shorter stays are left out
_UNITS = slice(2, 4)  # in STATIC
_LAYOUT = "files p000001.psv and so on, in it or in folders such as training_setA and training_setB"
_CDE = "Kidger et al. 2020, arXiv:2005.08926"
_UNCHECKED = "; not checked against the paper"


@dataclass(frozen=True, kw_only=True)
class SepsisOptions:
    """Options of the task `sepsis`."""

    data: str = ""
    """Folder of the .psv files. Default: the folder sepsis of `LINRNN_DATA`."""
    hours: int = 72
    """Hours of a stay that are read; the label is whether sepsis is noted in them."""
    counts: bool = True
    """Also read how often each value was measured so far, and whether the unit is known."""
    split_seed: int = 0
    """Seed of the split."""
    check_counts: bool = True
    """Whether there must be the published number of patients."""


@dataclass(frozen=True, kw_only=True)
class PatientFacts:
    """Facts about the training patients that a model needs; its run folder stores them."""

    mean: tuple[float, ...]
    """Mean of each of the 34 measurements and the 5 static facts."""
    std: tuple[float, ...]
    """Standard deviation of each."""
    sha256: str
    """Hash of all patients."""

    def __post_init__(self) -> None:
        width = len(MEASUREMENTS) + len(STATIC)
        if not len(self.mean) == len(self.std) == width or min(self.std) <= 0:
            raise ValueError(f"not {width} means and deviations above 0")


class Sepsis(Task):
    """Rank patients by their risk of sepsis, from up to 72 hours in intensive care.

    A step is an hour with 34 measurements, 8 vital signs and 26 laboratory values, most of which
    are missing in most hours. Where one is missing, the last one before it is read, or 0, the mean
    of training, before the first. Five facts about the patient, age, sex, two units and the
    hours from admission to hospital to intensive care, are repeated in each step, and the hour
    over ``hours`` is a channel too. With ``counts`` there are 34 more with the number of
    measurements so far over ``hours``, and two that say whether a unit is known: how often is
    measured tells what physicians expect. That makes 76 channels, or 40 without.

    A patient is positive where any of the hours that are read is labelled with sepsis. Of the
    label's column nothing is read. Stays of less than 3 hours are left out. The rest are split into
    70 % for training, 15 % for validation and 15 % for testing, positives in proportion, by NumPy's
    stream, so the split is not that of the papers.

    The metric is the area under the ROC curve over all patients of a part, which is no mean over
    them; guessing has 0.5. The average precision stands beside it; that of guessing is the share
    of positives.

    Args:
        options: `SepsisOptions`.
        known: what a run folder keeps of the data.

    Raises:
        ArgumentError: hours below 3, or a negative split_seed.

    Reference:
        Reyna et al. 2020, "Early Prediction of Sepsis From Clinical Data: The
        PhysioNet/Computing in Cardiology Challenge 2019", Critical Care Medicine 48(2); hours,
        labels and counts as in the public code of Kidger et al. 2020, arXiv:2005.08926.
    """

    Options: ClassVar[type] = SepsisOptions
    summary: ClassVar[str] = "sepsis in intensive care by AUROC, files of PhysioNet 2019"
    metric: ClassVar[str] = "AUROC"
    pooled: ClassVar[bool] = True
    pools: ClassVar[tuple[str, ...]] = ("last", "mean")
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="neural CDE, with counts", value=0.880, source=_CDE),
        Published(model="neural CDE, without counts", value=0.776, source=_CDE + _UNCHECKED),
    )

    chance = 0.5
    d_output = 2
    class_names = ("no sepsis", "sepsis")

    def __init__(self, options: Any = None, known: PatientFacts | None = None) -> None:
        super().__init__(options)
        check_positive_int("Sepsis", hours=self.options.hours)
        if self.options.hours < _SHORTEST:
            raise ArgumentError(
                f"Sepsis: hours must be at least {_SHORTEST}, got {self.options.hours}."
            )
        if not 0 <= self.options.split_seed < 1 << 32:
            raise ArgumentError(
                "Sepsis: split_seed must be at least 0 and below 2^32, got "
                f"{self.options.split_seed}."
            )
        self._stored = known
        self.sequence_length = self.options.hours
        width = 1 + len(MEASUREMENTS) + len(STATIC)
        self.d_input = width + (len(MEASUREMENTS) + 2 if self.options.counts else 0)

    @property
    def channels(self) -> int:
        """Numbers a step in the units of the data: 34 measurements and 5 static facts."""
        return len(MEASUREMENTS) + len(STATIC)

    def datasets(self) -> Splits:
        """Splits of x (hours, d_input), target () and length (): see `Task.datasets`."""
        return Splits(*(self._dataset(part) for part in self._parts))

    def _dataset(self, patients: Sequence[Patient]) -> Ragged:
        septic = np.array([patient.septic for patient in patients])
        return join([_rows(patient) for patient in patients], septic, self._features)

    @cached_property
    def known(self) -> PatientFacts:
        """Facts about the training part that a model needs."""
        if self._stored is not None:
            return self._stored
        rows = np.concatenate([_rows(patient) for patient in self._parts[0]]).astype(np.float64)
        empty = np.isnan(rows).all(0)
        rows[0, empty] = 0.0  # a value that nobody measured is scaled by nothing
        mean, std = scale_of(rows)
        return PatientFacts(
            mean=tuple(mean.tolist()), std=tuple(std.tolist()), sha256=_hash(self._parts)
        )

    @property
    def _place(self) -> Path:
        return folder_of("sepsis", self.options.data)

    @cached_property
    def _parts(self) -> tuple[list[Patient], list[Patient], list[Patient]]:
        place = self._place
        paths = files_below(place) if place.is_dir() else []
        paths = [chosen("sepsis", path, place) for path in paths if path.suffix == ".psv"]
        if not paths:
            raise no_layout("sepsis", place, _LAYOUT)
        patients = [read_patient(path, self.options.hours) for path in paths]
        if self.options.check_counts and len(paths) != _PATIENTS:
            raise DataError(
                f"sepsis: there must be {_PATIENTS:,} patients in {place} as published, got "
                f"{len(paths):,}. Get both training sets, or pass --task.no-check-counts for "
                "others of their layout."
            )
        parts = self._split([p for p in patients if len(p.measured) >= _SHORTEST])
        if self._stored is not None:
            check_same(str(place), self._stored.sha256, _hash(parts))
        return parts

    def _split(self, patients: list[Patient]) -> tuple[list[Patient], list[Patient], list[Patient]]:
        """70, 15 and 15 percent of each class."""
        parts: tuple[list[Patient], list[Patient], list[Patient]] = ([], [], [])
        random = np.random.RandomState(self.options.split_seed)
        for septic in (False, True):
            rows = [patient for patient in patients if patient.septic is septic]
            order = random.permutation(len(rows))
            ends = [int(len(rows) * 0.7), int(len(rows) * 0.85)]
            for part, indices in zip(parts, np.split(order, ends), strict=True):
                if not len(indices):
                    raise DataError(
                        f"sepsis: {self._place} must hold at least 4 patients with sepsis and 4 "
                        f"without, each of {_SHORTEST} hours or more, got {len(rows)} "
                        f"{'with' if septic else 'without'}."
                    )
                part.extend(rows[i] for i in indices)
        return parts

    def _features(self, rows: np.ndarray, steps: int | None = None) -> tuple[Tensor, int]:
        """Model inputs (hours, d_input), padded with 0, and the number of hours.

        Args:
            rows: (time, 39), as `_rows` makes them.
            steps: to pad to; None: ``hours``.
        """
        steps, width = steps or self.sequence_length, len(MEASUREMENTS)
        mean, std = (
            torch.tensor(v, dtype=torch.float64) for v in (self.known.mean, self.known.std)
        )
        raw = torch.from_numpy(rows).double()
        scaled = forward_filled(((raw - mean) / std)[None])[0].nan_to_num(0.0)  # (time, 39)
        hours = torch.arange(1, len(rows) + 1, dtype=torch.float64)[:, None]
        parts = [hours / self.options.hours, scaled]
        if self.options.counts:
            parts.append((~raw[:, :width].isnan()).cumsum(0) / self.options.hours)
            parts.append((~raw[:, width:][:, _UNITS].isnan()).double())
        x = torch.zeros(steps, self.d_input)
        x[: len(rows)] = torch.cat(parts, 1).float()
        return x, len(rows)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """The log-odds of sepsis with the label: (batch, 2)."""
        return torch.stack([(y[:, 1] - y[:, 0]).double(), target.double()], 1)

    def contributions(self, scores: Tensor) -> Tensor:
        """Numbers (patients,) whose mean is the AUROC; NaN if all are of one class."""
        return auroc_contributions(scores[:, 0], scores[:, 1])

    def side_metrics(self, scores: Tensor) -> Mapping[str, float]:
        """The average precision."""
        return {"average precision": average_precision(scores[:, 0], scores[:, 1])}

    def baselines(self) -> Mapping[str, float]:
        """AUROC of the length of the stay, and of how much was measured."""
        test = self._parts[2]
        septic = torch.tensor([patient.septic for patient in test])
        counts = [float((~np.isnan(patient.measured)).sum()) for patient in test]
        hours = [float(len(patient.measured)) for patient in test]
        rankings = {"hours of the stay": hours, "number of measurements": counts}
        return {
            name: auroc_contributions(torch.tensor(values), septic).mean().item()
            for name, values in rankings.items()
        }

    def scaled(self, x: Tensor) -> Tensor:
        """Refuse single steps: see `arranged`."""
        raise ArgumentError(
            "Sepsis: x must be whole stays, whose missing values depend on the hours before, got "
            "steps. Give a .psv file, or call `arranged`."
        )

    def arranged(self, x: Tensor) -> Tensor:
        """Whole stays (batch, hours, 39), NaN where a value is missing, as a model reads them."""
        rows = [self._features(row.numpy(), x.shape[1])[0] for row in x.float()]
        return torch.stack(rows)

    def read_given(self, path: Path) -> Given:
        """Patients from a .psv file, or from all of a folder; labels may be absent."""
        if path.suffix != ".psv" and not path.is_dir():
            return Given(self.read(path))
        paths = [p for p in files_below(path) if p.suffix == ".psv"] if path.is_dir() else [path]
        if not paths:
            raise no_layout("sepsis", path, _LAYOUT)
        patients = [read_patient(p, self.options.hours, labelled=False) for p in paths]
        rows = [_rows(patient) for patient in patients]
        x, lengths = zip(*(self._features(row) for row in rows), strict=True)
        return Given(torch.stack(x), torch.tensor(lengths), ids=tuple(p.stem for p in paths))

    def run_files(self) -> Mapping[str, str]:
        """The facts about the data that a model needs, as a file of a run folder."""
        return {_KEPT: kept_text(self.known)}

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "Sepsis":
        """The task with the facts of a run folder; the data are not needed to use its model."""
        return cls(options, find_kept(folder, _KEPT, PatientFacts, "the patients"))


def _rows(patient: Patient) -> np.ndarray:
    """Measurements and static facts of each hour: (hours, 39)."""
    static = np.broadcast_to(patient.static, (len(patient.measured), len(STATIC)))
    return np.concatenate([patient.measured, static], 1)


def _hash(parts: Sequence[Sequence[Patient]]) -> str:
    return checksum(
        content
        for part in parts
        for patient in part
        for content in (_rows(patient), str(patient.septic))
    )
