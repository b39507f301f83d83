"""Text of a result file besides its numbers, and how tables are written."""

import csv
import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import torch

from linrnn import __version__
from linrnn.compute import native as _native

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ASSETS = ROOT / "docs" / "assets"


def cpu_name() -> str:
    """The processor's own name for itself."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.M) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def conditions(command: str, packages: Iterable[str]) -> list[str]:
    """Lines that say with what, where and when numbers were measured."""
    native, why = _native.load()
    kernels = (
        f"kernels for {native.isa}, OpenMP {native.openmp}" if native else f"no kernels: {why}"
    )
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return [
        f"- command: `{command}`",
        f"- {when}; {cpu_name()}, {torch.get_num_threads()} threads; {kernels}",
        f"- Python {platform.python_version()}, linrnn {__version__}, {versions}",
    ]


def command_line() -> str:
    """How this script was called, from the repository's root."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    rule = [":---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]


def section(name: str, lines: Iterable[str]) -> list[str]:
    """Lines that a page of the documentation includes under this name."""
    return [f"<!-- --8<-- [start:{name}] -->", "", *lines, "", f"<!-- --8<-- [end:{name}] -->", ""]


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows under a heading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
