"""How a run looks on the terminal, and in a file of its output."""

import math
import sys
import time
from typing import TYPE_CHECKING, Any

from linrnn import tasks
from linrnn._options.numbers import counted
from linrnn.cli._line.output import MANNER, note
from linrnn.errors import printable
from linrnn.train import EpochReport, Plan, Reporter, Result, Silent, StepReport

if TYPE_CHECKING:
    from linrnn.cli._line.bar import Said


def make_reporter() -> Reporter:
    """A progress bar on a terminal; elsewhere a line for each epoch, and with ``-q`` nothing."""
    if MANNER.quiet:
        return Silent()
    # not among what a program reads
    stream = sys.stderr if MANNER.json else sys.stdout
    return BarReporter() if stream.isatty() else LineReporter()


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
        f"{counted(result.n_parameters, 'parameter')} | "
        f"{counted(result.n_state, 'float')} of state | "
        f"{result.seconds:.1f} s of {'training' if result.steps else 'solving'}"
        + (f" | {counted(result.skipped, 'step')} left out" if result.skipped else "")
        + (f" | {counted(result.rollbacks, 'time')} back" if result.rollbacks else "")
        + (
            f" | perplexity {perplexity(result.test_loss):.4g}"
            if tasks.load(result.task).perplexity
            else ""
        )
    )


def heading(plan: Plan) -> str:
    """The heading of a run: what runs, for how long, and where its results go."""
    where = f"on {plan.device} with {counted(plan.threads, 'thread')}"
    if plan.devices > 1:
        where = f"on {plan.device} in {plan.devices} processes with "
        where += f"{counted(plan.threads, 'thread')} each"
    start = f", from step {plan.start_step:,}" if plan.start_step else ""
    return (
        f"{plan.task} with {plan.mixer}: {counted(plan.n_parameters, 'parameter')}, "
        f"{counted(plan.n_state, 'float')} of state, seed {plan.seed}\n"
        f"{plan.n_train:,} training, {plan.n_validation:,} validation, "
        f"{counted(plan.n_test, 'test sequence')}; {counted(plan.epochs, 'epoch')} of "
        f"{counted(plan.steps_per_epoch, 'step')}, {plan.steps:,} in all{start}, {where}\n"
        f"run folder {plan.folder}; after Ctrl-C continue with "
        f"`linrnn train --resume {plan.folder}`\n"
    )


class LineReporter(Reporter):
    """One plain line for each epoch."""

    def started(self, plan: Plan) -> None:
        """Print the heading."""
        self._plan = plan
        note(heading(plan))

    def noticed(self, text: str) -> None:
        """Print it."""
        note(f"{text}\n")

    def epoch_done(self, report: EpochReport) -> None:
        """Print the epoch."""
        name = self._plan.metric
        left = report.seconds / report.step * (self._plan.steps - report.step)
        note(
            f"epoch {report.epoch}/{self._plan.epochs}  "
            f"train loss {report.train_loss:.4f} {metric_text(name, report.train_metric)}  "
            f"validation loss {report.validation_loss:.4f} "
            f"{metric_text(name, report.validation_metric)}  "
            f"{report.step / report.seconds:.1f} steps/s  {left:.0f} s left\n"
        )

    def trained(self) -> None:
        """Say what takes time now."""
        note("testing and drawing plots\n")


class BarReporter(Reporter):
    """A progress bar with loss, metric, speed and time left, in one line of the terminal.

    A metric of all predictions is computed anew for each text. Texts are at least ten times as far
    apart as it takes to make one, so they cost at most a tenth of the time.
    """

    def __init__(self) -> None:
        self._progress: Any = None
        self._next_text = 0.0

    def started(self, plan: Plan) -> None:
        """Print the heading and draw the bar."""
        from rich.console import Console
        from rich.progress import Progress

        from linrnn.cli._line.bar import line_column

        note(heading(plan))
        self._plan, self._validation = plan, ""
        # not the one of the process, on which another bar, left by an error, may still stand
        console = Console(stderr=MANNER.json)
        self._progress = Progress(line_column(console), console=console)
        self._task = self._progress.add_task(
            "training",
            total=plan.steps,
            completed=plan.start_step,
            said=self._said(plan.start_step, "", ""),
        )
        self._progress.start()

    def stepped(self, report: StepReport) -> None:
        """Move the bar, and say where the run is unless that was said a moment ago."""
        start = time.monotonic()
        if start < self._next_text and report.step < self._plan.steps:
            self._progress.update(self._task, completed=report.step)
            return
        metric = metric_text(self._plan.metric, report.metric)
        said = self._said(report.step - 1, f"loss {report.loss:.4f}", metric)
        self._progress.update(self._task, completed=report.step, said=said)
        self._next_text = start + 10 * (time.monotonic() - start)

    def noticed(self, text: str) -> None:
        """Print it above the bar."""
        if self._progress is None:  # before the run has started
            note(f"{text}\n")
        else:
            self._progress.console.print(printable(text), markup=False, highlight=False)

    def epoch_done(self, report: EpochReport) -> None:
        """Show the newest validation metric."""
        self._validation = metric_text(self._plan.metric, report.validation_metric)
        said = self._progress.tasks[0].fields["said"]
        self._progress.update(self._task, said=said._replace(validation=self._validation))

    def trained(self) -> None:
        """Leave the full bar behind and say what takes time now."""
        self.closed()
        note("testing and drawing plots\n")

    def closed(self) -> None:
        """Leave the bar as it is."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _said(self, step: int, loss: str, metric: str) -> "Said":
        from linrnn.cli._line.bar import Said

        epoch = f"epoch {step // self._plan.steps_per_epoch + 1}/{self._plan.epochs}"
        return Said(epoch=epoch, loss=loss, metric=metric, validation=self._validation)
