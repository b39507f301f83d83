"""What Lightning gets: a module, a checkpoint format, and bookkeeping after each step."""

import logging
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from linrnn._finite import first_bad
from linrnn._signals import StopRequest
from linrnn._storage import link
from linrnn.backbone import SequenceModel
from linrnn.errors import InterruptedRunError
from linrnn.state import detach, flatten, map_state, unflatten
from linrnn.tasks import Splits, Task
from linrnn.train._checkpoint import save_tensors
from linrnn.train._checkpoint_io import SafetensorsIO
from linrnn.train._config import Config
from linrnn.train._data import eval_loader, size_of, steps_per_epoch, train_loader, unpack
from linrnn.train._folder import RunFolder
from linrnn.train._metrics import MetricsLog
from linrnn.train._model import check_weights
from linrnn.train._nonfinite import Guard, bad_gradient, bad_state, watch
from linrnn.train._optim import lr_factor, make_optimizer
from linrnn.train._outputs import first_rows
from linrnn.train._report import EpochReport, Reporter, StepReport
from linrnn.train._restored import Expected, progress, restore_point
from linrnn.train._seeding import derive, generator
from linrnn.typing import State


class Mean:
    """Running means of loss and metric; goes into checkpoints, so it holds plain numbers."""

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        self.values = dict(values or {"loss": 0.0, "metric": 0.0, "examples": 0.0})

    def add(self, loss: float, scores: Tensor) -> None:
        """Count one batch in, given its mean loss and the score of each example."""
        self.values["loss"] += loss * len(scores)
        self.values["metric"] += scores.double().sum().item()
        self.values["examples"] += len(scores)

    @property
    def loss(self) -> float:
        """Mean over the examples."""
        return self._per_example("loss")

    @property
    def metric(self) -> float:
        """Mean over the examples."""
        return self._per_example("metric")

    def _per_example(self, name: str) -> float:
        examples = self.values["examples"]
        return self.values[name] / examples if examples else math.nan


class Start(NamedTuple):
    """What a step that is left out goes back to."""

    batch: Sequence[Tensor]
    carried: State | None
    mean: dict[str, float]
    buffers: dict[str, Tensor]


class TrainingModule(LightningModule):
    """A model, its task and its optimiser, with a step count of its own.

    Lightning's restored loop counters are not used: their meaning depends on the hook a checkpoint
    was written in. Here the order of the data, dropout and augmentation follow from ``(seed,
    step)``, an epoch cut short is continued as a shorter one, and the step is all there is to know.
    """

    def __init__(
        self,
        model: SequenceModel,
        task: Task,
        splits: Splits,
        config: Config,
        guard: Guard | None = None,
    ) -> None:
        super().__init__()
        self.model, self.task, self.splits, self.config = model, task, splits, config
        self.guard = guard or Guard()
        self.left_out = False  # whether the step at hand is
        self.rollback_to: RunFolder | None = None
        size = size_of(splits.train, "training data")
        self.epoch_steps = steps_per_epoch(size, config.train.batch_size)
        self.total_steps = self.epoch_steps * config.train.epochs
        self.done_steps = 0
        self.seconds_before = 0.0
        self.started_at = time.monotonic()
        self.train_mean, self.validation_mean = Mean(), Mean()
        self.best: dict[str, float] = {}
        self.carried: State | None = None  # of the training rows, before the next step
        self.validation_carried: State | None = None

    def seconds(self) -> float:
        """Training time so far, that before an interruption included."""
        return self.seconds_before + time.monotonic() - self.started_at

    def expected(self) -> Expected:
        """What a checkpoint of this run must agree with."""
        optimizer = make_optimizer(self.model, self.config.optim)
        state = flatten(self.model.init_state(1))
        return Expected(self.state_dict(), optimizer, self.total_steps, state)

    def train_dataloader(self) -> DataLoader[Any]:
        """The rest of the epoch; Lightning asks anew for each."""
        train = self.config.train
        return train_loader(
            self.splits.train,
            train.batch_size,
            self.config.seed,
            self.done_steps,
            contiguous=train.order == "contiguous",
        )

    def val_dataloader(self) -> DataLoader[Any]:
        """The validation data in order."""
        train = self.config.train
        return eval_loader(self.splits.validation, train.batch_size, contiguous=train.carry_state)

    def configure_optimizers(self) -> Any:
        """AdamW and the schedule, which moves at every step."""
        optim = self.config.optim
        optimizer = make_optimizer(self.model, optim)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: lr_factor(step, self.total_steps, optim)
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor | None:
        """The loss of one batch, or None where the step is left out."""
        if self.done_steps % self.epoch_steps == 0:
            self.carried = None  # the rows begin anew
        self._start = self._snapshot(batch)
        y, target, after, loss = self._compute(batch, self.carried)
        value = loss.item()
        if not math.isfinite(value):
            self._leave_out("the loss", str(value), self._first_bad("loss"))
            return None
        if self.config.train.carry_state:
            bad = bad_state("the state", after)
            if bad:
                where = self._first_bad("state") or bad
                self._leave_out("the carried state", "other numbers", where)
                return None
            self.carried = detach(after)
        self.train_mean.add(value, self.task.scores(y.detach(), target))
        return loss

    def _compute(
        self, batch: Sequence[Tensor], carried: State | None
    ) -> tuple[Tensor, Tensor, State, Tensor]:
        """Output, target, state and loss; the same bits whenever it is called for this step."""
        seed, step = self.config.seed, self.done_steps
        torch.manual_seed(derive(seed, "dropout", step))
        x, target, lengths, reset = unpack(batch)
        x = self.task.augment(x, generator(seed, "augment", step))
        y, after = self.model(x, first_rows(carried, len(x)), lengths=lengths, reset=reset)
        return y, target, after, self.task.loss(y, target)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm of all gradients; a norm that is not finite must not reach weights."""
        gradients = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        norm = torch.nn.utils.get_total_norm(gradients.values())
        value = norm.item()
        if not math.isfinite(value):
            where = self._first_bad("gradient")
            found = bad_gradient([(f"the gradient of {n}", g) for n, g in gradients.items()])
            where = f"{where}; {found}" if where else found
            self._leave_out("the norm of the gradient", str(value), where)
            optimizer.zero_grad(set_to_none=True)  # a step without gradients changes nothing
            return
        limit = self.config.optim.clip or math.inf
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)

    def _snapshot(self, batch: Sequence[Tensor]) -> "Start":
        # the running statistics of a norm have moved before a bad loss is seen
        kept = self.model.named_buffers() if self.guard.on_nan == "skip" else ()
        buffers = {name: buffer.clone() for name, buffer in kept}
        return Start(batch, self.carried, dict(self.train_mean.values), buffers)

    def _first_bad(self, of: Literal["loss", "state", "gradient"]) -> str | None:
        """Compute the step once more to find the first tensor that is not finite."""
        batch, carried, *_ = self._start
        x, target, *_ = unpack(batch)
        named = [("the input", x), ("the target", target)]
        bad = first_bad([*named, *self._named_parameters()])
        if bad or (carried is not None and (bad := bad_state("the state before", carried))):
            return bad
        context = self.trainer.precision_plugin.forward_context()
        with torch.enable_grad(), watch(self.model) as found:
            with context:
                loss = self._compute(batch, carried)[-1]
            if of == "gradient" and not found:
                torch.autograd.grad(loss, list(self.model.parameters()), allow_unused=True)
        if found or of != "loss":
            return found[0] if found else None
        if loss.isfinite():
            return "computed once more, it is finite: this is a fault of the machine or its memory"
        return "output and target are finite, their loss is not"

    def _leave_out(self, what: str, value: str, where: str | None) -> None:
        """Undo the step, or raise."""
        step = f"at step {self.done_steps + 1} of {self.total_steps}"
        text = f"{what} must be finite, got {value} {step}"
        text += f": {where}" if where else ""
        self.guard.leave_out(text, first_bad(self._named_parameters()))
        self.left_out = True
        self.train_mean = Mean(self._start.mean)
        if self.guard.on_nan == "rollback":
            self._roll_back()
            return
        self.carried = self._start.carried
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self._start.buffers[name])

    def _roll_back(self) -> None:
        """Weights and optimiser as they were before this epoch; step and data go on from here."""
        assert self.rollback_to is not None
        folder = self.rollback_to
        checkpoint = restore_point(folder.epoch, self.expected(), inside=folder.path)
        check_weights(self, checkpoint["state_dict"], folder.epoch)
        self.load_state_dict(checkpoint["state_dict"])
        optimizer = cast(torch.optim.Optimizer, self.optimizers(use_pl_optimizer=False))
        groups = optimizer.state_dict()["param_groups"]  # the learning rate is that of this step
        state = checkpoint["optimizer_states"][0]["state"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.carried = None  # it came from the weights that are given up

    def _named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return ((f"the parameter {name}", p) for name, p in self.model.named_parameters())

    def check_weights(self) -> None:
        """Raise unless everything a checkpoint would hold is finite.

        Raises:
            NonFiniteError: weights, their running statistics, the optimiser's means or the carried
                state are not.
        """
        optimizer = cast(torch.optim.Optimizer, self.optimizers(use_pl_optimizer=False))
        moments = (
            (f"the optimiser's {key} of {name}", x)
            for name, p in self.model.named_parameters()
            for key, x in optimizer.state.get(p, {}).items()
            if isinstance(x, Tensor)
        )
        buffers = [buffer for _, buffer in self.model.named_buffers()]
        bad = first_bad([*self._named_parameters(), *moments])
        bad = bad or bad_state("the running statistics", buffers)
        if bad or (self.carried is not None and (bad := bad_state("the state", self.carried))):
            raise self.guard.stop(
                f"what a checkpoint keeps must be finite, got other numbers after step "
                f"{self.done_steps} of {self.total_steps}: {bad}"
            )

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Count one batch into the validation means."""
        x, target, lengths, reset = unpack(batch)
        before = first_rows(self.validation_carried, len(x))
        y, after = self.model(x, before, lengths=lengths, reset=reset)
        self.validation_carried = after if self.config.train.carry_state else None
        loss = self.task.loss(y, target).item()
        if not math.isfinite(loss):
            raise self.guard.stop(
                f"the validation loss must be finite, got {loss} in batch {batch_idx + 1} after "
                f"step {self.done_steps} of {self.total_steps}: "
                f"{self._first_bad_in_validation(batch, before)}"
            )
        self.validation_mean.add(loss, self.task.scores(y, target))

    def _first_bad_in_validation(self, batch: Sequence[Tensor], before: State | None) -> str:
        x, target, lengths, reset = unpack(batch)
        named = [("the input", x), ("the target", target), *self._named_parameters()]
        bad = first_bad(named) or bad_state(
            "the running statistics", [buffer for _, buffer in self.model.named_buffers()]
        )
        if bad:
            return bad
        with watch(self.model) as found:
            self.model(x, before, lengths=lengths, reset=reset)
        return found[0] if found else "output and target are finite, their loss is not"

    def on_validation_epoch_start(self) -> None:
        """Start the means anew, and every row without a past."""
        self.validation_mean, self.validation_carried = Mean(), None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put our counters in the place of Lightning's."""
        del checkpoint["loops"]
        checkpoint["run"] = {
            "step": self.done_steps,
            "seconds": self.seconds(),
            "best": dict(self.best),
            "train_mean": self.train_mean.values,
            "carried": None if self.carried is None else flatten(self.carried),
            "not_finite": dict(self.guard.counts),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue from a checkpoint's counters, once its weights were found to be of this run.

        Raises:
            RunFolderError: they are of other names, shapes or kinds, or not finite.
        """
        check_weights(self, checkpoint["state_dict"], self.trainer.ckpt_path)
        run = checkpoint["run"]
        self.done_steps, self.seconds_before = run["step"], run["seconds"]
        self.best, self.train_mean = run["best"], Mean(run["train_mean"])
        self.guard.counts |= run.get("not_finite", {})
        if run.get("carried") is not None:
            stored = unflatten(run["carried"], self.model.init_state(1))
            self.carried = map_state(lambda h: h.to(self.device), stored)


class Bookkeeping(Callback):
    """After each step or epoch: report, keep the best weights, save, and stop if asked."""

    def __init__(
        self, folder: RunFolder, records: MetricsLog, reporter: Reporter, stop: StopRequest
    ) -> None:
        self.folder, self.records, self.reporter, self.stop = folder, records, reporter, stop
        self._saved_at = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clocks, so that reading data is not counted as training."""
        assert isinstance(pl_module, TrainingModule)
        pl_module.started_at = self._saved_at = time.monotonic()
        if pl_module.guard.on_nan == "rollback":
            pl_module.rollback_to = self.folder
            self._find_rollback(trainer, pl_module)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count the step; inside an epoch this is where a run can be cut."""
        module = pl_module
        assert isinstance(module, TrainingModule)
        module.done_steps += 1
        if not module.left_out:
            module.guard.good_step()
        module.left_out = False
        mean = module.train_mean
        self.reporter.stepped(
            StepReport(step=module.done_steps, loss=mean.loss, metric=mean.metric)
        )
        if module.done_steps % module.epoch_steps == 0:
            return  # validation comes first, then `on_train_epoch_end` saves
        minutes = (time.monotonic() - self._saved_at) / 60
        if self.stop.requested or minutes > module.config.train.checkpoint_minutes:
            module.check_weights()
            self._save(trainer)
        self._stop_if_asked(module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the epoch, keep its weights if they are the best, write the checkpoint."""
        module = pl_module
        assert isinstance(module, TrainingModule)
        module.check_weights()
        row = self._row(module)
        better = self._is_better(module, row.validation_metric, row.validation_loss)
        if better:
            module.best = {
                "metric": row.validation_metric,
                "loss": row.validation_loss,
                "step": module.done_steps,
            }
        module.train_mean = Mean()
        module.guard.epoch_end()
        self.records.append(row)
        # wherever a run is killed in here, `usable_checkpoint` can do what is left to do
        self._save(trainer)
        if better:
            weights = module.model.state_dict()
            save_tensors(weights, self.folder.model, inside=self.folder.path)
            trainer.save_checkpoint(self.folder.best)
        self._keep_for_rollback(module)
        self.reporter.epoch_done(row)
        if module.done_steps < module.total_steps:
            self._stop_if_asked(module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put what ``metrics.csv`` holds under the checksum of the checkpoint."""
        checkpoint["metrics"] = self.records.text

    def _row(self, module: TrainingModule) -> EpochReport:
        # the scheduler has already moved on to the next step
        rate = lr_factor(module.done_steps - 1, module.total_steps, module.config.optim)
        return EpochReport(
            epoch=module.done_steps // module.epoch_steps,
            step=module.done_steps,
            train_loss=module.train_mean.loss,
            train_metric=module.train_mean.metric,
            validation_loss=module.validation_mean.loss,
            validation_metric=module.validation_mean.metric,
            lr=module.config.optim.lr * rate,
            seconds=round(module.seconds(), 3),
        )

    def _is_better(self, module: TrainingModule, metric: float, loss: float) -> bool:
        """A better metric, or the same and a smaller loss."""
        if not module.best:
            return True
        sign = 1 if module.task.higher_is_better else -1
        return (sign * metric, -loss) > (sign * module.best["metric"], -module.best["loss"])

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self.folder.last)
        self._saved_at = time.monotonic()

    def _find_rollback(self, trainer: Trainer, module: TrainingModule) -> None:
        """Make sure that the checkpoint of the end of the last epoch is there.

        It is not that of the newest moment: an interruption would be one, and change the run.
        """
        if module.done_steps % module.epoch_steps == 0:
            if module.done_steps == 0:
                self._save(trainer)
            self._keep_for_rollback(module)
        elif not self._before_this_epoch(module):
            self._save(trainer)
            link(self.folder.last, self.folder.epoch, inside=self.folder.path)

    def _before_this_epoch(self, module: TrainingModule) -> bool:
        if not os.path.lexists(self.folder.epoch):
            return False
        step = progress(self.folder.epoch, inside=self.folder.path)[0].step
        begin = module.done_steps - module.done_steps % module.epoch_steps
        return bool(begin <= step <= module.done_steps)

    def _keep_for_rollback(self, module: TrainingModule) -> None:
        if module.guard.on_nan == "rollback":
            link(self.folder.last, self.folder.epoch, inside=self.folder.path)

    def _stop_if_asked(self, module: TrainingModule) -> None:
        if self.stop.requested:
            raise InterruptedRunError(
                f"stopped after step {module.done_steps} of {module.total_steps}; the checkpoint "
                f"is written. Continue with: linrnn train --resume {self.folder.path}"
            )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's banners and hints, which do not concern whoever trains with linrnn."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def make_trainer(
    config: Config, epochs: int, callback: Callback, folder: RunFolder, module: TrainingModule
) -> Trainer:
    """A Lightning trainer that leaves logging, checkpoints and display to ``callback``."""
    return Trainer(
        max_epochs=epochs,
        accelerator=config.train.device,
        devices=1,
        precision=config.train.precision,
        callbacks=[callback],
        plugins=[SafetensorsIO(folder, module.expected)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,
        default_root_dir=folder.path,
    )
