"""Train a model on a task, or continue an interrupted run with --resume."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from linrnn import recipes, tasks
from linrnn._process.allocator import keep_memory
from linrnn.cli._line.data_tasks import OF_OWN_FILES, likely_tasks, names_data
from linrnn.cli._line.entries import summaries
from linrnn.cli._line.extras import need_train
from linrnn.cli._line.names import UNTUNED, respelt, task_named
from linrnn.cli._line.options import CHOSEN, SHORT, Start, parse_train, peek, spell_out
from linrnn.cli._line.output import MANNER, answer, joined, note, plain, row
from linrnn.cli._line.parser import Parser, take_manners
from linrnn.cli._line.precomputed import show_options
from linrnn.cli._line.progress import make_reporter, summary
from linrnn.cli._line.train_options import check_train
from linrnn.cli._verbs.contested import ONLY, chooses, run_contest, take_only
from linrnn.cli._verbs.panel import of_many_series, train_panel
from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.train import Result

if TYPE_CHECKING:
    from linrnn.contest import Contest

CLOSED = ("bank", "linear")
"""The mixers of runs without a training."""

USAGE = """usage: linrnn train TASK [--only bank|linear|trained] [OPTIONS]
       linrnn train --resume RUN [--fallback] [--on-nan stop|skip|rollback] [--devices N]

Trains a model on a task, and writes a run folder with the configuration, metrics, weights, newest
checkpoint and plots. A run stopped by Ctrl-C, or killed, continues with --resume and ends with the
same weights. If its newest checkpoint is damaged, --fallback continues from the one before it.
--on-nan chooses what happens at a step whose loss or gradient is NaN or infinite. --devices
(--train.devices) is the number of GPUs, or of processes on a CPU.

On your own data (table, images, sounds, forecast) models compete: a trained mixer; a bank, which is
a frozen recurrence with a read-out that is solved for in seconds; and, for sequences of one length,
a logistic or ridge regression. The run folder has the one that is better on held-out data. --only
bank, --only linear or --only trained leaves the others out. --mixer NAME trains that mixer only.
For a table of many series (unique_id, ds and y, or --task.id COLUMN) some thirty methods compete in
the past of each, and none is trained by gradients.

-q prints only the result, --json prints it as JSON, and -v shows the traceback of an error.

tasks:
{tasks}

`linrnn train TASK --help` describes the options and their defaults for a task.
examples:
  linrnn train digits
  linrnn train digits --mixer lru --mixer.d-state 128 --optim.lr 0.002 --seed 1
  linrnn train listops --scale paper
  linrnn train table --data rows.csv
  linrnn train --resume runs/digits-lru-1
"""


_RESUMED = ("--resume", "--fallback", "--on-nan", "--devices")


def parser() -> Parser:
    """A parser of the options for completions; those of a task are read when it is known."""
    parser = Parser("train", __doc__)
    parser.add("task", metavar="TASK", kind="task")
    for name in CHOSEN:
        parser.add(f"--{name}", kind=name)
    parser.add("--only", choices=ONLY, default=None)
    parser.add("--resume", metavar="RUN", kind="folder")
    parser.add("--fallback", action="store_true")
    return parser


def main(argv: Sequence[str]) -> int:
    """Train and print what came out."""
    args = respelt(take_manners(argv), [*_RESUMED, "--only", "--help"])
    if not args or args[0] in ("-h", "--help"):
        (sys.stdout if args else sys.stderr).write(USAGE.format(tasks=_list_tasks()))
        need_train("training")
        return 0 if args else 2
    keep_memory()
    run = peek(args, "--resume")
    if run is not None:
        result, held = _resume(args, run), None
    else:
        begun = _start(args)
        if isinstance(begun, int):
            return begun
        result, held = begun
    _tell(result, held)
    return 0


def _start(args: list[str]) -> "tuple[Result, Contest | None] | int":
    """Result and contest of a run, or an exit code where they are printed already."""
    task = args[0]
    if "--resume" in args:
        raise ArgumentError("train: --resume must name a run folder, got nothing after it.")
    if task.startswith("-") or names_data(task):
        rest = args if task.startswith("-") else ["--data", *args]
        first, *alternatives = likely_tasks(rest)
        more = f", or {', '.join(alternatives)} instead of {first}" if alternatives else ""
        raise ArgumentError(
            f"train: the first argument must be a task, got {task!r}. "
            f"Try: linrnn train {first} {' '.join(rest)}{more}"
        )
    task = task_named(task)
    _check_strategy(args)
    only, args = take_only(args)
    args = check_train(task, args[1:])
    need_train("training")
    show_options(task, args)
    start = starting_config(task, args)
    config, out = parse_train(args, start)
    if task == "forecast" and only is None and not chooses(args) and of_many_series(config):
        return train_panel(config, out, args)
    if only is None and (chooses(args) or task not in OF_OWN_FILES):
        from linrnn.train import run

        note(_announcement(task, start))
        return run(config, out=out, reporter=make_reporter()), None
    return run_contest(config, only, out, args)


def _check_strategy(args: Sequence[str]) -> None:
    names = (f"--{section}strategy" for section in ("", "train.", "trainer."))
    strategy = next((value for name in names if (value := peek(args, name)) is not None), None)
    if strategy is not None:
        raise ArgumentError(
            "train: --train.strategy must not be given, for several devices (--train.devices N) "
            f"train by DDP, got {strategy!r}. For FSDP2 and other strategies of Lightning use "
            "linrnn.fit(..., devices=N, strategy=ModelParallelStrategy(...)), which takes any."
        )


def starting_config(task: str, args: Sequence[str]) -> Start:
    """The configuration whose values are the defaults, and the recipe and scale it is of.

    Without ``--recipe`` and ``--scale`` only a recipe that fits a CPU is taken: the published
    settings of some tasks run for days.

    Raises:
        UnknownNameError: ``--recipe`` or ``--scale`` names none.
        ArgumentError: the recipe is for another task, or ``--scale`` is without one.
    """
    recipe, scale = peek(args, "--recipe"), peek(args, "--scale")
    if recipe is None and _has_recipe(task, scale):
        recipe = task
    if recipe in (None, UNTUNED):
        if scale not in (None, UNTUNED):
            raise ArgumentError(
                f"train: --scale must come with a recipe, got {scale!r} without one for the task "
                f"{task!r}. Name one of `linrnn list recipes` with --recipe."
            )
        return Start(recipes.untuned(task), UNTUNED, UNTUNED)
    scale = scale or recipes.default_scale(recipe)
    config = recipes.load(recipe, scale).config
    if config.task != task:
        raise ArgumentError(
            f"train: --recipe must be one for the task {task!r}, got {recipe!r}, "
            f"which is for {config.task!r}."
        )
    return Start(config, recipe, scale)


def _has_recipe(task: str, scale: str | None) -> bool:
    """Whether the task's own recipe is to be taken though no recipe is named."""
    return task in recipes.names() and (scale is not None or recipes.CPU in recipes.scales(task))


def _announcement(task: str, start: Start) -> str:
    """A note on the defaults, for before a run begins."""
    from linrnn.cli._line.recipes import expectation

    if start.recipe != UNTUNED:
        if start.scale == recipes.CPU:
            return ""
        recipe = recipes.load(start.recipe, start.scale)
        return f"recipe {start.recipe}, scale {start.scale}: {expectation(recipe)}\n"
    lines = [f"no tuned recipe for {task}: defaults that promise no result"]
    if task in recipes.names() and recipes.CPU not in recipes.scales(task):
        scale = recipes.scales(task)[0]
        expected = expectation(recipes.load(task, scale))
        lines = [
            f"no tuned recipe for {task} that fits a CPU: defaults that promise no result",
            f"`linrnn train {task} --scale {scale}` has others: {expected}",
        ]
    return "\n".join(lines) + "\n"


def _resume(args: list[str], folder: str) -> Result:
    need_train("training")
    from linrnn.train import resume
    from linrnn.train.config import OnNan

    args = spell_out(args, SHORT)
    on_nan, devices = peek(args, "--train.on-nan"), peek(args, "--train.devices")
    said = ["--resume", folder, f"--resume={folder}", "--fallback"]
    for name, value in (("--train.on-nan", on_nan), ("--train.devices", devices)):
        if value is not None:
            said += [name, value, f"{name}={value}"]
    unexpected = [a for a in args if a not in said]
    if unexpected:
        raise ArgumentError(
            "train: --resume must come alone, or with --fallback, --on-nan or --devices, since a "
            f"run keeps its configuration, got {' '.join(unexpected)}. "
            f"Use: linrnn train --resume {folder}"
        )
    if on_nan not in (None, *get_args(OnNan)):
        raise UnknownNameError("--on-nan", on_nan, get_args(OnNan))
    if devices is not None and not (devices.isascii() and devices.isdigit()):
        raise ArgumentError(f"train: --devices must be an integer of at least 1, got {devices!r}.")
    return resume(
        folder,
        reporter=make_reporter(),
        fallback="--fallback" in args,
        on_nan=cast(Any, on_nan),
        devices=None if devices is None else int(devices),
    )


def _list_tasks() -> str:
    width = max(map(len, tasks.names()))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in summaries("tasks").items())


def _use(result: Result) -> str:
    """The command that puts the model to use."""
    if tasks.load(result.task).perplexity:
        return f"linrnn generate {result.folder} --prompt TEXT"
    return f"linrnn predict {result.folder} FILE"


def _tell(result: Result, held: "Contest | None") -> None:
    if held is None and not MANNER.quiet:
        note(_baselines(result))  # what does better without a training comes first
    row(f"{summary(result)}\n")
    entries = None if held is None else [vars(one) for one in held.entries]
    answer(lambda: joined(plain(result), {"contest": plain(entries)}))
    if not MANNER.quiet:
        note(_remarks(result))


def _baselines(result: Result) -> str:
    """Scores without the model, to compare with, if the data are still available."""
    from linrnn.cli._verbs.naive import naive_forecasts
    from linrnn.cli._verbs.without_training import simple_answers

    try:
        return naive_forecasts(result) + simple_answers(result)
    except DataError as error:  # a run that is complete is so without them
        return f"nothing to compare with: {error}\n"


def _remarks(result: Result) -> str:
    folder: Path = result.folder
    trained = result.mixer not in CLOSED
    holds = "weights, metrics, checkpoint and plots" if trained else "weights, contest and plots"
    board = f"  tensorboard --logdir {folder / 'tensorboard'}\n" if trained else ""
    return f"{folder} holds the {holds}. Next:\n  linrnn eval {folder}\n  {_use(result)}\n{board}"
