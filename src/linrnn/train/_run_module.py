"""The module of a run: its data in a fixed order, its counters, going back an epoch."""

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from linrnn.compute.finite import first_bad
from linrnn.learn import Batch, unpack
from linrnn.state import flatten, leaves, map_state
from linrnn.train._means import Mean
from linrnn.train._module import TrainingModule
from linrnn.train._nonfinite import bad_state
from linrnn.train._restored import Expected, restore_point
from linrnn.train._shares import own_rows, share_of, split_seed
from linrnn.train._together import ALONE, Group, NeverUsed
from linrnn.train.context import Run
from linrnn.train.data import eval_loader, train_loader
from linrnn.train.model import check_weights
from linrnn.train.optim import make_optimizer
from linrnn.train.seeding import derive, generator


class RunModule(TrainingModule):
    """A `TrainingModule` whose data, randomness and counters are those of a run.

    Lightning's restored loop counters are not used: their meaning depends on the hook a checkpoint
    was written in. Here the order of the data, dropout and augmentation follow from ``(seed,
    step)``, an epoch cut short is continued as a shorter one, and the step is all there is to know.

    One of several processes reads its share of each batch; losses, means, faults and checkpoints
    are those of whole batches, on all of them.
    """

    def __init__(self, run: Run, group: Group = ALONE) -> None:
        train = run.config.train
        super().__init__(
            run.model,
            run.task.loss,
            learner=run.learner,
            optim=run.config.optim,
            scores=run.task.scores,
            carry_state=train.carry_state,
        )
        self.run, self.guard, self.group = run, run.guard(), group
        self._own_rows = 0  # of the batch at hand
        self._decoded: Tensor | None = None  # scores of the validation batch at hand
        self.never_used = NeverUsed() if group.size > 1 else None
        self.epoch_steps, self.total_steps = run.plan.steps_per_epoch, run.plan.steps
        self.seconds_before = 0.0
        self.started_at = time.monotonic()
        self.train_mean, self.validation_mean = self.new_mean(), self.new_mean()
        self.best: dict[str, float] = {}

    def new_mean(self) -> Mean:
        """Loss and metric of no batch yet."""
        task = self.run.task
        return Mean(measure=task.contributions if task.pooled else None)

    def seconds(self) -> float:
        """Training time so far, that before an interruption included."""
        return self.seconds_before + time.monotonic() - self.started_at

    def all_steps(self) -> int:
        """Steps of the whole run, whatever is left of it."""
        return self.total_steps

    def expected(self) -> Expected:
        """Collect what a checkpoint of this run must agree with."""
        return Expected(
            self.state_dict(),
            make_optimizer(self.run.model, self.run.config.optim),
            self.total_steps,
            flatten(self.run.model.init_state(1)),
            copy.deepcopy(self.learner),
        )

    def train_dataloader(self) -> DataLoader[Any]:
        """The rest of the epoch; Lightning asks anew for each."""
        train = self.run.config.train
        return train_loader(
            self.run.splits.train,
            train.batch_size,
            self.run.config.seed,
            self.done_steps,
            contiguous=train.order == "contiguous",
        )

    def val_dataloader(self) -> DataLoader[Any]:
        """The validation data in order."""
        splits, rows = self.run.splits, self.run.config.train.batch_size
        return eval_loader(splits.validation, rows, contiguous=self.carry_state)

    def prepare(self, batch: Batch) -> Batch:
        """Augmented, with the generators at the seeds of this step."""
        seed, step = self.run.config.seed, self.done_steps
        torch.manual_seed(derive(seed, split_seed("dropout", self.group), step))
        varied = self.run.task.augment(batch.x, generator(seed, "augment", step))
        return self.share(batch._replace(x=varied))

    def share(self, batch: Batch) -> Batch:
        """The rows that this process reads, all of them where it is alone."""
        share = share_of(batch, self.group)
        self.weight, self._own_rows = share.weight, share.rows
        return share.batch

    @property
    def rows_stay(self) -> bool:
        """Rows are dealt out in the same way in every batch."""
        return True

    def rows_begin(self, batch_idx: int) -> bool:
        """At the first step of an epoch, which after an interruption is not the first batch."""
        return self.done_steps % self.epoch_steps == 0

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Count one batch into the means, by what the model writes if the task decodes."""
        if self.run.task.decodes:
            own = self.share(unpack(batch))
            self._decoded = self.run.task.decoded_scores(self.model, own.x, own.target)
        super().validation_step(batch, batch_idx)

    def observe(self, stage: str, loss: float, y: Tensor, target: Tensor) -> None:
        """Count a batch into the means of the epoch, or collect its scores for a pooled metric."""
        mean = self.train_mean if stage == "train" else self.validation_mean
        scores, self._decoded = self._decoded, None
        scores = self.run.task.scores(y, target) if scores is None else scores
        scores = scores[: self._own_rows].double()
        if self.run.task.pooled:
            mean.collect(self.group.in_order(scores.cpu()))
        total = 0.0 if self.run.task.pooled else scores.sum().item()
        share = loss * self.weight / self.group.size
        mean.add(*self.group.sums(share, total, self._own_rows))

    def place(self, step: int) -> str:
        """A step, and the number of all steps."""
        return f"step {step} of {self.total_steps}"

    def learn_from(self, batch: Sequence[Tensor], batch_idx: int = 0) -> Tensor | None:
        """Note the means before the step, which may be left out."""
        self._mean_before = self.train_mean.copy()
        loss = super().learn_from(batch, batch_idx)
        if not self._own_rows:
            self.carried = None
        return loss

    def undo(self) -> None:
        """Go back to what was before this step, or before this epoch."""
        self.train_mean = self._mean_before
        if self.guard.on_nan == "rollback":
            self._roll_back()
        else:
            super().undo()

    def _roll_back(self) -> None:
        """Weights and optimiser as they were before this epoch; step and data go on from here."""
        folder = self.run.folder
        checkpoint = restore_point(folder.epoch, self.expected(), inside=folder.path)
        check_weights(self, checkpoint["state_dict"], folder.epoch)
        self.load_state_dict(checkpoint["state_dict"])
        optimizer = self.optimizer_in_use()
        groups = optimizer.state_dict()["param_groups"]  # the learning rate is that of this step
        state = checkpoint["optimizer_states"][0]["state"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.learner.load_state_dict(checkpoint["run"]["learner"])
        self.carried = None  # it came from the weights that are given up

    def check_weights(self) -> None:
        """Raise unless everything a checkpoint would hold is finite.

        Raises:
            NonFiniteError: weights, their running statistics, the optimiser's means, the carried
                state or what the learner remembers are not.
        """
        moments = (
            (f"the optimiser's {key} of {name}", x)
            for name, p in self.model.named_parameters()
            for key, x in self.optimizer_in_use().state.get(p, {}).items()
            if isinstance(x, Tensor)
        )
        bad = first_bad([*self._named_parameters(), *moments])
        states = {
            "the running statistics": [buffer for _, buffer in self.model.named_buffers()],
            "the state": [] if self.carried is None else self.carried,
            "what the learner remembers": dict(self.learner.state_dict()),
        }
        for name, state in states.items():
            bad = bad or bad_state(name, state)
        if bad:
            raise self.guard.stop(
                "what a checkpoint keeps must be finite, got other numbers after "
                f"{self.place(self.done_steps)}: {bad}"
            )

    def on_validation_epoch_start(self) -> None:
        """Start the means anew, and every row without a past."""
        super().on_validation_epoch_start()
        self.validation_mean = self.new_mean()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Replace Lightning's counters by ours."""
        del checkpoint["loops"]
        checkpoint["run"] = self.progress() | {
            "carried": self._carried_by_all(),
            "seconds": self.seconds(),
            "best": dict(self.best),
            "train_mean": self.train_mean.values,
        }
        if self.train_mean.scores:
            checkpoint["run"]["train_scores"] = torch.cat(self.train_mean.scores)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue from a checkpoint's counters, once its weights were found to be of this run.

        Raises:
            RunFolderError: they are of other names, shapes or kinds, or not finite.
        """
        check_weights(self, checkpoint["state_dict"], self.trainer.ckpt_path)
        run = checkpoint["run"]
        self.seconds_before, self.best = run["seconds"], run["best"]
        scores = run.get("train_scores")
        collected = [] if scores is None else [scores]
        self.train_mean = Mean(run["train_mean"], self.train_mean.measure, collected)
        self.go_on(run)
        if self.carried is not None:
            carried = map_state(lambda h: own_rows(h, self.group), self.carried)
            self.carried = carried if len(leaves(carried)[0]) else None

    def _carried_by_all(self) -> dict[str, Tensor] | None:
        if self.group.size == 1 or not self.carry_state:
            return None if self.carried is None else flatten(self.carried)
        flat = {} if self.carried is None else flatten(self.carried)
        return self.group.rows(flat) or None
