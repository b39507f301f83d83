"""List the entries of a catalogue, with one line about each.

Mixers that read the time between steps, the argument dt, are marked [dt].
"""

from collections.abc import Callable, Sequence
from textwrap import indent
from typing import Any

from linrnn.cli._line.entries import CATALOGUES, families, summaries, timed
from linrnn.cli._line.names import canonical
from linrnn.cli._line.output import answer, row
from linrnn.cli._line.parser import Parser
from linrnn.cli._line.precomputed import precomputed
from linrnn.errors import UnknownNameError


def parser() -> Parser:
    """The parser of the verb's arguments."""
    *first, last = CATALOGUES
    parser = Parser("list", __doc__, wrap=True)
    words = f"{', '.join(first)} or {last}; all if left out"
    parser.add("kind", nargs="?", metavar="KIND", help=words, kind="catalogue")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a catalogue, or all of them."""
    kind = parser().parse_args(argv).kind
    if kind is not None:
        kind = canonical(kind, CATALOGUES)
        if kind not in CATALOGUES:
            raise UnknownNameError("catalogue", kind, CATALOGUES)
        row(_made("table" if kind == "recipes" else "lines", kind))
        answer(lambda: {kind: _made("records", kind)})
        return 0
    for heading in CATALOGUES:
        row(f"{heading}\n{indent(_made('lines', heading), '  ')}")
    answer(lambda: {heading: _made("records", heading) for heading in CATALOGUES})
    return 0


def _made(section: str, kind: str) -> Any:
    """The texts of a catalogue, as shipped with the package or computed."""
    came = precomputed(section, kind)
    return SECTIONS[section](kind) if came is None else came


def _records(kind: str) -> list[dict[str, Any]]:
    """Each entry for JSON."""
    if kind == "recipes":
        from linrnn.cli._line.recipes import records

        return records()
    of_catalogue: list[dict[str, Any]] = [
        {"name": name, "summary": summary} for name, summary in summaries(kind).items()
    ]
    if kind == "mixers":
        families_of, with_dt = families(), timed()
        for record in of_catalogue:
            name = record["name"]
            record |= {"family": families_of.get(name), "dt": name in with_dt}
    return of_catalogue


def _recipes(kind: str) -> str:
    """More than the summaries: what to expect of each scale, for which every recipe is made."""
    from linrnn.cli._line.recipes import table

    return table()


def _lines(kind: str) -> str:
    """A line for each entry; mixers under their families, marked where they know time."""
    rows = summaries(kind)
    if kind != "mixers":
        return _table(rows)
    rows |= {name: f"{rows[name]} [dt]" for name in timed()}
    from linrnn.mixers import by_family

    width, text = max(map(len, rows), default=0), ""
    for heading, names in by_family(families()).items():
        text += f"{heading}\n" + indent(_table({n: rows.pop(n) for n in names}, width), "  ")
    return text + _table(rows, width)


def _table(rows: dict[str, str], width: int = 0) -> str:
    width = width or max(map(len, rows), default=0)
    return "".join(f"{name:<{width}}  {summary}\n" for name, summary in rows.items())


SECTIONS: dict[str, Callable[[str], Any]] = {
    "lines": _lines,
    "table": _recipes,
    "records": _records,
}
"""The texts of a catalogue, by their section of `precomputed`."""
