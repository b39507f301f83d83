"""The page a reproduction leaves."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import torch

from linrnn import __version__
from linrnn._files.door import make_folder, read_bytes
from linrnn._files.storage import remove, report_in
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.every_run import every_run, finished
from linrnn.reproductions._page.verdict import rule
from linrnn.train import Result
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
    runs = finished(setting.out)
    tables = {f"table-{i}.csv": table for i, table in enumerate(findings.tables, 1)}
    if findings.verdicts:
        tables["verdicts.csv"] = verdict_table(what, setting, findings)
    if runs:
        tables[_RUNS] = every_run(runs, setting.out)
    lines = page(name, what, setting, findings, runs, seconds)
    plots = [f"{stem}.{ending}" for stem in findings.figures for ending in PLOT_ENDINGS]
    with report_in(setting.out, [_PAGE, *tables, *plots, *findings.files]):
        files = _written(lines, tables, findings, setting.out)
        _leave_only(files, setting.out)
    return files


def _written(
    lines: Sequence[str], tables: Mapping[str, Table], findings: Findings, out: Path
) -> list[Path]:
    """The files of a report, the page first."""
    files = [out / _PAGE]
    write_atomically(files[0], ("\n".join(lines) + "\n").encode())
    for file, table in tables.items():
        rows = [",".join(map(_cell, row)) for row in (table.head, *table.rows)]
        files.append(out / file)
        write_atomically(files[-1], ("\n".join(rows) + "\n").encode())
    for stem, figure in findings.figures.items():
        files += save(figure, out / stem)[1:]  # no page shows the PNG
    for file, content in findings.files.items():
        write_atomically(out / file, content)
        files.append(out / file)
    return files


def publish(files: Sequence[Path], folder: Path) -> None:
    """Copy a report to where finished ones are kept, over an older one."""
    make_folder(folder)
    for file in files:
        write_atomically(folder / file.name, read_bytes(file, inside=file.parent))
    _leave_only(files, folder)


def _leave_only(files: Sequence[Path], folder: Path) -> None:
    """Take away tables of an older page that had more of them."""
    names = {file.name for file in files}
    for path in (*folder.glob("table-*.csv"), folder / "verdicts.csv", folder / _RUNS):
        if path.name not in names:
            remove(path, inside=folder)


def page(
    name: str,
    what: type[Reproduction],
    setting: Setting,
    findings: Findings,
    runs: Mapping[Path, Result],
    seconds: float,
) -> list[str]:
    """Published and ours, with everything ours depends on."""
    command = f"linrnn reproduce {name} --scale {setting.scale} --seeds {len(setting.seeds)}"
    lines = [f"# {name}: {what.summary}", "", f"Source: {what.source}", ""]
    lines += [f"- command: `{command}`", f"- scale {setting.scale}: {what.scales[setting.scale]}"]
    lines += [f"- {_when()}; {_device()}; {_time(runs, seconds)}"]
    lines += [f"- linrnn {__version__}{_revision()}, torch {torch.__version__}", ""]
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
    if runs:
        lines += [f"- [every run by itself]({_RUNS}), by seed, those of tuning among them."]
    lines += ["", "## Verdicts", ""]
    lines += verdict_table(what, setting, findings).markdown() if findings.verdicts else [_NO_CLAIM]
    return [*lines, "", f"The rule of verdicts: {rule(what.seeds_needed(setting.scale))}"]


def _from_here(note: str, out: Path) -> str:
    """A note whose paths begin at the folder of the page: errors name the folder of their run."""
    for folder in (str(out.resolve()), str(out)):
        note = note.replace(folder + os.sep, "")
    return note


_NO_CLAIM = "No claim: nothing printed lies apart by its errors, or nothing could be run."


def verdict_table(what: type[Reproduction], setting: Setting, findings: Findings) -> Table:
    """The claims that end a page, each with what the seeds say of it."""
    need = what.seeds_needed(setting.scale)
    head = ["claim", "published", "ours", "verdict"]
    return Table("Claim by claim", head, [judged.cells(need) for judged in findings.verdicts])


def _cell(text: str) -> str:
    return f'"{text}"' if "," in text else text


def _when() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def _time(runs: Mapping[Path, Result], seconds: float) -> str:
    """The time of the command, and the training time of its runs if some had finished before."""
    trained = sum(run.seconds for run in runs.values())
    if not runs:
        return f"{seconds:.0f} s"
    text = f"{len(runs)} runs, {trained:.0f} s of training"
    if trained > seconds:
        return f"{text}, some of them by an earlier command; this one took {seconds:.0f} s"
    return f"{text}; the command took {seconds:.0f} s"


def _device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _revision() -> str:
    """Return the revision of a source checkout, if this is one."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return f" at {process.stdout.strip()}" if process.returncode == 0 else ""
