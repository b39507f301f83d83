"""The sources of batches for `fit`: a loader, a list of batches, or a ``LightningDataModule``."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from linrnn.errors import ArgumentError, ArgumentTypeError, show

_SAY = "Say DataLoader(dataset, batch_size=32"


class Loaders(NamedTuple):
    """The loaders of training and of validation, as Lightning takes them."""

    train: Any
    validation: Any
    bundle: bool
    """Whether ``train`` is a ``LightningDataModule``, which has both."""

    @property
    def validated(self) -> bool:
        """Whether there is validation data."""
        if not self.bundle:
            return self.validation is not None
        theirs = getattr(type(self.train), "val_dataloader", None)
        return theirs not in (None, LightningDataModule.val_dataloader)

    def named(self) -> dict[str, Any]:
        """The loaders as arguments of ``Trainer.fit``."""
        which = "datamodule" if self.bundle else "train_dataloaders"
        return {which: self.train, "val_dataloaders": self.validation}


def loaders_of(train: Any, validation: Any, prepared: bool) -> Loaders:
    """The loaders of training and validation, checked as far as that reads no batch.

    Args:
        train, validation: arguments of `fit`.
        prepared: whether a function makes batches of whatever comes.

    Raises:
        ArgumentTypeError, ArgumentError: one gives no batches, or none at all.
    """
    bundle = hasattr(train, "train_dataloader") and not isinstance(train, type)
    if bundle and validation is not None:
        raise ArgumentError(
            "fit: val_loader must be None with a LightningDataModule, which has its own, got "
            f"{show(validation)}."
        )
    if not bundle:
        train = _loader("train_loader", train, prepared)
    if validation is not None:
        validation = _for_validation(_loader("val_loader", validation, prepared))
    return Loaders(train, validation, bundle)


class Listed(Sequence[Any]):
    """Batches in a list, which Lightning would take for a list of loaders.

    Args:
        batches: all of them.
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, place: Any) -> Any:
        return self._batches[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def _loader(name: str, loader: Any, prepared: bool) -> Any:
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise ArgumentTypeError(
            f"fit: {name} must give batches, got a {type(loader).__name__}, which gives rows. "
            f"{_SAY}, shuffle=True)."
        )
    if not _gives_batches(loader, prepared):
        raise ArgumentTypeError(
            f"fit: {name} must give batches, got {show(loader)}. {_SAY}), or give a list of "
            "batches (x, y)."
        )
    _check_not_empty(name, loader)
    several = isinstance(loader, (list, tuple, deque))
    return Listed(list(loader)) if several and not _holds_loaders(loader) else loader


def _gives_batches(loader: Any, prepared: bool) -> bool:
    if isinstance(loader, (str, bytes, Tensor, np.ndarray, type)) or not hasattr(
        loader, "__iter__"
    ):
        return False
    if isinstance(loader, Mapping):
        return _holds_loaders(loader.values())
    if not isinstance(loader, (list, tuple, deque)) or prepared or _holds_loaders(loader):
        return True
    return all(isinstance(batch, (list, tuple, Mapping)) for batch in loader)


def _holds_loaders(parts: Any) -> bool:
    return bool(parts) and all(isinstance(part, DataLoader) for part in parts)


def _check_not_empty(name: str, loader: Any) -> None:
    try:
        batches = len(loader)
    except TypeError:  # data whose end is not known
        return
    if batches == 0:
        raise ArgumentError(
            f"fit: {name} must give at least one batch, got none. With fewer rows than batch_size "
            "drop_last=True leaves nothing."
        )


def _for_validation(loader: Any) -> Any:
    if hasattr(loader, "__next__"):
        raise ArgumentTypeError(
            "fit: val_loader must give its batches anew in each epoch, got a "
            f"{type(loader).__name__}, which gives them once. Give a list of them."
        )
    if isinstance(loader, (Mapping, list, tuple, deque)):
        loaders = list(loader.values() if isinstance(loader, Mapping) else loader)
        if len(loaders) > 1:
            raise ArgumentError(
                f"fit: val_loader must be one loader, got {len(loaders)}. Say "
                "DataLoader(torch.utils.data.ConcatDataset([...]), batch_size=32)."
            )
        return loaders[0]
    return loader


def check_ended(name: str, fetcher: Any, epoch: int) -> None:
    """Raise where a loader gave no batch in an epoch, or fewer than its length says.

    Args:
        name: of the loader.
        fetcher: of Lightning, which has read it; None where it was not read.
        epoch: from 1.

    Raises:
        ArgumentError: the loader is wrong about itself.
    """
    if fetcher is None or not fetcher.done:  # the epoch was ended by something else
        return
    if fetcher.fetched == 0:
        raise ArgumentError(
            f"fit: {name} must give at least one batch in each epoch, got none in epoch {epoch}. "
            "A generator gives its batches once: give a list of them, or a DataLoader."
        )
    if fetcher.length is not None and fetcher.fetched < fetcher.length:
        raise ArgumentError(
            f"fit: {name} must give the {fetcher.length} batches of its length, got "
            f"{fetcher.fetched} in epoch {epoch}. Correct the __len__ of the data."
        )
