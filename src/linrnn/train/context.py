"""One object for the parts of a run and its folder, instead of half a dozen arguments."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from linrnn.backbone import Model, SequenceModel
from linrnn.learn import Learner
from linrnn.tasks import Splits, Task
from linrnn.train._nonfinite import Guard
from linrnn.train._recover import Restart
from linrnn.train._report import Plan, Reporter
from linrnn.train.config import Config
from linrnn.train.data import size_of, steps_per_epoch
from linrnn.train.folder import RunFolder
from linrnn.train.model import load_reader, sizes, with_layers
from linrnn.train.suits import reads_dt


@dataclass(frozen=True, kw_only=True)
class InFolder:
    """A model, the task it answers, and the run folder of both: `Trained`, or a `Run`."""

    config: Config
    task: Task
    model: Model
    folder: RunFolder

    @property
    def layers(self) -> SequenceModel:
        """The model, which must have layers.

        Raises:
            ArgumentError: it is a frozen bank or a linear model.
        """
        return with_layers(self.model, self.folder.path)

    @cached_property
    def reads_dt(self) -> bool:
        """See `linrnn.train.suits.reads_dt`."""
        return reads_dt(self.task, self.model)

    @property
    def label(self) -> str:
        """The run's name in the legend of a figure."""
        return f"{self.config.mixer}, seed {self.config.seed}"


@dataclass(frozen=True, kw_only=True)
class Trained(InFolder):
    """A run that has ended: its best weights, to be used."""


def open_run(run: Path | str) -> Trained:
    """The best weights of a run folder, in evaluation mode.

    Raises:
        RunFolderError: as `load_reader`.
    """
    model, task, config = load_reader(run)
    return Trained(config=config, task=task, model=model, folder=RunFolder(Path(run)))


@dataclass(frozen=True, kw_only=True)
class Run(InFolder):
    """A run that is under way: where it started from, its data, and its reporter."""

    model: SequenceModel
    splits: Splits
    learner: Learner
    start: Restart
    reporter: Reporter

    @cached_property
    def plan(self) -> Plan:
        """Its size; the data are counted once.

        Raises:
            DataError: a split holds no example.
        """
        config, splits = self.config, self.splits
        n_train = size_of(splits.train, "training data")
        n_parameters, n_state = sizes(self.model)
        gpu = config.train.device != "cpu" and torch.cuda.is_available()
        threads = config.train.threads
        assert isinstance(threads, int)  # chosen before a run begins
        return Plan(
            task=config.task,
            mixer=config.mixer,
            metric=self.task.metric,
            epochs=config.train.epochs,
            steps_per_epoch=steps_per_epoch(n_train, config.train.batch_size),
            start_step=self.start.step,
            n_train=n_train,
            n_validation=size_of(splits.validation, "validation data"),
            n_test=size_of(splits.test, "test data"),
            n_parameters=n_parameters,
            n_state=n_state,
            seed=config.seed,
            device="gpu" if gpu else "cpu",
            threads=threads,
            folder=self.folder.path,
            devices=config.train.devices,
        )

    def guard(self) -> Guard:
        """The guard that decides about steps whose numbers are not finite."""
        return Guard(self.config.train.on_nan, self.reporter, self._advice)

    def _advice(self) -> str:
        """Advice for the error about numbers that are not finite."""
        fix = "Correct the data, or lower --optim.lr or --optim.clip in a new run"
        if not os.path.lexists(self.folder.last):
            return f"{fix}, or leave such steps out with --on-nan skip."
        return (
            f"The last checkpoint is as it was. {fix}, or leave such steps out: "
            f"linrnn train --resume {self.folder.path} --on-nan skip"
        )
