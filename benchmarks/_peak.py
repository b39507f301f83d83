"""The peak of memory of a call, measured in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from linrnn.compare.usage import added_peak

OPTION = "--memory-of"


def megabytes(script: str, *what: object, limit: float) -> str:
    """Megabytes (10^6 bytes) that ``python SCRIPT --memory-of WHAT...`` prints, by `print_peak`.

    Args:
        script: its ``__file__``.
        what: how the script names what it measures.
        limit: seconds; after them the answer says so.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, script, OPTION, *map(str, what)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"over {limit:g} s"
    if done.returncode:
        raise RuntimeError(f"{Path(script).name} {' '.join(command[2:])}: {done.stderr}")
    return f"{json.loads(done.stdout) / 1e6:.0f}"


def print_peak(first: Callable[[], object], step: Callable[[], object]) -> None:
    """Print the bytes that a step adds to the peak of this process.

    Args:
        first: a short one before it: what is imported, packed or compiled once does not count.
        step: that is measured.
    """
    first()
    found = added_peak(step)
    assert found is not None, "the peak of memory can only be read on Linux and macOS"
    print(json.dumps(found))
