"""The page a reproduction leaves."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from linrnn import __version__
from linrnn._files.door import make_folder, read_bytes
from linrnn._files.storage import remove, report_in
from linrnn.compare.run_table import revision
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.outcome import (
    CLAIMS,
    FIGURE,
    RUNS_FOLDER,
    as_csv,
    block,
    in_words,
    picture,
    section,
)
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import HEAD, Verdict, verdicts
from linrnn.train.checkpoint import write_atomically
from linrnn.train.drawn import drawn
from linrnn.train.figures import save
from linrnn.train.folder import PLOT_ENDINGS

_PAGE, _RUNS = "report.md", "runs.csv"


def write_report(
    name: str, what: type[Reproduction], setting: Setting, findings: Findings, seconds: float
) -> list[Path]:
    """Write ``report.md``, CSV files of our tables, claims and runs, figures, other files.

    Returns:
        The files a reader of the page needs, the page first: it shows the SVG files, and
        leads to the numbers in them.
    """
    runs = findings.runs or Runs.of_page(setting.out, setting.scale)
    made_by = revision()
    runs = runs.made_by(made_by)
    tables = {
        f"table-{i}.csv": as_csv(table.head, table.rows)
        for i, table in enumerate(findings.tables, 1)
    }
    judged = judge(what, setting, findings)
    if judged:
        tables[CLAIMS] = as_csv(HEAD, [v.cells() for v in judged])
    if runs.rows:
        tables[_RUNS] = runs.csv()
    shown = picture(judged)
    figures = dict(findings.figures) if shown is None else {**findings.figures, FIGURE: shown}
    outcome = block(in_words(judged), shown is not None, _RUNS if runs.rows else "")
    versions = (
        f"linrnn {__version__}{f' at {made_by}' if made_by else ''}, torch {torch.__version__}"
    )
    facts = [f"{_when()}; {_device()}; {_time(runs, seconds)}", versions]
    lines = page(name, what, setting, findings, outcome, facts)
    lines += section(judged, what.seeds_needed(setting.scale))
    plots = [f"{stem}.{ending}" for stem in figures for ending in PLOT_ENDINGS]
    with report_in(setting.out, [_PAGE, *tables, *plots, *findings.files]):
        files = _written(lines, tables, figures, findings.files, setting.out)
        _leave_only(files, setting.out)
    return files


def _written(
    lines: Sequence[str],
    tables: Mapping[str, bytes],
    figures: Mapping[str, Any],
    attachments: Mapping[str, bytes],
    out: Path,
) -> list[Path]:
    """The files of a report, the page first."""
    files = [out / _PAGE]
    write_atomically(files[0], ("\n".join(lines) + "\n").encode())
    for stem, figure in figures.items():
        files += save(figure, out / stem)[1:]  # no page shows the PNG
    for file, content in (*tables.items(), *attachments.items()):
        write_atomically(out / file, content)
        files.append(out / file)
    return files


def publish(files: Sequence[Path], folder: Path) -> None:
    """Copy a report to where finished ones are kept, over an older one.

    Its runs are appended to those of all pages, in ``runs/`` beside it, under the name of the
    reproduction; a run that is there already is replaced, and so are rounds of a clock.
    """
    make_folder(folder)
    published = [file for file in files if file.name != _RUNS]
    path = folder.parent / RUNS_FOLDER / f"{folder.name.rpartition('-')[0] or folder.name}.csv"
    for file in published:
        content = read_bytes(file, inside=file.parent)
        if file.name == _PAGE:
            links = f"]({_RUNS})".encode(), f"](../{RUNS_FOLDER}/{path.name})".encode()
            content = content.replace(*links)
        write_atomically(folder / file.name, content)
    _leave_only(published, folder)
    for file in files:
        if file.name == _RUNS:
            make_folder(path.parent)
            older = Runs.read(path) if path.is_file() else Runs(())
            write_atomically(path, older.with_newer(Runs.read(file)).csv())


def _leave_only(files: Sequence[Path], folder: Path) -> None:
    """Take away tables of an older page that had more of them."""
    names = {file.name for file in files}
    for path in (*folder.glob("table-*.csv"), folder / CLAIMS, folder / _RUNS):
        if path.name not in names:
            remove(path, inside=folder)


def page(
    name: str,
    what: type[Reproduction],
    setting: Setting,
    findings: Findings,
    outcome: Sequence[str],
    facts: Sequence[str],
) -> list[str]:
    """Published and ours, with everything ours depends on; the claims come behind it.

    Args:
        name, what, setting, findings: of the page.
        outcome: the lines it begins with.
        facts: times, the machine and versions, a line each.
    """
    command = f"linrnn reproduce {name} --scale {setting.scale} --seeds {len(setting.seeds)}"
    lines = [f"# {name}: {what.summary}", "", *outcome, f"Source: {what.source}", ""]
    lines += [f"- command: `{command}`", f"- scale {setting.scale}: {what.scales[setting.scale]}"]
    lines += [*(f"- {fact}" for fact in facts), ""]
    lines += ["## Published", ""]
    for table in what.published:
        lines += [*table.markdown(), ""]
    lines += ["## Ours", ""]
    for table in findings.tables:
        lines += [*table.markdown(), ""]
    lines += [f"**What can be compared:** {findings.comparable}", ""]
    for stem, figure in findings.figures.items():
        lines += [f"![{stem}]({stem}.svg)", ""]
        lines += [f"[its numbers]({stem}.{PLOT_ENDINGS[-1]})", ""] if drawn(figure) else []
    lines += [line for file in findings.files for line in (f"[{file}]({file})", "")]
    lines += [f"- {_from_here(note, setting.out)}" for note in findings.notes]
    return [*lines, "", "## Verdicts", ""]


def judge(what: type[Reproduction], setting: Setting, findings: Findings) -> list[Verdict]:
    """Judge the claims of a page."""
    return verdicts(findings.verdicts, what.seeds_needed(setting.scale))


def _from_here(note: str, out: Path) -> str:
    """A note whose paths begin at the folder of the page: errors name the folder of their run."""
    for folder in (str(out.resolve()), str(out)):
        note = note.replace(folder + os.sep, "")
    return note


def verdict_table(what: type[Reproduction], setting: Setting, findings: Findings) -> Table:
    """The claims that end a page, each with what the seeds say of it."""
    rows = [verdict.cells() for verdict in judge(what, setting, findings)]
    return Table("Claim by claim", HEAD, rows)


def _when() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def _time(runs: Runs, seconds: float) -> str:
    """The time of the command, and the training time of its runs if some had finished before."""
    trained = sum(run.seconds for run in runs.rows if run.seconds == run.seconds)
    if not trained:
        return f"{seconds:.0f} s"
    text = f"{sum(run.steps > 0 for run in runs.rows)} runs, {trained:.0f} s of training"
    if trained > seconds:
        return f"{text}, some of them by an earlier command; this one took {seconds:.0f} s"
    return f"{text}; the command took {seconds:.0f} s"


def _device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
