"""Train every mixer with every seed, and put the results side by side."""

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linrnn._door import check_folder, read_bytes
from linrnn._pattern import import_all
from linrnn._storage import MAX_JSON, exclusive, remove, write_atomically
from linrnn.compare._match import count_parameters, match_parameters
from linrnn.compare._process import train_in_process
from linrnn.compare._report import write_report
from linrnn.compare._usage import read_memory
from linrnn.errors import ArgumentError, RunFolderError
from linrnn.train import Config, Result
from linrnn.train._folder import RunFolder
from linrnn.train._model import build_task

FAILURE = "failure.txt"
_LOCK = ".compare.lock"

PATIENCE = 60.0
"""Seconds to wait for a process that still trains into the folder of a run."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a comparison: a name and everything its runs depend on but the seed."""

    label: str
    """Unique; names the row and the folders."""
    config: Config
    """Of its runs; the seed is replaced."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The results of an entry over the seeds."""

    label: str
    metric: str
    values: tuple[float, ...]
    """Test metric of each seed that finished."""
    failures: tuple[str, ...]
    """Why the others did not."""
    n_parameters: int
    n_state: int
    """Floats of recurrent state a sequence needs. Both are 0 if no seed finished."""
    seconds_per_step: float
    """Of training, validation included; median over the seeds. NaN if none finished."""
    memory: int | None
    """Bytes that training added to the process's peak, the largest over the seeds."""
    folders: tuple[Path, ...]

    @property
    def mean(self) -> float:
        """Mean test metric."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; NaN for fewer than two seeds."""
        if len(self.values) < 2:
            return math.nan
        return statistics.stdev(self.values) / math.sqrt(len(self.values))


def compare(
    entries: Sequence[Entry],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    out: Path | str,
    match: bool = False,
    say: Callable[[str], Any] = lambda line: None,
) -> list[Row]:
    """Train all entries with all seeds, report, and return a row for each entry.

    Runs that are finished in ``out`` are kept, interrupted ones continued, so the same call
    after an interruption ends with the same table. One that failed is a result, and is tried again
    when the call is repeated: whether it ran out of memory or was killed is not to be seen.

    Args:
        entries: what to compare, all on the same task.
        seeds: each entry is trained once with each.
        out: folder for the runs, ``compare.md``, ``compare.csv`` and the plots; where entries
            differ in the number of layers alone, one is of the metric against depth.
        match: change the widths so that all have the parameters of the first, within 3 %.
        say: told one line for each run.

    Raises:
        ArgumentError: no entries, labels that repeat, different tasks, no seeds, or no width
            that matches.
        RunFolderError: ``out`` holds runs of another comparison, or another process is at it.
        InterruptedRunError: stopped by Ctrl-C; call again to go on.
    """
    _check(entries, seeds)
    for entry in entries:
        import_all(entry.config.mixer)
    if match:
        target = count_parameters(entries[0].config)
        rest = [replace(e, config=match_parameters(e.config, target)) for e in entries[1:]]
        entries = [entries[0], *rest]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        for seed in seeds:  # seed by seed: what can be compared early is finished early
            for entry in entries:
                say(_train(entry, seed, folder))
        rows = [_row(entry, seeds, folder) for entry in entries]
        write_report(rows, build_task(entries[0].config), [e.config for e in entries], folder)
    return rows


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with ExitStack() as held:
        try:
            held.enter_context(exclusive(folder / _LOCK))
        except BlockingIOError as error:
            raise RunFolderError(
                f"{folder}: a comparison must be made by one process at a time, got a second one. "
                "Wait for the first, or stop it."
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"{folder / _LOCK}: the lock must be a file that can be made, got: "
                f"{error.strerror or error}. Remove it, or choose another --out."
            ) from error
        yield


def _check(entries: Sequence[Entry], seeds: Sequence[int]) -> None:
    labels = [e.label for e in entries]
    tasks = sorted({e.config.task for e in entries})
    if not entries or len(set(labels)) < len(labels):
        raise ArgumentError(f"compare: entries must have labels of their own, got {labels}.")
    if len(tasks) > 1:
        raise ArgumentError(f"compare: entries must share one task, got {', '.join(tasks)}.")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ArgumentError(f"compare: seeds must be one or more different, got {list(seeds)}.")


def _folder(out: Path, label: str, seed: int) -> Path:
    safe = "".join(c if c.isalnum() or c in "-_.=" else "_" for c in label)
    return out / f"{safe}-seed{seed}"


def _train(entry: Entry, seed: int, out: Path) -> str:
    """Bring one run to its end, if it is not there yet, and say how it ended."""
    folder, config = _folder(out, entry.label, seed), replace(entry.config, seed=seed)
    _check_inside(folder, out)
    name = f"{entry.label} seed {seed}"
    _check_same(folder, config)
    done = _finished(folder)
    if done is not None:
        return _ending(name, done)
    failure, again = folder / FAILURE, ""
    if os.path.lexists(failure):
        again = f" (tried again; before: {_words(failure)})"
        remove(failure, inside=out)
    # where a comparison was killed, its last run may not have noticed yet
    RunFolder(folder).wait_until_free(PATIENCE)
    error = train_in_process(folder, config)
    done = _finished(folder)
    if done is None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(failure, f"{error or 'it left no result'}\n".encode(), inside=out)
        return f"{name}: failed: {_words(failure)}{again}"
    return f"{_ending(name, done)}{again}"


def _ending(name: str, done: Result) -> str:
    return f"{name}: test {done.metric} {done.test_metric:.4g}"


def _words(failure: Path) -> str:
    try:
        data = read_bytes(failure, inside=failure.parent, limit=MAX_JSON)
    except OSError as error:
        raise RunFolderError(
            f"{failure}: the file must be one that can be read, got {error}. Remove it."
        ) from error
    return data.decode(errors="replace").strip()


def _finished(folder: Path) -> Result | None:
    return RunFolder(folder).read_result()


def _check_inside(folder: Path, out: Path) -> None:
    """Raise if a run would be written elsewhere than below the comparison's folder."""
    try:
        check_folder(folder, inside=out)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: the run must lie in the folder of the comparison, got: "
            f"{error.strerror or error}. Remove it, or choose another --out."
        ) from error


def _check_same(folder: Path, config: Config) -> None:
    if not (folder / "config.json").is_file():
        return
    found = RunFolder(folder).load_config()
    # the number of threads is written down when a run starts
    wanted = replace(config, train=replace(config.train, threads=found.train.threads))
    if found != wanted:
        raise RunFolderError(
            f"{folder}: the run must be of this comparison, got one with other options. "
            "Choose another --out, or remove the folder."
        )


def _row(entry: Entry, seeds: Sequence[int], out: Path) -> Row:
    folders = [_folder(out, entry.label, seed) for seed in seeds]
    done = [result for result in map(_finished, folders) if result is not None]
    failures = [_words(f / FAILURE) for f in folders if os.path.lexists(f / FAILURE)]
    memory = [m for m in map(read_memory, folders) if m is not None]
    steps = [r.seconds / r.steps for r in done]
    config = entry.config
    return Row(
        label=entry.label,
        metric=done[0].metric if done else build_task(config).metric,
        values=tuple(r.test_metric for r in done),
        failures=tuple(failures),
        n_parameters=done[0].n_parameters if done else 0,
        n_state=done[0].n_state if done else 0,
        seconds_per_step=statistics.median(steps) if steps else math.nan,
        memory=max(memory, default=None),
        folders=tuple(folders),
    )
