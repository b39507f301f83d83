"""Reproduce a published result: theirs and ours side by side."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from linrnn import reproductions
from linrnn.cli._entries import summaries
from linrnn.cli._options import MOST_SEEDS
from linrnn.errors import UnknownNameError, check_at_most, check_in, check_positive_int


def main(argv: Sequence[str]) -> int:
    """Compute, write the report and print it."""
    parser = argparse.ArgumentParser(
        prog="linrnn reproduce",
        description=__doc__,
        epilog=f"{_EPILOG}\n\nresults:\n{_listing()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="one of those below")
    parser.add_argument("--scale", default=None, help="`linrnn show NAME` says what each shows")
    parser.add_argument("--seeds", type=int, default=None, metavar="N", help=_SEEDS)
    parser.add_argument("--out", type=Path, default=None, help="folder (runs/reproduce-NAME-SCALE)")
    parser.add_argument("--results", type=Path, default=None, metavar="DIR", help=_RESULTS)
    options = parser.parse_args(argv)
    stem = options.name.replace("-", "_")
    if stem not in reproductions.names():
        raise UnknownNameError("reproduction", options.name, map(_dashed, reproductions.names()))
    what = reproductions.load(stem)
    scale = options.scale or next(iter(what.scales))
    check_in("reproduce", "--scale", scale, what.scales)
    seeds = what.seeds_needed(scale) if options.seeds is None else options.seeds
    check_positive_int("reproduce", seeds=seeds)
    check_at_most("reproduce", MOST_SEEDS, seeds=seeds)
    out = options.out or Path("runs", f"reproduce-{_dashed(stem)}-{scale}")
    files, complete = _run(_dashed(stem), what, scale, tuple(range(seeds)), out)
    if options.results is not None and not complete:
        sys.stdout.write(f"{options.results} has no copy of it: some of it could not be run.\n")
    elif options.results is not None:
        from linrnn.reproductions._report import publish

        kept = options.results / f"{_dashed(stem)}-{scale}"
        publish(files, kept)
        sys.stdout.write(f"{kept} has a copy of it.\n")
    return 0 if complete else 1


def _run(
    name: str,
    what: "type[reproductions.Reproduction]",
    scale: str,
    seeds: tuple[int, ...],
    out: Path,
) -> tuple[list[Path], bool]:
    """Compute, write and print; the files of the report, and whether all could be run."""
    from linrnn._storage import read_text
    from linrnn.reproductions._report import write_report

    out.mkdir(parents=True, exist_ok=True)
    setting = reproductions.Setting(scale=scale, seeds=seeds, out=out, say=_say)
    start = time.monotonic()
    found = what().run(setting)
    files = write_report(name, what, setting, found, time.monotonic() - start)
    sys.stdout.write(f"\n{read_text(files[0], inside=out)}\n{out} holds this page.\n")
    return files, found.complete


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _listing() -> str:
    rows = {_dashed(name): text for name, text in summaries("reproductions").items()}
    width = max(map(len, rows))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in rows.items())


def _dashed(name: str) -> str:
    return name.replace("_", "-")


_EPILOG = """\
The folder gets report.md, its tables as CSV and its plots; models that are trained have their
folders below runs/. Stopped by Ctrl-C or killed, the same command goes on where it was.
`linrnn show NAME` prints the published numbers and what each scale shows."""
_RESULTS = "copy the page, tables (CSV) and plots (SVG) to DIR/NAME-SCALE, once all is there"
_SEEDS = (
    "random draws, or runs of each model, with the seeds 0 to N-1 (5, or 3 where one takes hours)"
)
