"""A mixer trained in memory for some steps, and what it answers then."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from linrnn._process.signals import StopRequest
from linrnn.learn import unpack
from linrnn.tasks import Task
from linrnn.train import Config, TrainingModule
from linrnn.train.evaluation import each
from linrnn.train.lightning import quiet
from linrnn.train.model import build_model

Take = Callable[[Tensor], tuple[Tensor, ...]]
"""The examples of some numbers as a batch."""

_NUMBERS = 500_000
"""Steps of sequences that a trial reads; the default model read 14,000 to 48,000 a second of a core
on three of the sets of `benchmarks/small_series.py`."""
_STEPS = (50, 200)
_ROWS = 64


@dataclass(frozen=True)
class Trial:
    """The training of one mixer on some examples of a task.

    Args:
        config: of a run; its epochs are not those of the trial.
        task: of the configuration.
        take: gives examples by their numbers.
    """

    config: Config
    task: Task
    take: Take

    @property
    def steps(self) -> int:
        """As many as read a number of steps of sequences that a core reads in some ten seconds."""
        lower, upper = _STEPS
        per_step = self.config.train.batch_size * self.task.sequence_length
        return max(lower, min(upper, _NUMBERS // per_step))

    def scores(self, train: Tensor, judge: Tensor) -> Tensor:
        """Train on some examples, and give the metric of each of others.

        The first Ctrl-C ends the training, and what is there then is judged.
        """
        config = self.config
        with torch.random.fork_rng(), quiet(), StopRequest() as stop:
            torch.manual_seed(config.seed)
            model = build_model(config, self.task)
            module = TrainingModule(
                model,
                self.task.loss,
                learner=config.learner,
                learner_options=config.learner_options,
                optim=config.optim,
            )
            batches = _Batches(self.take, self._order(train))
            _trainer(self.steps, _Heed(stop)).fit(module, DataLoader(batches, batch_size=None))
        return each(model.eval(), self.task, map(unpack, self._in_order(judge)))

    def _order(self, rows: Tensor) -> list[Tensor]:
        """The examples of each step, all of them once in each pass."""
        generator = torch.Generator().manual_seed(self.config.seed)
        size, steps = self.config.train.batch_size, self.steps
        order: list[Tensor] = []
        while len(order) < steps:
            order += rows[torch.randperm(len(rows), generator=generator)].split(size)
        return order[:steps]

    def _in_order(self, rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
        return map(self.take, rows.split(_ROWS))


class _Batches(Dataset[tuple[Tensor, ...]]):
    """Batches that are made when they are needed."""

    def __init__(self, take: Take, order: Sequence[Tensor]) -> None:
        self.take, self.order = take, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, step: int) -> tuple[Tensor, ...]:
        return self.take(self.order[step])


class _Heed(Callback):
    """Heed Ctrl-C."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop

    def on_train_batch_end(self, trainer: Trainer, *more: object) -> None:
        """End after the step."""
        trainer.should_stop = trainer.should_stop or self.stop.requested


def _trainer(steps: int, heed: Callback) -> Trainer:
    return Trainer(
        max_steps=steps,
        max_epochs=1,
        devices=1,
        accelerator="auto",
        callbacks=[heed],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
