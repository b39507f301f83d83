"""Where the files of a user's own examples lie, of which class each is, and how they are split."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linrnn._files.door import what_is
from linrnn.errors import DataError
from linrnn.tasks._kinds.labelled import in_order
from linrnn.tasks._reading.files import chosen
from linrnn.tasks._reading.frame import open_frame

TABLES = (".csv", ".parquet")


class Listing(NamedTuple):
    """Files and their classes."""

    root: Path
    paths: list[Path]
    labels: list[str]


def list_files(task: str, place: Path, suffixes: tuple[str, ...]) -> Listing:
    """The files of a folder, a folder for each class, or those that a table names.

    Names that begin with a dot are not looked at.

    Raises:
        DataError: it is neither, or holds something that is not of a class; fewer than two classes,
            or a class with a single file.
    """
    if place.is_dir():
        listing = _of_folder(task, place, suffixes)
    elif place.suffix.lower() in TABLES:
        listing = _of_table(task, place, suffixes)
    else:
        raise DataError(
            f"{place}: the data must be a folder with a folder for each class, or a table of files "
            f"({', '.join(TABLES)}), got {what_is(place)}."
        )
    counts = {label: listing.labels.count(label) for label in in_order(set(listing.labels))}
    if len(counts) < 2:
        raise DataError(f"{place}: there must be at least 2 classes, got {', '.join(counts)}.")
    for label, count in counts.items():
        if count < 2:
            raise DataError(
                f"{place}: a class must have at least 2 files, for training and for testing, got "
                f"{count} in {label!r:.60}. Give more, or leave the class out."
            )
    return listing


def _of_folder(task: str, place: Path, suffixes: tuple[str, ...]) -> Listing:
    paths, labels = [], []
    for folder in _visible(place):
        if not folder.is_dir():
            raise DataError(
                f"{place}: the folder must contain one folder for each class and nothing else, got "
                f"the file {folder.name}. Move it into the folder of its class, or away."
            )
        files = _visible(folder)
        for file in files:
            check_ending(task, file, suffixes)
            paths.append(chosen(task, file, place))
            labels.append(folder.name)
        if not files:
            raise DataError(f"{folder}: the folder of a class must hold files, got none.")
    if not paths:
        raise DataError(f"{place}: the folder must hold a folder for each class, got none.")
    return Listing(place, paths, labels)


def _of_table(task: str, place: Path, suffixes: tuple[str, ...]) -> Listing:
    frame = open_frame(place)
    frame.check_has(["file", "label"])
    root, names = place.parent, frame.cells("file")
    labels = [label.strip() for label in frame.cells("label")]
    listed: set[Path] = set()
    paths = []
    for row, (name, label) in enumerate(zip(names, labels, strict=True)):
        path = root / name.strip()
        if not label or not name.strip() or path in listed:
            raise DataError(
                f"{place}: each row must name another file and its label, got {name!r:.60} and "
                f"{label!r:.60} in {frame.place(row)}."
            )
        check_ending(task, path, suffixes)
        listed.add(path)
        paths.append(chosen(task, path, root))
    return Listing(root, paths, labels)


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def files_below(folder: Path) -> list[Path]:
    """All files of a folder and of those in it, in the order of their names."""
    paths = []
    for path in _visible(folder):
        paths += files_below(path) if path.is_dir() and not path.is_symlink() else [path]
    return paths


def check_ending(task: str, path: Path, suffixes: tuple[str, ...]) -> bool:
    """True; raises `DataError` for another kind of file."""
    if path.suffix.lower() not in suffixes or path.is_dir():
        what = "a folder" if path.is_dir() else repr(path.suffix)
        raise DataError(
            f"{path}: the task {task} needs files that end in {', '.join(suffixes)}, got "
            f"{what}. Remove it, or convert it."
        )
    return True


def split(labels: Sequence[str], seed: int, *, test: bool) -> tuple[list[int], ...]:
    """Rows for training, validation and testing, each class in proportion.

    From n files of a class a fifth is for testing and a tenth for validation, rounded, but one at
    least; where there are two, none is for validation. At least one is for training.

    Args:
        labels: of all rows.
        seed: of the choice.
        test: whether there is a test part.

    Raises:
        DataError: nothing is left for validation.

    Example:
        >>> split(["a"] * 5 + ["b"] * 5, 0, test=True)
        ([1, 3, 4, 6, 8, 9], [0, 7], [2, 5])
    """
    parts: tuple[list[int], ...] = ([], [], [])
    random = np.random.RandomState(seed)  # whose stream is frozen by NumPy's promise
    for label in sorted(set(labels)):
        rows = [i for i, row_label in enumerate(labels) if row_label == label]
        order = [rows[i] for i in random.permutation(len(rows))]
        tested = max(1, round(len(rows) / 5)) if test else 0
        validated = max(1, round(len(rows) / 10)) if len(rows) - tested > 1 else 0
        cut = (order[tested + validated :], order[tested : tested + validated], order[:tested])
        for part, chosen_rows in zip(parts, cut, strict=True):
            part.extend(chosen_rows)
    if not parts[1]:
        raise DataError(
            "split: a class must have at least 3 files, so that one is for validation, got at most "
            "2. Give more."
        )
    return tuple(sorted(part) for part in parts)


def take(listing: Listing, rows: Sequence[int]) -> Listing:
    """Some of the files."""
    root, paths, labels = listing
    return Listing(root, [paths[i] for i in rows], [labels[i] for i in rows])
