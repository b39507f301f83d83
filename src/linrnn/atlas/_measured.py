"""The map that comes with the package: its table, and how any such table is read."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linrnn._files.reading import reading
from linrnn._files.storage import read_json, read_text
from linrnn.atlas._abilities import named
from linrnn.atlas._cells import Cell
from linrnn.atlas._systems import System
from linrnn.atlas._train import Trained
from linrnn.errors import ArgumentError, DataError

FOLDER = Path(__file__).parent
MEASURED = FOLDER / "measured.csv"
"""Every training of the map that comes with the package, as `linrnn atlas` writes it."""
ABOUT = FOLDER / "measured.json"

COLUMNS = (
    "system", "width", "options", "state", "parameters", "ability", "seed", "value", "rate",
    "steps", "reached", "score", "fraction", "longer", "loss", "seconds", "version", "torch",
    "date",
)  # fmt: skip


def measured() -> list[Cell]:
    """The cells that come with the package."""
    return read_table(MEASURED)


def about() -> dict[str, Any]:
    """Facts about that map: days, seeds, versions, and the revision that measured it."""
    return dict(read_json(ABOUT, inside=None))


def table(cells: Sequence[Cell]) -> str:
    """CSV with a row for every training of some cells."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in cells:
        system = cell.system
        options = " ".join(f"{name}={value}" for name, value in system.options.items())
        for row in cell.rows:
            writer.writerow([
                system.name, system.width, options, _empty(system.state), system.parameters,
                cell.ability, cell.seed, row.value, row.rate, row.steps, _empty(row.reached),
                f"{row.score:.6g}", f"{row.fraction:.4f}",
                "" if row.longer is None else f"{row.longer:.4f}", f"{row.loss:.5g}", row.seconds,
                cell.version, cell.torch, cell.date,
            ])  # fmt: skip
    return file.getvalue()


def _empty(value: int | None) -> int | str:
    return "" if value is None else value


def read_table(path: Path) -> list[Cell]:
    """Read the cells of an ``atlas.csv``.

    Args:
        path: of the table.

    Raises:
        DataError: the file is no such table, or cannot be read.
    """
    with reading(path, DataError, "be a table of an atlas", "`linrnn atlas` writes one."):
        reader = csv.DictReader(io.StringIO(read_text(path, inside=None)), strict=True)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ArgumentError(f"its columns are {', '.join(reader.fieldnames or ())[:80]!r}")
        rows: dict[tuple[str, str, str], list[dict[str, str]]] = {}
        for row in reader:
            rows.setdefault((row["system"], row["ability"], row["seed"]), []).append(row)
        return [_cell(group) for group in rows.values()]


def _cell(rows: Sequence[dict[str, str]]) -> Cell:
    first = rows[0]
    options = dict(pair.split("=") for pair in first["options"].split())
    system = System(
        name=first["system"],
        width=int(first["width"]),
        options={name: int(value) for name, value in options.items()},
        state=_whole(first["state"]),
        parameters=int(first["parameters"]),
    )
    return Cell(
        system=system,
        ability=named(first["ability"]).name,
        seed=int(first["seed"]),
        rows=tuple(map(_trained, rows)),
        version=first["version"],
        torch=first["torch"],
        date=first["date"],
    )


def _trained(row: dict[str, str]) -> Trained:
    return Trained(
        value=int(row["value"]),
        rate=float(row["rate"]),
        steps=int(row["steps"]),
        reached=_whole(row["reached"]),
        score=float(row["score"]),
        fraction=float(row["fraction"]),
        longer=float(row["longer"]) if row["longer"] else None,
        loss=float(row["loss"]),
        seconds=float(row["seconds"]),
    )


def _whole(text: str) -> int | None:
    return int(text) if text else None
