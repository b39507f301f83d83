"""How the command that runs can be typed again, where it is not on the shell's path."""

import functools
import os
import pkgutil
import re
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

_FOLDER = Path(__file__).parents[1]


def runnable(text: str) -> str:
    """A remark whose commands of this environment work as they stand.

    ``linrnn VERB`` and ``tensorboard --logdir`` keep their names where the shell finds these
    programs of this environment; elsewhere each becomes the path of its script, or
    ``python -m``.
    """
    return _pattern().sub(lambda match: f"{spelling(match[1])} {match[2]}", text)


@functools.cache
def _pattern() -> re.Pattern[str]:
    verbs = [m.name for m in pkgutil.iter_modules([str(_FOLDER)]) if not m.name.startswith("_")]
    return re.compile(rf"(?<![\w./\\-])(linrnn|tensorboard) ({'|'.join(verbs)}|--logdir)\b")


def spelling(program: str) -> str:
    """The command that starts a program of this environment from a shell in this folder.

    Example:
        >>> spelling("python-that-nobody-installed").endswith(" -m python-that-nobody-installed")
        True
    """
    started = Path(sys.argv[0])
    scripts = [started] if started.stem == program else []
    scripts += [Path(sysconfig.get_path("scripts"), program + end) for end in ("", ".exe")]
    script = next((path for path in scripts if path.is_file()), None)
    if script is None:
        return f"{_quoted(Path(sys.executable))} -m {program}"
    on_path = shutil.which(program)
    if on_path is not None and os.path.samefile(on_path, script):
        return program
    return _quoted(script)


def _quoted(path: Path) -> str:
    """A path as a shell takes it, from this folder where it lies below."""
    try:
        short = str(path.absolute().relative_to(Path.cwd()))
        text = short if os.sep in short else os.path.join(os.curdir, short)
    except (OSError, ValueError):  # elsewhere, or the folder is gone
        text = str(path.absolute())
    return f'"{text}"' if os.name == "nt" and " " in text else shlex.quote(text)
