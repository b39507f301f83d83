"""Compare mixers on a task: a table, curves, bars and what they cost, over several seeds."""

import argparse
import ast
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linrnn import mixers, tasks
from linrnn._catalogue import stems
from linrnn._import_path import is_import_path
from linrnn.cli._options import MOST_SEEDS, parse_train
from linrnn.errors import ArgumentError, UnknownNameError, check_at_most, check_positive_int

EPILOG = """A mixer may be given options: lru:r_min=0.9:r_max=0.999. It may be an import path,
pkg.module:Mine, and a pattern repeated along the depth, lru+lru+attention, whose options go to each
that has them, or to one: lru+attention:attention.n_heads=2. Every other option is one of
`linrnn train TASK --help` (--model, --optim, --train, --task, --recipe, --scale) and holds for all
mixers. Stopped by Ctrl-C or killed, the same command goes on where it was, and tries again what
failed.

example: linrnn compare digits --mixers lru,mingru,s5 --match-params --seeds 3"""


_MATCH = "change widths until parameter counts agree within 3 %% with the first mixer's"
_SEEDS = "runs of each mixer, with the seeds 0 to N-1 (3)"


def main(argv: Sequence[str]) -> int:
    """Train what is not trained yet and print the table."""
    parser = argparse.ArgumentParser(
        prog="linrnn compare",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("task", metavar="TASK", help="`linrnn list tasks` shows all")
    parser.add_argument("--mixers", required=True, metavar="A,B,...", help="what to compare")
    parser.add_argument("--match-params", action="store_true", help=_MATCH)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help=_SEEDS)
    parser.add_argument("--out", type=Path, default=None, help="folder (runs/compare-TASK)")
    options, rest = parser.parse_known_args(argv)
    if options.task not in tasks.names():
        raise UnknownNameError("task", options.task, tasks.names())
    check_positive_int("compare", seeds=options.seeds)
    check_at_most("compare", MOST_SEEDS, seeds=options.seeds)
    from linrnn._storage import read_text
    from linrnn.compare import compare

    out = options.out or Path("runs", f"compare-{options.task}")
    rows = compare(
        _entries(options, rest),
        seeds=range(options.seeds),
        out=out,
        match=options.match_params,
        say=_say,
    )
    assert rows
    sys.stdout.write(f"\n{read_text(out / 'compare.md', inside=out)}")
    sys.stdout.write(f"\n{out} holds this table as Markdown and CSV, the plots and all runs.\n")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _entries(options: argparse.Namespace, rest: Sequence[str]) -> list[Any]:
    """One entry for each mixer asked for: the recipe's configuration with the changes given."""
    from linrnn._pattern import options_of, pattern
    from linrnn.cli._mixer_options import import_named
    from linrnn.cli.train import starting_config
    from linrnn.compare import Entry

    start = starting_config(options.task, list(rest))
    found = []
    for text in options.mixers.split(","):
        mixer, given = parse_mixer(text)
        import_named(mixer)
        for part in pattern(mixer):
            if not is_import_path(part) and part not in mixers.names():
                raise UnknownNameError("mixer", part, mixers.names())
        config, _ = parse_train([*rest, "--mixer", mixer], start)
        merged = _merged(config.mixer_options, options_of(mixer, given))
        found.append(Entry(label=text, config=dataclasses.replace(config, mixer_options=merged)))
    return found


def _merged(options: dict[str, Any], given: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Options, of one mixer or of each of a pattern by name, and the changes to each."""
    if len(given) == 1:
        return {**options, **next(iter(given.values()))}
    return {name: {**its, **given[name]} for name, its in options.items()}


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
    from linrnn._pattern import pattern

    words = text.split(":")
    first = next((i for i, word in enumerate(words) if "=" in word), len(words))
    mixer, options = ":".join(words[:first]).replace("+", ","), dict[str, Any]()
    # a colon after a name of ours is no import path
    meant = [p for p in pattern(mixer) if str(p).partition(":")[0] in stems(mixers.__name__)]
    pairs = [word.partition("=") for word in words[first:]]
    if any(map(is_import_path, meant)) or not all(name and equals for name, equals, _ in pairs):
        raise ArgumentError(
            f"compare: --mixers must list options as name:option=value, got {text!r}."
        )
    for key, _, value in pairs:
        owner, _, option = key.rpartition(".")
        (options.setdefault(owner, {}) if owner else options)[option] = _literal(value)
    return mixer, options


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
