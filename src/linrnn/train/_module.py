"""The module that Lightning trains: gradients come from a learner, guarded against NaN."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from linrnn import learn
from linrnn.compute.finite import first_bad
from linrnn.errors import ArgumentError, MissingExtraError, check_in
from linrnn.learn import Batch, Learner, Loop, Step, read, unpack
from linrnn.mixers import AddedLosses, added_losses
from linrnn.state import detach, flatten, map_state, unflatten
from linrnn.train._nonfinite import Guard, LeftOut, bad_gradient, bad_state, watch
from linrnn.train._outputs import first_rows
from linrnn.train._start import Start
from linrnn.train.config import OptimConfig
from linrnn.train.optim import lr_factor, make_optimizer
from linrnn.typing import State

try:
    from lightning.pytorch import LightningModule
except ImportError as error:
    raise MissingExtraError("training", "lightning", "train") from error

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class TrainingModule(LightningModule):
    """A model, a loss and a learner, for a ``lightning.Trainer`` and loaders of your own.

    A batch is ``(x, target)``, perhaps followed by the lengths of padded rows (integers), by the
    steps at which a new sequence begins (boolean, batch and time), and by the time since the step
    before (real, batch and time); they are told apart by their dtype. Precision, accumulation of
    batches and ``gradient_clip_val`` are the trainer's; its checkpoints hold the carried rows
    and what the learner remembers. It logs ``train_loss`` and ``validation_loss``, and with
    ``scores`` the same names with ``metric``.

    In a trainer of several processes the backward pass is Lightning's, after all that a learner
    did itself: so any strategy sees it, and the gradients of a batch are the strategy's mean over
    the processes. What is not finite on one of them is so on all.

    Args:
        model: called as ``y, state = model(x, state)``, with keywords ``lengths``, ``reset`` and
            ``dt`` where a batch has them; ``init_state(1)`` gives a state of its structure where
            one is carried. `SequenceModel` is one.
        loss: of ``(y, target)``: a scalar, the mean over what is asked.
        learner: a name from `linrnn.learn.names`, or a `Learner`.
        learner_options: of a learner that is given by name.
        optim: settings of AdamW, clipping and the schedule over the trainer's steps; or a function
            that makes an optimiser for the model, which then alone decides.
        scores: of ``(y, target)``, one number for each example; their mean is the metric.
        carry_state: begin each row with the state in which the same row of the batch before
            ended; the first batch of an epoch begins anew. `linrnn.train.ContiguousBatches` makes
            such batches of consecutive examples.
        on_nan: stop when a loss, a gradient or a carried state is not finite; or skip that step,
            at most 10 in a row; of batches that are accumulated, what was added up so far.

    Raises:
        MissingExtraError: Lightning is not installed; noticed where the class is imported.
        UnknownNameError: no such learner, option of it, or ``on_nan``.
        ArgumentError: an option outside its range, a model the learner cannot train, or a trainer
            with float16, that clips by value, or of several processes where a state is carried or
            the learner takes steps inside a batch.
        NonFiniteError: while it trains, names the first tensor that is not finite.

    Example:
        >>> import lightning
        >>> from linrnn import SequenceModel, learn
        >>> x = torch.randn(8, 20, 1)
        >>> data = torch.utils.data.TensorDataset(x, x.cumsum(1))
        >>> model = SequenceModel(1, 1, mixer="mingru", d_model=8, n_layers=1, pool="none")
        >>> module = TrainingModule(model, nn.functional.mse_loss, learner=learn.build("bptt"))
        >>> trainer = lightning.Trainer(max_epochs=1)               # doctest: +SKIP
        >>> trainer.fit(module, torch.utils.data.DataLoader(data))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        learner: str | Learner = "bptt",
        learner_options: Mapping[str, Any] | None = None,
        optim: OptimConfig | MakeOptimizer | None = None,
        scores: Callable[[Tensor, Tensor], Tensor] | None = None,
        carry_state: bool = False,
        on_nan: Literal["stop", "skip"] = "stop",
    ) -> None:
        super().__init__()
        check_in("TrainingModule", "on_nan", on_nan, ("stop", "skip"))
        self.model, self.loss, self.scores, self.carry_state = model, loss, scores, carry_state
        self.optim = OptimConfig() if optim is None else optim
        if isinstance(learner, str):
            learner = learn.build(learner, learner_options)
        learner.check(model)
        self.learner = learner
        self.guard = Guard(on_nan)
        self.done_steps = 0
        self.left_out = False  # whether the step at hand is
        self._added = AddedLosses()  # by layers, in the forward pass at hand
        self._owed: list[Tensor] = []  # losses whose backward pass is Lightning's
        self.weight = 1.0  # of those, where a process reads its share of a batch
        self.carried: State | None = None  # of the training rows, before the next step
        self.validation_carried: State | None = None
        self._default_dtype = torch.get_default_dtype()

    # what a subclass may say otherwise

    def called(self) -> nn.Module:
        """The module that is called for the answer: the model."""
        return self.model

    def prepare(self, batch: Batch) -> Batch:
        """Take of a batch what is learned from; called again where a step is computed once more."""
        return batch

    def share(self, batch: Batch) -> Batch:
        """Take the rows of a validation batch that this process reads."""
        return batch

    @property
    def rows_stay(self) -> bool:
        """Whether the same rows come to the same process in every batch."""
        return not self.together

    def rows_begin(self, batch_idx: int) -> bool:
        """Whether no row of this batch goes on where one before it ended."""
        return batch_idx == 0

    def observe(self, stage: str, loss: float, y: Tensor, target: Tensor) -> None:
        """Note loss and scores of a batch of the stage, ``train`` or ``validation``."""
        self.log(f"{stage}_loss", loss, batch_size=len(target), prog_bar=True)
        if self.scores is not None:
            metric = self.scores(y, target).double().mean()
            self.log(f"{stage}_metric", metric, batch_size=len(target), prog_bar=True)

    def place(self, step: int) -> str:
        """A step, counted from 1, in the words of messages."""
        return f"step {step}"

    # the optimiser

    def on_fit_start(self) -> None:
        """Refuse trainers with which gradients would not be those of the learner."""
        if self.trainer.precision == "16-mixed":
            raise ArgumentError(
                "TrainingModule: the trainer must have a precision other than 16-mixed, got that. "
                "Use 32-true, bf16-mixed or 64-true."
            )
        if self.carry_state and not self.rows_stay:
            raise ArgumentError(
                "TrainingModule: carry_state must be False in a trainer of several processes, "
                "which give the batches of a loader to one after the other, got True and "
                f"{self.trainer.world_size} processes. Use devices=1."
            )
        if self.trainer.gradient_clip_algorithm == "value":
            raise ArgumentError(
                "TrainingModule: gradient_clip_algorithm must be norm, got value. Clip values in "
                "an optimiser of your own."
            )

    @property
    def together(self) -> bool:
        """Whether several processes train."""
        return self._trainer is not None and self.trainer.world_size > 1

    def all_steps(self) -> int:
        """Steps of the optimiser in the whole training.

        Raises:
            ArgumentError: nobody knows, and the schedule has to.
        """
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps) or steps < 0:
            raise ArgumentError(
                "TrainingModule: the number of steps must be known to the schedule of the "
                "learning rate, got data without an end. Give the trainer max_steps, or optim a "
                "function that makes an optimiser."
            )
        return int(steps)

    def configure_optimizers(self) -> Any:
        """AdamW and the schedule, which moves at every step; or what the user's function makes."""
        optim = self.optim
        if not isinstance(optim, OptimConfig):
            return optim(self.model)
        optimizer, total = make_optimizer(self.model, optim), self.all_steps()
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: lr_factor(step, total, optim)
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def optimizer_zero_grad(self, *args: Any) -> None:
        """Nothing: the gradients are there already, and were cleared before."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Backward pass of a learner's loss; the loss that a step returns has no history."""
        if loss.requires_grad:
            super().backward(loss, *args, **kwargs)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Everything of a step from gradients to weights, after which it is counted."""
        super().optimizer_step(*args, **kwargs)
        self.done_steps += 1
        if not self.left_out:
            self.learner.after_update(self.model)
            self.guard.good_step()
        self.left_out = False

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm of all gradients; a norm that is not finite must not reach weights."""
        if self.left_out and self.together:
            optimizer.zero_grad(set_to_none=True)  # of `_zero_loss`; without any, nothing changes
            return
        try:
            self._clip(gradient_clip_val)
        except LeftOut as fault:
            self._leave_out(fault)
            optimizer.zero_grad(set_to_none=True)  # a step without gradients changes nothing

    def _clip(self, limit: float | None = None) -> None:
        gradients = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        norm = torch.nn.utils.get_total_norm(gradients.values())
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of sharded ones
        value = norm.item()
        if not math.isfinite(value):
            fault = bad_gradient([(f"the gradient of {n}", g) for n, g in gradients.items()])
            where = self._first_bad("gradient")
            where = f"{where}; {fault}" if where else fault
            raise LeftOut("the norm of the gradient", str(value), where)
        if limit is None:
            limit = self.optim.clip if isinstance(self.optim, OptimConfig) else 0.0
        nn.utils.clip_grads_with_norm_(self.model.parameters(), limit or math.inf, norm)

    # a step

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor | None:
        """The loss of one batch, or None where the step is left out; the gradients are there."""
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            self.zero_grad(set_to_none=True)
        loss = self.learn_from(batch, batch_idx)
        owed, self._owed = self._owed, []
        if loss is None and self.together:
            return self._zero_loss()
        return loss if loss is None or not owed else torch.stack(owed).sum()

    def _zero_loss(self) -> Tensor:
        """The loss of a step that is left out by several processes, which all have to have one."""
        local = (getattr(p, "to_local", lambda p=p: p)() for p in self.model.parameters())
        return torch.stack([0 * p.abs().sum() for p in local]).sum()

    def learn_from(self, batch: Sequence[Tensor], batch_idx: int = 0) -> Tensor | None:
        """Add the gradients of one batch to ``.grad``: `training_step` without a trainer."""
        if self.rows_begin(batch_idx):
            self.carried = None
        self._start = Start(self, batch)
        try:
            step, target = self._ask(Loop(self._minimised, self._backward, self._update))
            self._check(step)
        except LeftOut as fault:
            self._leave_out(fault)
            self.zero_grad(set_to_none=True)
            return None
        if self.carry_state:
            self.carried = detach(step.state)
        self.observe("train", step.loss.item(), step.y, target)
        return step.loss.detach()

    def _ask(self, loop: Loop) -> tuple[Step, Tensor]:
        """Let the learner compute the step; the same bits whenever it is called for one."""
        batch = self.prepare(unpack(self._start.batch))
        carried = first_rows(self._start.carried, len(batch.x))
        with added_losses() as self._added:
            return self.learner.step(self.called(), batch, carried, loop), batch.target

    def _minimised(self, y: Tensor, target: Tensor) -> Tensor:
        """The loss, with the gradient of those that layers have added to it as well.

        Its value stays that of the task, which is compared with others and with validation.
        """
        loss, more = self.loss(y, target), self._added.take()
        return loss if more is None else loss + (more - more.detach()).to(loss.dtype)

    def _check(self, step: Step) -> None:
        fault = self._of_all(self._fault(step))
        if fault is not None:
            self._owed = []
            raise fault

    def _fault(self, step: Step) -> LeftOut | None:
        value = step.loss.item()
        if not math.isfinite(value):
            return LeftOut("the loss", str(value), self._first_bad("loss"))
        bad = bad_state("the state", step.state) if self.carry_state else None
        if bad:
            return LeftOut("the carried state", "other numbers", self._first_bad("state") or bad)
        return None

    def _of_all(self, fault: LeftOut | None) -> LeftOut | None:
        """The fault of this process, or else of the first of those that train with it."""
        if not self.together or self.trainer.strategy.reduce_boolean_decision(fault is None):
            return fault
        reports: list[Any] = [None] * self.trainer.world_size
        report = None if fault is None else (fault.what, fault.value, fault.where)
        torch.distributed.all_gather_object(reports, report)
        what, value, where = next(one for one in reports if one is not None)
        return LeftOut(what, value, where)

    def _backward(self, loss: Tensor) -> None:
        if self.together:
            self._owed.append(loss * self.weight)
            return
        with self._outside():
            if self._trainer is None:
                loss.backward()
            else:
                parts = self.trainer.accumulate_grad_batches
                self.trainer.strategy.backward(loss / parts if parts > 1 else loss, None)
        self._added.take()  # of layers that a checkpoint has computed once more

    def _update(self) -> None:
        """A step of the optimiser inside a batch."""
        if self.trainer.accumulate_grad_batches > 1 or self.together:
            raise ArgumentError(
                "TrainingModule: accumulate_grad_batches must be 1, and devices too, where the "
                "learner takes steps inside a batch, got "
                f"{self.trainer.accumulate_grad_batches} and {self.trainer.world_size}."
            )
        optimizer = self.optimizer_in_use()
        self._start.keep_weights(self.model, optimizer)
        with self._outside():
            self._clip(self.trainer.gradient_clip_val)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.learner.after_update(self.model)

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """Leaves the autocast and the default dtype that Lightning sets for the forward pass."""
        inside = torch.get_default_dtype()
        torch.set_default_dtype(self._default_dtype)
        try:
            with torch.autocast(self.device.type, enabled=False):
                yield
        finally:
            torch.set_default_dtype(inside)

    # numbers that are not finite

    def _first_bad(self, of: Literal["loss", "state", "gradient"]) -> str | None:
        """Compute the step once more to find the first tensor that is not finite."""
        start = self._start
        x, target, *_ = unpack(start.batch)
        bad = first_bad([("the input", x), ("the target", target), *self._named_parameters()])
        carried = start.carried
        if bad or (carried is not None and (bad := bad_state("the state before", carried))):
            return bad
        if self.together:  # the others would have to compute it once more as well
            return None
        backward = torch.autograd.backward if of == "gradient" else _no_backward
        with start.again(self.learner), torch.enable_grad(), watch(self.model) as faults:
            loss = self._ask(Loop(self._minimised, backward))[0].loss
        if faults or of != "loss":
            return faults[0] if faults else None
        if not loss.isfinite():
            return "output and target are finite, their loss is not"
        if start.weights is not None:
            return "computed once more with the weights of its last window, it is finite"
        return "computed once more, it is finite: this is a fault of the machine or its memory"

    def _leave_out(self, fault: LeftOut) -> None:
        """Undo the step, or raise."""
        where = f": {fault.where}" if fault.where else ""
        step = self.place(self.done_steps + 1)
        text = f"{fault.what} must be finite, got {fault.value} at {step}{where}"
        self.guard.leave_out(text, first_bad(self._named_parameters()))
        self.left_out = True
        self.undo()

    def undo(self) -> None:
        """Go back to what was before the step at hand."""
        self.carried = self._start.carried
        self._start.restore(self)

    def optimizer_in_use(self) -> torch.optim.Optimizer:
        """The plain one, not what Lightning wraps it in."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        return optimizer

    def _named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return ((f"the parameter {name}", p) for name, p in self.model.named_parameters())

    # validation

    def on_validation_epoch_start(self) -> None:
        """Start every row without a past."""
        self.validation_carried = None

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Count one batch into the means."""
        unpacked = self.share(unpack(batch))
        target = unpacked.target
        carried = first_rows(self.validation_carried, len(unpacked.x))
        y, next_carried = read(self.called(), unpacked, carried)
        self.validation_carried = next_carried if self.carry_state else None
        loss, fault = self.loss(y, target).item(), None
        if not math.isfinite(loss):
            where = self._first_bad_in_validation(unpacked, carried)
            fault = LeftOut("the validation loss", str(loss), where)
        fault = self._of_all(fault)
        if fault is not None:
            raise self.guard.stop(
                f"{fault.what} must be finite, got {fault.value} in batch {batch_idx + 1} after "
                f"{self.place(self.done_steps)}: {fault.where}"
            )
        self.observe("validation", loss, y, target)

    def _first_bad_in_validation(self, batch: Batch, carried: State | None) -> str:
        named = [("the input", batch.x), ("the target", batch.target), *self._named_parameters()]
        bad = first_bad(named) or bad_state(
            "the running statistics", [buffer for _, buffer in self.model.named_buffers()]
        )
        if bad:
            return bad
        with watch(self.model) as faults:
            read(self.called(), batch, carried)
        return faults[0] if faults else "output and target are finite, their loss is not"

    # checkpoints

    def progress(self) -> dict[str, Any]:
        """Collect what a checkpoint holds besides weights and optimiser: values and tensors."""
        values = {
            "step": self.done_steps,
            "carried": None if self.carried is None else flatten(self.carried),
            "not_finite": dict(self.guard.counts),
        }
        remembered = self.learner.state_dict()
        return values | ({"learner": dict(remembered)} if remembered else {})

    def go_on(self, run: Mapping[str, Any]) -> None:
        """Continue from what `progress` gave.

        Raises:
            ArgumentError: it is of another model or learner.
        """
        self.done_steps = run["step"]
        self.guard.counts |= run.get("not_finite", {})
        remembered = run.get("learner", {})
        self.learner.load_state_dict({n: h.to(self.device) for n, h in remembered.items()})
        self.carried = None
        if run.get("carried") is not None:
            stored = unflatten(run["carried"], cast(Any, self.model).init_state(1))
            self.carried = map_state(lambda h: h.to(self.device), stored)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put what is ours beside what Lightning keeps."""
        checkpoint["linrnn"] = self.progress()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take it back."""
        self.go_on(checkpoint["linrnn"])


def _no_backward(loss: Tensor) -> None:
    """Do nothing, for a step of which only the forward pass is measured."""
