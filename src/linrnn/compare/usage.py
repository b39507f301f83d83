"""How much memory training takes."""

import ctypes
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from linrnn._files.reading import reading
from linrnn._files.storage import read_json, remove_leftovers, write_atomically
from linrnn._options.schema import record
from linrnn.errors import DataError
from linrnn.train import Plan, Reporter

FILE = "usage.json"


@dataclass(frozen=True, kw_only=True)
class _Usage:
    """The contents of the file: bytes by which training raised the peak of memory."""

    memory_bytes: int


class MemoryMeter(Reporter):
    """Writes into the run folder by how much training raised the process's peak of memory.

    Counted from when data and model are there to the last step: imports come earlier, plots later.
    """

    def started(self, plan: Plan) -> None:
        """Training begins."""
        self._folder, self._start_peak = plan.folder, _peak()
        remove_leftovers(self._folder / FILE)

    def trained(self) -> None:
        """Training is over."""
        peak = _peak()
        if peak is not None and self._start_peak is not None:
            record = {"memory_bytes": peak - self._start_peak}
            write_atomically(self._folder / FILE, (json.dumps(record) + "\n").encode())


def read_memory(folder: Path) -> int | None:
    """Bytes, or None where they were not measured or the record of it is damaged."""
    try:
        with reading(folder / FILE, DataError, "hold a number of bytes"):
            values = read_json(folder / FILE, inside=folder)
            usage = _Usage(**record("usage", _Usage, values))
    except DataError:
        return None
    return usage.memory_bytes


def process_peak() -> int | None:
    """Bytes this process has had resident at most; None on Windows."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux hands the parent's ru_maxrss down to a child
        match = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


def added_peak(call: Callable[[], object]) -> int | None:
    """Bytes by which a call raises this process's memory at most; None on Windows.

    Counted from what is resident when it begins. What was freed before and is still held by the
    allocator is given back first, or the call would use it unseen; where the system cannot do that
    (not Linux) a call that stays below the process's peak shows less than it takes.
    """
    _forget_peak()
    start_peak = process_peak()
    result = call()
    end_peak = process_peak()
    del result  # what it gives is part of what it takes
    return None if start_peak is None or end_peak is None else end_peak - start_peak


def _forget_peak() -> None:
    """Give back free memory and let the process's peak start from what it has now."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # no such file but on Linux, and not writable in every container
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> int | None:
    """Bytes: of device memory where a GPU is used, else of the process."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    return process_peak()
