"""What the scripts of this folder share: commands in turn, a stop at the first that fails."""

import argparse
import datetime
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU = ("benchmarks/gpu.py",)
#: Seconds between two notes of how far a command is.
EVERY = 60.0


def main(description: str | None, commands: Sequence[Sequence[str]]) -> int:
    """Run Python with each list of arguments; the exit code of the first that fails, else 0.

    What they print goes to the screen and, as it comes, to a file of ``--to``.
    """
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--dry", action="store_true", help="say what would be run")
    arguments.add_argument("--to", type=Path, default=ROOT / "benchmarks" / "results")
    asked = arguments.parse_args()
    if asked.dry:
        for command in commands:
            print(" ".join(map(repr, command)))
        return 0
    asked.to.mkdir(parents=True, exist_ok=True)
    stem = Path(sys.argv[0]).stem.replace("_", "-")
    with (asked.to / f"gpu-run-{stem}-{datetime.date.today()}.txt").open("w") as file:
        for command in commands:
            if code := _run(command, file):
                return code
    return 0


def _run(command: Sequence[str], file: object) -> int:
    """Run one command; both of its streams go to the screen and to ``file``."""
    start = time.monotonic()
    program = list(command) if command[0] == "ncu" else [sys.executable, *command]
    process = subprocess.Popen(
        program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None

    def note(text: str) -> None:
        print(text, end="", flush=True)
        print(text, end="", file=file, flush=True)  # type: ignore[call-overload]

    def remind() -> None:
        while not done.wait(EVERY):
            note(f"... {time.monotonic() - start:.0f} s\n")

    done = threading.Event()
    threading.Thread(target=remind, daemon=True).start()
    note(f"$ {' '.join(command)}\n")
    for line in process.stdout:
        note(line)
    done.set()
    code = process.wait()
    note(f"exit code {code} after {time.monotonic() - start:.0f} s\n")
    return code
