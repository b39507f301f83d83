"""Describe a verb and its options, as `linrnn VERB --help` does."""

import importlib
import sys
from collections.abc import Sequence

from linrnn.cli._line.names import known_as
from linrnn.cli._line.parser import Parser


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("help", __doc__, answers=False, wrap=True)
    words = "a verb; without it, print `linrnn --help`"
    parser.add("verb", metavar="VERB", nargs="?", help=words, kind="verb")
    words = "for train: describe the options of this task"
    parser.add("task", metavar="TASK", nargs="?", help=words, kind="task")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the help of a verb."""
    from linrnn import cli

    args = parser().parse_args(argv)
    if args.verb is None:
        sys.stdout.write(cli.usage() + "\n")
        return 0
    verb = known_as("verb", args.verb, cli.verbs())
    task = [] if args.task is None else [args.task]
    code: int = importlib.import_module(f"linrnn.cli.{verb}").main([*task, "--help"])
    return code
