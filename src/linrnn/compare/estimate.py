"""How long runs will take, before they begin."""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from linrnn.backbone.pattern import import_all
from linrnn.compare._runs import AROUND, Entry, finished, folder_of
from linrnn.errors import LinrnnError
from linrnn.learn import Loop, read
from linrnn.learn import build as build_learner
from linrnn.train import Config, TrainingModule
from linrnn.train.data import eval_loader, train_loader, unpack
from linrnn.train.model import build_model, build_task

SECONDS = 1.0
"""For which steps of a configuration are timed, and a quarter of it for those of validation."""
MAX_TIMED = 4
"""Configurations that are timed; the others are taken to need as long as these."""


def expected_seconds(entries: Sequence[Entry], seeds: Sequence[int], out: Path) -> float | None:
    """About how long the runs that are not finished will take, one after the other.

    A run takes as long as others of its entry did that are finished; of up to four entries without
    one some steps are timed, of training and of validation. To start a process, to test and to
    draw plots takes `AROUND` more for each run.

    Returns:
        Seconds; None where nothing could be timed, which the runs will explain.
    """
    usual: dict[str, float] = {}
    waiting: list[Entry] = []
    for entry in entries:
        results = [finished(folder_of(out, entry, seed)) for seed in seeds]
        done = [result.seconds for result in results if result is not None]
        if done:
            usual[entry.label] = AROUND + statistics.fmean(done)
        waiting += [entry] * results.count(None)
    each = {entry.label: entry for entry in waiting if entry.label not in usual}
    unknown = list(each.values())
    for entry in unknown[:: max(1, -(-len(unknown) // MAX_TIMED))]:
        try:
            usual[entry.label] = AROUND + trial(entry.config)
        except (LinrnnError, RuntimeError, MemoryError):
            continue
    if not usual:
        return None
    otherwise = statistics.fmean(usual.values())
    return sum(usual.get(entry.label, otherwise) for entry in waiting)


def trial(config: Config) -> float:
    """Seconds that a run trains and validates, as far as a few of its steps tell."""
    import_all(config.mixer)
    task, size = build_task(config), config.train.batch_size
    data = task.datasets()
    training = train_loader(data.train, size, config.seed, 0)
    validation = eval_loader(data.validation, size)
    learner = build_learner(config.learner, config.learner_options)
    module = TrainingModule(build_model(config, task), task.loss, learner=learner)

    def train() -> None:
        module.zero_grad(set_to_none=True)
        module.learner.step(module.called(), batch, None, Loop(module.loss))

    @torch.no_grad()
    def validate() -> None:
        y, _ = read(module.called(), batch, None)
        module.loss(y, batch.target)

    batch = unpack(next(iter(training)))
    module.train()
    epoch = _seconds_each(train, SECONDS) * len(training)
    batch = unpack(next(iter(validation)))
    module.eval()
    epoch += _seconds_each(validate, SECONDS / 4) * len(validation)
    return epoch * config.train.epochs


def _seconds_each(call: Callable[[], None], seconds: float) -> float:
    """The mean time of a call, of at least two that fill ``seconds`` seconds."""
    call()  # the first one allocates
    count, start = 0, time.perf_counter()
    while count < 2 or time.perf_counter() - start < seconds:
        call()
        count += 1
    return (time.perf_counter() - start) / count
