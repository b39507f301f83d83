"""Your own sequences, a label or a number for each: .csv, .npz or .ts."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from linrnn._numbers import number
from linrnn.errors import DataError, check_in, check_positive_int
from linrnn.tasks._base import Splits, Task
from linrnn.tasks._files import chosen
from linrnn.tasks._series import Layout, Series, read_series

_SPLIT_SEED = 0  # the split is part of the task: never the run's seed

Kind = Literal["classification", "regression"]
Place = Literal["last", "first"]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of the task `table`."""

    data: str = ""
    """The file: .csv, .npz or .ts."""
    test: str = ""
    """A second file, for testing; empty: X_TEST.ts beside X_TRAIN.ts, else a part of the first."""
    kind: Kind = "classification"
    """Whether a class or a number is asked for."""
    label: Place = "last"
    """The cell of a .csv row in which it is."""
    channels: int = 1
    """Numbers a step in a .csv row, step after step."""
    normalise: bool = True
    """Whether each channel is brought to mean 0 and variance 1 over the training data."""


class _Loaded:
    """The sequences of a file in memory, and what follows from them."""

    def __init__(self, options: TableOptions) -> None:
        self.options = options
        self.parts = _split(options.data, *_read(options))
        self.channels = self.parts[0].x[0].shape[1]
        self.longest = max(len(x) for part in self.parts for x in part.x)
        steps = np.concatenate(self.parts[0].x).astype(np.float64)
        self.mean, self.std = steps.mean(0), steps.std(0)
        if not options.normalise:
            self.mean, self.std = np.zeros(self.channels), np.ones(self.channels)
        self.std[self.std == 0] = 1
        self.classes = _in_order({label for part in self.parts for label in part.y})


class Table(Task):
    """Classes or numbers for sequences of your own.

    Give the file as ``--task.data FILE``:

    - ``.csv``: a row is a sequence, step after step, with what is asked in the last cell (or the
      first). Rows may differ in length. A first row of names is skipped.
    - ``.npz``: arrays ``x`` (sequences, time) or (sequences, time, channels), ``y``, and
      ``lengths`` where rows are padded; or each of them with ``_train`` and ``_test``.
    - ``.ts`` of the UEA and UCR archives, without time stamps; packed as .gz or not.

    Where there is no test part, a fifth of the sequences is for testing and a tenth for
    validation; where there is one, a tenth is for validation. The split is fixed and keeps the
    classes in proportion. In regression the numbers asked for are brought to mean 0 and variance
    1 over the training data, and the metric is the mean squared error of those. Rows are padded to
    the longest; a batch carries their lengths where they differ. Before a file is given, the
    numbers that describe the data are placeholders.

    Args:
        options: `TableOptions`.

    Raises:
        DataError: the file cannot be used.
        UnknownNameError: no such kind or label.
        ArgumentError: fewer than 1 channels.
    """

    Options: ClassVar[type] = TableOptions
    summary: ClassVar[str] = "your own .csv, .npz or .ts file: --task.data FILE"

    chance = 0.5
    sequence_length = d_input = 1
    d_output = 2

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_in("Table", "kind", self.options.kind, get_args(Kind))
        check_in("Table", "label", self.options.label, get_args(Place))
        check_positive_int("Table", channels=self.options.channels)
        if self.options.kind == "regression":
            self.metric, self.higher_is_better = "mse", False  # type: ignore[misc]
            self.kind, self.loss_name = "regression", "mean squared error"  # type: ignore[misc]
            self.d_output, self.chance = 1, 1.0
        if self.options.data:
            self._describe(self._loaded)

    def _describe(self, loaded: _Loaded) -> None:
        self.sequence_length, self.d_input = loaded.longest, loaded.channels
        test = loaded.parts[2].y
        if self.options.kind == "regression":
            self.chance = float(self._targets(test).square().mean())
            return
        self.class_names, self.d_output = tuple(loaded.classes), len(loaded.classes)
        common = max(loaded.classes, key=loaded.parts[0].y.count)
        self.chance = test.count(common) / len(test)

    @cached_property
    def _loaded(self) -> _Loaded:
        if not self.options.data:
            raise DataError("table: the data must be a file, got none. Say --task.data FILE.")
        return _Loaded(self.options)

    def datasets(self) -> Splits:
        """Splits of x (time, channels), target, and length where they differ."""
        parts = self._loaded.parts
        irregular = len({len(x) for part in parts for x in part.x}) > 1
        made = []
        for part in parts:
            x, _ = self._pad(part.x, self.sequence_length)
            lengths = [torch.tensor([len(x) for x in part.x])] if irregular else []
            made.append(TensorDataset(x, self._targets(part.y), *lengths))
        return Splits(*made)

    def read(self, path: Path) -> Tensor:
        """Sequences from a user's file, padded to the longest of them: see `read_padded`."""
        return self.read_padded(path)[0]

    def read_padded(self, path: Path) -> tuple[Tensor, Tensor | None]:
        """Sequences of any length from a user's file, and their lengths where they differ.

        What is asked may be missing and is not read: a .csv row is numbers alone, a .npz has ``x``
        and perhaps ``lengths``, the labels of a .ts are left aside; .npy and .txt are tables with
        as many numbers a row as the longest sequence of the training file has.
        """
        if path.suffix.lower() in (".npy", ".txt"):
            return self._normalise(super().read(path)), None
        layout = Layout(self.options.channels, label_first=False, labelled=False)
        rows = read_series(path, layout)["train"].x
        if rows[0].shape[1] != self.d_input:
            raise DataError(
                f"{path}: sequences must have {self.d_input} channels as those of the training "
                f"data, got {rows[0].shape[1]}."
            )
        return self._pad(rows, max(map(len, rows)))

    def scaled(self, x: Tensor) -> Tensor:
        """With mean 0 and variance 1 over the training data."""
        loaded = self._loaded
        mean, std = torch.from_numpy(loaded.mean), torch.from_numpy(loaded.std)
        return ((x.double() - mean) / std).to(x.dtype)

    def numbers(self, y: Tensor) -> Tensor:
        """What was asked, before it was brought to mean 0 and variance 1: (batch, 1)."""
        mean, std = self._target_scale
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

    def _pad(self, sequences: list[np.ndarray], steps: int) -> tuple[Tensor, Tensor | None]:
        """Normalised and padded (sequences, steps, channels); lengths where one is shorter."""
        x = torch.zeros(len(sequences), steps, self.d_input)
        for row, sequence in zip(x, sequences, strict=True):
            row[: len(sequence)] = self._normalise(torch.from_numpy(sequence))
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        return x, lengths if lengths.min() < steps else None

    def _normalise(self, x: Tensor) -> Tensor:
        return self.scaled(x.double()).float()

    def _targets(self, labels: list[str]) -> Tensor:
        if self.options.kind == "classification":
            return torch.tensor([self._loaded.classes.index(label) for label in labels])
        mean, std = self._target_scale
        return torch.from_numpy((self._numbers(labels) - mean) / std).float()[:, None]

    @property
    def _target_scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the numbers asked for in the training data."""
        train = self._numbers(self._loaded.parts[0].y)
        return float(train.mean()), float(train.std()) or 1.0

    def _numbers(self, labels: list[str]) -> np.ndarray:
        values = np.array([_to_float(label) for label in labels])
        if not np.isfinite(values).all():
            bad = labels[int(np.argmin(np.isfinite(values)))]
            raise DataError(
                f"{self.options.data}: what is asked in regression must be finite numbers, got "
                f"{bad!r}. Is it --task.kind classification?"
            )
        return values


def _to_float(label: str) -> float:
    value = number(label)
    return float("nan") if value is None else value


def _in_order(labels: set[str]) -> list[str]:
    """Numbers by their size, else words by the alphabet."""
    numbers = all(np.isfinite(_to_float(label)) for label in labels)
    return sorted(labels, key=_to_float if numbers else str)


def _read(options: TableOptions) -> tuple[Series, Series | None]:
    """The training and, if there is one, the test part."""
    path = Path(options.data).expanduser()
    layout = Layout(options.channels, options.label == "first")
    parts = read_series(path, layout)
    beside = path.with_name(path.name.replace("_TRAIN.ts", "_TEST.ts"))
    if options.test:
        beside = Path(options.test).expanduser()
    elif beside != path and os.path.lexists(beside):
        chosen("table", beside, path.parent)
    if beside != path and (options.test or beside.is_file()):
        parts["test"] = read_series(beside, layout)["train"]
    train, test = parts["train"], parts.get("test")
    if test is not None and test.x[0].shape[1] != train.x[0].shape[1]:
        raise DataError(
            f"{beside}: sequences must have {train.x[0].shape[1]} channels as in {path}, got "
            f"{test.x[0].shape[1]}."
        )
    new = set(test.y) - set(train.y) if test is not None else set()
    if new and options.kind == "classification":
        raise DataError(
            f"{beside}: classes must be among those of the training data, got {min(new)!r}."
        )
    return train, test


def _split(where: str, train: Series, test: Series | None) -> tuple[Series, Series, Series]:
    """A tenth of every class for validation, and a fifth for testing if nothing else is."""
    if len(train.x) < 10:
        raise DataError(f"{where}: there must be 10 sequences to split, got {len(train.x)}.")
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(train.x))
    order = order[np.argsort(np.array(train.y)[order], kind="stable")]
    slot = np.arange(len(order)) % 10
    if test is None:
        held = _take(train, order[np.isin(slot, (0, 5))])
        return _take(train, order[~np.isin(slot, (0, 1, 5))]), _take(train, order[slot == 1]), held
    return _take(train, order[slot != 1]), _take(train, order[slot == 1]), test


def _take(series: Series, rows: np.ndarray) -> Series:
    return Series([series.x[i] for i in rows], [series.y[i] for i in rows])
