"""Named columns of a user's table: a .csv or .parquet file, or a table of pandas."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linrnn._files.door import open_file, what_is
from linrnn._options.numbers import is_name, like_number, number, whole
from linrnn.errors import DataError, MissingExtraError, UnknownNameError
from linrnn.tasks._reading.files import READ_ERRORS, open_packed, read_packed
from linrnn.tasks._reading.rows import Lines, filled_lines, numbers_of, split_rows, split_table

_MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "?"})
_UNNAMED = re.compile(r"Unnamed: \d+(_level_\d+)?")

FILL = "Fill missing values, or train with --task.missing mask or ffill."
"""Advice on missing values, for messages."""


def is_missing(cell: str) -> bool:
    """Whether a cell says that there is no value, rather than a value that cannot be read."""
    return cell.strip().lower() in _MISSING


def is_unnamed(name: str) -> bool:
    """Whether a column has no name, or the one that pandas gives such: often a count of rows."""
    return not name.strip() or _UNNAMED.fullmatch(name) is not None


class Frame(ABC):
    """Columns of one length, each with its own name.

    Attributes:
        where: the file or table, for messages.
        names: of all columns.
    """

    where: str
    names: list[str]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def cells(self, name: str) -> list[str]:
        """A column as text."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Where a row stands, for messages."""

    def with_numbers(self) -> list[str]:
        """Names of the columns in which any cell may be meant as a number; a date is none."""
        names = [name for name in self.names if self.has_numbers(name)]
        if not names:
            raise DataError(
                f"{self.where}: a column must hold numbers, got only {', '.join(self.names):.60}."
            )
        return names

    def has_numbers(self, name: str) -> bool:
        """Whether any cell of a column may be meant as a number."""
        return any(map(like_number, self.cells(name)))

    def check_has(self, names: Sequence[str]) -> None:
        """Raise `UnknownNameError` unless all are names of columns."""
        for name in names:
            if name not in self.names:
                raise UnknownNameError("column", name, self.names)

    def check_single(self) -> None:
        """Raise `DataError` for several series one below the other: columns unique_id and ds."""
        if not {"unique_id", "ds"} <= set(self.names):
            return
        n_series = len(set(self.cells("unique_id")))
        if n_series > 1:
            raise DataError(
                f"{self.where}: the table must hold one series, got {n_series} in column "
                "unique_id. `linrnn train forecast` without --only and --mixer reads many; else "
                "leave the rows of one."
            )

    def values(self, names: Sequence[str], *, missing: bool = False) -> np.ndarray:
        """The numbers of some columns, (time, columns).

        Args:
            names: of the columns.
            missing: whether a cell may say that there is no number, which becomes NaN.

        Raises:
            DataError: a cell of theirs that is no finite number.
        """
        values = np.empty((len(self), len(names)))
        for column, name in enumerate(names):
            values[:, column] = self._numbers(name)
        for step, column in np.argwhere(~np.isfinite(values)).tolist():
            cell = self.cells(names[column])[step]
            if missing and is_missing(cell):
                values[step, column] = np.nan
                continue
            fix = "Correct it, or choose other columns."
            if is_missing(cell):
                fix = f"{FILL} Or choose other columns with --task.columns."
            raise DataError(
                f"{self.where}: values must be finite numbers, got {cell!r:.60} in "
                f"{self.place(step)}, column {names[column]}. {fix}"
            )
        return values

    def _numbers(self, name: str) -> np.ndarray:
        """A column, with NaN for what is no number."""
        return numbers_of(self.cells(name))

    def _check_names(self) -> None:
        twice = [name for i, name in enumerate(self.names) if name in self.names[:i]]
        if twice:
            raise DataError(
                f"{self.where}: each column must have its own name, got {twice[0]!r:.60} twice."
            )


class CsvFrame(Frame):
    """A .csv, packed as .gz or .xz or not, with the names of its columns in the first row.

    Raises:
        DataError: missing, damaged, two columns of one name, a first row without names, or a row of
            another width; or as `split_rows`.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        lines = filled_lines(path, read_packed(path, "a table"))
        if len(lines.texts) < 2:
            raise DataError(
                f"{path}: the file must hold a row of names and others, got {len(lines.texts)}."
            )
        table = split_table(path, lines)
        self.names = [name.strip() for name in table[0]]
        self._check_head(lines.places[0])
        self._check_names()
        self._lines, self._table = lines.places[1:], table[1:]
        self._cells: dict[str, list[str]] = {}

    def _check_head(self, line: int) -> None:
        """Raise `DataError` if the first row is data: broken numbers, and no word beside them."""
        broken = [cell for cell in self.names if number(cell) is not None and whole(cell) is None]
        words = [cell for cell in self.names if is_name(cell) and not cell[0].isdigit()]
        if broken and not words:
            raise DataError(
                f"{self.where}: the first row must hold the names of the columns, got the number "
                f"{broken[0]!r:.60} in line {line}. Put a row of names above it."
            )

    def __len__(self) -> int:
        return len(self._lines)

    def cells(self, name: str) -> list[str]:
        """A column as it was written, without the blanks around cells."""
        if name not in self._cells:
            self._cells[name] = self._stripped(name)
        return self._cells[name]

    def has_numbers(self, name: str) -> bool:
        """Whether any cell of a column may be meant as a number."""
        return any(map(like_number, self._table[:, self.names.index(name)]))

    def place(self, row: int) -> str:
        """Its line in the file."""
        return f"line {self._lines[row]}"

    def _stripped(self, name: str) -> list[str]:
        return [cell.strip() for cell in self._table[:, self.names.index(name)]]

    def _numbers(self, name: str) -> np.ndarray:
        return numbers_of(self._stripped(name))  # of all columns as text there would be too much


class PandasFrame(Frame):
    """A table of pandas; dates are read as ISO 8601 writes them.

    Args:
        where: for messages.
        table: a ``pandas.DataFrame``; levels of its index that have a name are columns, unless a
            column has that name.

    Raises:
        DataError: no rows, or two columns of one name.
    """

    def __init__(self, where: str, table: Any) -> None:
        table = _with_index(table)
        self.where, self._table = where, table
        self.names = [str(name) for name in table.columns]
        if not len(table):
            raise DataError(f"{where}: the table must hold a row, got none.")
        self._check_names()
        self._cells: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._table)

    def cells(self, name: str) -> list[str]:
        """A column as text; what is null is empty."""
        if name not in self._cells:
            column = self._table.iloc[:, self.names.index(name)]
            empty = column.isna().tolist()
            self._cells[name] = [
                "" if none else _text(cell) for cell, none in zip(column, empty, strict=True)
            ]
        return self._cells[name]

    def place(self, row: int) -> str:
        """Its number."""
        return f"row {row + 1}"

    def _numbers(self, name: str) -> np.ndarray:
        column = self._table.iloc[:, self.names.index(name)]
        if getattr(column.dtype, "kind", "O") in "iuf" and not isinstance(column.dtype, str):
            numbers: np.ndarray = column.to_numpy(np.float64, na_value=np.nan)
            return numbers
        return super()._numbers(name)


_HEAD = 1 << 20
"""Bytes in which the names of the columns of a .csv are looked for."""


def column_names(path: Path) -> list[str]:
    """Names of the columns of a file, from its head alone; `open_frame` checks what they are.

    Args:
        path: see `open_frame`.

    Raises:
        DataError: as `open_frame`, as far as the head shows.
        MissingExtraError: pandas or pyarrow is not installed.
    """
    if not path.is_file() or path.suffix.lower() == ".parquet":
        return open_frame(path).names
    try:
        with open_packed(path) as file:
            head = file.read(_HEAD)
    except READ_ERRORS as error:
        raise DataError(
            f"{path}: the file must hold a table, got: {error}. Get it anew."
        ) from error
    lines = filled_lines(path, head[: max(head.rfind(b"\n"), head.rfind(b"\r")) + 1])
    if len(lines.texts) < 2:  # a first row of a megabyte, or a file of one line
        return open_frame(path).names
    first = Lines(lines.places[:2], lines.texts[:2])
    return [name.strip() for name in split_rows(path, first)[0]]


def open_frame(path: Path) -> Frame:
    """The columns of a file.

    Args:
        path: a .csv, packed as .gz or .xz or not, or a .parquet, which pandas and pyarrow read.

    Raises:
        DataError: missing, damaged, or not such a file.
        MissingExtraError: pandas or pyarrow is not installed.
    """
    if not path.is_file():
        raise DataError(f"{path}: the data file must exist, got {what_is(path)}. Check the path.")
    if path.suffix.lower() != ".parquet":
        return CsvFrame(path)
    try:
        import pandas
        import pyarrow
    except ImportError as error:
        raise MissingExtraError("reading .parquet", "pandas and pyarrow", "tables") from error
    try:
        with open_file(path, inside=None) as file:
            table = pandas.read_parquet(file, engine="pyarrow")
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: the file must be a table in Parquet, got: {error}.") from error
    return PandasFrame(str(path), table)


def _with_index(table: Any) -> Any:
    """A table of pandas whose named levels of the index are columns."""
    names = [name for name in table.index.names if name is not None and name not in table.columns]
    return table.reset_index(level=names) if names else table


def _text(cell: Any) -> str:
    """A cell of pandas: a date as ISO 8601, a number with all its digits."""
    if hasattr(cell, "isoformat"):
        return str(cell.isoformat())
    return str(cell).strip()
