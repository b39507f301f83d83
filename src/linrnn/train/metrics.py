"""``metrics.csv`` and TensorBoard logs: a row for each epoch."""

import csv
import io
import os
from dataclasses import asdict, fields
from typing import Any, get_type_hints

from linrnn._files.reading import reading
from linrnn._files.storage import append, read_text, write_atomically
from linrnn._options.numbers import number, whole
from linrnn._options.schema import record
from linrnn.errors import RunFolderError
from linrnn.train._report import EpochReport, Reporter
from linrnn.train.folder import RunFolder

COLUMNS = tuple(f.name for f in fields(EpochReport))

_MAX_BYTES = 64 << 20  # of a row for each epoch
_ROWS = (f"hold the numbers {', '.join(COLUMNS)} in each row", "Remove the rows that were changed.")


def restore_metrics(folder: RunFolder, step: int, saved: str | None, reporter: Reporter) -> str:
    """Bring ``metrics.csv`` to what it was at a step.

    Args:
        folder: of the run.
        step: optimiser steps done; rows of later ones are dropped.
        saved: the file as the checkpoint of that step has it, under its checksum; None where the
            checkpoint is of the first days and has none.
        reporter: told if the file has not the rows of the checkpoint.

    Returns:
        What the file holds now.

    Raises:
        RunFolderError: the file is needed, and missing or changed.
    """
    if saved is None or not step:
        text = _text([r for r in read_metrics(folder) if r.step <= step] if step else [])
    else:
        text = saved
        try:
            current = _text([r for r in read_metrics(folder) if r.step <= step])
        except RunFolderError:
            current = ""
        if current != text:
            reporter.noticed(
                f"{folder.metrics} had not the rows it was written with; they are those of the "
                "checkpoint again"
            )
    write_atomically(folder.metrics, text.encode(), inside=folder.path)
    return text


class MetricsLog:
    """Appends rows to a run's records.

    Args:
        folder: of the run.
        step: optimiser steps done before.
        text: what ``metrics.csv`` holds.

    Attributes:
        text: what it holds, the rows appended since included.
    """

    def __init__(self, folder: RunFolder, step: int, text: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.text = text
        self._folder = folder
        folder.check_below()  # TensorBoard follows a link
        # what a process before this one wrote of later steps is not shown
        self._board: Any = SummaryWriter(str(folder.tensorboard), purge_step=step + 1)

    def append(self, row: EpochReport) -> None:
        """Write one row to both records; when this returns the disk has it."""
        added = _text([row], header=False)
        append(self._folder.metrics, added.encode(), inside=self._folder.path)
        self.text += added
        for name, value in asdict(row).items():
            if name not in ("epoch", "step"):
                self._board.add_scalar(name.replace("_", "/", 1), value, row.step)
        self._board.flush()

    def close(self) -> None:
        """Finish the TensorBoard file."""
        self._board.close()


class NoRecords:
    """Stands for `MetricsLog` where another process writes."""

    text = ""

    def append(self, row: EpochReport) -> None:
        """Nothing."""


def read_metrics(folder: RunFolder) -> list[EpochReport]:
    """The rows of ``metrics.csv``; a last line cut off by a crash is left out.

    Raises:
        RunFolderError: the file is missing or holds something else.
    """
    if not os.path.lexists(folder.metrics):
        raise RunFolderError(f"{folder.path}: a run folder must hold metrics.csv, got none.")
    with reading(folder.metrics, RunFolderError, *_ROWS):
        return rows_of(read_text(folder.metrics, _MAX_BYTES, inside=folder.path))


def rows_of(text: str) -> list[EpochReport]:
    """The rows in a text such as `read_metrics` reads.

    Raises:
        ValueError, ArgumentError, csv.Error: a row that is none.
    """
    complete = text[: text.rfind("\n") + 1]
    return [_row(cells) for cells in csv.DictReader(io.StringIO(complete), strict=True)]


def _text(rows: list[EpochReport], *, header: bool = True) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(map(asdict, rows))
    return text.getvalue()


def _row(cells: dict[str, str]) -> EpochReport:
    kinds = get_type_hints(EpochReport)
    read = {
        name: (whole if kind is int else number)(cells[name] or "") for name, kind in kinds.items()
    }
    row = EpochReport(**record("metrics", EpochReport, read))
    if row.epoch < 1 or row.step < 1 or row.seconds < 0:
        raise ValueError(f"epoch {row.epoch}, step {row.step} and {row.seconds} seconds")
    return row
