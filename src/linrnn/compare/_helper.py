"""A process for a part of a comparison's runs: ``python -m linrnn.compare._helper PIPE``.

What there is to do comes as JSON on standard input, and when the pipe is closed, whoever started
this process is no more, and it stops as after Ctrl-C.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from linrnn.backbone.pattern import import_all
from linrnn.compare._process import stop_at_end_of
from linrnn.compare._runs import Entry, train_all
from linrnn.errors import LinrnnError
from linrnn.train.config import from_json


def main(argv: Sequence[str]) -> int:
    """Train runs that no other process trains, until all are done; the exit code of ``linrnn``."""
    stop_at_end_of(*map(int, argv))
    request = json.load(sys.stdin)
    entries = [
        Entry(**{**one, "config": from_json(one["config"])}) for one in request.pop("entries")
    ]
    for entry in entries:
        import_all(entry.config.mixer)
    out = Path(request.pop("out"))
    try:
        train_all(entries, out=out, say=lambda line: None, **request)
    except LinrnnError as error:
        return error.exit_code  # whoever started this one comes to the same error, and says it
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
