"""One run of a comparison in a process of its own: ``python -m linrnn.compare._worker FOLDER``.

A process of its own has its own peak of memory, and one that fails takes nothing with it. The
configuration comes as JSON on standard input; a folder that exists is continued.
"""

import json
import sys
from pathlib import Path

from linrnn.compare._usage import MemoryMeter
from linrnn.errors import LinrnnError
from linrnn.train import resume, run
from linrnn.train._config import from_json


def main(folder: Path) -> int:
    """Train or continue; the exit code is that of ``linrnn train``."""
    values = json.load(sys.stdin)
    try:
        if (folder / "config.json").is_file():
            resume(folder, reporter=MemoryMeter())
        else:
            run(from_json(values), out=folder, reporter=MemoryMeter())
    except LinrnnError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
