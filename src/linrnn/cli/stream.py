"""Read standard input for ever with a trained model, and answer line by line."""

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
    tokenizer = getattr(task, "tokenizer", None)
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
Lines marked with ! are above --above or --quantile. A line of more than 1 MiB comes in pieces.

Any other model reads numbers, with commas or blanks between them, a step or several a line, in the
units of the data (or token ids), and prints a class and its probability, or numbers, after each.
They are scaled as in training; of a task that scales no step alone, as of images, they have to come
scaled, and a remark says so.

With --json an answer is one line of JSON.

With --learner a model learns from each line after predicting it, without end, into a separate run
folder: the same command continues there, also after it was killed.
  linrnn stream RUN --learner diagonal_rtrl --optim.lr 1e-4 < server.log
To a language model the next token is the target. To others a line says it after a bar, in JSON or,
with --target, in its last or first cell; one without it is only predicted.
  0.5 0.25 | 1.5        {"x": [0.5, 0.25], "target": 1.5}        0.5,0.25,1.5
Options of the learner are --learner.NAME (`linrnn show diagonal_rtrl`), those of the optimiser
--optim.lr, --optim.recurrent-lr-factor, --optim.weight-decay, --optim.clip and --optim.betas."""
_STATE = "go on from the state in FILE if it exists; leave the new one there at the end or a signal"
_ABOVE = "mark lines with more bits per byte"
_QUANTILE = "mark lines with more bits per byte than this part of those before them, such as 0.99"
_SKIP = "report a line that cannot be read or followed on standard error, and go on before it"
