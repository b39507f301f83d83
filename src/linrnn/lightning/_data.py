"""The data of a task, for a trainer of Lightning."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from linrnn import tasks
from linrnn.errors import ArgumentTypeError, MissingExtraError, check_positive_int
from linrnn.tasks import BatchDataset, Splits, Task
from linrnn.train.data import size_of

try:
    from lightning.pytorch import LightningDataModule
except ImportError as error:
    raise MissingExtraError("training", "lightning", "train") from error


class TaskDataModule(LightningDataModule):
    """A ``LightningDataModule`` of a task's training, validation and test data.

    Training data are shuffled, by PyTorch's generator, and varied as `Task.augment` says.

    Args:
        task: a name from `linrnn.tasks.names`, or a task with options of your own.
        batch_size: rows of a batch; the last of an epoch may have fewer.
        num_workers: processes that load data, as of a ``DataLoader``.

    Raises:
        UnknownNameError: no such task.
        DataError: in `prepare_data` or `setup`: the data is missing or damaged.

    Example:
        >>> data = TaskDataModule("adding", batch_size=16)
        >>> data.setup()
        >>> x, target = next(iter(data.val_dataloader()))
        >>> len(x), len(target)
        (16, 16)
    """

    def __init__(self, task: str | Task, *, batch_size: int = 64, num_workers: int = 0) -> None:
        super().__init__()
        check_positive_int("TaskDataModule", batch_size=batch_size)
        if not isinstance(task, (str, Task)):
            raise ArgumentTypeError(
                f"TaskDataModule: task must be a name or a Task, got a {type(task).__name__}."
            )
        self.task = tasks.load(task)() if isinstance(task, str) else task
        self.batch_size, self.num_workers = batch_size, num_workers
        self._splits: Splits | None = None

    def prepare_data(self) -> None:
        """Download what is missing; once on a machine."""
        self.task.datasets()

    def setup(self, stage: str | None = None) -> None:
        """Read or generate the data; in every process."""
        if self._splits is None:
            self._splits = self.task.datasets()

    def train_dataloader(self) -> DataLoader[Any]:
        """The training data, shuffled."""
        return self._loader(self._parts().train, "training data", shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """The validation data in order."""
        return self._loader(self._parts().validation, "validation data")

    def test_dataloader(self) -> DataLoader[Any]:
        """The test data in order."""
        return self._loader(self._parts().test, "test data")

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Vary a training batch as the task says."""
        if self.trainer is None or not self.trainer.training:
            return batch
        x, *remaining = batch
        seed = int(torch.randint(1 << 62, ()))
        varied: Tensor = self.task.augment(x, torch.Generator().manual_seed(seed))
        return [varied, *remaining]

    def _parts(self) -> Splits:
        self.setup()
        assert self._splits is not None
        return self._splits

    def _loader(self, data: Dataset[Any], what: str, *, shuffle: bool = False) -> DataLoader[Any]:
        size_of(data, what)  # an error where there is none
        workers = self.num_workers
        if not isinstance(data, BatchDataset):
            return DataLoader(data, self.batch_size, shuffle=shuffle, num_workers=workers)
        order = RandomSampler(data) if shuffle else SequentialSampler(data)
        batches = BatchSampler(order, self.batch_size, drop_last=False)
        return DataLoader(data, sampler=batches, batch_size=None, num_workers=workers)
