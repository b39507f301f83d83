"""Run a verb: the command line from its first word to its exit code."""

import ast
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from linrnn import __version__
from linrnn._files.reading import why
from linrnn._options.import_path import look_here
from linrnn.cli._line.answers import answered
from linrnn.cli._line.names import known_as
from linrnn.cli._line.output import MANNER, begin
from linrnn.cli._line.streams import give_up_output, say, standard_streams
from linrnn.errors import ArgumentError, LinrnnError, printable

INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C
_PACKAGE = __name__.partition("._line")[0]
_VERBS = Path(__file__).parents[1]  # each module is a verb


def verbs() -> dict[str, str]:
    """Every verb and its one-line summary; reads the modules without importing them."""
    summaries = {}
    for module in pkgutil.iter_modules([str(_VERBS)]):
        if not module.name.startswith("_"):
            source = (_VERBS / f"{module.name}.py").read_text(encoding="utf-8")
            docstring = ast.get_docstring(ast.parse(source)) or ""
            summaries[module.name] = docstring.split("\n")[0]
    return summaries


def usage() -> str:
    """The text of ``linrnn --help``."""
    width = max(map(len, verbs()))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in verbs().items()]
    return "\n".join(
        [
            f"linrnn {__version__}: sequence models whose recurrence can be solved in parallel.",
            "",
            "usage: linrnn VERB ...",
            "",
            *lines,
            "",
            "`linrnn VERB --help` or `linrnn help VERB` describes a verb and its options.",
            "Names and options ignore case, - and _: rg_lru, rg-lru and RGLRU are the same.",
            "Most verbs take --json, which prints the result as JSON; -q, which hides progress and",
            "notes; and -v, which shows the traceback of an error.",
            "To read a run whose mixer is a class of yours, pass --trust pkg.module:Mine.",
            "Exit codes: 0 done, 1 the run failed, 2 the command was wrong, 130 interrupted.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code; errors become one line on standard error."""
    args = list(sys.argv[1:] if argv is None else argv)
    begin()
    try:
        with standard_streams():
            # a program that calls us may have changed anything
            return _run(args) if argv is not None else answered(args, lambda: _run(args))
    except LinrnnError as error:
        if MANNER.verbose:
            say(traceback.format_exc().rstrip())
        say(f"linrnn: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say("linrnn: interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `linrnn list mixers | head -1`
        give_up_output()
        return 0
    except OSError as error:  # what no verb has put into better words
        what = "standard output, or a file,"
        what = f"{printable(str(error.filename))}:" if error.filename else what
        say(f"linrnn: {what} must be there to read and write, got: {error.strerror or error!r}")
        if not error.filename:
            give_up_output()
        return 1
    except (MemoryError, RuntimeError, TypeError) as error:
        from linrnn._process.memory import is_about_memory

        if not is_about_memory(error):
            raise
        say(f"linrnn: there must be enough memory, got: {why(error)}.")
        return 1
    finally:
        begin()  # another command of this process speaks as it is told to


def _run(args: Sequence[str]) -> int:
    args = _leading(args)
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(usage() + "\n")
        return 0 if args else 2
    if args[0] == "--version":
        sys.stdout.write(f"linrnn {__version__}\n")
        return 0
    args = _trust([known_as("verb", args[0], verbs()), *args[1:]])
    code: int = importlib.import_module(f"{_PACKAGE}.{args[0]}").main(args[1:])
    return code


def _leading(args: Sequence[str]) -> Sequence[str]:
    """A command line from its verb on; options before the verb are applied."""
    from linrnn.cli._line.parser import take_manners

    first = next((i for i, arg in enumerate(args) if take_manners([arg])), len(args))
    return args[first:]


def _trust(args: Sequence[str]) -> Sequence[str]:
    """A command without ``--trust PATH``, whose modules are imported: a run may name them then."""
    if os.environ.get("LINRNN_TRUST"):
        look_here()
    if not any(arg.partition("=")[0] == "--trust" for arg in args):
        return args
    from linrnn.cli._line.mixer_options import import_named
    from linrnn.cli._line.options import peek

    path = peek(args, "--trust")
    if path is None:
        raise ArgumentError("linrnn: --trust must be followed by pkg.module:Mine, got nothing.")
    import_named(path)
    at = next(i for i, arg in enumerate(args) if arg.partition("=")[0] == "--trust")
    return _trust([*args[:at], *args[at + (1 if "=" in args[at] else 2) :]])
