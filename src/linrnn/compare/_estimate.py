"""How long runs will take, before they begin."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from linrnn._pattern import import_all
from linrnn.compare._runs import Entry, finished, folder_of
from linrnn.errors import LinrnnError
from linrnn.learn import build as build_learner
from linrnn.learn._base import Loop
from linrnn.train import Config
from linrnn.train._data import train_loader, unpack
from linrnn.train._model import build_model, build_task
from linrnn.train._module import TrainingModule

SECONDS = 1.0
"""For which steps of a configuration are timed."""
MOST = 4
"""Configurations that are timed; the others are taken to need as long as these."""


def expected_seconds(entries: Sequence[Entry], seeds: Sequence[int], out: Path) -> float | None:
    """About how long the runs that are not finished will take, one after the other.

    A run takes as long as others of its entry did that are finished; of up to four entries without
    one some steps are timed, as those of a training, without validation and tests.

    Returns:
        Seconds; None where nothing could be timed, which the runs will explain.
    """
    usual: dict[str, float] = {}
    waiting: list[Entry] = []
    for entry in entries:
        found = [finished(folder_of(out, entry, seed)) for seed in seeds]
        done = [result.seconds for result in found if result is not None]
        if done:
            usual[entry.label] = statistics.fmean(done)
        waiting += [entry] * found.count(None)
    each = {entry.label: entry for entry in waiting if entry.label not in usual}
    unknown = list(each.values())
    for entry in unknown[:: max(1, -(-len(unknown) // MOST))]:
        try:
            usual[entry.label] = trial(entry.config)
        except (LinrnnError, RuntimeError, MemoryError):
            continue
    if not usual:
        return None
    otherwise = statistics.fmean(usual.values())
    return sum(usual.get(entry.label, otherwise) for entry in waiting)


def trial(config: Config) -> float:
    """Seconds that the steps of a run take, as far as a few of them tell."""
    import_all(config.mixer)
    task = build_task(config)
    loader = train_loader(task.datasets().train, config.train.batch_size, config.seed, 0)
    learner = build_learner(config.learner, config.learner_options)
    module = TrainingModule(build_model(config, task), task.loss, learner=learner).train()
    batch, count, start = unpack(next(iter(loader))), 0, 0.0
    while count < 3 or time.perf_counter() - start < SECONDS:
        module.zero_grad(set_to_none=True)
        module.learner.step(module.called(), batch, None, Loop(module.loss))
        count += 1
        if count == 1:  # the first one allocates
            start = time.perf_counter()
    per_step = (time.perf_counter() - start) / (count - 1)
    return per_step * len(loader) * config.train.epochs
