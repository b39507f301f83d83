"""One run of a comparison in a separate process: ``python -m linrnn.compare._worker FOLDER``.

A separate process has its own peak of memory, and its failure ends no other run. The
configuration comes as JSON on standard input; a folder that exists is continued. After the folder
may come the number of a file descriptor, the end of a pipe: when that is closed, whoever started
this process is no more, and it stops as after Ctrl-C.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from linrnn._process.allocator import keep_memory
from linrnn.compare._process import stop_at_end_of
from linrnn.compare.usage import MemoryMeter
from linrnn.errors import LinrnnError
from linrnn.train import resume, run
from linrnn.train.config import from_json


def main(argv: Sequence[str]) -> int:
    """Train or continue; the exit code is that of ``linrnn train``."""
    folder, *lifeline = argv
    keep_memory()
    stop_at_end_of(*map(int, lifeline))
    values = json.load(sys.stdin)
    try:
        if Path(folder, "config.json").is_file():
            resume(folder, reporter=MemoryMeter())
        else:
            run(from_json(values), out=folder, reporter=MemoryMeter())
    except LinrnnError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
