"""Records of patients in intensive care: a .psv file each, an hour a row."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linrnn.errors import DataError
from linrnn.tasks._reading.files import read_packed

MEASUREMENTS = (
    *("HR", "O2Sat", "Temp", "SBP", "MAP", "DBP", "Resp", "EtCO2"),
    *("BaseExcess", "HCO3", "FiO2", "pH", "PaCO2", "SaO2", "AST", "BUN", "Alkalinephos"),
    *("Calcium", "Chloride", "Creatinine", "Bilirubin_direct", "Glucose", "Lactate", "Magnesium"),
    *("Phosphate", "Potassium", "Bilirubin_total", "TroponinI", "Hct", "Hgb", "PTT", "WBC"),
    *("Fibrinogen", "Platelets"),
)
"""Eight vital signs and 26 laboratory values."""
STATIC = ("Age", "Gender", "Unit1", "Unit2", "HospAdmTime")
"""Facts that are the same in every row of a patient."""
HOUR, LABEL = "ICULOS", "SepsisLabel"
_NAMES = (*MEASUREMENTS, *STATIC, HOUR, LABEL)


class Patient(NamedTuple):
    """The first hours of one patient in intensive care."""

    measured: np.ndarray
    """(hours, 34) float32 from the first hour on; NaN where nothing was measured. There are no
    hours if the first row is of a later one than those that count."""
    static: np.ndarray
    """(5,) float32; NaN where a fact is not known."""
    septic: bool | None
    """Whether any of these hours is labelled with sepsis; None in a file without labels."""


def read_patient(path: Path, hours: int, *, labelled: bool = True) -> Patient:
    """Read the rows of a .psv file up to an hour of the stay.

    Args:
        path: of the file; columns are found by their names.
        hours: the last hour of the stay that counts, ICULOS. Hours without a row are NaN.
        labelled: whether there must be the column SepsisLabel.

    Raises:
        DataError: the file is damaged, lacks a column or a row, holds text, or its hours do not
            rise.
    """
    lines = [line for line in _text(path).splitlines() if line.strip()]
    columns = [name.strip() for name in lines[0].split("|")] if lines else []
    absent = {*_NAMES}.difference(columns, () if labelled else (LABEL,))
    if absent or len(set(columns)) != len(columns):
        first = next((name for name in _NAMES if name in absent), "names that differ")
        raise DataError(
            f"{path}: the first line must name {len(_NAMES)} columns, each once, from HR to "
            f"{LABEL}, divided by |, got {len(columns)} without {first}."
        )
    table = _numbers(path, lines[1:], len(columns))
    place = {name: i for i, name in enumerate(columns)}
    stay = table[:, place[HOUR]]
    if not len(table) or not (np.diff(stay, prepend=0) >= 1).all() or (stay % 1).any():
        raise DataError(
            f"{path}: {HOUR}, the hour of the stay, must be whole numbers that rise from 1 or "
            f"more, got {', '.join(f'{v:g}' for v in stay[:4].tolist()) or 'no row'}."
        )
    rows = table[stay <= hours]
    within = rows[:, place[HOUR]].astype(int)
    measured = np.full((within.max(initial=0), len(MEASUREMENTS)), np.nan, np.float32)
    measured[within - 1] = rows[:, [place[name] for name in MEASUREMENTS]]
    static = table[0, [place[name] for name in STATIC]].astype(np.float32)
    septic = bool((rows[:, place[LABEL]] > 0).any()) if LABEL in place else None
    return Patient(measured, static, septic)


def _text(path: Path) -> str:
    try:
        return read_packed(path, "rows of numbers divided by |").decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the file must be text, got other bytes. Get it anew.") from error


def _numbers(path: Path, lines: Sequence[str], width: int) -> np.ndarray:
    """Rows (hours, columns) of numbers; ``NaN`` is what was not measured."""
    table = np.empty((len(lines), width))
    for row, line in enumerate(lines):
        cells = line.split("|")
        try:
            table[row] = [float(cell) for cell in cells]
        except ValueError as error:
            raise DataError(
                f"{path}: a row must hold {width} numbers or NaN, divided by |, got "
                f"{len(cells)} cells in line {row + 2}, {line!r:.60}."
            ) from error
    if np.isinf(table).any():
        row = int(np.flatnonzero(np.isinf(table).any(1))[0])
        raise DataError(f"{path}: numbers must be finite or NaN, got infinity in line {row + 2}.")
    return table
