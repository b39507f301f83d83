"""The queue of an atlas: cells in one folder, shared by processes, resumed by the same command."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from linrnn import mixers
from linrnn._files.door import make_folder
from linrnn._files.storage import cannot_write, exclusive, write_atomically
from linrnn._options.numbers import counted, duration
from linrnn.atlas._abilities import ABILITIES, Ability
from linrnn.atlas._cells import (
    Cell,
    figures,
    file_name,
    measure,
    plain,
    read_cell,
    tuned_rate,
    write_cell,
)
from linrnn.atlas._measured import table
from linrnn.atlas._relatives import beside
from linrnn.atlas._systems import CORE, STATE, sized

CELLS, RATES = "cells", "rates"
TABLE, PAGE = "atlas.csv", "atlas.md"


class Piece(NamedTuple):
    """A cell that is to be measured."""

    system: str
    ability: Ability
    seed: int


@dataclass(frozen=True, kw_only=True)
class Atlas:
    """A folder of cells, and what is to be measured in it.

    Args:
        folder: holds a folder for each size of state, with a file for each cell; another process
            may work in it at once.
        systems: names of mixers, or import paths.
        abilities: of the map.
        seeds: how many of each.
        state: floats wanted of the state of a layer.
    """

    folder: Path
    systems: Sequence[str] = CORE
    abilities: Sequence[Ability] = ABILITIES
    seeds: int = 5
    state: int = STATE

    @property
    def place(self) -> Path:
        """The folder of the cells with this size of state."""
        return self.folder / f"state-{self.state}"

    def pieces(self) -> list[Piece]:
        """Every cell, in the order in which they are measured.

        The first seed of all systems comes first, ability by ability, so that the map is whole as
        early as can be.
        """
        return [
            Piece(system, ability, seed)
            for seed in range(self.seeds)
            for ability in self.abilities
            for system in self.systems
            if not ability.timed or mixers.load(system).timed
        ]

    def open_pieces(self) -> list[Piece]:
        """The cells that are not measured yet."""
        return [piece for piece in self.pieces() if not self._file(piece).exists()]

    def cells(self) -> list[Cell]:
        """The cells that are measured, in their order.

        Raises:
            DataError: a file in the folder is no cell.
        """
        paths = map(self._file, self.pieces())
        return [read_cell(path) for path in paths if path.exists()]

    def run(self, *, seconds: float | None = None, say: Callable[[str], Any] = print) -> None:
        """Measure what is open, until all is done or the time is up; then write the table.

        A cell that was begun is finished. Stopped or killed, the same call goes on.

        Args:
            seconds: after which no cell is begun. Default: all are measured.
            say: is given a line about each cell.

        Raises:
            StorageError: the folder cannot be written to.
        """
        make_folder(self.place)
        started = time.monotonic()
        total = len(self.open_pieces())
        for done, piece in enumerate(self._turns(started, seconds), 1):
            system = sized(piece.system, self.state)
            with self._lock(f"rate-{plain(piece.system)}", wait=True):
                rate = tuned_rate(system, self.place / RATES / f"{plain(piece.system)}.json")
            cell = measure(system, piece.ability, piece.seed, rate)
            write_cell(cell, self._file(piece))
            pace = (time.monotonic() - started) / done
            left = len(self.open_pieces()) if done % 10 == 0 else max(total - done, 0)
            say(
                f"{piece.system}, {piece.ability.name}, seed {piece.seed}: breaks at {cell.breaks} "
                f"{piece.ability.dial}; {counted(left, 'cell')} left, {duration(left * pace)}"
            )
        self.write()

    def write(self) -> None:
        """Write the table of all trainings as CSV, and the map as Markdown.

        A system that is an import path has a section beside its nearest relatives on the map that
        comes with the package.
        """
        cells = self.cells()
        sections = [page(cells, self.abilities)]
        if self.state == STATE:  # the map that comes with the package has this size
            outside = dict.fromkeys(cell.system.name for cell in cells if ":" in cell.system.name)
            sections += [beside(cells, name) for name in outside]
        for name, text in ((TABLE, table(cells)), (PAGE, "\n".join(sections))):
            write_atomically(self.place / name, text.encode(), inside=self.place)

    def _turns(self, started: float, seconds: float | None) -> Iterator[Piece]:
        """Open pieces whose lock is free, each held while it is at hand."""
        for piece in self.pieces():
            if seconds is not None and time.monotonic() - started >= seconds:
                return
            if self._file(piece).exists():
                continue
            try:
                with self._lock(self._file(piece).stem):
                    if not self._file(piece).exists():
                        yield piece
            except BlockingIOError:
                continue  # another process is at it

    @contextmanager
    def _lock(self, name: str, *, wait: bool = False) -> Iterator[None]:
        path = self.place / "locks" / f"{name}.lock"
        try:
            make_folder(path.parent)
            lock = exclusive(path, wait=wait)
        except OSError as error:
            raise cannot_write(path, error) from error
        with lock:
            yield

    def _file(self, piece: Piece) -> Path:
        return self.place / CELLS / file_name(piece.system, piece.ability.name, piece.seed)


def page(cells: Sequence[Cell], abilities: Sequence[Ability]) -> str:
    """The map as a table of Markdown: systems by abilities, empty where nothing was measured."""
    of_map = figures(cells)
    systems = {cell.system.name: cell.system for cell in cells}.values()
    shown = [a for a in abilities if any(a.name in measured for measured in of_map.values())]
    heads = ["system", "state", "parameters", *(f"{a.name} ({a.dial})" for a in shown)]
    lines = [heads, [":---", *["---:"] * (len(heads) - 1)]]
    for system in systems:
        cells_of = [str(of_map[system.name].get(ability.name, "")) for ability in shown]
        state = "grows" if system.state is None else f"{system.state:,}"
        lines.append([system.name, state, f"{system.parameters:,}", *cells_of])
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"# Atlas\n\n{_EXPLANATION}\n\n{rows}\n" if cells else "# Atlas\n\nNo cell yet.\n"


_EXPLANATION = """\
Each figure is the difficulty at which the score of a system is halfway from chance to perfect. It
is the geometric mean over seeds, with plus and minus two standard errors of the logarithm in
brackets. `<` means that a system fails at the lowest difficulty, `>` that it solves the highest."""
