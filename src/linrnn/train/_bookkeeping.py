"""After each step or epoch of a run: report, keep the best weights, save, stop if asked."""

import os
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from linrnn._files.storage import link
from linrnn._process.signals import NoStopRequest, StopRequest
from linrnn.errors import InterruptedRunError
from linrnn.train._report import EpochReport, StepReport
from linrnn.train._restored import progress
from linrnn.train._run_module import RunModule
from linrnn.train._together import ALONE, Group
from linrnn.train.checkpoint import save_tensors
from linrnn.train.context import Run
from linrnn.train.metrics import MetricsLog, NoRecords
from linrnn.train.optim import lr_factor


class Bookkeeping(Callback):
    """After each step or epoch: report, keep the best weights, save, and stop if asked.

    Args:
        run: what is trained.
        records: gets a row for each epoch.
        stop: whether the user wants the run to end.
        group: the processes that train, of which the first writes and decides.
    """

    def __init__(
        self,
        run: Run,
        records: MetricsLog | NoRecords,
        stop: StopRequest | NoStopRequest,
        group: Group = ALONE,
    ) -> None:
        self.run, self.folder, self.records, self.stop = run, run.folder, records, stop
        self.group = group
        self._saved_at = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clocks, so that reading data is not counted as training."""
        assert isinstance(pl_module, RunModule)
        if self.group.size > 1:  # in its own handler Lightning would talk to the other processes
            self.stop.renew()
        pl_module.started_at = self._saved_at = time.monotonic()
        if pl_module.guard.on_nan == "rollback":
            self._find_rollback(trainer, pl_module)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Report the step; inside an epoch this is where a run can be cut."""
        module = pl_module
        assert isinstance(module, RunModule)
        mean = module.train_mean.copy()  # of now, whenever the metric is read
        self.run.reporter.stepped(
            StepReport(step=module.done_steps, loss=mean.loss, measure=lambda: mean.metric)
        )
        if module.done_steps % module.epoch_steps == 0:
            return  # validation comes first, then `on_train_epoch_end` saves
        minutes = (time.monotonic() - self._saved_at) / 60
        due = self.stop.requested or minutes > self.run.config.train.checkpoint_minutes
        if self.group.decided(due):
            module.check_weights()
            self._save(trainer)
        self._stop_if_asked(module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the epoch, keep its weights if they are the best, write the checkpoint."""
        module = pl_module
        assert isinstance(module, RunModule)
        module.check_weights()
        row = self._row(module)
        better = self._is_better(module, row.validation_metric, row.validation_loss)
        if better:
            module.best = {
                "metric": row.validation_metric,
                "loss": row.validation_loss,
                "step": module.done_steps,
            }
        module.train_mean = module.new_mean()
        module.guard.epoch_end()
        self.records.append(row)
        # wherever a run is killed in here, `usable_checkpoint` can do what is left to do
        self._save(trainer)
        if better:
            if self.group.first:
                weights = module.model.state_dict()
                save_tensors(weights, self.folder.model, inside=self.folder.path)
            trainer.save_checkpoint(self.folder.best)
        self._keep_for_rollback(module)
        self.run.reporter.epoch_done(row)
        if module.done_steps < module.total_steps:
            self._stop_if_asked(module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put what ``metrics.csv`` holds under the checksum of the checkpoint."""
        checkpoint["metrics"] = self.records.text

    def _row(self, module: RunModule) -> EpochReport:
        # the scheduler has already moved on to the next step
        rate = lr_factor(module.done_steps - 1, module.total_steps, self.run.config.optim)
        return EpochReport(
            epoch=module.done_steps // module.epoch_steps,
            step=module.done_steps,
            train_loss=module.train_mean.loss,
            train_metric=module.train_mean.metric,
            validation_loss=module.validation_mean.loss,
            validation_metric=module.validation_mean.metric,
            lr=self.run.config.optim.lr * rate,
            seconds=round(module.seconds(), 3),
        )

    def _is_better(self, module: RunModule, metric: float, loss: float) -> bool:
        """A better metric, or the same and a smaller loss."""
        if not module.best:
            return True
        sign = 1 if self.run.task.higher_is_better else -1
        return (sign * metric, -loss) > (sign * module.best["metric"], -module.best["loss"])

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self.folder.last)
        self._saved_at = time.monotonic()

    def _find_rollback(self, trainer: Trainer, module: RunModule) -> None:
        """Make sure that the checkpoint of the end of the last epoch is there.

        It is not that of the newest moment: an interruption would be one, and change the run.
        """
        if module.done_steps % module.epoch_steps == 0:
            if module.done_steps == 0:
                self._save(trainer)
            self._keep_for_rollback(module)
        elif self.group.decided(self.group.first and not self._before_this_epoch(module)):
            self._save(trainer)
            self._keep_for_rollback(module)

    def _before_this_epoch(self, module: RunModule) -> bool:
        if not os.path.lexists(self.folder.epoch):
            return False
        step = progress(self.folder.epoch, inside=self.folder.path)[0].step
        begin = module.done_steps - module.done_steps % module.epoch_steps
        return bool(begin <= step <= module.done_steps)

    def _keep_for_rollback(self, module: RunModule) -> None:
        if self.group.first and module.guard.on_nan == "rollback":
            link(self.folder.last, self.folder.epoch, inside=self.folder.path)

    def _stop_if_asked(self, module: RunModule) -> None:
        if self.stop.requested:
            raise InterruptedRunError(
                f"stopped after step {module.done_steps} of {module.total_steps}; the checkpoint "
                f"is written. Continue with: linrnn train --resume {self.folder.path}"
            )
