"""Train with several values of any options and several seeds: a table and a plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linrnn._options.numbers import counted, duration
from linrnn.cli._line.extras import need_train
from linrnn.cli._line.names import task_named
from linrnn.cli._line.options import JOBS, MOST_SEEDS, parse_train
from linrnn.cli._line.output import answer, joined, note, row
from linrnn.cli._line.over import Drawn, checked_over
from linrnn.cli._line.parser import Parser
from linrnn.cli.compare import record
from linrnn.errors import check_at_most, check_positive_int

EPILOG = """\
--over names an option of `linrnn train TASK` and its values. If it is repeated, all combinations
are trained, or with --random N, N random ones. With --random the values may be a range,
optim.lr=1e-4..1e-2. Numbers are drawn uniformly, or log-uniformly if both ends are positive and the
upper one is at least ten times the lower. Options of integers get integers. The mixer and the
learner can be swept too; options of --over must then exist for all of them. Every other option is
one of `linrnn train TASK --help` and applies to all runs.

Before the first run, a few timed steps give an estimate of the total time; after each run the
remaining time is printed. After Ctrl-C or a kill, the same command continues and repeats failed
runs. The same command in a second terminal shares the runs, as --jobs 2 does. The table begins with
the best setting on validation data.

examples:
  linrnn sweep digits --over optim.lr=1e-3,3e-3,1e-2 --over mixer.d_state=32,64 --seeds 3
  linrnn sweep digits --over optim.lr=1e-4..1e-2 --over learner=bptt,tbptt --random 20"""

_OVER = "an option and its values, separated by commas, or A..B; may be repeated"
_RANDOM = "train N random combinations, the same ones each time (all)"
_SEEDS = "runs of each combination, with the seeds 0 to N-1 (1)"


def parser() -> Parser:
    """The parser of the verb's arguments; other options are those of ``linrnn train``."""
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
    options, run_args = parser().parse_known_args(argv)
    task = task_named(options.task)
    check_positive_int("sweep", seeds=options.seeds, jobs=options.jobs)
    check_at_most("sweep", MOST_SEEDS, seeds=options.seeds)
    if options.random is not None:
        check_positive_int("sweep", random=options.random)
    swept, run_args = checked_over(task, options.over, run_args, options.random)
    need_train("a sweep")
    from linrnn._files.storage import read_text
    from linrnn.cli.train import starting_config
    from linrnn.compare import Range, sweep
    from linrnn.compare.sweep_report import best
    from linrnn.train.model import build_task

    over: dict[str, Any] = {
        name: Range(*one) if isinstance(one, Drawn) else one for name, one in swept.items()
    }
    out = options.out or Path("runs", f"sweep-{task}")
    config, _ = parse_train(run_args, starting_config(task, run_args))
    settings_of_runs = {"draws": options.random, "seeds": range(options.seeds), "out": out}
    settings_of_runs["jobs"] = options.jobs
    _announce(config, over, **settings_of_runs)
    settings = sweep(config, over, **settings_of_runs, say=lambda line: note(f"{line}\n"))
    row(f"\n{read_text(out / 'sweep.md', inside=out)}")
    note(f"\n{out} holds this table as Markdown and CSV, the plot and all runs.\n")
    first = best(settings, build_task(config))
    chosen = None if first is None else first.values
    rows = [joined({"options": one.values}, record(one.row)) for one in settings]
    answer(lambda: {"task": task, "out": out, "best": chosen, "settings": rows})
    return int(all(one.row.failures for one in settings))


def _announce(
    config: Any, over: dict[str, Any], *, draws: Any, seeds: range, out: Path, jobs: int
) -> None:
    """How many runs there are, and how long they may take."""
    from linrnn.compare.estimate import expected_seconds
    from linrnn.compare.sweeps import entries_of

    _, entries = entries_of(config, over, draws)
    seconds = expected_seconds(entries, seeds, out)
    took = "" if seconds is None else f", about {duration(seconds / jobs)} to go"
    runs = counted(len(entries) * len(seeds), "run")
    note(f"{counted(len(entries), 'setting')}, {runs} in {out}{took}\n")
