"""The task that a command meant which names data instead of a task."""

from collections.abc import Sequence
from pathlib import Path

from linrnn import tasks
from linrnn.cli._line.options import peek

_SERIES = (".csv", ".tsv", ".parquet", ".npz")
_OF_ENDING: dict[str, tuple[str, ...]] = dict.fromkeys(_SERIES, ("table", "forecast"))
_OF_ENDING |= {".ts": ("table",), ".arff": ("table",), ".npy": ("forecast", "table")}
_OF_ENDING |= {".txt": ("lm",), ".wav": ("sound",)}
_OTHERS = ("table", "forecast", "lm", "images", "sounds", "sound")
"""Those that take files of a user's own, of which some take folders."""

OF_OWN_FILES = ("table", "images", "sounds", "forecast")
"""Those of a user's own data for which frozen models and a mixer compete."""


def names_data(word: str) -> bool:
    """Whether a word is the name of a data file, by its ending.

    Example:
        >>> names_data("rows.csv"), names_data("digits")
        (True, False)
    """
    return Path(word).suffix.lower() in _OF_ENDING


def likely_tasks(args: Sequence[str]) -> Sequence[str]:
    """Tasks for a command line that names none, the likeliest first.

    Example:
        >>> likely_tasks(["--data", "load.csv"]), likely_tasks(["--data=clip.wav"])
        (('table', 'forecast'), ('sound',))
    """
    data = peek(args, "--data") or peek(args, "--task.data")
    if data is None:
        return tasks.names()[:1]
    return _OF_ENDING.get(Path(data).suffix.lower(), _OTHERS)
