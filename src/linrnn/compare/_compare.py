"""Train every mixer with every seed, and put the results side by side."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from linrnn._files.door import make_folder
from linrnn.backbone.pattern import import_all
from linrnn.compare._runs import Entry, Row, check, train_all
from linrnn.compare._shared import check_jobs
from linrnn.compare.match import check_suits, count_parameters, match_parameters
from linrnn.compare.report import write_report
from linrnn.compare.tune import check_factors, tune_rates


def compare(
    entries: Sequence[Entry],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    out: Path | str,
    match: bool = False,
    tune: Sequence[float] = (),
    whose: str = "as given",
    jobs: int = 1,
    say: Callable[[str], Any] = lambda line: None,
) -> list[Row]:
    """Train all entries with all seeds, report, and return a row for each entry.

    Runs that are finished in ``out`` are kept, interrupted ones continued, so the same call
    after an interruption ends with the same table. One that failed is a result, and is tried again
    when the call is repeated: whether it ran out of memory or was killed is not to be seen.
    The same call in several processes shares the runs between them, and each returns all rows.

    Args:
        entries: what to compare, all on the same task.
        seeds: each entry is trained once with each.
        out: folder for the runs, ``compare.md``, ``compare.csv``, ``runs.csv`` with a row
            for every run, and the plots; where entries
            differ in the number of layers alone, one is of the metric against depth.
        match: change the widths so that all have the parameters of the first, within 3 %.
        tune: factors, such as `FACTORS`, by which the learning rate of each entry is tried with the
            first seed; the best on validation data is taken. None are tried where there are none.
            What was tried, and what that took, is in ``compare.md`` and ``tuning.csv``.
        whose: learning rates they are, for the report.
        jobs: how many runs are trained at once, each with its share of the processors.
        say: told one line for each run.

    Raises:
        ArgumentError: no entries, labels that repeat, different tasks, no seeds, no width that
            matches, factors that are not positive, a model that cannot read the data, or several
            jobs on Windows.
        RunFolderError: ``out`` holds runs of another comparison.
        InterruptedRunError: stopped by Ctrl-C; call again to go on.
    """
    check("compare", entries, seeds)
    check_factors(tune)
    check_jobs("compare", jobs)
    for entry in entries:
        import_all(entry.config.mixer)
    if match:
        target = count_parameters(entries[0].config)
        matched = [replace(e, config=match_parameters(e.config, target)) for e in entries[1:]]
        entries = [entries[0], *matched]
    task = check_suits(entries)
    folder = Path(out)
    make_folder(folder)
    search = None
    if tune:
        search = tune_rates(entries, tune, seeds[0], folder, task.higher_is_better, say, jobs)
        entries = search.entries
    rows = train_all(entries, seeds, folder, say, jobs)
    rates = f"learning rate: {whose}" if search is None else search.words()
    write_report(rows, task, [e.config for e in entries], folder, search, rates)
    return rows
