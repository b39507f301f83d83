"""The record of `fit`: a row for each epoch, the best weights, and a folder to go on from."""

import json
import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor, nn

from linrnn._files.storage import read_json, write_atomically
from linrnn.errors import ArgumentError, RunFolderError
from linrnn.lightning._io import NEWEST
from linrnn.lightning._loaders import check_ended
from linrnn.train.checkpoint import load_tensors, save_tensors
from linrnn.train.seeding import derive

WEIGHTS, HISTORY = "model.safetensors", "history.json"
FILES = (NEWEST, WEIGHTS, HISTORY)


class Keeper(Checkpoint):
    """Keeps history and best weights, and after each epoch writes them into a folder.

    The newest checkpoint holds all of it, the best weights too, and is written first: wherever a
    process is killed, that file decides, and the others are written anew from it.

    Args:
        monitor: the name of what is best, as logged.
        higher: whether more of it is better.
        folder: where; None writes nothing.
        seed: random numbers of each epoch follow from it; None leaves them alone.
        threads: of each process; None leaves them as they are.
    """

    def __init__(
        self,
        monitor: str,
        *,
        higher: bool,
        folder: Path | None,
        seed: int | None,
        threads: int | None = None,
    ) -> None:
        self.monitor, self.higher, self.folder, self.seed = monitor, higher, folder, seed
        self.threads, self.rank = threads, 0
        self.tried = False  # whether that number was found by trying, which may find another
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] = {}
        self.weights: dict[str, Tensor] = {}
        self.seconds = 0.0
        self._since = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take threads and random numbers, in the process that is to use them.

        The order of an epoch's data is drawn where Lightning asks the loader for an iterator: for
        the first one before the optimiser is made, for others after the end of the one before.
        """
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        self.rank = trainer.global_rank
        self._seed()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._since = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the epoch; keep its weights if they are the best; write everything.

        Raises:
            ArgumentError: the loader gave fewer batches than it has, or nothing that is monitored.
        """
        check_ended("train_loader", trainer.fit_loop._data_fetcher, len(self.history) + 1)
        self.seconds += time.monotonic() - self._since
        self._since = time.monotonic()
        logged = trainer.callback_metrics  # what is logged at each step has three names
        row: dict[str, float] = {"epoch": len(self.history) + 1, "step": trainer.global_step}
        row |= {
            name: float(value)
            for name, value in logged.items()
            if name.removesuffix("_step").removesuffix("_epoch") not in logged.keys() - {name}
        }
        self.history.append(row | {"seconds": round(self.seconds, 3)})
        if self.monitor not in row:
            raise ArgumentError(
                f"fit: monitor must be something that is logged at the end of an epoch, got "
                f"{self.monitor!r}. There are {', '.join(sorted(trainer.callback_metrics))}."
            )
        if self._is_better(row[self.monitor]):
            self.best = {self.monitor: row[self.monitor], "epoch": len(self.history)}
            model: Any = pl_module.model
            self.weights = full_weights(model)
        if self.folder is not None:
            trainer.save_checkpoint(self.folder / NEWEST)
            if trainer.is_global_zero:
                self.write()
        self._seed()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise where the loader gave fewer batches than it has."""
        loop = trainer.fit_loop.epoch_loop.val_loop
        check_ended("val_loader", loop._data_fetcher, len(self.history) + 1)

    def write(self) -> None:
        """The files that are made of the newest checkpoint."""
        assert self.folder is not None
        save_tensors(self.weights, self.folder / WEIGHTS)
        rows = json.dumps({"best": self.best, "epochs": self.history}, indent=1)
        write_atomically(self.folder / HISTORY, rows.encode())

    def read(self, folder: Path) -> None:
        """Read what `write` wrote.

        Raises:
            RunFolderError: it is not there, or damaged.
        """
        self.weights = load_tensors(folder / WEIGHTS)[0]
        try:
            record = read_json(folder / HISTORY, inside=folder)
            self.best, self.history = dict(record["best"]), [dict(row) for row in record["epochs"]]
            if not self.best or not self.history:
                raise ValueError("no epoch")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{folder / HISTORY}: the file must be as it was written, got: {error}. Call fit "
                "with another folder."
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """All that a later process needs."""
        return {
            "history": self.history,
            "best": self.best,
            "weights": self.weights,
            "seconds": self.seconds,
            "threads": self.threads,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.history, self.best = state_dict["history"], state_dict["best"]
        self.weights, self.seconds = state_dict["weights"], state_dict["seconds"]
        n_threads = state_dict.get("threads")
        if self.tried and n_threads is not None:  # another number may give other bits
            self.threads = n_threads
            torch.set_num_threads(n_threads)
        self._seed()

    def _is_better(self, value: float) -> bool:
        if not self.best or math.isnan(self.best[self.monitor]):
            return True
        best: float = self.best[self.monitor]
        return value > best if self.higher else value < best

    def _seed(self) -> None:
        if self.seed is None:
            return
        purpose = "epoch" if self.rank == 0 else f"epoch of rank {self.rank}"
        seed = derive(self.seed, purpose, len(self.history))
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights on the CPU, of all processes where they are sharded.

    Then they are whole on the first process alone, and every process has to ask.
    """
    if any(hasattr(p, "full_tensor") for p in model.parameters()):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights: Any = get_model_state_dict(model, options=options)
        return dict(weights)
    return {name: x.detach().cpu().clone() for name, x in model.state_dict().items()}


def restore(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put what `full_weights` returned into the model; on every process where it is sharded."""
    if any(hasattr(p, "full_tensor") for p in model.parameters()):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, dict(weights), options=options)
        return
    model.load_state_dict(weights)
