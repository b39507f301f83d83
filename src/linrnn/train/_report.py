"""Progress of a run as plain records, and the interface of classes that show them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from linrnn._options.schema import AnyFloat


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Data, model and length of a run that is about to start."""

    task: str
    mixer: str
    metric: str
    epochs: int
    steps_per_epoch: int
    start_step: int
    n_train: int
    n_validation: int
    n_test: int
    n_parameters: int
    n_state: int
    """Floats of recurrent state a sequence needs, whatever its length."""
    seed: int
    device: str
    threads: int
    folder: Path
    devices: int = 1

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.epochs * self.steps_per_epoch


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """After one optimiser step: means over the epoch so far."""

    step: int
    loss: float
    measure: Callable[[], float] = field(repr=False)
    """The metric; called when `metric` is first read. Of all predictions so far (`Task.pooled`) it
    takes longer with every step: 15 ms for AUROC at 28,160 examples."""

    @cached_property
    def metric(self) -> float:
        """The metric over the epoch so far."""
        return self.measure()


@dataclass(frozen=True, kw_only=True)
class EpochReport:
    """After one epoch and its validation; a row of ``metrics.csv``."""

    epoch: int
    step: int
    train_loss: AnyFloat
    train_metric: AnyFloat
    validation_loss: AnyFloat
    validation_metric: AnyFloat
    lr: float
    seconds: float
    """Training time since the start of the run, without interruptions."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Metrics, sizes and training time of a finished run."""

    task: str
    mixer: str
    metric: str
    test_metric: AnyFloat
    test_loss: AnyFloat
    validation_metric: AnyFloat
    """The best one: of the weights that were tested and kept."""
    best_step: int
    steps: int
    n_parameters: int
    n_state: int
    """Floats of recurrent state a sequence needs, whatever its length."""
    seconds: float
    """Training time, validation included, without interruptions."""
    folder: Path
    skipped: int = 0
    """Steps left out because a number in them was not finite."""
    rollbacks: int = 0
    """Times the weights went back to those before an epoch, for the same reason."""


class Reporter:
    """Receives the progress of a run; a subclass shows what it wants of it, see `Silent`."""

    def started(self, plan: Plan) -> None:
        """Everything is checked and the folder exists."""

    def stepped(self, report: StepReport) -> None:
        """One optimiser step was done."""

    def noticed(self, text: str) -> None:
        """Something that did not stop the run but should be known, such as a step left out."""

    def epoch_done(self, report: EpochReport) -> None:
        """One epoch was done, validated and saved."""

    def trained(self) -> None:
        """The last step was done; testing and plotting follow."""

    def closed(self) -> None:
        """Nothing more will be told, whether the run ended well or not."""


class Silent(Reporter):
    """Shows nothing."""
