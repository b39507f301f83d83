"""Train over values of any options and several seeds: a table and a plot."""

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linrnn._numbers import duration
from linrnn.cli._extras import need_train
from linrnn.cli._names import flag_name, mixer_named, no_such_option, task_named
from linrnn.cli._options import JOBS, MOST_SEEDS, parse_train, peek
from linrnn.cli._output import answer, joined, note, row
from linrnn.cli._parser import Parser
from linrnn.cli._train_options import check_train, train_options
from linrnn.cli.compare import record
from linrnn.errors import ArgumentError, check_at_most, check_positive_int

EPILOG = """--over names an option of `linrnn train TASK` and its values; given several times, all
combinations are trained, or with --random N so many of them, drawn. Every other option is one of
`linrnn train TASK --help` and holds for all runs. Before the first run it says how long all may
take, by a few steps that are timed, and after each what is left. Stopped by Ctrl-C or killed, the
same command goes on where it was, and tries again what failed; given twice at once, it shares the
runs, which is what --jobs 2 does by itself. The table begins with the best on validation data.

example: linrnn sweep digits --over optim.lr=1e-3,3e-3,1e-2 --over mixer.d_state=32,64 --seeds 3"""

_OVER = "an option and its values, commas between; may be given several times"
_RANDOM = "train N combinations that are drawn, the same ones each time (all)"
_SEEDS = "runs of each combination, with the seeds 0 to N-1 (1)"


def parser() -> Parser:
    """Of what follows the verb; other options are those of ``linrnn train``."""
    parser = Parser("sweep", __doc__, epilog=EPILOG)
    parser.add("task", metavar="TASK", help="`linrnn list tasks` shows all", kind="task")
    parser.add("--over", action="append", required=True, metavar="OPTION=A,B,...", help=_OVER)
    parser.add("--random", type=int, metavar="N", help=_RANDOM)
    parser.add("--seeds", type=int, default=1, metavar="N", help=_SEEDS)
    parser.add("--jobs", type=int, default=1, metavar="N", help=JOBS)
    parser.add("--out", type=Path, default=None, help="folder (runs/sweep-TASK)", kind="folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Train what is not trained yet and print the table."""
    options, rest = parser().parse_known_args(argv)
    task = task_named(options.task)
    check_positive_int("sweep", seeds=options.seeds, jobs=options.jobs)
    check_at_most("sweep", MOST_SEEDS, seeds=options.seeds)
    if options.random is not None:
        check_positive_int("sweep", random=options.random)
    over = _over(options.over)
    rest = _checked(task, over, rest)
    need_train("a sweep")
    from linrnn._storage import read_text
    from linrnn.cli.train import starting_config
    from linrnn.compare import sweep
    from linrnn.compare._sweep_report import best
    from linrnn.train._model import build_task

    out = options.out or Path("runs", f"sweep-{task}")
    config, _ = parse_train(rest, starting_config(task, rest))
    given = {"draws": options.random, "seeds": range(options.seeds), "out": out}
    given["jobs"] = options.jobs
    _announce(config, over, **given)
    found = sweep(config, over, **given, say=lambda line: note(f"{line}\n"))
    row(f"\n{read_text(out / 'sweep.md', inside=out)}")
    note(f"\n{out} holds this table as Markdown and CSV, the plot and all runs.\n")
    first = best(found, build_task(config))
    chosen = None if first is None else first.values
    settings = [joined({"options": one.values}, record(one.row)) for one in found]
    answer(lambda: {"task": task, "out": out, "best": chosen, "settings": settings})
    return 0


def _over(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Options and their values.

    Raises:
        ArgumentError: an option that comes twice.
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, values = parse_over(text)
        if name in found:
            fix = f"Write {name}={','.join(map(str, [*found[name], *values]))}."
            raise ArgumentError(f"sweep: --over must name {name} once, got it twice. {fix}")
        found[name] = values
    return found


def parse_over(text: str) -> tuple[str, list[Any]]:
    """An option and its values.

    Raises:
        ArgumentError: no option, or no value.

    Example:
        >>> parse_over("Optim.LR=1e-3,0.01"), parse_over("mixer.d-state=8")
        (('optim.lr', [0.001, 0.01]), ('mixer.d_state', [8]))
    """
    name, _, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not name or not all(parts):
        raise ArgumentError(
            f"sweep: --over must be an option and its values, such as optim.lr=0.001,0.01, got "
            f"{text!r:.80}."
        )
    return flag_name(name).lstrip("-").replace("-", "_"), [_value(part) for part in parts]


def _value(text: str) -> Any:
    if text.lower() in ("true", "false", "none"):
        text = text.capitalize()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _checked(task: str, over: dict[str, list[Any]], rest: Sequence[str]) -> list[str]:
    """The options of all runs as they are known; what is swept must be one of them too.

    Raises:
        UnknownNameError: no such mixer.
        ArgumentError: no such option.
    """
    known = check_train(task, rest, "sweep")
    if "mixer" in over:
        over["mixer"] = [mixer_named(str(name)) for name in over["mixer"]]
    mixers = over.get("mixer", [peek(known, "--mixer")])
    for name in over:
        if peek(known, f"--{name.replace('_', '-')}") is not None:
            raise ArgumentError(
                f"sweep: --{name.replace('_', '-')} must come without --over {name}, got both. "
                "Leave one of them out."
            )
    for mixer in mixers:
        flags = train_options(task, mixer, peek(known, "--learner"))
        for name in over:
            flag = f"--{name.replace('_', '-')}"
            if name != "mixer" and ("." not in name or not flags.has(flag)):
                where = f"linrnn train {task} --help"
                swept = [f[2:] for f in flags.flags if "." in f]
                raise no_such_option("sweep", name, swept, where)
    return known


def _announce(
    config: Any, over: dict[str, list[Any]], *, draws: Any, seeds: range, out: Path, jobs: int
) -> None:
    """How many runs there are, and how long they may take."""
    from linrnn.compare import Entry
    from linrnn.compare._estimate import expected_seconds
    from linrnn.compare._sweep import combinations, named, with_options

    points = combinations(over, draws)
    entries = [Entry(label=named(p), config=with_options(config, p)) for p in points]
    seconds = expected_seconds(entries, seeds, out)
    took = "" if seconds is None else f", about {duration(seconds / jobs)} of training to go"
    note(f"{len(entries)} settings, {len(entries) * len(seeds)} runs in {out}{took}\n")
