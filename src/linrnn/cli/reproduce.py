"""Reproduce a published result: the published numbers and ours side by side."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linrnn import reproductions
from linrnn._files.door import make_folder
from linrnn.cli._line.entries import scales_of, summaries
from linrnn.cli._line.extras import need_train
from linrnn.cli._line.names import canonical, known_as
from linrnn.cli._line.options import JOBS, MOST_SEEDS
from linrnn.cli._line.output import MANNER, answer, joined, note, row
from linrnn.cli._line.parser import Parser
from linrnn.cli._line.streams import say
from linrnn.errors import check_at_most, check_in, check_positive_int


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("reproduce", __doc__, epilog=f"{_EPILOG}\n\nresults:\n{_listing()}")
    parser.add("name", metavar="NAME", help="one of the results below", kind="reproduction")
    scales = "`linrnn show NAME` describes each (the first)"
    parser.add("--scale", default=None, help=scales, kind="scale of a reproduction")
    parser.add("--seeds", type=int, default=None, metavar="N", help=_SEEDS)
    parser.add("--jobs", type=int, default=1, metavar="N", help=JOBS)
    parser.add("--out", type=Path, default=None, help=_OUT, kind="folder")
    parser.add("--results", type=Path, metavar="DIR", help=_RESULTS, kind="folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Compute, write the report and print it."""
    options = parser().parse_args(argv)
    name = known_as("reproduction", options.name, list(map(_dashed, reproductions.names())))
    scales = scales_of(name.replace("-", "_"))
    scale = canonical(options.scale or scales[0], scales)
    check_in("reproduce", "--scale", scale, scales)
    need_train("reproducing a result")
    what = reproductions.load(name.replace("-", "_"))
    seeds = what.seeds_needed(scale) if options.seeds is None else options.seeds
    check_positive_int("reproduce", seeds=seeds, jobs=options.jobs)
    check_at_most("reproduce", MOST_SEEDS, seeds=seeds)
    out = options.out or Path("runs", f"reproduce-{name}-{scale}")
    files, complete = _run(name, what, scale, tuple(range(seeds)), out, options.jobs)
    if options.results is not None and not complete:
        note(f"{options.results} has no copy of it: some of it could not be run.\n")
    elif options.results is not None:
        from linrnn.reproductions import publish

        folder = options.results / f"{name}-{scale}"
        publish(files, folder)
        note(f"{folder} has a copy of it.\n")
    return 0 if complete else 1


def _run(
    name: str,
    what: "type[reproductions.Reproduction]",
    scale: str,
    seeds: tuple[int, ...],
    out: Path,
    jobs: int,
) -> tuple[list[Path], bool]:
    """Compute, write and print; the files of the report, and whether all could be run."""
    from linrnn._files.storage import read_text
    from linrnn.reproductions import RUNS, verdict_table, write_report

    make_folder(out)
    setting = reproductions.Setting(scale=scale, seeds=seeds, out=out, say=_say, jobs=jobs)
    start = time.monotonic()
    findings = what().run(setting)
    files = write_report(name, what, setting, findings, time.monotonic() - start)
    row(f"\n{read_text(files[0], inside=out)}\n")
    note(f"{out} holds this page.\n")
    if jobs > 1 and not (out / RUNS).exists():
        note(f"--jobs {jobs} changed nothing: what this page computes has no folders of runs.\n")
    about = {"name": name, "scale": scale, "seeds": seeds, "out": out}
    verdicts = verdict_table(what, setting, findings)
    answer(lambda: joined(about, _record(findings, verdicts)))
    return files, findings.complete


def _record(findings: "reproductions.Findings", verdicts: "reproductions.Table") -> dict[str, Any]:
    """The page for JSON."""
    return {
        "complete": findings.complete,
        "comparable": findings.comparable,
        "verdicts": [dict(zip(verdicts.head, cells, strict=True)) for cells in verdicts.rows],
        "tables": findings.tables,
        "notes": findings.notes,
    }


def _say(line: str) -> None:
    if not MANNER.quiet:
        say(line)


def _listing() -> str:
    rows = {_dashed(name): text for name, text in summaries("reproductions").items()}
    width = max(map(len, rows))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in rows.items())


def _dashed(name: str) -> str:
    return name.replace("_", "-")


_EPILOG = """\
The folder gets report.md, its tables as CSV and its plots. Trained models have their folders
below runs/. After Ctrl-C or a kill, the same command continues.
`linrnn show NAME` prints the published numbers and describes each scale."""
_OUT = "folder (runs/reproduce-NAME-SCALE)"
_RESULTS = "copy the complete page, tables (CSV) and plots (SVG) to DIR/NAME-SCALE"
_SEEDS = "random draws, or runs of each model, with the seeds 0 to N-1 (5; 3 if one takes hours)"
