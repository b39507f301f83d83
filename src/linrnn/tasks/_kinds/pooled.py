"""Archives of series whose two files are pooled and split anew, as many papers do."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._kinds.base import Splits, Task
from linrnn.tasks._kinds.labelled import Inputs, Known, Parts, answers, find_out, parts_checksum
from linrnn.tasks._kinds.published_text import find_file
from linrnn.tasks._reading.files import folder_of
from linrnn.tasks._reading.known import check_same, find_kept, kept_text
from linrnn.tasks._reading.series import Layout, Series, read_series

KEPT = "series.json"


class Shape(NamedTuple):
    """Published sizes of an archive."""

    sequences: int
    steps: int
    channels: int
    classes: int
    """0 in regression."""


class PooledSeries(Task):
    """Sequences of NAME_TRAIN.ts and NAME_TEST.ts, pooled, without repetitions, and split anew.

    70 % of the sequences are for training, 15 % for validation, the rest for testing, by
    ``split_seed``. Channels, and numbers that are to be predicted, are brought to mean 0 and
    variance 1 over the training part.

    Args:
        options: with ``data``, ``split_seed`` and ``check_counts``.
        known: what a run folder keeps of the data.

    Raises:
        ArgumentError: a negative split_seed.
    """

    regression: ClassVar[bool] = False

    def __init__(self, options: Any = None, known: Known | None = None) -> None:
        super().__init__(options)
        if not 0 <= self.options.split_seed < 1 << 32:
            raise ArgumentError(
                f"{type(self).__name__}: split_seed must be at least 0 and below 2^32, got "
                f"{self.options.split_seed}."
            )
        self._stored = known
        _, self.sequence_length, self.d_input, classes = self.shape
        if known is not None or not self.options.check_counts:
            facts = self.known
            self.sequence_length, self.d_input = facts.longest, facts.channels
            classes, self.class_names = len(facts.classes), facts.classes
        self.d_output = classes or 1

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the archive, which its files begin with."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The published sizes of the archive."""

    @cached_property
    def known(self) -> Known:
        """Facts about the training part that a model needs."""
        if self._stored is not None:
            return self._stored
        classes = not self.regression
        return find_out(str(self._place), self._parts, normalise=True, classes=classes)

    @property
    def _place(self) -> Path:
        return folder_of(self.name, self.options.data)

    @cached_property
    def _parts(self) -> Parts:
        layout = f"{self.name}_TRAIN.ts and {self.name}_TEST.ts (each as it is, .gz or .xz)"
        x: list[np.ndarray] = []
        y: list[str] = []
        for part in ("TRAIN", "TEST"):
            path = find_file(self.name, self._place, [f"{self.name}_{part}.ts"], layout)
            series = read_series(path, Layout(1, False))["train"]
            if x and series.x[0].shape[1] != x[0].shape[1]:
                raise DataError(
                    f"{path}: sequences must have {x[0].shape[1]} channels as the training file, "
                    f"got {series.x[0].shape[1]}."
                )
            x, y = x + series.x, y + series.y
        if self.options.check_counts:
            self._check_shape(x, y)
        parts = self._split(x, y)
        if self._stored is not None:
            check_same(str(self._place), self._stored.sha256, parts_checksum(parts))
        return parts

    def _check_shape(self, x: list[np.ndarray], y: list[str]) -> None:
        classes = 0 if self.regression else len(set(y))
        seen = Shape(len(x), max(map(len, x)), x[0].shape[1], classes)
        for what, expected, actual in zip(Shape._fields, self.shape, seen, strict=True):
            if expected != actual:
                raise DataError(
                    f"{self.name}: there must be {expected:,} {what} in {self._place} as "
                    f"published, got {actual:,}. Get the published files, or say "
                    "--task.no-check-counts for others of their layout."
                )

    def _split(self, x: list[np.ndarray], y: list[str]) -> Parts:
        """70, 15 and 15 percent of the sequences, each of which is taken once."""
        distinct = {(row.shape, row.tobytes()): i for i, row in reversed([*enumerate(x)])}
        rows = np.array(sorted(distinct.values()))
        order = rows[np.random.RandomState(self.options.split_seed).permutation(len(rows))]
        train, held_out = int(len(order) * 0.7), int(len(order) * 0.85)
        cut = (order[:train], order[train:held_out], order[held_out:])
        first, second, third = (Series([x[i] for i in r], [y[i] for i in r]) for r in cut)
        if not (first.x and second.x and third.x):
            raise DataError(
                f"{self.name}: {self._place} must hold 4 different sequences to split, got "
                f"{len(order)}."
            )
        return first, second, third

    def datasets(self) -> Splits:
        """Splits of x (time, channels) and target, and lengths where they differ."""
        inputs, datasets = Inputs(self.known, "error", "none"), []
        uneven = len({len(x) for part in self._parts for x in part.x}) > 1
        for part in self._parts:
            x = inputs.given(part, self.known.longest).x
            lengths = [torch.tensor([len(row) for row in part.x])] if uneven else []
            datasets.append(TensorDataset(x, self._targets(part.y), *lengths))
        return Splits(*datasets)

    def _targets(self, labels: list[str]) -> Tensor:
        if not self.regression:
            places = {name: i for i, name in enumerate(self.known.classes)}
            return torch.tensor([places[label] for label in labels])
        mean, std = self.known.asked
        values = (answers(str(self._place), labels) - mean) / std
        return torch.from_numpy(values).float()[:, None]

    def scaled(self, x: Tensor) -> Tensor:
        """Channels brought to mean 0 and variance 1 over the training part."""
        return Inputs(self.known, "error", "none").scaled(x)

    def numbers(self, y: Tensor) -> Tensor:
        """Predicted numbers in the units of the data: (batch, 1)."""
        mean, std = self.known.asked
        return y.double() * std + mean

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy, or the mean squared error of what has variance 1."""
        return nn.functional.mse_loss(y, target) if self.regression else super().loss(y, target)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """Whether each is right, or its squared error in the units of the data."""
        if self.regression:
            return (y - target).square().mean(1) * self.known.asked[1] ** 2
        return super().scores(y, target)

    def run_files(self) -> Mapping[str, str]:
        """The facts about the data that a model needs, as a file of a run folder."""
        return {KEPT: kept_text(self.known)}

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "PooledSeries":
        """The task with the facts of a run folder; the data are not needed to use its model."""
        return cls(options, find_kept(folder, KEPT, Known, "the series"))
