"""``metrics.csv`` and TensorBoard logs: a row for each epoch."""

import csv
import io
from dataclasses import asdict, fields
from typing import Any

from linrnn.errors import RunFolderError
from linrnn.train._checkpoint import write_atomically
from linrnn.train._folder import RunFolder
from linrnn.train._report import EpochReport

COLUMNS = tuple(f.name for f in fields(EpochReport))


class MetricsLog:
    """Appends rows to a run's records; what is after the step a run continues from is dropped.

    Args:
        folder: of the run.
        step: optimiser steps done before.
    """

    def __init__(self, folder: RunFolder, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        kept = [r for r in read_metrics(folder) if r.step <= step] if step else []
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, kept))
        write_atomically(folder.metrics, text.getvalue().encode())
        self._path = folder.metrics
        self._board: Any = SummaryWriter(
            str(folder.tensorboard), purge_step=step + 1 if step else None
        )

    def append(self, row: EpochReport) -> None:
        """Write one row to both records."""
        with open(self._path, "a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(asdict(row))
        for name, value in asdict(row).items():
            if name not in ("epoch", "step"):
                self._board.add_scalar(name.replace("_", "/", 1), value, row.step)
        self._board.flush()

    def close(self) -> None:
        """Finish the TensorBoard file."""
        self._board.close()


def read_metrics(folder: RunFolder) -> list[EpochReport]:
    """The rows of ``metrics.csv``; a last line cut off by a crash is left out.

    Raises:
        RunFolderError: the file is missing or holds something else.
    """
    if not folder.metrics.is_file():
        raise RunFolderError(f"{folder.path}: a run folder must hold metrics.csv, got none.")
    text = folder.metrics.read_text(encoding="utf-8", errors="replace")
    complete = text[: text.rfind("\n") + 1]
    try:
        return [_row(cells) for cells in csv.DictReader(io.StringIO(complete))]
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{folder.metrics}: each row must hold the numbers {', '.join(COLUMNS)}, got a row "
            "that does not. Remove the rows that were changed."
        ) from error


def _row(cells: dict[str, str]) -> EpochReport:
    numbers = {f.name: f.type(cells[f.name]) for f in fields(EpochReport)}  # type: ignore[operator]
    return EpochReport(**numbers)
