"""Runs of several configurations with several seeds in one folder, each in a separate process."""

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from linrnn import learn
from linrnn._files.door import check_folder, make_folder, read_bytes
from linrnn._files.storage import MAX_JSON, remove, remove_leftovers, write_atomically
from linrnn._options.declared import declared
from linrnn._options.numbers import duration
from linrnn.compare._process import train_in_process
from linrnn.compare._shared import helpers, in_turn
from linrnn.compare.standard_error import standard_error
from linrnn.compare.usage import read_memory
from linrnn.errors import ArgumentError, RunFolderError
from linrnn.train import Config, Result
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_task
from linrnn.train.precision import TRIED

FAILURE = "failure.txt"

AROUND = 9.5
"""Seconds that a run takes besides training: to start a process, to test and to draw its plots.

Measured 2026-11-27 with `digits` and 2,514 parameters on two cores of an AMD EPYC with AVX-512:
30.2 s for two runs of 0.5 s each, of which the command itself took 10.
"""

PATIENCE = 60.0
"""Seconds to wait for a process that still trains into the folder of a run."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a comparison: a name and everything its runs depend on but the seed."""

    label: str
    """Unique; names the row and the folders."""
    config: Config
    """Configuration of its runs; the seed is replaced."""
    folder: str = ""
    """Names the folders instead of the label."""


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
    """Training time per step, validation included; median over the seeds. NaN if none finished."""
    memory: int | None
    """Bytes that training added to the process's peak, the largest over the seeds."""
    folders: tuple[Path, ...]
    lr: float = math.nan
    """The learning rate."""
    learner: str = "bptt"
    """The learner that computed the gradients, with the options that are not its defaults."""
    validation: tuple[float, ...] = ()
    """Metric on validation data of the weights that were tested, seed by seed as ``values``."""

    @property
    def mean(self) -> float:
        """Mean test metric."""
        return _mean(self.values)

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; NaN for fewer than two seeds."""
        return standard_error(self.values)

    @property
    def validation_mean(self) -> float:
        """Mean metric on validation data."""
        return _mean(self.validation)

    @property
    def validation_standard_error(self) -> float:
        """Standard error of that mean; NaN for fewer than two seeds."""
        return standard_error(self.validation)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def train_all(
    entries: Sequence[Entry],
    seeds: Sequence[int],
    out: Path,
    say: Callable[[str], Any],
    jobs: int = 1,
    failed: Mapping[str, int] | None = None,
) -> list[Row]:
    """Train all entries with all seeds, or go on with that, and return a row for each entry.

    Processes that do so at once share the runs: each trains those that no other is at.

    Args:
        entries, seeds: that `check` took.
        out: folder of the runs.
        say: told one line for each run, with the time that the others will take, and one where all
            that is left is with other processes.
        jobs: how many runs at once, with processes of our own.
        failed: when runs failed that are to be tried again, by the name of the folder; those of a
            helper, which has no folder. None: all that have failed by now.

    Raises:
        RunFolderError: ``out`` holds runs with other options.
        InterruptedRunError: stopped by Ctrl-C; the same call goes on.
    """
    # seed by seed: what can be compared early is finished early
    work = [(entry, seed) for seed in seeds for entry in entries]

    def waiting(n: int) -> None:
        runs = "the last run is" if n == 1 else f"the last {n} runs are"
        say(f"{runs} being trained by other processes")

    took: dict[str, list[float]] = {}
    pending = list(work)
    with ExitStack() as resources:
        if failed is None:
            failed = {f.name: at for job in work if (at := _failed(f := folder_of(out, *job)))}
            resources.enter_context(_helpers(entries, seeds, out, jobs, failed))
        pieces = resources.enter_context(in_turn(work, lambda job: _lock(out, *job), waiting))
        for at, (entry, seed) in enumerate(pieces, 1):
            pending.remove((entry, seed))
            folder, start = folder_of(out, entry, seed), time.monotonic()
            done = finished(folder)
            retry = _failed(folder) == failed.get(folder.name)
            line = _train(entry, seed, out, retry=retry, jobs=jobs)
            # one that was there took its time before
            seconds = time.monotonic() - start if done is None else AROUND + done.seconds
            took.setdefault(entry.label, []).append(seconds)
            left = seconds_left(pending, took, out) / jobs
            remaining = f"; about {duration(left)} left" if left else ""
            say(f"{at}/{len(work)}: {line}{remaining}")
    return [row_of(entry, seeds, out) for entry in entries]


def _helpers(
    entries: Sequence[Entry], seeds: Sequence[int], out: Path, jobs: int, failed: Mapping[str, int]
) -> AbstractContextManager[None]:
    """Starts as many more processes as there are runs for."""
    folders = [folder_of(out, entry, seed) for entry in entries for seed in seeds]
    n_runs = sum(finished(folder) is None for folder in folders)
    request = {"seeds": list(seeds), "out": str(out), "jobs": jobs, "failed": failed}
    request["entries"] = [asdict(entry) for entry in entries]
    return helpers(min(jobs, n_runs) - 1, [entry.config for entry in entries], request)


def seconds_left(
    work: Sequence[tuple[Entry, int]], took: dict[str, list[float]], out: Path
) -> float:
    """Estimate the time of unfinished runs: as long as others of the entry took, or all."""
    everything = [seconds for of_one in took.values() for seconds in of_one]
    usual = {label: statistics.fmean(of_one) for label, of_one in took.items()}
    otherwise = statistics.fmean(everything) if everything else 0.0
    waiting = [entry.label for entry, seed in work if finished(folder_of(out, entry, seed)) is None]
    return sum(usual.get(label, otherwise) for label in waiting)


def check(what: str, entries: Sequence[Entry], seeds: Sequence[int]) -> None:
    """Raise `ArgumentError` unless entries and seeds can be compared."""
    labels = [e.label for e in entries]
    tasks = sorted({e.config.task for e in entries})
    if not entries or len(set(labels)) < len(labels):
        raise ArgumentError(
            f"{what}: entries must have different labels, got {labels}. Name each once."
        )
    if len(tasks) > 1:
        raise ArgumentError(f"{what}: entries must share one task, got {', '.join(tasks)}.")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ArgumentError(f"{what}: seeds must be one or more different, got {list(seeds)}.")


def folder_of(out: Path, entry: Entry, seed: int) -> Path:
    """The run folder of an entry with a seed, in that of the comparison."""
    return out / f"{safe_name(entry.folder or entry.label)}-seed{seed}"


def safe_name(label: str) -> str:
    """A label as part of the name of a folder.

    Example:
        >>> safe_name("LSTM, chrono")
        'LSTM__chrono'
    """
    return "".join(c if c.isalnum() or c in "-_.=" else "_" for c in label)


def _lock(out: Path, entry: Entry, seed: int) -> Path:
    """Held by the process that trains a run: its worker takes the folder's own lock late."""
    return out / f".{folder_of(out, entry, seed).name}.lock"


def _failed(folder: Path) -> int | None:
    """When a run failed, if it did."""
    failure = folder / FAILURE
    return failure.lstat().st_mtime_ns if os.path.lexists(failure) else None


def _train(entry: Entry, seed: int, out: Path, retry: bool, jobs: int) -> str:
    """Bring one run to its end, if it is not there yet, and say how it ended.

    Args:
        entry, seed, out: of the run.
        retry: try it once more if it failed. Not where another process has just done so.
        jobs: how many runs share the processors.
    """
    folder, config = folder_of(out, entry, seed), replace(entry.config, seed=seed)
    _check_inside(folder, out)
    name = f"{entry.label} seed {seed}"
    _check_same(folder, config)
    done = finished(folder)
    if done is not None:
        return _ending(name, done)
    failure, earlier = folder / FAILURE, ""
    if os.path.lexists(failure):
        if not retry:
            return f"{name}: failed: {_words(failure)}"
        earlier = f" (tried again; before: {_words(failure)})"
        remove(failure, inside=out)
    # where a comparison was killed, its last run may not have noticed yet
    RunFolder(folder).wait_until_free(PATIENCE)
    # half of one would be a file of somebody else to the run that begins
    remove_leftovers(failure, inside=out)
    error = train_in_process(folder, config, jobs)
    done = finished(folder)
    if done is None:
        make_folder(folder)
        write_atomically(failure, f"{error or 'it left no result'}\n".encode(), inside=out)
        return f"{name}: failed: {_words(failure)}{earlier}"
    return f"{_ending(name, done)}{earlier}"


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


def finished(folder: Path) -> Result | None:
    """The result of a run that came to its end."""
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
    existing = RunFolder(folder).load_config()
    # the number of threads is written down when a run starts, and so is a precision left open
    train = replace(config.train, threads=existing.train.threads)
    if train.precision == "auto" and existing.train.precision in TRIED:
        train = replace(train, precision=existing.train.precision)
    expected = replace(config, train=train)
    if existing != expected:
        raise RunFolderError(
            f"{folder}: the run must be of this comparison, got one with other options. "
            "Choose another --out, or remove the folder."
        )


def row_of(entry: Entry, seeds: Sequence[int], out: Path) -> Row:
    """The results of an entry so far."""
    folders = [folder_of(out, entry, seed) for seed in seeds]
    results = {folder: finished(folder) for folder in folders}
    done = [result for result in results.values() if result is not None]
    failed = [folder for folder, result in results.items() if result is None]
    failures = [_words(f / FAILURE) for f in failed if os.path.lexists(f / FAILURE)]
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
        lr=config.optim.lr,
        learner=learner_of(config),
        validation=tuple(r.validation_metric for r in done),
    )


def learner_of(config: Config) -> str:
    """The learner of a run in words: its name, and what its options change."""
    usual = {option.name: option.default for option in declared(learn.load(config.learner))}
    changed = {n: v for n, v in config.learner_options.items() if v != usual.get(n)}
    return ":".join([config.learner, *(f"{name}={value}" for name, value in changed.items())])
