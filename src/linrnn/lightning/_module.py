"""The module that `fit` trains: any model, any batch, a loss by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from linrnn._options.schema import record
from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError, ArgumentTypeError, check_kind, show
from linrnn.learn import Batch, Learner, read
from linrnn.learn.bptt import BPTT
from linrnn.lightning._batches import (
    PrepareBatch,
    as_batch,
    has_integers,
    moved,
    parts,
    per_step,
)
from linrnn.lightning._called import as_called
from linrnn.lightning._losses import (
    Rows,
    Scored,
    check_scalar,
    check_targets,
    loss_of,
    metrics_of,
    of_numbers,
    scores_of,
)
from linrnn.nn.quantized import check_trainable
from linrnn.tasks import Task
from linrnn.train import OptimConfig, TrainingModule
from linrnn.train.config import check_optim

Optim = OptimConfig | Mapping[str, Any] | Callable[[nn.Module], torch.optim.Optimizer]

_STAGES = {"train": "train", "validation": "val"}


class RecurrentModule(TrainingModule):
    """A ``LightningModule`` for a model, a loss and loaders of your own.

    What `linrnn.train.TrainingModule` does (learners, parameter groups, numbers that are not
    finite, the carried state in checkpoints), for models and batches as people have them. A batch
    is ``(x, y)``, perhaps followed by lengths of padded rows (integers), by the steps at which a
    new sequence begins (boolean) and by times between steps (real); or a dictionary of these, under
    such names as ``x``, ``input_ids``, ``y``, ``labels``, ``lengths``. It logs ``train_loss`` and
    ``val_loss`` (``test_loss`` in ``trainer.test``), and the same names with each metric.

    Args:
        model: a `linrnn.SequenceModel`, a mixer, or any module that is called as ``model(x)``, with
            keywords ``lengths``, ``reset`` and ``dt`` where a batch has them, and returns a tensor,
            a tuple that begins with one, or an object with ``logits``. A module with
            ``init_state`` is called as `linrnn.train.TrainingModule` says.
        loss: ``cross_entropy`` (a target of -100 is not asked about), ``mse``, ``mae``, ``huber``,
            ``bce`` (of logits), each a mean over all targets but those of padding, which there
            are where each step has a target (``y`` begins with the shape ``(batch, time)`` of
            ``x``, and a `linrnn.SequenceModel` does not pool); or a function of
            ``(y, target)``, which gets ``lengths`` as well where it has such an argument.
        metrics: names, of ``accuracy``, ``mse`` and ``mae``; or a mapping of names to functions as
            of ``loss``, whose mean over all batches is logged, or to metrics of ``torchmetrics``.
        optim: settings of AdamW and its schedule, or a mapping of them: recurrent parameters have
            a learning rate of their own and no weight decay. The learning rate is 0.003 unless a
            mapping or `linrnn.train.OptimConfig` says another. Or a function that makes an
            optimiser for the model, which then alone decides.
        prepare_batch: makes a batch as above of whatever a loader gives.
        learner, learner_options, carry_state, on_nan: as of `linrnn.train.TrainingModule`. All
            but ``bptt`` without a carried state need a model with ``init_state``.

    Raises:
        MissingExtraError: Lightning is not installed; noticed where the class is imported.
        UnknownNameError: no such loss, metric, learner, or setting of the optimiser.
        ArgumentError: as `linrnn.train.TrainingModule`; a batch that is none, while it trains.

    Example:
        >>> from linrnn import SequenceModel
        >>> model = SequenceModel(1, 3, d_model=8, n_layers=1)
        >>> module = RecurrentModule(model, "cross_entropy", metrics=["accuracy"])
        >>> import lightning
        >>> trainer = lightning.Trainer(max_epochs=1)    # doctest: +SKIP
        >>> trainer.fit(module, train_loader, val_loader)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        loss: str | Scored,
        *,
        metrics: Sequence[str] | Mapping[str, Any] = (),
        optim: Optim | None = None,
        prepare_batch: PrepareBatch | None = None,
        learner: str | Learner = "bptt",
        learner_options: Mapping[str, Any] | None = None,
        carry_state: bool = False,
        on_nan: Literal["stop", "skip"] = "stop",
    ) -> None:
        if not isinstance(model, nn.Module):
            got = f"a {type(model).__name__}"
            if isinstance(model, type):
                got = f"the class {model.__name__}. Say {model.__name__}(...)"
            raise ArgumentTypeError(f"RecurrentModule: model must be a torch.nn.Module, got {got}.")
        check_trainable("RecurrentModule", model)
        _check_arguments(metrics, optim, prepare_batch, learner, learner_options, carry_state)
        if optim is None or isinstance(optim, Mapping):
            optim = OptimConfig(
                **record("RecurrentModule", OptimConfig, optim or {}, prefix="optim.")
            )
        if isinstance(optim, OptimConfig):
            check_optim("RecurrentModule", optim)
        super().__init__(
            model,
            self._loss_at_hand,
            learner=learner,
            learner_options=learner_options,
            optim=optim,
            carry_state=carry_state,
            on_nan=on_nan,
        )
        self.prepare_batch = prepare_batch
        self._objective = loss_of(loss)
        self.loss_module = loss if isinstance(loss, nn.Module) else None  # its weights move along
        self._rows = Rows()
        self.metrics = {stage: metrics_of(metrics) for stage in ("train", "val", "test")}
        self._modules_of_metrics()
        around = as_called(model)
        self._around = (around,)
        if around is not model and (carry_state or not isinstance(self.learner, BPTT)):
            raise ArgumentError(
                "RecurrentModule: model must have init_state(batch_size), and take and return a "
                "state, for a learner other than bptt and for carry_state, got "
                f"{type(model).__name__} without. Use linrnn.SequenceModel, or learner='bptt'."
            )

    @classmethod
    def of_task(cls, model: nn.Module, task: Task, **options: Any) -> "RecurrentModule":
        """A module with the loss and the metric of a task, such as `TaskDataModule` has.

        Args:
            model: that answers as the task asks.
            task: with its options.
            **options: the keyword arguments of the class but ``metrics``.

        Raises:
            ArgumentTypeError: it is no task.
        """
        check_kind("RecurrentModule.of_task", "task", task, Task)
        return cls(model, task.loss, metrics={task.metric: task.scores}, **options)

    def _modules_of_metrics(self) -> None:
        """Objects of torchmetrics are parts of this module, one for each stage."""
        for stage, metrics in self.metrics.items():
            for place, (name, metric) in enumerate(metrics.items()):
                if isinstance(metric, nn.Module):
                    metrics[name] = metric if stage == "train" else metric.clone()  # type: ignore[operator]
                    # by place: a name may have dots, or be that of a method
                    self.add_module(f"{stage}_metric_{place}", metrics[name])

    def configure_model(self) -> None:
        """Shard the parameters where the strategy is ``ModelParallelStrategy`` (FSDP2).

        Each block of a `linrnn.SequenceModel` is a unit, and the whole model the last.
        """
        from lightning.pytorch.strategies import ModelParallelStrategy
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if self._trainer is None or not isinstance(self.trainer.strategy, ModelParallelStrategy):
            return
        if isinstance(self.model, FSDPModule):  # called again by trainer.test
            return
        mesh = self.device_mesh
        assert mesh is not None
        if mesh["tensor_parallel"].size() > 1:
            raise ArgumentError(
                "RecurrentModule: the strategy must shard over the data alone, got tensor_parallel "
                f"of {mesh['tensor_parallel'].size()} processes, Lightning's default. Say "
                "ModelParallelStrategy(data_parallel_size=..., tensor_parallel_size=1)."
            )
        for block in getattr(self.model, "blocks", ()):
            fully_shard(block, mesh=mesh["data_parallel"])
        fully_shard(self.model, mesh=mesh["data_parallel"])

    def configure_optimizers(self) -> Any:
        """AdamW and its schedule, or the optimiser that the user's function makes.

        Raises:
            ArgumentError: it makes none, or the model has nothing to learn.
        """
        if not any(p.requires_grad for p in self.model.parameters()):
            raise ArgumentError(
                "RecurrentModule: model must have parameters that require a gradient, got "
                f"{type(self.model).__name__} without. There is nothing to learn."
            )
        optimizers = super().configure_optimizers()
        if not isinstance(self.optim, OptimConfig):
            _check_optimizer(optimizers)
        return optimizers

    def setup(self, stage: str) -> None:
        """Move batches in a way that leaves alone what cannot be moved.

        A ``LightningDataModule`` keeps its own method: Lightning uses that, with a warning
        where the module has one too.
        """
        if getattr(self.trainer, "datamodule", None) is None:
            self.transfer_batch_to_device = self._moved_or_left  # type: ignore[method-assign]

    def _moved_or_left(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a batch; what cannot be moved is looked at later, with its place in the batch."""
        try:
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        except (TypeError, NotImplementedError):  # a range, which is made anew of no list; meta
            return batch

    @property
    def pooled(self) -> bool:
        """Whether the model is one of ours that answers once for each row."""
        return isinstance(self.model, SequenceModel) and self.model.pool.kind != "none"

    def called(self) -> nn.Module:
        """The model, or what calls it as a learner does."""
        return self._around[0]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        """The loss of one batch, or None where the step is left out."""
        unpacked = self._at_hand(batch)
        padded = unpacked.lengths is not None and self._rows.per_step
        numbers = not has_integers(unpacked.target) or of_numbers(self._objective)
        if padded and numbers and not isinstance(self.learner, BPTT):
            raise ArgumentError(
                "RecurrentModule: the learner must be bptt where each step of padded rows has "
                f"numbers as its target, got {type(self.learner).__name__}."
            )
        return super().training_step(parts(unpacked), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Count one batch into the means."""
        super().validation_step(parts(self._at_hand(batch)), batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Count one batch into the means of the test."""
        unpacked = self._at_hand(batch)
        y, _ = read(self.called(), unpacked, None)
        self._log("test", self._loss_at_hand(y, unpacked.target), y, unpacked.target)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The answer to one batch, which may be x alone, a tensor."""
        if isinstance(batch, Tensor):
            y: Tensor = read(self.called(), Batch(batch, batch, None, None), None)[0]
            return y
        answer: Tensor = read(self.called(), self._at_hand(batch), None)[0]
        return answer

    def observe(self, stage: str, loss: float, y: Tensor, target: Tensor) -> None:
        """Log loss and metrics of a batch."""
        self._log(_STAGES[stage], loss, y, target)

    def know(self, batch: Batch) -> None:
        """Set the batch whose rows the next losses and metrics belong to."""
        one_each = batch.lengths is None or batch.lengths.ndim == 1
        self._rows = Rows(batch.lengths, one_each and per_step(batch, self.pooled))

    def _at_hand(self, batch: Any) -> Batch:
        """The batch by names, which loss and metrics know."""
        unpacked = as_batch("RecurrentModule", batch, self.prepare_batch, pooled=self.pooled)
        # arrays, and what `prepare_batch` makes, were not moved by Lightning
        unpacked = moved(unpacked, self.device)
        check_targets("RecurrentModule", self._objective, unpacked.target)
        self.know(unpacked)
        return unpacked

    def _loss_at_hand(self, y: Tensor, target: Tensor) -> Tensor:
        value = self._objective(y, target, self._rows)
        learns = self.training and torch.is_grad_enabled() and self.learner.descends
        return check_scalar("RecurrentModule", value, learns)

    def _log(self, stage: str, loss: Any, y: Tensor, target: Tensor) -> None:
        rows, train = len(target), stage == "train"
        shared: dict[str, Any] = {"on_epoch": True, "prog_bar": True, "sync_dist": self.together}
        self.log(f"{stage}_loss", loss, on_step=train, batch_size=rows, **shared)
        for name, metric in self.metrics[stage].items():
            label = f"{stage}_{name}"
            if isinstance(metric, nn.Module):
                accumulator: Any = metric
                accumulator.update(y, target)
                self.log(label, accumulator, on_step=False, on_epoch=True, batch_size=rows)
                continue
            scores = scores_of(name, metric(y, target, self._rows))
            count = scores.numel() if scores.ndim else rows
            self.log(label, scores.mean(), on_step=False, batch_size=count, **shared)


def _check_arguments(
    metrics: object,
    optim: object,
    prepare_batch: object,
    learner: object,
    learner_options: object,
    carry_state: object,
) -> None:
    """Raise `ArgumentTypeError` for an argument of `RecurrentModule` of another type."""
    where = "RecurrentModule"
    check_kind(where, "metrics", metrics, Mapping, list, tuple, str)
    if optim is not None and not callable(optim) and not isinstance(optim, OptimConfig | Mapping):
        kind = type(optim).__name__
        made = f" an optimiser, {kind}" if isinstance(optim, torch.optim.Optimizer) else show(optim)
        raise ArgumentTypeError(
            f"{where}: optim must be settings of AdamW, or a function that makes an optimiser, got "
            f"{made.strip()}. Say optim={{'lr': 0.01}}, or "
            "optim=lambda model: torch.optim.SGD(model.parameters(), 0.1)."
        )
    if isinstance(optim, type):
        raise ArgumentTypeError(
            f"{where}: optim must be a function of the model, got the class {optim.__name__}. Say "
            f"lambda model: {optim.__name__}(model.parameters())."
        )
    if prepare_batch is not None and not callable(prepare_batch):
        raise ArgumentTypeError(
            f"{where}: prepare_batch must be a function of a batch, got {show(prepare_batch)}."
        )
    check_kind(where, "learner", learner, str, Learner)
    if learner_options is not None:
        check_kind(where, "learner_options", learner_options, Mapping)
    check_kind(where, "carry_state", carry_state, bool)


def _check_optimizer(optimizers: object) -> None:
    """Raise `ArgumentTypeError` unless it is one optimiser in a form that Lightning knows."""
    several = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
    if len(several) == 2 and isinstance(several[0], (list, tuple)):
        several = list(several[0])  # with schedules
    several = [one.get("optimizer") if isinstance(one, Mapping) else one for one in several]
    if len(several) != 1 or not isinstance(several[0], torch.optim.Optimizer):
        raise ArgumentTypeError(
            f"RecurrentModule: optim must give a torch.optim.Optimizer, got {show(optimizers)}. "
            "Say lambda model: torch.optim.SGD(model.parameters(), 0.1)."
        )
