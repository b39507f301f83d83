"""Forecasters of many series, as the command line makes and asks them."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linrnn._options.numbers import counted
from linrnn.cli._line.options import peek
from linrnn.cli._line.output import MANNER, answer, joined, note, plain, row
from linrnn.cli._line.streams import say
from linrnn.cli._verbs.contested import told
from linrnn.errors import ArgumentError, show

if TYPE_CHECKING:
    from linrnn.estimators.panel_run import Answer, PanelResult
    from linrnn.train import Config


def of_many_series(config: "Config") -> bool:
    """Whether the file of a run is a long table, by what is named or by its columns."""
    from linrnn.estimators.panel_run import is_long

    options: Any = config.task_options
    if options.id or not options.data:
        return bool(options.id)
    return not options.columns and is_long(Path(options.data).expanduser())


def train_panel(config: "Config", out: Path | None, args: Sequence[str]) -> int:
    """Fit to a long table, and print the contest and what came out."""
    from linrnn.contest import contest_of
    from linrnn.estimators.panel_run import fit
    from linrnn.train.closed import write_contest

    fitted = fit(_options(config, args), out)
    held = contest_of(fitted)
    if held is not None:
        write_contest(fitted.result.folder, held.table())
    if fitted.unread:
        names = ", ".join(fitted.unread)
        note(f"not read: {names:.200}. --task.known, --task.past and --task.static name inputs\n")
    if held is not None:
        note(told(held))
    result = fitted.result
    row(f"{_summary(result)} | {result.seconds:.1f} s of fitting\n")
    entries = None if held is None else [vars(one) for one in held.entries]
    answer(lambda: joined(plain(result), {"contest": plain(entries)}))
    if not MANNER.quiet:
        folder = result.folder
        note(
            f"{folder} holds the forecaster. Next:\n  linrnn eval {folder}\n"
            f"  linrnn predict {folder} FILE\n"
        )
    return 0


def eval_panel(run: Path, data: Path | None) -> int:
    """Judge a run again on its file or another, and print it."""
    from linrnn.estimators.panel_run import evaluate, file_of

    file = file_of(run) if data is None else data.expanduser()
    result, _ = evaluate(run, file)
    row(f"{_summary(result)}\n")
    note(f"tested on the ends of the series in {file}\n")
    answer(lambda: joined(plain(result), {"data": str(file)}))
    return 0


def predictions(run: Path, file: Path) -> tuple[str, dict[str, Any], int]:
    """Forecasts as CSV, as a record for JSON, and how many; notices on standard error."""
    from linrnn.estimators.panel_run import answer_of

    answered = answer_of(run, file)
    for notice in () if MANNER.quiet else notices(answered, file):
        say(f"predict: {notice}")
    table = answered.table
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    rows = [[_cell(cell) for cell in one] for one in table.itertuples(index=False)]
    writer.writerows([f"{c:.6g}" if isinstance(c, float) else c for c in one] for one in rows)
    names = list(table.columns)
    record = {"run": run, "predictions": [dict(zip(names, one, strict=True)) for one in rows]}
    return text.getvalue(), record, len(rows)


def notices(answered: "Answer", file: Path) -> list[str]:
    """Sentences on series and steps that are not in the answer, and why."""
    said = []
    if answered.absent:
        names = ", ".join(show(one) for one in answered.absent)
        said.append(
            f"{len(answered.absent):,} of the fitted series not forecast, since {file} has no rows "
            f"of: {names:.200}"
        )
    if answered.steps < answered.horizon:
        said.append(
            f"{counted(answered.steps, 'step')} of {answered.horizon} forecast, since a series in "
            f"{file} has no more rows of what is known ahead"
        )
    return said


def _cell(cell: Any) -> Any:
    """A time as ISO 8601, a number as Python has it."""
    if hasattr(cell, "isoformat"):
        text: str = cell.isoformat()
        return text.removesuffix("T00:00:00")
    return cell.item() if hasattr(cell, "item") else cell


def _summary(result: "PanelResult") -> str:
    if not result.n_judged:
        return f"{result.n_series:,} series, none long enough to be judged"
    return (
        f"test MASE {result.test_metric:.4g} on {result.n_judged:,} of "
        f"{result.n_series:,} series, {counted(result.horizon, 'step')} ahead | bands of 80 % held "
        f"{100 * result.held:.0f} %"
    )


def _options(config: "Config", args: Sequence[str]) -> Any:
    from linrnn.estimators.panel_run import PanelOptions

    o: Any = config.task_options
    if o.missing == "mask":
        raise ArgumentError(
            "train: --task.missing must be error or ffill for a table of many series, got 'mask'."
        )
    if o.columns:
        raise ArgumentError(
            "train: --task.columns must be left out for a table of many series, got "
            f"{' '.join(o.columns)}. Use --task.value, --task.known and --task.past."
        )
    return PanelOptions(
        data=Path(o.data).expanduser(),
        id=o.id,
        time=o.time,
        value=o.value,
        known=o.known,
        past=o.past,
        static=o.static,
        horizon=o.horizon if peek(args, "--task.horizon") is not None else None,
        season=o.season or None,
        totals=o.totals,
        freq=o.freq or None,
        missing=o.missing,
    )
