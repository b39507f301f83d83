"""A contest of a frozen bank, a linear model and a mixer, as the command line shows it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linrnn.cli._line.options import peek
from linrnn.cli._line.output import note
from linrnn.cli._line.progress import make_reporter
from linrnn.errors import ArgumentError, check_in

if TYPE_CHECKING:
    from linrnn.contest import Contest, Only
    from linrnn.train import Config, Result

ONLY = ("bank", "linear", "trained")
_CHOOSES = ("--mixer", "--learner", "--recipe", "--scale")
"""Options that ask for a training."""
_BUDGET = ("--train.epochs", "--train.batch-size")


def take_only(args: Sequence[str]) -> "tuple[Only | None, list[str]]":
    """Parse ``--only``; return its meaning and the other arguments.

    Raises:
        ArgumentError: nothing, or what it cannot say; or a mixer is named for a bank.
    """
    only = peek(args, "--only")
    left = [a for i, a in enumerate(args) if not a.startswith("--only=") and not _of_only(args, i)]
    if only is None:
        if "--only" in args:
            raise ArgumentError(
                "train: --only must be bank, linear or trained, got nothing after it."
            )
        return None, left
    check_in("train", "--only", only, ONLY)
    if only == "trained":
        return "trained", left
    named = next((flag for flag in _CHOOSES if peek(left, flag) is not None), None)
    if named is not None:
        raise ArgumentError(
            f"train: {named} must be left out with --only {only}, which trains nothing, got both."
        )
    return ("linear" if only == "linear" else "bank"), left


def _of_only(args: Sequence[str], at: int) -> bool:
    """Whether an argument is the option, or its value."""
    return args[at] == "--only" or (at > 0 and args[at - 1] == "--only")


def chooses(args: Sequence[str]) -> bool:
    """Whether options ask for a training of what they name."""
    flags = (arg.partition("=")[0] for arg in args)
    several = any(peek(args, f"--{name}") not in (None, "1") for name in _DEVICES)
    return several or any(f in _CHOOSES or f.startswith(("--mixer.", "--learner.")) for f in flags)


_DEVICES = ("devices", "train.devices", "trainer.devices")


def run_contest(
    config: "Config", only: "Only | None", out: Path | None, args: Sequence[str]
) -> "tuple[Result, Contest | None]":
    """The winner's run, and the contest that was held."""
    from linrnn import contest

    held: list[Contest] = []

    def say(one: "Contest") -> None:
        held.append(one)
        note(told(one))

    result = contest.run(
        config,
        only=only,
        out=out,
        fit_budget=all(peek(args, flag) is None for flag in _BUDGET),
        reporter=make_reporter(),
        say=say,
    )
    return result, held[0] if held else None


def told(contest: "Contest") -> str:
    """A contest in words: a method that did better than the winner first, then who competed."""
    lines = []
    if (plain := contest.lost_to) is not None:
        won = next(one for one in contest.entries if one.kind == contest.winner)
        lines = [
            f"{plain.name} does better than what can be left here: {contest.metric} "
            f"{_value(contest, plain.score)} against {_value(contest, won.score)}. Think of more "
            "data, or of another method."
        ]
    if contest.how:
        lines.append(f"judged on {contest.how}:")
    width = max(len(one.name) for one in contest.entries)
    for one in contest.entries:
        score = "-" if math.isnan(one.score) else _value(contest, one.score)
        error = "" if math.isnan(one.standard_error) else f"± {_value(contest, one.standard_error)}"
        text = (
            f"  {one.name:<{width}}  {contest.metric} {score:>8} {error:<10} {one.seconds:6.1f} s"
        )
        mark = "  chosen" if one.kind == contest.winner else ""
        remark = f"  {one.remark}" if one.remark and one.kind == "trained" else ""
        lines.append((text + mark + remark).rstrip())
    return "\n".join(lines) + "\n"


def _value(contest: "Contest", value: float) -> str:
    return f"{100 * value:.1f} %" if contest.metric == "accuracy" else f"{value:.4g}"
