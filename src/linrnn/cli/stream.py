"""Read endless standard input with a trained model, and print a result for each line."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linrnn.cli._line.output import MANNER, write
from linrnn.cli._line.parser import Parser
from linrnn.cli._line.streams import say
from linrnn.cli._verbs.learning import add_options, check_options, learn_from_lines

INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Answer as lines arrive, at constant memory, until the input ends or a signal comes."""
    args, learning_args = parser().parse_known_args(argv)
    learning_args = check_options(args, learning_args)
    skip = _report if args.skip_invalid else None
    if args.learner is not None:
        return INTERRUPTED if learn_from_lines(args, learning_args, skip) else 0
    if learning_args:
        parser().parse_args(argv)  # says what is wrong with them
    from linrnn.cli._line.lines import Lines
    from linrnn.cli._verbs.watch import watch

    watcher = _watcher(args)
    if args.state is not None and args.state.exists():
        watcher.stream.load(args.state)
    if args.state is not None:
        watcher.stream.save(args.state)  # or the end of a long input would say that it cannot be
    number = 1
    try:
        with Lines(sys.stdin.fileno()) as blocks:
            for lines in blocks:
                for answers in watch(watcher, lines, number, skip):
                    write(answers)
                number += sum(line.endswith(b"\n") for line in lines)
    finally:
        if args.state is not None:
            watcher.stream.save(args.state)
    return INTERRUPTED if blocks.stopped else 0


def _report(why: str) -> None:
    say(f"linrnn: {why}")


def _watcher(args: argparse.Namespace) -> Any:
    from linrnn.cli._verbs.watch import Answers, Surprise, Threshold, check_flags
    from linrnn.train.context import open_run

    run = open_run(args.run)
    model, task, config = run.model, run.task, run.config
    tokenizer = task.tokenizer
    if tokenizer is not None:
        flag = Threshold(args.above, args.quantile)
        return Surprise(run.layers, tokenizer, flag, args.only_flagged, as_json=MANNER.json)
    check_flags(args, config.task)
    return Answers(model, task, as_json=MANNER.json)


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("stream", __doc__, epilog=_EPILOG)
    add = parser.add
    add("run", type=Path, metavar="RUN", help="the run folder", kind="folder")
    add("--state", type=Path, default=None, metavar="FILE", help=_STATE, kind="file")
    add("--above", type=float, default=None, metavar="BITS", help=_ABOVE)
    add("--quantile", type=float, default=None, metavar="Q", help=_QUANTILE)
    add("--only-flagged", action="store_true", help="print only the lines marked with !")
    add("--skip-invalid", action="store_true", help=_SKIP)
    add_options(parser)
    return parser


_EPILOG = """A language model prints the surprise of each line in bits, bits per byte, and the line:
  linrnn stream RUN --quantile 0.99 < server.log
Lines marked with ! are above --above or --quantile. A line of more than 1 MiB is read in pieces.

Any other model reads lines of numbers with a decimal point, separated by commas or blanks: one or
several steps a line, in the units of the data, or token ids. So 1,5 is two steps, and an empty
cell is an error. After each line it prints a class and its probability, or numbers. Numbers are
scaled as in training. Some tasks, such as images, cannot scale a single step: then scale the
numbers yourself, as a note on standard error says.

With --json each answer is one line of JSON.

With --learner the model predicts each line and then learns from it, for as long as input arrives.
The weights go to a separate run folder; the same command continues there, also after a kill.
  linrnn stream RUN --learner diagonal_rtrl --optim.lr 1e-4 < server.log
For a language model the target is the next token. For other tasks a line has its target after a
bar, in JSON or, with --target, in its last or first cell. A line without target is only predicted.
  0.5 0.25 | 1.5        {"x": [0.5, 0.25], "target": 1.5}        0.5,0.25,1.5
Options of the learner are --learner.NAME (`linrnn show diagonal_rtrl`), those of the optimiser
--optim.lr, --optim.recurrent-lr-factor, --optim.weight-decay, --optim.clip and --optim.betas."""
_STATE = "continue from the state in FILE if it exists; save the state there at the end or a signal"
_ABOVE = "mark lines above this many bits per byte"
_QUANTILE = (
    "mark lines with more bits per byte than this fraction of the lines before, such as 0.99"
)
_SKIP = "report a line that cannot be read on standard error, and skip it"
