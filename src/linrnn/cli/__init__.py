"""The command ``linrnn``: one verb, one module of this folder.

A verb's module has a docstring, whose first line is its summary in ``linrnn --help``, and two
functions: ``parser()`` gives the `linrnn.cli._line.parser.Parser` of the rest of the command line,
from which completions are made, and ``main(argv) -> int`` does what is asked and returns the exit
code: 0 done, 1 the run failed, 2 the command was wrong. Only the verb that runs is imported, and it
imports nothing heavy before its options are known to be right, so help and errors are instant.
"""

from collections.abc import Sequence

from linrnn.cli._line.command import INTERRUPTED, main, usage, verbs

__all__ = [
    "INTERRUPTED",
    "main",
    "usage",
    "verbs",
]


def __dir__() -> Sequence[str]:  # `list` is a verb here, so code that needs the type is elsewhere
    return sorted(__all__)
