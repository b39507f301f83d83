"""A cell of the map: one system, ability and seed, its dial turned until it breaks."""

import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from linrnn import __version__
from linrnn._files.reading import reading
from linrnn._files.storage import read_json, write_atomically
from linrnn._options.schema import record
from linrnn.atlas._abilities import TUNING, Ability, named
from linrnn.atlas._systems import System
from linrnn.atlas._train import ENOUGH, HALF, Trained, Training, tune
from linrnn.errors import DataError, check_positive_int

RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates, one of which each system takes for all abilities."""
_TUNING_SEED = 1_000  # of no cell
_ONE_SEED = 2.0
"""Factor around a figure of one seed within which it says nothing."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Results of a system, an ability and a seed.

    Args:
        system: the mixer and its size.
        ability: its name.
        seed: of weights and data.
        rows: a training for each value of the dial, up to the first that failed.
        version, torch, date: with what and when.
    """

    system: System
    ability: str
    seed: int
    rows: tuple[Trained, ...]
    version: str
    torch: str
    date: str

    @property
    def breaks(self) -> "Break":
        """Where the dial breaks."""
        return breaking_point(self.rows, named(self.ability).values[-1])


class Break(NamedTuple):
    """Where a dial breaks."""

    value: float
    side: Literal["at", "below", "above"]
    """Below the first value, above the last, or at this one."""

    def __str__(self) -> str:
        return f"{dict(at='', below='< ', above='> ')[self.side]}{self.value:.3g}"


def breaking_point(rows: Sequence[Trained], last: int) -> Break:
    """The value at which a system comes half of the way from chance to perfect.

    Between the last value that was passed and the first that was not, the part of the way is
    interpolated along the logarithm of the value.

    Args:
        rows: in the order of their values; all but the last one passed.
        last: value of the dial.

    Example:
        >>> row = dict(rate=1.0, steps=1, reached=None, score=1.0, longer=None, loss=0.0, seconds=0)
        >>> rows = [Trained(value=8, fraction=0.75, **row), Trained(value=16, fraction=0.25, **row)]
        >>> str(breaking_point(rows, 32)), str(breaking_point(rows[1:], 32))
        ('11.3', '< 16')
    """
    failed = rows[-1]
    if failed.fraction >= HALF:
        return Break(float(last), "above")
    if len(rows) == 1:
        return Break(float(failed.value), "below")
    passed = rows[-2]
    part = (passed.fraction - HALF) / (passed.fraction - failed.fraction)
    return Break(passed.value * (failed.value / passed.value) ** part, "at")


def measure(system: System, ability: Ability, seed: int, rate: float) -> Cell:
    """Turn the dial of an ability until a system fails.

    A training that passes is put down while harder values are tried. The last one to pass is then
    taken up and ended. Should it fall below half of the way, the dial breaks at its value.
    """
    rows: list[Trained] = []
    passed: Training | None = None
    ended: Trained | None = None  # the row of `passed`, if it has come to its end
    failed: Trained | None = None
    for value in ability.values:
        training = Training(system, ability, value, rate=rate, seed=seed)
        training.run(until=ENOUGH)
        row = training.row() if training.ended else None
        if row is not None and row.fraction < HALF:
            failed = row
            break
        if passed is not None:
            rows.append(ended or passed.row())
        passed, ended = training, row
    if passed is not None:
        passed.run()
        rows.append(ended or passed.row())
    if failed is not None and (not rows or rows[-1].fraction >= HALF):
        rows.append(failed)
    return Cell(
        system=system,
        ability=ability.name,
        seed=seed,
        rows=tuple(rows),
        version=__version__,
        torch=torch.__version__,
        date=date.today().isoformat(),
    )


def tuned_rate(system: System, path: Path) -> float:
    """The learning rate of a system, from its file or by trying the three on the held-out task."""
    if path.exists():
        with reading(path, DataError, "hold a learning rate of the atlas", "Remove it."):
            (rate,) = record("atlas", _Rate, read_json(path, inside=path.parent)).values()
            return float(rate)
    rate = tune(system, TUNING, RATES, seed=_TUNING_SEED)
    write_atomically(path, json.dumps({"rate": rate}).encode(), inside=path.parent)
    return rate


@dataclass(frozen=True)
class _Rate:
    rate: float


def write_cell(cell: Cell, path: Path) -> None:
    """Write a cell as JSON, whole or not at all."""
    write_atomically(path, f"{json.dumps(asdict(cell), indent=1)}\n".encode(), inside=path.parent)


def read_cell(path: Path) -> Cell:
    """Read a cell.

    Raises:
        DataError: the file is no cell of an atlas.
    """
    with reading(path, DataError, "be a cell of an atlas", "Remove it, and it is measured again."):
        fields = read_json(path, inside=path.parent)
        system = System(**record("atlas", System, fields.pop("system"), prefix="system."))
        rows = [Trained(**record("atlas", Trained, row)) for row in fields.pop("rows")]
        values = record("atlas", Cell, fields, left_out=("system", "rows"))
        cell = Cell(system=system, rows=tuple(rows), **values)
        named(cell.ability)
        check_positive_int("atlas", rows=len(rows))
        return cell


def file_name(system: str, ability: str, seed: int) -> str:
    """Name the file of a cell; characters of an import path that no file should have are dashes."""
    return f"{plain(system)}.{ability}.{seed}.json"


def plain(system: str) -> str:
    """The name of a system as a part of a file's name."""
    return re.sub(r"[^\w-]+", "-", system)


class Figure(NamedTuple):
    """A figure of the map: several seeds of one system and ability."""

    middle: Break
    low: float
    high: float
    """Ends of the interval: the mean of the logarithm with twice its standard error."""
    seeds: int

    @property
    def interval(self) -> tuple[float, float]:
        """Ends between which it lies, infinite where the dial ends before.

        Of one seed it is a factor of two on either side, for its spread is not measured.
        """
        value = self.middle.value
        if self.middle.side == "below":
            return -math.inf, value
        if self.middle.side == "above":
            return value, math.inf
        if self.seeds < 2:
            return value / _ONE_SEED, value * _ONE_SEED
        return self.low, self.high

    def __str__(self) -> str:
        if self.middle.side != "at" or self.seeds < 2:
            return str(self.middle)
        return f"{self.middle} [{self.low:.3g}, {self.high:.3g}]"


def figure(cells: Sequence[Cell]) -> Figure:
    """The geometric mean of the breaking points over seeds.

    Where at least half of the seeds lie below the first value of the dial, or above the last, the
    figure is that bound.

    Args:
        cells: of one system and ability; at least one.
    """
    breaks = [cell.breaks for cell in cells]
    for side in ("below", "above"):
        bounds = [one for one in breaks if one.side == side]
        if 2 * len(bounds) >= len(breaks):
            return Figure(bounds[0], bounds[0].value, bounds[0].value, len(breaks))
    logs = [math.log(one.value) for one in breaks]
    mean = statistics.fmean(logs)
    spread = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    low, high = math.exp(mean - 2 * spread), math.exp(mean + 2 * spread)
    return Figure(Break(math.exp(mean), "at"), low, high, len(breaks))


def figures(cells: Sequence[Cell]) -> dict[str, dict[str, Figure]]:
    """The figures of a map: by system, and by ability.

    Args:
        cells: of any systems, abilities and seeds.
    """
    several: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        several.setdefault(cell.system.name, {}).setdefault(cell.ability, []).append(cell)
    return {
        name: {ability: figure(seeds) for ability, seeds in abilities.items()}
        for name, abilities in several.items()
    }
