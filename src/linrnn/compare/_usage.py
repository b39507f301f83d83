"""How much memory training takes."""

import json
import sys
from pathlib import Path

from linrnn.train import Plan, Reporter
from linrnn.train._checkpoint import write_atomically

FILE = "usage.json"


class MemoryMeter(Reporter):
    """Writes into the run folder by how much training raised the process's peak of memory.

    Counted from when data and model are there to the last step: imports come earlier, plots later.
    """

    def started(self, plan: Plan) -> None:
        """Training begins."""
        self._folder, self._before = plan.folder, _peak()

    def trained(self) -> None:
        """Training is over."""
        peak = _peak()
        if peak is not None and self._before is not None:
            record = {"memory_bytes": peak - self._before}
            write_atomically(self._folder / FILE, (json.dumps(record) + "\n").encode())


def read_memory(folder: Path) -> int | None:
    """Bytes, or None where they were not measured."""
    path = folder / FILE
    if not path.is_file():
        return None
    return int(json.loads(path.read_text(encoding="utf-8"))["memory_bytes"])


def _peak() -> int | None:
    """Bytes: of device memory where a GPU is used, else the resident set; None on Windows."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
