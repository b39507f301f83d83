"""How a run looks on the terminal, and in a file of its output."""

import math
import sys
from typing import Any

from linrnn import tasks
from linrnn.train import EpochReport, Plan, Reporter, Result, StepReport


def make_reporter() -> Reporter:
    """A progress bar on a terminal; elsewhere a line for each epoch."""
    return BarReporter() if sys.stdout.isatty() else LineReporter()


def metric_text(name: str, value: float) -> str:
    """A metric and its value: accuracy in per cent.

    Example:
        >>> metric_text("accuracy", 0.98611)
        'accuracy 98.61 %'
    """
    return (
        f"accuracy {value:.2%}".replace("%", " %") if name == "accuracy" else f"{name} {value:.4g}"
    )


def perplexity(loss: float) -> float:
    """The exponential of a loss in nats, infinite where no float holds it.

    Example:
        >>> perplexity(0.0), perplexity(1000.0)
        (1.0, inf)
    """
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def summary(result: Result) -> str:
    """The one line that a run amounts to."""
    return (
        f"test {metric_text(result.metric, result.test_metric)} | "
        f"{result.n_parameters:,} parameters | {result.n_state:,} floats of state | "
        f"{result.seconds:.1f} s of training"
        + (f" | {result.skipped} steps left out" if result.skipped else "")
        + (f" | {result.rollbacks} times back" if result.rollbacks else "")
        + (
            f" | perplexity {perplexity(result.test_loss):.4g}"
            if tasks.load(result.task).perplexity
            else ""
        )
    )


def heading(plan: Plan) -> str:
    """What will run, for how long, and where it goes."""
    where = f"on {plan.device} with {plan.threads} threads"
    if plan.devices > 1:
        where = f"on {plan.device} in {plan.devices} processes with {plan.threads} threads each"
    start = f", from step {plan.start_step:,}" if plan.start_step else ""
    return (
        f"{plan.task} with {plan.mixer}: {plan.n_parameters:,} parameters, "
        f"{plan.n_state:,} floats of state, seed {plan.seed}\n"
        f"{plan.n_train:,} training, {plan.n_validation:,} validation, {plan.n_test:,} test "
        f"sequences; {plan.epochs} epochs of {plan.steps_per_epoch} steps, "
        f"{plan.steps:,} in all{start}, {where}\n"
        f"run folder {plan.folder}; Ctrl-C stops, `linrnn train --resume {plan.folder}` goes on\n"
    )


class LineReporter(Reporter):
    """One plain line for each epoch."""

    def started(self, plan: Plan) -> None:
        """Print the heading."""
        self._plan = plan
        self._write(heading(plan))

    def noticed(self, text: str) -> None:
        """Print it."""
        self._write(f"{text}\n")

    def epoch_done(self, report: EpochReport) -> None:
        """Print the epoch."""
        name = self._plan.metric
        left = report.seconds / report.step * (self._plan.steps - report.step)
        self._write(
            f"epoch {report.epoch}/{self._plan.epochs}  "
            f"train loss {report.train_loss:.4f} {metric_text(name, report.train_metric)}  "
            f"validation loss {report.validation_loss:.4f} "
            f"{metric_text(name, report.validation_metric)}  "
            f"{report.step / report.seconds:.1f} steps/s  {left:.0f} s left\n"
        )

    def trained(self) -> None:
        """Say what takes time now."""
        self._write("testing and drawing plots\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()  # a log file is read while the run goes on


class BarReporter(Reporter):
    """A progress bar with loss, metric, speed and time left."""

    def __init__(self) -> None:
        self._progress: Any = None

    def started(self, plan: Plan) -> None:
        """Print the heading and draw the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        sys.stdout.write(heading(plan))
        sys.stdout.flush()
        self._plan = plan
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/" + str(plan.epochs)),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[training]}"),
            TextColumn("{task.fields[validation]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            # not the one of the process, on which another bar, left by an error, may still stand
            console=Console(),
        )
        self._task = self._progress.add_task(
            "training",
            total=plan.steps,
            completed=plan.start_step,
            epoch=plan.start_step // plan.steps_per_epoch + 1,
            training="",
            validation="",
            speed="",
        )
        self._progress.start()

    def stepped(self, report: StepReport) -> None:
        """Move the bar."""
        speed = self._progress.tasks[0].speed
        self._progress.update(
            self._task,
            completed=report.step,
            epoch=(report.step - 1) // self._plan.steps_per_epoch + 1,
            training=f"loss {report.loss:.4f} {metric_text(self._plan.metric, report.metric)}",
            speed="" if speed is None else f"{speed:.1f} steps/s",
        )

    def noticed(self, text: str) -> None:
        """Print it above the bar."""
        if self._progress is None:  # before the run has started
            sys.stdout.write(f"{text}\n")
        else:
            self._progress.console.print(text, markup=False, highlight=False)

    def epoch_done(self, report: EpochReport) -> None:
        """Show the newest validation metric."""
        value = metric_text(self._plan.metric, report.validation_metric)
        self._progress.update(self._task, validation=f"validation {value}")

    def trained(self) -> None:
        """Leave the full bar behind and say what takes time now."""
        self.closed()
        sys.stdout.write("testing and drawing plots\n")
        sys.stdout.flush()

    def closed(self) -> None:
        """Leave the bar as it is."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
