"""A file for each example: a folder for each class, or a table of files and their classes."""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from linrnn._files.door import what_is
from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._kinds.base import Given, Splits, Task
from linrnn.tasks._kinds.labelled import in_order
from linrnn.tasks._reading.file_listing import (
    Listing,
    check_ending,
    files_below,
    list_files,
    split,
    take,
)
from linrnn.tasks._reading.files import chosen
from linrnn.tasks._reading.known import kept_text, read_kept

Content = TypeVar("Content")

KEPT = "files.json"


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Options of the tasks with a file for each example."""

    data: str = ""
    """A folder with one folder per class, or a .csv or .parquet with columns file and label.
    Default: required."""
    test: str = ""
    """The same for test examples. Default: a fifth of each class."""
    data_seed: int = 0
    """Seed of the split; the seed of a run does not change it."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """Facts about the training files that a model needs; its run folder stores them."""

    classes: list[str]
    sha256: str
    """Hash of the names, sizes and classes of all files."""
    chance: float
    """The part of the test files that is of the class most frequent in training."""
    measured: dict[str, int]
    """Numbers that all files share, such as a size."""


class LabelledFiles(Task, Generic[Content]):
    """Classes for files of a user's own.

    A subclass says what files it takes, reads them, and makes data sets of their contents.
    """

    Options: ClassVar[type] = FileOptions
    suffixes: ClassVar[tuple[str, ...]]
    """Endings of the names of files, in small letters."""

    chance = 0.5
    sequence_length = d_input = 1
    d_output = 2

    def __init__(self, options: Any = None, known: Known | None = None) -> None:
        super().__init__(options)
        if not 0 <= self.options.data_seed < 2**32:
            raise ArgumentError(
                f"{self._name}: data_seed must be from 0 to 2^32 - 1, got {self.options.data_seed}."
            )
        self.check()
        self.known = known
        if known is None and self.options.data:
            self.known = self._find_out()
        if self.known is not None:
            self.class_names = tuple(self.known.classes)
            self.d_output, self.chance = len(self.class_names), self.known.chance
            self.describe(self.known.measured)

    @abstractmethod
    def check(self) -> None:
        """Raise unless the options have a meaning."""

    @abstractmethod
    def content(self, path: Path, inside: Path | None) -> Content:
        """Read what a file holds.

        Raises:
            DataError: nothing that can be read without a doubt.
        """

    @abstractmethod
    def measure(self, paths: Sequence[Path], contents: Sequence[Content]) -> dict[str, int]:
        """Measure what is the same for all files.

        Raises:
            DataError: it is not.
        """

    @abstractmethod
    def describe(self, measured: Mapping[str, int]) -> None:
        """Set the numbers that describe the data."""

    @abstractmethod
    def dataset(self, contents: Sequence[Content], labels: np.ndarray) -> Any:
        """A split."""

    @abstractmethod
    def given(self, paths: Sequence[Path], contents: Sequence[Content]) -> Given:
        """Files to predict."""

    @cached_property
    def _loaded(self) -> tuple[tuple[list[Path], list[Content], list[str]], ...]:
        """Files, contents and classes of the three parts."""
        options = self.options
        if not options.data:
            raise DataError(
                f"{self._name}: the data must be a folder, got none. Say --data FOLDER."
            )
        listing = self._listing(options.data)
        tested = self._listing(options.test) if options.test else None
        new = set(tested.labels) - set(listing.labels) if tested else set()
        if new:
            raise DataError(
                f"{options.test}: classes must be among those of the training files, got "
                f"{min(new)!r:.60}."
            )
        places = split(listing.labels, options.data_seed, test=tested is None)
        parts = [take(listing, rows) for rows in places]
        if tested is not None:
            parts[2] = tested
        return tuple(
            (part.paths, [self.content(p, part.root) for p in part.paths], part.labels)
            for part in parts
        )

    @property
    def _name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def _listing(self, place: str) -> Listing:
        return list_files(self._name, Path(place).expanduser(), self.suffixes)

    def _find_out(self) -> Known:
        (_, _, train), _, (_, _, test) = self._loaded
        paths = [path for part in self._loaded for path in part[0]]
        contents = [content for part in self._loaded for content in part[1]]
        common = max(in_order(set(train)), key=train.count)
        return Known(
            classes=in_order(set(train)),
            sha256=self._sha256(),
            chance=test.count(common) / len(test),
            measured=self.measure(paths, contents),
        )

    def _sha256(self) -> str:
        digest = hashlib.sha256()
        for place in filter(None, (self.options.data, self.options.test)):
            listing = self._listing(place)
            for path, label in zip(listing.paths, listing.labels, strict=True):
                name = os.path.relpath(path, listing.root)
                digest.update(f"{name}\0{path.stat().st_size}\0{label}\n".encode())
        return digest.hexdigest()

    def datasets(self) -> Splits:
        """Splits of the files: see `Task.datasets`."""
        loaded, facts = self._loaded, self.known
        assert facts is not None
        if facts.sha256 != self._sha256():
            raise DataError(
                f"{self.options.data}: the files must be those the run began with, got others: "
                "some were added, removed or changed in size. Restore them, or start a new run."
            )
        places = {name: i for i, name in enumerate(facts.classes)}
        return Splits(
            *(
                self.dataset(contents, np.array([places[label] for label in labels]))
                for _, contents, labels in loaded
            )
        )

    def run_files(self) -> Mapping[str, str]:
        """The facts about the files that a model needs, as a file of a run folder."""
        assert self.known is not None
        return {KEPT: kept_text(self.known)}

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "LabelledFiles[Content]":
        """The task with the facts of a run folder; the files are not needed to use its model."""
        return cls(options, read_kept(folder, KEPT, Known, "files"))

    def read_given(self, path: Path) -> Given:
        """A file, all files of a folder and of those in it, or a table as other tasks read it."""
        if path.is_dir():
            paths = [p for p in files_below(path) if check_ending(self._name, p, self.suffixes)]
            if not paths:
                raise DataError(f"{path}: the folder must hold a file to answer for, got none.")
            contents = [self.content(chosen(self._name, p, path), path) for p in paths]
            inputs = self.given(paths, contents)
            return inputs._replace(ids=tuple(str(p.relative_to(path)) for p in paths))
        if path.suffix.lower() not in self.suffixes:
            return Given(self.read(path))
        if not path.is_file():
            raise DataError(f"{path}: the file must exist, got {what_is(path)}. Check the path.")
        return self.given([path], [self.content(path, None)])
