"""List the entries of a catalogue, with one line about each.

Mixers that read the time between steps, the argument dt, are marked [dt].
"""

import argparse
import sys
from collections.abc import Sequence
from textwrap import indent

from linrnn.cli._entries import CATALOGUES, families, summaries, timed
from linrnn.errors import check_in


def main(argv: Sequence[str]) -> int:
    """Print a catalogue, or all of them."""
    *others, last = CATALOGUES
    parser = argparse.ArgumentParser(prog="linrnn list", description=__doc__)
    parser.add_argument(
        "kind",
        nargs="?",
        metavar="KIND",
        help=f"{', '.join(others)} or {last}; all if left out",
    )
    kind = parser.parse_args(argv).kind
    if kind is not None:
        check_in("linrnn list", "argument", kind, CATALOGUES)
        sys.stdout.write(_recipes() if kind == "recipes" else _lines(kind))
        return 0
    for heading in CATALOGUES:
        sys.stdout.write(f"{heading}\n{indent(_lines(heading), '  ')}")
    return 0


def _recipes() -> str:
    """More than the summaries: what to expect of each scale, for which every recipe is made."""
    from linrnn.cli._recipes import table

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
