"""Compare every system with its public implementation; keep it in results/mixers/published.csv.

    python docs/measure_published.py

The comparisons are those of tests/published, which hold them in `make test`; here their differences
are written down. `make lists` makes a table of them.
"""

import csv
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "results" / "mixers" / "published.csv"
WHAT = ("system", "implementation", "configuration", "part")
DIFFERENCES = ("forward", "step", "gradients")

sys.path.insert(0, str(ROOT / "tests"))


def measured() -> list[dict[str, str]]:
    """A row for each comparison; a configuration that cannot be built has a note and no numbers."""
    import torch

    from published.case import cases

    rows = []
    for case in cases():
        torch.manual_seed(0)
        numbers = case.compare() if case.compare else {}
        row = {name: str(getattr(case, name)) for name in WHAT}
        row |= {name: f"{numbers[name]:.1e}" if name in numbers else "" for name in DIFFERENCES}
        rows.append({**row, "note": case.note})
    return rows


if __name__ == "__main__":
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, (*WHAT, *DIFFERENCES, "note"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(measured())
