"""Suggest mixers that meet your needs, from the map of what each can and cannot do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linrnn._options.numbers import counted
from linrnn.cli._line.output import answer, note, plain, row
from linrnn.cli._line.parser import Parser
from linrnn.errors import check_positive_int

EPILOG = """\
A need is an ability of the map with a difficulty, such as copying=32 for 32 silent steps. The
ability alone means its first difficulty. `linrnn suggest --needs list` explains all needs. Three
needs are properties: stream=SIZE (the state never grows and takes at most SIZE, such as 4KB or
1MB), parallel (a sequence is read in parallel) and times (times between steps are read).

Verdicts are yes, no, unclear and not measured. A verdict is unclear if the interval over seeds, or
a factor of two around a single seed, contains the value, or if the tested difficulties end before
it. The map shows small models with short training: see `linrnn atlas`.

examples:
  linrnn suggest --needs selective-copying=16,stream=1MB,parity
  linrnn suggest --needs parity=64,parallel --map atlas/state-512/atlas.csv"""


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("suggest", __doc__, epilog=EPILOG)
    words = "needs, separated by commas, such as copying=16,stream=1MB; list explains all"
    parser.add("--needs", required=True, metavar="NEED[,NEED...]", help=words)
    parser.add("--top", type=int, default=10, metavar="N", help="number of systems to print (10)")
    words = "atlas.csv of your own map (the map of this package)"
    parser.add("--map", type=Path, metavar="FILE", help=words, kind="file")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print systems, those that meet all needs first."""
    options = parser().parse_args(argv)
    check_positive_int("suggest", top=options.top)
    from linrnn import atlas

    if options.needs.strip() == "list":
        return _explain(atlas)
    needs = atlas.parse_needs(options.needs)
    cells = atlas.measured() if options.map is None else atlas.read_table(options.map)
    found = atlas.suggest(needs, cells)
    row(_lines([need.name for need in needs], found[: options.top]))
    note(_remarks(atlas, needs, found, cells, options))
    answer(lambda: _record(needs, found[: options.top], len(found)))
    return 0


def _explain(atlas: Any) -> int:
    known = {one.name: f"{one.summary} ({one.dial})" for one in atlas.ABILITIES} | atlas.PROPERTIES
    width = max(map(len, known))
    row("".join(f"{name:<{width}}  {words}\n" for name, words in known.items()))
    answer(lambda: known)
    return 0


def _lines(needs: Sequence[str], found: Sequence[Any]) -> str:
    """A table: the worst verdict of each system, and each need's verdict and figure."""
    lines = [["system", "all", *needs]]
    for one in found:
        shown = [f"{a.verdict} ({a.figure})" if a.figure else a.verdict for a in one.answers]
        lines.append([one.system.name, one.verdict, *shown])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(f"{cell:<{n}}" for cell, n in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def _remarks(
    atlas: Any, needs: Sequence[Any], found: Sequence[Any], cells: Sequence[Any], options: Any
) -> str:
    """Facts about the map that the reader of the table must know."""
    seeds = len({cell.seed for cell in cells})
    text = f"{counted(len(found), 'system')}, {counted(seeds, 'seed')}"
    if seeds == 1:
        text += ", so that figures within a factor of two of a need are unclear"
    if options.map is None:
        about = atlas.about()
        text += f"; measured from {about['first']} to {about['last']}"
    without = [
        need.name
        for i, need in enumerate(needs)
        if all(one.answers[i].verdict == "not measured" for one in found)
    ]
    text += f". The map has no data of {', '.join(without)}" if without else ""
    return f"{text}.\n"


def _record(needs: Sequence[Any], found: Sequence[Any], total: int) -> dict[str, Any]:
    """The answer for JSON."""
    return {
        "needs": plain(needs),
        "total": total,
        "systems": [
            {"system": one.system.name, "verdict": one.verdict}
            | {"answers": [{"need": a.need.name} | _but_need(a) for a in one.answers]}
            for one in found
        ],
    }


def _but_need(one: Any) -> dict[str, Any]:
    return {key: value for key, value in plain(one).items() if key != "need"}
