"""Check every law of every mixer, and keep what was found in results/mixers/laws.csv.

    python docs/measure_laws.py [--missing | NAME ...]

Without names all mixers are measured, with --missing those that have no
rows. Rows of mixers that are not named stay. A mixer takes some ten seconds of a processor.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

from linrnn import mixers
from linrnn._options.catalogue import stems

TABLE = Path(__file__).parents[1] / "results" / "mixers" / "laws.csv"
COLUMNS = ("mixer", "law", "verdict", "worst_error")


def measured(name: str) -> list[dict[str, str]]:
    """A row for each property, as `linrnn check` says it."""
    command = [sys.executable, "-m", "linrnn", "check", name, "--json"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    return [
        {
            "mixer": name,
            "law": row["property"],
            "verdict": row["status"],
            "worst_error": "" if row["worst_error"] is None else f"{float(row['worst_error']):.2g}",
        }
        for row in found["properties"]
    ]


def kept() -> dict[str, list[dict[str, str]]]:
    """The rows there are, by mixer."""
    found: dict[str, list[dict[str, str]]] = {}
    if TABLE.exists():
        with TABLE.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                found.setdefault(row["mixer"], []).append(row)
    return found


def keep(found: dict[str, list[dict[str, str]]]) -> None:
    """Write the table, sorted by mixer, without those that are gone."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for name in stems(mixers.__name__):
            writer.writerows(found.get(name, []))


if __name__ == "__main__":
    names = sys.argv[1:] or stems(mixers.__name__)
    if names == ["--missing"]:
        names = [name for name in stems(mixers.__name__) if name not in kept()]
    for name in names:
        rows = measured(name)
        keep({**kept(), name: rows})
