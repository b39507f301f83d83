"""Shared code of this folder's scripts: commands in turn, a stop at the first that fails."""

import argparse
import datetime
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GPU = ("benchmarks/gpu.py",)
#: Seconds between two notes of how far a command is.
EVERY = 60.0
#: Seconds that an interrupted command has to end by itself.
GRACE = 20.0


class Limited(NamedTuple):
    """Arguments of a command that is interrupted, as by Ctrl-C, after some seconds."""

    arguments: Sequence[str]
    seconds: float


def main(description: str | None, commands: Sequence[Sequence[str] | Limited]) -> int:
    """Run Python with each list of arguments; the exit code of the first that fails, else 0.

    What they print goes to the screen and, as it comes, to a file of ``--to``, whose path stands in
    place of ``{to}`` in the arguments.
    """
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--dry", action="store_true", help="say what would be run")
    arguments.add_argument("--to", type=Path, default=ROOT / "benchmarks" / "results")
    asked = arguments.parse_args()
    if asked.dry:
        for command, seconds in map(_limited, commands):
            limit = f"  # {seconds:.0f} s" if seconds else ""
            print(" ".join(map(repr, command)) + limit)
        return 0
    # a shell starts what runs in the background without interrupts, and commands inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked.to.mkdir(parents=True, exist_ok=True)
    stem = Path(sys.argv[0]).stem.replace("_", "-")
    with (asked.to / f"gpu-run-{stem}-{datetime.date.today()}.txt").open("w") as file:
        for command, seconds in map(_limited, commands):
            named = [x.replace("{to}", str(asked.to)) for x in command]
            if code := _run(named, file, seconds):
                return code
    return 0


def _limited(command: Sequence[str] | Limited) -> Limited:
    """A command with its limit; 0 is none."""
    return command if isinstance(command, Limited) else Limited(command, 0.0)


def _run(command: Sequence[str], file: object, seconds: float = 0.0) -> int:
    """Run one command; both of its streams go to the screen and to ``file``.

    The code is 0 for one that ``seconds`` interrupted.
    """
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

    def interrupt() -> None:
        if seconds and not done.wait(seconds):
            over.set()
            note(f"interrupted after {seconds:.0f} s\n")
            process.send_signal(signal.SIGINT)
            if not done.wait(GRACE):
                process.kill()

    done, over = threading.Event(), threading.Event()
    threading.Thread(target=interrupt, daemon=True).start()
    threading.Thread(target=remind, daemon=True).start()
    note(f"$ {' '.join(command)}\n")
    for line in process.stdout:
        note(line)
    done.set()
    code = process.wait()
    note(f"exit code {code} after {time.monotonic() - start:.0f} s\n")
    return 0 if over.is_set() else code
