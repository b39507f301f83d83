"""Measure what recurrences can and cannot do: a map of systems and abilities."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linrnn._options.numbers import counted
from linrnn.cli._line.extras import need_train
from linrnn.cli._line.names import known_as, mixer_named
from linrnn.cli._line.options import MOST_SEEDS
from linrnn.cli._line.output import MANNER, answer, note, plain, row
from linrnn.cli._line.parser import Parser
from linrnn.cli._line.streams import say
from linrnn.errors import ArgumentError, check_at_most, check_positive_int

EPILOG = """\
Each ability is a task with a difficulty. A system is trained at one difficulty after another, the
easiest first, until its score is less than halfway from chance to perfect: its breaking point. All
systems have two layers with about 24,000 parameters and about --state floats of state. Each has one
learning rate, chosen on a task that is not on the map.

A cell is one system, ability and seed, and takes seconds to minutes on one core. After Ctrl-C or a
kill, the same command continues. Started several times at once, the processes share the cells.
FOLDER/state-N gets the map (atlas.md) and every training (atlas.csv). For a layer of yours, the map
also shows its place among the systems of the package, and its nearest relatives.

examples:
  linrnn atlas --until 2h
  linrnn atlas --systems lru,mingru,delta_net --abilities copying,recall --seeds 1
  linrnn atlas --systems my_layers:Mine --seeds 3"""

_SYSTEMS = "mixers or import paths, separated by commas; core (30 mixers), or all (core)"
_ABILITIES = "abilities, separated by commas (all)"
_SEEDS = "number of seeds, 0 to N-1 (5)"
_STATE = "target size of the state of a layer, in floats (512)"
_UNTIL = "start no new cell after this time, such as 90s, 30m or 2h (no limit)"
_UNITS = {"s": 1, "m": 60, "h": 3_600}


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("atlas", __doc__, epilog=EPILOG)
    parser.add("--systems", default="core", metavar="NAME[,NAME...]", help=_SYSTEMS)
    parser.add("--abilities", default="all", metavar="NAME[,NAME...]", help=_ABILITIES)
    parser.add("--seeds", type=int, default=5, metavar="N", help=_SEEDS)
    parser.add("--state", type=int, default=512, metavar="N", help=_STATE)
    parser.add("--until", default=None, metavar="TIME", help=_UNTIL)
    parser.add("--out", type=Path, default=Path("atlas"), help="folder (atlas)", kind="folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Measure what is open and print the map."""
    options = parser().parse_args(argv)
    check_positive_int("atlas", seeds=options.seeds, state=options.state)
    check_at_most("atlas", MOST_SEEDS, seeds=options.seeds)
    check_at_most("atlas", 1 << 20, state=options.state)
    seconds = None if options.until is None else parse_time(options.until)
    systems = _systems(options.systems)
    need_train("the atlas")
    from linrnn import atlas
    from linrnn._files.storage import read_text
    from linrnn._process.allocator import keep_memory
    from linrnn.train.seeding import process_settings

    abilities = {ability.name: ability for ability in atlas.ABILITIES}
    chosen = list(abilities) if options.abilities == "all" else options.abilities.split(",")
    chosen = [known_as("ability", name, list(abilities)) for name in chosen]
    queue = atlas.Atlas(
        folder=options.out,
        systems=systems or atlas.CORE,
        abilities=[abilities[name] for name in chosen],
        seeds=options.seeds,
        state=options.state,
    )
    todo = len(queue.open_pieces())
    if todo:
        note(
            f"{counted(todo, 'cell')} to measure, seconds to minutes each, after a search for the "
            f"learning rate of each system. After Ctrl-C the same command continues.\n"
        )
    keep_memory()
    with process_settings(1):  # small models are no faster with several, and processes share cells
        queue.run(seconds=seconds, say=_say)
    row(f"\n{read_text(queue.place / 'atlas.md', inside=queue.place)}\n")
    note(f"{queue.place} holds this map, and every training as CSV.\n")
    answer(lambda: _record(queue))
    return 0


def parse_time(text: str) -> float:
    """Seconds of a time such as 90s, 30m or 2h.

    Raises:
        ArgumentError: it is no such time.

    Example:
        >>> parse_time("1.5h")
        5400.0
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smh])", text.strip(), re.ASCII)
    if match is None:
        raise ArgumentError(f"atlas: --until must be like 90s, 30m or 2h, got {text!r:.80}.")
    return float(match[1]) * _UNITS[match[2]]


def _systems(text: str) -> list[str]:
    """Names of mixers; none for the core."""
    if text == "core":
        return []
    from linrnn import mixers
    from linrnn.cli._line.mixer_options import import_named

    if text == "all":
        return mixers.names()
    names = mixer_named(text)
    import_named(names)
    return names.split(",")


def _record(queue: Any) -> dict[str, Any]:
    """The map for JSON."""
    cells = queue.cells()
    return {
        "folder": queue.place,
        "open": len(queue.open_pieces()),
        "cells": [
            {"system": cell.system.name, "ability": cell.ability, "seed": cell.seed}
            | {"value": cell.breaks.value, "side": cell.breaks.side, "rows": plain(cell.rows)}
            for cell in cells
        ],
    }


def _say(line: str) -> None:
    if not MANNER.quiet:
        say(line)
