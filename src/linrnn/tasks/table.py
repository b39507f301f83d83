"""Your own sequences, a label or a number for each: .csv, .parquet, .npz, .ts, .tsv or .arff."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from linrnn.errors import ArgumentError, DataError, check_in, check_positive_int
from linrnn.tasks._kinds.base import Given, Splits, Task
from linrnn.tasks._kinds.labelled import (
    Inputs,
    Known,
    Parts,
    Reading,
    answers,
    find_out,
    load_parts,
    parts_checksum,
)
from linrnn.tasks._reading.frame import PandasFrame
from linrnn.tasks._reading.known import check_same, find_kept, kept_text
from linrnn.tasks._reading.long import LongLayout
from linrnn.tasks._reading.missing import Missing, forward_filled
from linrnn.tasks._reading.series import Series, check_width
from linrnn.tasks._reading.table import read_table

KEPT = "table.json"

Kind = Literal["classification", "regression"]
Place = Literal["last", "first"]
Times = Literal["dt", "column", "none"]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of the task `table`."""

    data: str = ""
    """The file: .csv, .parquet, .npz, .ts, .tsv or .arff. Default: required."""
    test: str = ""
    """The file of the test sequences. Default: X_TEST.ts beside X_TRAIN.ts, else a fifth."""
    labels: str = ""
    """A .npy file of labels, if data is a .npy file. Default: none."""
    kind: Kind = "classification"
    """Whether the target is a class or a number."""
    label: Place = "last"
    """The cell with the label, if a row is a sequence."""
    channels: int = 1
    """Numbers per step in such a row."""
    id: str = ""
    """If a row is a step, the column that identifies its sequence. Default: a row is a sequence."""
    target: str = ""
    """If a row is a step, the column with the label. Default: none."""
    time: str = ""
    """If a row is a step, the column with its time, a number or a date. Default: equal steps."""
    columns: tuple[str, ...] = ()
    """If a row is a step, the columns to read. Default: all others."""
    times: Times = "dt"
    """Use of uneven times: the `dt` of layers that read it, one more channel, or nothing."""
    missing: Missing = "error"
    """Fill for a missing value: none (an error), the last value before, or 0 and a mask channel."""
    normalise: bool = True
    """Whether each channel is brought to mean 0 and variance 1 over the training data."""


class Table(Task):
    """Classify your own sequences, or predict a number for each.

    Pass the file as ``--data FILE``. Text files may be packed as .gz or .xz. A row may be a whole
    sequence:

    - ``.csv`` and ``.parquet``: one step after another, with the label in the last or the first
      cell. Short rows may end with empty cells. A header row is skipped.
    - ``.tsv``, ``.arff`` and ``.ts`` of the UCR and UEA archives. A ``.ts`` may have time stamps
      (``@timeStamps true``, values ``(time,value)``). In a .tsv the label comes first
      (``--task.label first``), and NaN at the end is padding.
    - ``.npz``: arrays ``x`` (sequences, time) or (sequences, time, channels), ``y``, and
      ``lengths`` if rows are padded; or each of them with ``_train`` and ``_test``. X is x.
    - ``.npy``: only x. The file ``--task.labels`` has y.

    Or a row is one step, in a .csv or .parquet with column names. ``--task.id`` names the column
    that identifies the sequence, ``--task.target`` the label, and ``--task.time`` a column of
    numbers or dates. The rows of a sequence are in order of time. A test file has the same columns.

    If steps are uneven, the time since the previous step is divided by its median in the training
    part. Layers get it as `dt` (``--task.times dt``, which some mixers read), as one more channel
    (``column``), or not at all (``none``).

    A missing value is an error. With ``--task.missing ffill`` the previous value of the sequence
    replaces it. With ``mask`` the mean of the training part replaces it, and one more channel for
    each channel marks missing values. Missing values before the first value become the mean.

    Without a test file, a fifth of the sequences is for testing and a tenth for validation. With
    one, a tenth is for validation. The split is fixed and keeps the proportions of classes. In
    regression, targets are scaled to mean 0 and variance 1 over the training data, and the metric
    is the mean squared error of these. Rows are padded to the longest, and a batch has their
    lengths if they differ. Before a file is passed, numbers such as the length are placeholders.

    Args:
        options: `TableOptions`.

    Raises:
        DataError: the file cannot be used.
        UnknownNameError: no such kind, label, column, and so on.
        ArgumentError: fewer than 1 channels, or an option without those it needs.
        MissingExtraError: a .parquet or .arff, and what reads it is not installed.
    """

    Options: ClassVar[type] = TableOptions
    summary: ClassVar[str] = "your own .csv, .parquet, .npz or .ts file: --data FILE"

    chance = 0.5
    sequence_length = d_input = 1
    d_output = 2

    def __init__(self, options: Any = None, known: Known | None = None) -> None:
        super().__init__(options)
        self._stored = known
        options = self.options
        for name, kinds in (("kind", Kind), ("label", Place), ("times", Times)):
            check_in("Table", name, getattr(options, name), get_args(kinds))
        check_in("Table", "missing", options.missing, get_args(Missing))
        check_positive_int("Table", channels=options.channels)
        self._reading = Reading(
            channels=options.channels,
            label_first=options.label == "first",
            missing=options.missing,
            labels=options.labels,
            long=self._long(),
        )
        if options.kind == "regression":
            self.metric, self.higher_is_better = "mse", False  # type: ignore[misc]
            self.kind, self.loss_name = "regression", "mean squared error"  # type: ignore[misc]
            self.d_output, self.chance = 1, 1.0
        if options.data:
            self._describe(self.known)

    def _long(self) -> LongLayout | None:
        options = self.options
        if not options.id:
            for name in ("target", "time", "columns"):
                if getattr(options, name):
                    raise ArgumentError(
                        f"Table: {name} must come with id, got {name} alone. If each row is one "
                        "step, pass --task.id NAME, the column that identifies its sequence. If "
                        f"each row is a whole sequence, leave out --task.{name}; the last cell is "
                        "its label."
                    )
            if options.times == "column" and ".ts" not in Path(options.data).suffixes:
                raise ArgumentError("Table: times='column' must come with time, got none.")
            return None
        if not options.target or (options.times == "column" and not options.time):
            what = "target" if not options.target else "time"
            raise ArgumentError(f"Table: id must come with {what}, got no --task.{what}.")
        return LongLayout(
            id=options.id,
            target=options.target,
            time=options.time,
            columns=options.columns,
            missing=options.missing != "error",
        )

    def _describe(self, facts: Known) -> None:
        self.sequence_length, self.d_input = facts.longest, self._inputs.d_input
        self.chance = facts.chance
        if self.options.kind == "classification":
            self.class_names, self.d_output = facts.classes, len(facts.classes)

    @cached_property
    def known(self) -> Known:
        """The facts that answers need: as the run folder keeps them, else of the file."""
        if self._stored is not None:
            return self._stored
        options = self.options
        classes = options.kind == "classification"
        facts = find_out(options.data, self._parts, normalise=options.normalise, classes=classes)
        if options.times == "column" and facts.stamps == "none":
            raise DataError(
                f"{options.data}: the file must have time stamps where --task.times is column, got "
                "none."
            )
        inputs = Inputs(facts, options.missing, options.times)
        inputs.check_stamps(options.test or options.data, self._parts[2])
        return facts

    @property
    def time_unit(self) -> float | None:  # type: ignore[override]
        """The usual time between steps, where `times` is "dt" and that is not the same for all."""
        irregular = self.options.times == "dt" and not self.known.even
        return self.known.unit if irregular else None

    @cached_property
    def _inputs(self) -> Inputs:
        return Inputs(self.known, self.options.missing, self.options.times)

    @cached_property
    def _parts(self) -> Parts:
        options = self.options
        if not options.data:
            raise DataError("table: the data must be a file, got none. Pass --data FILE.")
        classes = options.kind == "classification"
        parts = load_parts(self._reading, options.data, options.test, classes=classes)
        if self._stored is not None:
            check_same(options.data, self._stored.sha256, parts_checksum(parts))
        return parts

    def run_files(self) -> Mapping[str, str]:
        """The facts about the data that a model needs, as a file of a run folder."""
        return {KEPT: kept_text(self.known)}

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "Table":
        """The task with the facts of a run folder; the data are not needed to use its model."""
        return cls(options, find_kept(folder, KEPT, Known, "the data"))

    def datasets(self) -> Splits:
        """Splits of x (time, channels), target, and length and dt (time,) where they differ."""
        parts, datasets = self._parts, []
        irregular = len({len(x) for part in parts for x in part.x}) > 1
        for part in parts:
            x, _, dt, *_ = self._inputs.given(part, self.known.longest)
            lengths = [torch.tensor([len(x) for x in part.x])] if irregular else []
            timed = [] if dt is None else [dt]
            datasets.append(TensorDataset(x, self._targets(part.y), *lengths, *timed))
        return Splits(*datasets)

    def parts(self) -> list[tuple[list[np.ndarray], np.ndarray]]:
        """Sequences (time, channels) of each split in the units of the data, and their answers.

        What is missing is NaN. Answers are the numbers of classes, or numbers with mean 0 and
        variance 1 over the training data.
        """
        return [(part.x, self._targets(part.y).numpy().ravel()) for part in self._parts]

    def padded(self, rows: list[np.ndarray]) -> Tensor:
        """Sequences (time, channels) as a model reads them, padded to the longest of the data."""
        return self._inputs.given(Series(rows, []), self.sequence_length).x

    def read(self, path: Path) -> Tensor:
        """Sequences from a user's file, padded to the longest of them: see `read_given`."""
        return self.read_given(path).x

    def read_given(self, path: Path) -> Given:
        """Sequences of any length from a user's file, with their lengths and times.

        What is asked may be missing and is not read: a .csv row is numbers alone, or the column has
        the name that it had in training, a .npz has ``x`` and perhaps ``lengths``, the labels of a
        .ts are left aside, and so is the column of a table with a step a row, whose columns are
        those of the training by their names; .npy and .txt are tables with as many numbers a row as
        the longest sequence of the training file has.
        """
        if path.suffix.lower() in (".npy", ".txt"):
            width = self.sequence_length * self.channels
            rows = read_table(path, width, double=True)
            rows = rows.reshape(-1, self.sequence_length, self.channels)
            return Given(self.arranged(rows).float())
        return self._model_inputs(str(path), self._reading.asked(path, self.known))

    def read_frame(self, where: str, table: Any) -> Given:
        """Sequences from a table of pandas with a step a row."""
        return self._model_inputs(where, self._reading.frame(PandasFrame(where, table), self.known))

    def without_label(self, table: Any) -> Any:
        """A table of pandas with a sequence a row, without the column of what is asked."""
        label = self.known.label
        return table.loc[:, [not label or str(name) != label for name in table.columns]]

    def check_width(self, where: str, width: int) -> None:
        """Raise `DataError` for rows of one number more than all those of the training have."""
        check_width(where, self.known.width, [width])

    @property
    def long(self) -> bool:
        """Whether a row of a table is a step."""
        return self._reading.long is not None

    def _model_inputs(self, where: str, series: Series) -> Given:
        channels = self.channels
        if series.x[0].shape[1] != channels:
            raise DataError(
                f"{where}: sequences must have {channels} channels as those of the training data, "
                f"got {series.x[0].shape[1]}."
            )
        self._inputs.check_stamps(where, series)
        return self._inputs.given(series)

    @property
    def channels(self) -> int:
        """Numbers a step in the units of the data."""
        return self.known.channels

    def scaled(self, x: Tensor) -> Tensor:
        """Scale to mean 0 and variance 1 of the training data; missing values as `TableOptions`."""
        if self.options.times == "column":
            raise ArgumentError(
                "Table: times must be 'dt' or 'none' where steps are given without their times, "
                "got 'column'. Pass a table or a file with them."
            )
        return self._inputs.scaled(x)

    def arranged(self, x: Tensor) -> Tensor:
        """Whole sequences with missing values filled, and scaled."""
        return self.scaled(forward_filled(x) if self.options.missing == "ffill" else x)

    def numbers(self, y: Tensor) -> Tensor:
        """Answers in the units of the data, not at mean 0 and variance 1: (batch, 1)."""
        mean, std = self.known.asked
        return y.double() * std + mean

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy, or the mean squared error."""
        if self.options.kind == "regression":
            return nn.functional.mse_loss(y, target)
        return super().loss(y, target)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """Whether each is right, or its squared error."""
        if self.options.kind == "regression":
            return (y - target).square().mean(1)
        return super().scores(y, target)

    def _targets(self, labels: list[str]) -> Tensor:
        if self.options.kind == "classification":
            places = {name: i for i, name in enumerate(self.known.classes)}
            return torch.tensor([places[label] for label in labels])
        mean, std = self.known.asked
        return torch.from_numpy((answers(self.options.data, labels) - mean) / std).float()[:, None]
