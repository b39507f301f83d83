"""Compare mixers or learners on a task over several seeds: a table, curves, bars and costs."""

import argparse
import ast
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from linrnn import learn, mixers
from linrnn._options.catalogue import aliases, stems
from linrnn._options.import_path import is_import_path
from linrnn.cli._line.extras import need_train
from linrnn.cli._line.names import UNTUNED, learner_named, mixer_named, task_named
from linrnn.cli._line.options import JOBS, MOST_SEEDS, Start, parse_train, peek
from linrnn.cli._line.output import answer, joined, note, plain, row
from linrnn.cli._line.parser import Parser
from linrnn.cli._line.train_options import check_train
from linrnn.errors import ArgumentError, check_at_most, check_positive_int

EPILOG = """A mixer may have options: lru:r_min=0.9:r_max=0.999. It may also be an import path,
pkg.module:Mine, or a pattern repeated along the depth, lru+lru+attention. Options of a pattern go
to every mixer that has them, or to one: lru+attention:attention.n_heads=2. Learners are written in
the same way: tbptt:window=32. With both, each mixer is trained by each learner. Without --mixers,
the mixer is that of the recipe or of --mixer.

--tune lr goes on beyond the factors of --tune-factors while the smallest or largest is the best.

Every other option is one of `linrnn train TASK --help` (--model, --optim, --train, --task,
--recipe, --scale) and applies to all runs. After Ctrl-C or a kill, the same command continues and
repeats failed runs. The same command in a second terminal shares the runs, as --jobs 2 does.

examples:
  linrnn compare digits --mixers lru,mingru,s5 --match-params --seeds 3
  linrnn compare mackey_glass --learners bptt,tbptt:window=32,diagonal_rtrl"""


_MATCH = "change widths until parameter counts agree within 3 %% with the first mixer's"
_TUNE = "choose each mixer's learning rate on validation data, with the first seed"
_FACTORS = "factors of each mixer's learning rate to try first (0.3,1,3)"
_LEARNERS = "learners to compare (that of the recipe, or of --learner)"
_SEEDS = "runs of each mixer, with the seeds 0 to N-1 (3)"


def parser() -> Parser:
    """The parser of the verb's arguments; other options are those of ``linrnn train``."""
    parser = Parser("compare", __doc__, epilog=EPILOG)
    parser.add("task", metavar="TASK", help="`linrnn list tasks` shows all", kind="task")
    parser.add("--mixers", metavar="A,B,...", help="mixers to compare", kind="mixers")
    parser.add("--learners", metavar="A,B,...", help=_LEARNERS, kind="learners")
    parser.add("--match-params", action="store_true", help=_MATCH)
    parser.add("--tune", choices=["lr"], help=_TUNE)
    parser.add("--tune-factors", metavar="A,B,...", help=_FACTORS)
    parser.add("--seeds", type=int, default=3, metavar="N", help=_SEEDS)
    parser.add("--jobs", type=int, default=1, metavar="N", help=JOBS)
    parser.add("--out", type=Path, default=None, help="folder (runs/compare-TASK)", kind="folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Train what is not trained yet and print the table."""
    verb_parser = parser()
    options, run_args = verb_parser.parse_known_args(argv)
    if options.mixers is None and options.learners is None:
        verb_parser.error("the following arguments are required: --mixers or --learners")
    options.task = task_named(options.task)
    check_positive_int("compare", seeds=options.seeds, jobs=options.jobs)
    check_at_most("compare", MOST_SEEDS, seeds=options.seeds)
    factors = _factors(options)
    choices, run_args = checked(options, run_args)
    need_train("comparing mixers")
    from linrnn._files.storage import read_text
    from linrnn.compare import compare

    out = options.out or Path("runs", f"compare-{options.task}")
    start, entries = _entries(options.task, choices, run_args)
    rows = compare(
        entries,
        seeds=range(options.seeds),
        out=out,
        match=options.match_params,
        tune=factors,
        whose=_whose(start, run_args),
        jobs=options.jobs,
        say=lambda line: note(f"{line}\n"),
    )
    row(f"\n{read_text(out / 'compare.md', inside=out)}")
    note(f"\n{out} holds this table as Markdown and CSV, the plots and all runs.\n")
    answer(lambda: {"task": options.task, "out": out, "rows": list(map(record, rows))})
    return int(any(one.failures for one in rows))


def record(row: Any) -> dict[str, Any]:
    """A row for JSON: its fields, the means and their standard errors."""
    names = ("mean", "standard_error", "validation_mean", "validation_standard_error")
    return joined(plain(row), {name: plain(getattr(row, name)) for name in names})


class Choice(NamedTuple):
    """The mixer and learner of one line of the table, as written on the command line."""

    mixer: str
    """With its options; empty: that of the recipe, or of ``--mixer``."""
    learner: str
    """With its options; empty: that of the recipe, or of ``--learner``."""

    @property
    def arguments(self) -> list[str]:
        """The command-line arguments that choose it for a run."""
        names = {"--mixer": parse_mixer(self.mixer)[0], "--learner": parse_learner(self.learner)[0]}
        return [word for flag, name in names.items() if name for word in (flag, name)]


def checked(options: argparse.Namespace, run_args: Sequence[str]) -> tuple[list[Choice], list[str]]:
    """The choices to compare, and the options of the runs as they are known; imports nothing.

    Raises:
        UnknownNameError: no such mixer or learner.
        ArgumentError: no such option, or a mixer or a learner named twice.
    """
    if options.learners is not None and peek(run_args, "--learner") is not None:
        raise ArgumentError(
            "compare: --learner must come without --learners, got both. Add it to --learners."
        )
    if options.mixers is not None and peek(run_args, "--mixer") is not None:
        raise ArgumentError(
            "compare: --mixer must come without --mixers, got both. Add it to --mixers."
        )
    if run_args and not run_args[0].startswith("-"):
        raise ArgumentError(f"compare: an option must begin with --, got {run_args[0]!r:.80}.")
    mixers = [""] if options.mixers is None else map(as_known, _names("--mixers", options.mixers))
    learners = [""]
    if options.learners is not None:
        learners = list(map(_as_known, _names("--learners", options.learners)))
    choices = [Choice(*pair) for pair in itertools.product(mixers, learners)]
    for choice in choices:
        chosen_args = choice.arguments
        run_args = check_train(options.task, [*chosen_args, *run_args], "compare")[
            len(chosen_args) :
        ]
    return choices, list(run_args)


def _names(flag: str, text: str) -> list[str]:
    """The names that an option lists."""
    names = text.split(",")
    if not all(map(str.strip, names)):
        raise ArgumentError(f"compare: {flag} must have a name between commas, got {text!r:.80}.")
    return names


def _as_known(text: str) -> str:
    """A learner with its options, by the name of the catalogue."""
    learner, _ = parse_learner(text)
    return learner_named(learner) + text[len(learner) :]


def as_known(text: str) -> str:
    """A mixer with its options, by the names of the catalogue; nothing is imported.

    Raises:
        UnknownNameError: no such mixer.
        ArgumentError: an option without a value.

    Example:
        >>> as_known("2*RG-LRU+lru:lru.d_state=4")
        '2*rg_lru+lru:lru.d_state=4'
    """
    mixer, _ = parse_mixer(text)
    return mixer_named(mixer).replace(",", "+") + text[len(mixer) :]


def _factors(options: argparse.Namespace) -> list[float]:
    """By which learning rates are tried; none without ``--tune lr``."""
    if options.tune is None:
        if options.tune_factors is not None:
            raise ArgumentError(
                f"compare: --tune-factors must come with --tune lr, got {options.tune_factors} "
                "without it."
            )
        return []
    text = "0.3,1,3" if options.tune_factors is None else options.tune_factors
    try:
        return [float(factor) for factor in text.split(",")]
    except ValueError:
        raise ArgumentError(
            "compare: --tune-factors must be numbers with commas between, got "
            f"{options.tune_factors!r:.80}."
        ) from None


def _whose(start: "Start", run_args: Sequence[str]) -> str:
    """The origin of the learning rate that all mixers share, in words."""
    if peek(run_args, "--optim.lr") is not None:
        return "the same for all mixers, from the command line"
    if start.recipe == UNTUNED:
        return "the same untuned default for all mixers"
    recipe = f"the recipe {start.recipe}, scale {start.scale}"
    return f"the same for all mixers, from {recipe}, which is tuned for {start.config.mixer}"


def _entries(
    task: str, choices: Sequence[Choice], run_args: Sequence[str]
) -> "tuple[Start, list[Any]]":
    """One entry for each line of the table: the recipe's configuration with the changes given."""
    from linrnn.backbone.pattern import options_of
    from linrnn.cli._line.mixer_options import import_named
    from linrnn.cli.train import starting_config
    from linrnn.compare import Entry

    start = starting_config(task, list(run_args))
    entries = []
    for choice in choices:
        (mixer, mixer_changes), (_, ways) = parse_mixer(choice.mixer), parse_learner(choice.learner)
        config, _ = parse_train([*run_args, *choice.arguments], start)
        if mixer:
            import_named(mixer)
            merged = _merged(config.mixer_options, options_of(mixer, mixer_changes))
            config = dataclasses.replace(config, mixer_options=merged)
        learner_options = config.learner_options | ways
        learn.build(config.learner, learner_options)  # says what is wrong with them
        config = dataclasses.replace(config, learner_options=learner_options)
        label = choice.mixer or str(config.mixer).replace(",", "+")
        label = f"{label} {choice.learner}" if choice.learner else label
        entries.append(Entry(label=label, config=config))
    return start, entries


def _merged(options: dict[str, Any], changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Options, of one mixer or of each of a pattern by name, and the changes to each."""
    if len(changes) == 1:
        return options | next(iter(changes.values()))
    return {name: its | changes[name] for name, its in options.items()}


def parse_mixer(text: str) -> tuple[str, dict[str, Any]]:
    """A mixer, or a pattern, and the options as written on the command line.

    Raises:
        ArgumentError: an option without a value.

    Example:
        >>> parse_mixer("lru:r_min=0.9:form=conv")
        ('lru', {'r_min': 0.9, 'form': 'conv'})
        >>> parse_mixer("lru+pkg.module:Mine:d_state=4:Mine.gain=2")
        ('lru,pkg.module:Mine', {'d_state': 4, 'Mine': {'gain': 2}})
    """
    words = text.split(":")
    first = next((i for i, word in enumerate(words) if "=" in word), len(words))
    mixer, options = ":".join(words[:first]).replace("+", ","), dict[str, Any]()
    # a colon after a name of ours is no import path
    ours = {*stems(mixers.__name__), *aliases(mixers.__name__)}
    meant = [p for p in mixer.split(",") if p.partition(":")[0].strip() in ours]
    pairs = [word.partition("=") for word in words[first:]]
    if any(map(is_import_path, meant)) or not all(name and equals for name, equals, _ in pairs):
        raise ArgumentError(
            f"compare: --mixers must list options as name:option=value, got {text!r}."
        )
    for key, _, value in pairs:
        owner, _, option = key.rpartition(".")
        (options.setdefault(owner, {}) if owner else options)[option] = _literal(value)
    return mixer, options


def parse_learner(text: str) -> tuple[str, dict[str, Any]]:
    """A learner and the options as written on the command line.

    Raises:
        ArgumentError: an option without a value.

    Example:
        >>> parse_learner("tbptt:window=32:update=window")
        ('tbptt', {'window': 32, 'update': 'window'})
    """
    learner, *words = text.split(":")
    pairs = [word.partition("=") for word in words]
    if not all(name and equals for name, equals, _ in pairs):
        raise ArgumentError(
            f"compare: --learners must list options as name:option=value, got {text!r:.80}."
        )
    return learner, {name: _literal(value) for name, _, value in pairs}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
