"""``linrnn stream --learner``: a model that learns from the lines it answers, for ever."""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from linrnn._process.allocator import keep_memory
from linrnn.cli._line.extras import need_train
from linrnn.cli._line.names import learner_named
from linrnn.cli._line.output import MANNER, write
from linrnn.cli._line.parser import Parser
from linrnn.cli._line.streams import say
from linrnn.cli._line.train_options import check_learning
from linrnn.errors import ArgumentError, check_positive_int

OPTIM = ("lr", "recurrent_lr_factor", "weight_decay", "clip", "betas")
"""Options of an optimiser that has no schedule, for nobody knows when the input ends."""

_MINUTES = 5.0
_FLAGS = ("out", "every", "freeze", "back_to", "from_start", "keep", "checkpoint_minutes", "target")


def add_options(parser: Parser) -> None:
    """Those of a stream that is learned from."""
    add = parser.add
    add("--learner", metavar="NAME", help=_LEARNER, kind="learner")
    add("--out", type=Path, metavar="DIR", help=_OUT, kind="folder")
    add("--every", type=int, metavar="N", help=_EVERY)
    add("--freeze", action="store_true", help=_FREEZE)
    add("--back-to", type=int, metavar="LINE", help=_BACK)
    add("--from-start", action="store_true", help=_START)
    add("--keep", type=int, metavar="N", help=_KEEP)
    add("--checkpoint-minutes", type=float, metavar="M", help=_OFTEN)
    add("--target", choices=("last", "first"), help=_TARGET)


def check_options(args: argparse.Namespace, learning_args: Sequence[str]) -> list[str]:
    """The options of learner and optimiser as they are known; nothing heavy is imported.

    Raises:
        UnknownNameError: no such learner.
        ArgumentError: no such option, one that is missing, or one outside its range.
    """
    if args.learner is None:
        clashes = [
            n for n in _FLAGS if getattr(args, n) is not None and getattr(args, n) is not False
        ]
        if clashes:
            flag = f"--{clashes[0].replace('_', '-')}"
            raise ArgumentError(f"stream: {flag} must come with --learner, got it without.")
        return list(learning_args)
    args.learner = learner_named(args.learner)
    if args.state is not None:
        raise ArgumentError(
            f"stream: --state must come without --learner, got {args.state} with "
            f"{args.learner}: the folder --out has the state too."
        )
    args.every = 64 if args.every is None else args.every
    args.keep = 5 if args.keep is None else args.keep
    check_positive_int("stream", every=args.every, keep=args.keep)
    minutes = _MINUTES if args.checkpoint_minutes is None else args.checkpoint_minutes
    if not 0 <= minutes < float("inf"):
        raise ArgumentError(
            f"stream: --checkpoint-minutes must be at least 0 and finite, got {minutes}."
        )
    args.checkpoint_minutes = minutes
    return check_learning(learning_args, args.learner, OPTIM)


def learn_from_lines(
    args: argparse.Namespace, learning_args: Sequence[str], skip: Callable[[str], None] | None
) -> bool:
    """Answer lines as they arrive and learn from each; whether a signal came.

    Args:
        args: that `check_options` took.
        learning_args: what it gave.
        skip: told of a line that cannot be learned from; None raises.
    """
    need_train("learning from a stream")
    keep_memory()
    from linrnn.cli._line.lines import Lines
    from linrnn.train.folder import RunFolder
    from linrnn.train.learning import learning
    from linrnn.train.seeding import process_settings

    config = RunFolder(args.run).load_config()
    options, optim = _parsed(args.learner, learning_args, config)
    threads = config.train.threads
    where = {"out": args.out, "back_to": args.back_to, "every": args.every, "keep": args.keep}
    with ExitStack() as stack:
        stack.enter_context(process_settings(threads if isinstance(threads, int) else None))
        run = stack.enter_context(learning(args.run, args.learner, options, optim, **where))
        run.session.frozen = args.freeze
        if not MANNER.quiet:  # on standard error, for the answers are on standard output
            say(f"linrnn: {run.folder.path}: learning continues after line {run.position.lines}")
        lines = stack.enter_context(Lines(sys.stdin.fileno()))
        _Learner(run, args, skip).read(lines)
    return lines.stopped


class _Learner:
    """Lines one after the other, and checkpoints among them.

    Args:
        found: of `linrnn.train.learning`.
        args: of the command.
        skip: as of `learn_from_lines`.
    """

    def __init__(
        self, run: Any, args: argparse.Namespace, skip: Callable[[str], None] | None
    ) -> None:
        self.run, self.skip = run, skip
        self.seconds = 60.0 * args.checkpoint_minutes
        self.watcher = _watcher(run, args)
        self.passed = run.position.bytes if args.from_start else 0
        self.lines, self.bytes = run.position.lines, run.position.bytes
        self.saved = time.monotonic()

    def read(self, blocks: Any) -> None:
        """Until the input ends or a signal comes; what was learned is kept however it ends."""
        from linrnn.cli._verbs.watch import watch

        try:
            for line in self._unread(blocks):
                for answers in watch(self.watcher, [line], self.lines + 1, self.skip):
                    write(answers)
                self.bytes += len(line)
                self.lines += line.endswith(b"\n")
                if time.monotonic() - self.saved >= self.seconds:
                    self.save()
        finally:
            self.save()

    def _unread(self, blocks: Any) -> Iterator[bytes]:
        """Lines without those that were learned from before; none after a signal."""
        for lines in blocks:
            for line in lines:
                if blocks.stopped:
                    return
                unread = line[self.passed :]
                self.passed -= min(len(line), self.passed)
                if unread:
                    yield unread

    def save(self) -> None:
        """Write a checkpoint, unless there is one."""
        from linrnn.train.learning import Position

        now = Position(lines=self.lines, bytes=self.bytes)
        if now != self.run.position:
            self.run.save(now)
        self.saved = time.monotonic()


def _watcher(run: Any, args: argparse.Namespace) -> Any:
    from linrnn.cli._verbs.taught import Lessons
    from linrnn.cli._verbs.watch import Surprise, Threshold, check_flags

    model, task = run.session.model, run.task
    tokenizer = task.tokenizer
    if tokenizer is None:
        check_flags(args, run.config.task)
        settings = {"place": args.target, "as_json": MANNER.json}
        return Lessons(model, task, run.session, **settings)
    if args.target is not None:
        raise ArgumentError(
            f"stream: --target must come with a model of another task, got {args.target!r} with a "
            "language model, to which the next token is the target."
        )
    flag = Threshold(args.above, args.quantile)
    settings = {"as_json": MANNER.json, "learning": run.session}
    return Surprise(model, tokenizer, flag, args.only_flagged, **settings)


def _parsed(learner: str, learning_args: Sequence[str], config: Any) -> tuple[dict[str, Any], Any]:
    """Options of the learner, and an optimiser's settings, that are given or else the run's."""
    import tyro

    from linrnn.cli._line.options import learner_class

    defaults = config.learner_options if learner == config.learner else {}
    rule = learner_class(learner, defaults)
    kinds = {f.name: f.type for f in dataclasses.fields(config.optim) if f.name in OPTIM}
    optim_fields = [
        (n, kind, dataclasses.field(default=getattr(config.optim, n))) for n, kind in kinds.items()
    ]
    part = dataclasses.make_dataclass("OptimOptions", optim_fields, frozen=True, kw_only=True)
    groups = [("learner", rule), ("optim", part)]
    command = dataclasses.make_dataclass(
        "LearningOptions",
        [(name, kind, dataclasses.field(default=kind())) for name, kind in groups],
        frozen=True,
        kw_only=True,
    )
    chosen: Any = tyro.cli(command, args=list(learning_args), prog="linrnn stream")
    optim = dataclasses.replace(config.optim, **dataclasses.asdict(chosen.optim))
    return dataclasses.asdict(chosen.learner), optim


_LEARNER = "learn from each line after predicting it; `linrnn list learners` prints the names"
_OUT = "run folder for the learned weights, continued if it exists (RUN-learned)"
_EVERY = "largest number of tokens between two steps of the optimiser (64)"
_FREEZE = "update the state but no weights"
_BACK = "go back to the checkpoint after this many lines; later ones are removed"
_START = "the input starts again from its beginning: skip the lines already learned"
_KEEP = "number of newest checkpoints to keep, beside the first (5)"
_OFTEN = "longest time between two checkpoints (5); 0: one after each line"
_TARGET = "the cell of a line that has its target; an empty cell or ? is a missing target"
