"""`fit`: from a model and loaders of one's own to the best weights."""

import math
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, IterableDataset

from linrnn._files.storage import write_atomically
from linrnn._options.call import checked
from linrnn.errors import (
    ArgumentError,
    NonFiniteError,
    RunFolderError,
    check_in,
    check_positive_int,
)
from linrnn.learn import Learner
from linrnn.lightning._batches import PrepareBatch, as_batch
from linrnn.lightning._folder import DONE, claimed
from linrnn.lightning._io import NEWEST
from linrnn.lightning._keeper import Keeper, restore
from linrnn.lightning._loaders import Loaders, loaders_of
from linrnn.lightning._losses import Scored
from linrnn.lightning._messages import without_hints
from linrnn.lightning._module import Optim, RecurrentModule
from linrnn.lightning._trainer import check_kinds, trainer_of
from linrnn.train import OptimConfig
from linrnn.train.threads import check_threads, trial_of_training


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Results of `fit`: the model, its history, and the epoch of its weights."""

    model: nn.Module
    """The model that was given, with the best weights, in evaluation mode."""
    history: list[dict[str, float]]
    """A row for each epoch: epoch, step, seconds and everything that was logged."""
    best: dict[str, float]
    """The epoch whose weights those are, from 1, and what was best in it."""
    module: RecurrentModule
    """The module that Lightning trained, for ``trainer.test(module, loader)``."""
    trainer: Trainer | None
    """Lightning's; None where the folder held a training that was complete."""

    def __repr__(self) -> str:
        """The best epoch and the number of epochs, in one line."""
        name = type(self.model).__name__
        return f"FitResult(best={self.best}, epochs={len(self.history)}, model={name}(...))"


@checked
def fit(
    model: nn.Module,
    train_loader: Any,
    val_loader: Any = None,
    *,
    loss: str | Scored,
    metrics: Sequence[str] | Mapping[str, Any] = (),
    epochs: int = 10,
    optim: Optim | None = None,
    learner: str | Learner = "bptt",
    learner_options: Mapping[str, Any] | None = None,
    carry_state: bool = False,
    on_nan: Literal["stop", "skip"] = "stop",
    prepare_batch: PrepareBatch | None = None,
    monitor: str | None = None,
    mode: Literal["min", "max"] = "min",
    callbacks: Sequence[Callback] = (),
    logger: Logger | Sequence[Logger] | bool = False,
    out: Path | str | None = None,
    seed: int | None = None,
    threads: int | Literal["auto"] | None = "auto",
    accelerator: str = "auto",
    devices: int | Sequence[int] | str = 1,
    strategy: Any = "auto",
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true",
    trainer: Mapping[str, Any] | None = None,
) -> FitResult:
    """Train a model on batches of your own, and give it its best weights.

    Lightning does the loop; what is trained is a `RecurrentModule`, which says what a model, a
    batch, a loss, a metric and an optimiser may be.

    Args:
        model: a `linrnn.SequenceModel` or any ``torch.nn.Module``; changed in place.
        train_loader, val_loader: ``DataLoader``, a list of batches, or anything that gives them
            anew in each epoch and has a length, which must be right. A ``LightningDataModule`` as
            ``train_loader`` brings its own of both.
        loss: ``cross_entropy``, ``mse``, ``mae``, ``huber`` or ``bce``; or a function of
            ``(y, target)``, such as ``nn.CrossEntropyLoss(weight=...)``.
        metrics: names, of ``accuracy``, ``mse`` and ``mae``; or a mapping of names to functions, or
            to metrics of ``torchmetrics``.
        optim: settings of AdamW and its schedule, ``{"lr": 0.01}``, see
            `linrnn.train.OptimConfig`; by default the learning rate is 0.003. Or a function that
            makes an optimiser for the model.
        learner, learner_options, carry_state, on_nan, prepare_batch: as of `RecurrentModule`.
        epochs: passes through the training data.
        monitor: what is best, as logged. Default: ``val_loss``, or ``train_loss`` without
            validation data.
        mode: whether the least of it is best or the most.
        callbacks, logger: of Lightning: ``EarlyStopping(monitor="val_loss")``, ``CSVLogger``,
            ``TensorBoardLogger``, ``WandbLogger``, ...; ``logger=True`` is Lightning's choice.
        out: a folder for the newest checkpoint (``last.safetensors``), the best weights
            (``model.safetensors``) and ``history.json``, written after each epoch. Called again in
            the same way after an interruption, it goes on after the last complete epoch; once it is
            complete, nothing is trained. Not for sharded weights. It is no run folder, for nothing
            in it says how to make the model: a program that makes it reads the best weights by
            ``model.load_state_dict(safetensors.torch.load_file(out + "/model.safetensors"))``.
        seed: of dropout and the order of the data, which then are those of a whole training also
            after an interruption. It seeds the generators of PyTorch, NumPy and Python, and those
            of PyTorch are as before in the end. Default: they go on from where they are.
        threads: of the CPU; ``auto`` times one and all for a second each on the first batch and
            takes what is faster, where nobody has chosen by ``OMP_NUM_THREADS`` or
            `torch.set_num_threads`, the model is trained by one process and without a GPU, and the
            data is a ``DataLoader``; a training that goes on has the number it began with. None
            leaves them as they are.
        accelerator, devices, strategy, precision: of ``lightning.Trainer``: ``devices=2``,
            ``strategy="ddp"`` or ``"ddp_spawn"``, a ``ModelParallelStrategy`` for FSDP2, ...
        trainer: any further argument of ``lightning.Trainer``, by name.

    Raises:
        UnknownNameError, ArgumentError: an argument or a batch that is none. Nothing is lost by a
            call that is refused before the end of its first epoch: a corrected one may have the
            same ``out`` and any other settings.
        RunFolderError: ``out`` holds something else, or a training of other settings.
        NonFiniteError: a loss, gradient or state is NaN or infinite, with ``on_nan="stop"``.

    Example:
        >>> from linrnn import SequenceModel
        >>> data = torch.utils.data.TensorDataset(torch.randn(8, 20, 1), torch.randint(3, (8,)))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=4)
        >>> model = SequenceModel(1, 3, d_model=8, n_layers=1)
        >>> result = fit(model, loader, loss="cross_entropy", epochs=2)  # doctest: +SKIP
        >>> [row["train_loss"] for row in result.history]               # doctest: +SKIP
    """
    check_positive_int("fit", epochs=epochs)
    check_in("fit", "mode", mode, ("min", "max"))
    check_in("fit", "precision", precision, ("32-true", "bf16-mixed", "64-true"))
    check_threads("fit", threads)
    to_lightning = {
        "accelerator": accelerator,
        "devices": devices,
        "strategy": strategy,
        "logger": logger,
    }
    check_kinds(
        monitor=monitor, callbacks=callbacks, out=out, seed=seed, trainer=trainer, **to_lightning
    )
    module = RecurrentModule(
        model,
        loss,
        metrics=metrics,
        optim=optim,
        prepare_batch=prepare_batch,
        learner=learner,
        learner_options=learner_options,
        carry_state=carry_state,
        on_nan=on_nan,
    )
    data = loaders_of(train_loader, val_loader, prepare_batch is not None)
    settings = _settings(module, loss, learner_options or {})
    settings |= {"epochs": epochs, "carry_state": carry_state, "seed": seed, "precision": precision}
    monitor = monitor or ("val_loss" if data.validated else "train_loss")
    folder = None if out is None else Path(out)
    keeper = Keeper(monitor, higher=mode == "max", folder=folder, seed=seed)
    with without_hints():
        lightning_trainer = trainer_of(
            trainer or {},
            folder,
            max_epochs=epochs,
            precision=precision,
            callbacks=[*callbacks, keeper],
            **to_lightning,
        )
    with without_hints(), nullcontext() if folder is None else claimed(folder, settings):
        if folder is not None and (folder / DONE).exists():
            keeper.read(folder)
            return _result(keeper, module, None)
        keeper.threads = _threads(threads, module, data.train, lightning_trainer)
        keeper.tried = threads == "auto"
        _train(lightning_trainer, module, data, keeper)
        return _result(keeper, module, lightning_trainer)


def _settings(
    module: RecurrentModule, loss: str | Scored, learner_options: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings of a module by which a later call recognises the training in its folder."""
    return {
        "loss": _named(loss),
        "optim": _named(module.optim),
        "learner": type(module.learner).__name__,
        "learner_options": {name: str(value) for name, value in learner_options.items()},
        "model": _shapes(module.model),
    }


def _check_weights(model: nn.Module, keeper: Keeper) -> None:
    """Raise `RunFolderError` where the best weights, read of a file, are of another model."""
    if any(hasattr(p, "full_tensor") for p in model.parameters()):  # sharded: on one process
        return
    ours = {name: x.shape for name, x in model.state_dict().items()}  # of any precision
    theirs = {name: x.shape for name, x in keeper.weights.items()}
    if wrong := sorted(dict(ours.items() ^ theirs.items())):
        raise RunFolderError(
            f"{keeper.folder}: the weights must be of the model that was given, got others for "
            f"{wrong[0]}. Call fit with another folder."
        )


def _train(trainer: Trainer, module: RecurrentModule, data: Loaders, keeper: Keeper) -> None:
    """Run Lightning's loop, from the newest checkpoint of the keeper's folder if there is one."""
    folder, newest = keeper.folder, None
    if folder is not None and (folder / NEWEST).exists():
        newest = folder / NEWEST
        rank_zero_info(f"fit: continues from {newest}")
    with _as_before(keeper.seed), _elsewhere(trainer, keeper) as written, _interruptible(trainer):
        try:
            trainer.fit(module, ckpt_path=newest, **data.named())
        except MisconfigurationException as error:
            reason = " ".join(str(error).split())
            raise ArgumentError(
                f"fit: Lightning refused the arguments of its Trainer: {reason:.300}"
            ) from error
        if written is not None:
            keeper.read(written)
    if folder is not None and trainer.is_global_zero and keeper.best:
        keeper.write()
        write_atomically(folder / DONE, b"")


def _result(keeper: Keeper, module: RecurrentModule, trainer: Trainer | None) -> FitResult:
    if not keeper.best:  # of sharded weights the first process alone has any
        raise ArgumentError("fit: train_loader must give at least one batch, got none.")
    name, value = next(iter(keeper.best.items()))
    if not math.isfinite(value):
        raise NonFiniteError(
            f"fit: {name} must be finite in at least one epoch, or no weights are best, got "
            f"{value} in each. Monitor something else; the model has the weights of the last step."
        )
    _check_weights(module.model, keeper)
    restore(module.model, keeper.weights)
    return FitResult(
        model=module.model.eval(),
        history=keeper.history,
        best=keeper.best,
        module=module,
        trainer=trainer,
    )


def _named(setting: Any) -> Any:
    """A setting as it stands in a checkpoint: plain values, or the name of a function."""
    if isinstance(setting, OptimConfig):
        return {name: _as_list(value) for name, value in asdict(setting).items()}
    return (
        setting
        if isinstance(setting, str)
        else getattr(setting, "__qualname__", type(setting).__name__)
    )


def _shapes(model: nn.Module) -> list[str]:
    """Names and shapes of the weights.

    Raises:
        ArgumentError: they are not known yet.
    """
    weights = model.state_dict()
    if lazy := [name for name, x in weights.items() if is_lazy(x)]:
        raise ArgumentError(
            f"fit: model must have parameters of known shapes, got {lazy[0]} without. Call it "
            "once, model(x), with the x of a batch."
        )
    return [f"{name} {tuple(x.shape)}" for name, x in weights.items()]


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _threads(
    requested: int | Literal["auto"] | None, module: RecurrentModule, loader: Any, trainer: Trainer
) -> int | None:
    """How many threads to take, or None to leave them alone; says what was found."""
    if requested != "auto":
        return requested
    mapped = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    on_cpu = isinstance(trainer.accelerator, CPUAccelerator)
    if not mapped or not on_cpu or trainer.world_size > 1:
        return None
    with torch.random.fork_rng(devices=[]):
        batch = as_batch("fit", next(iter(loader)), module.prepare_batch, pooled=module.pooled)
    module.know(batch)
    threads, why = trial_of_training(module, batch)
    rank_zero_info(f"fit: threads: {threads} ({why})")
    return threads


@contextmanager
def _as_before(seed: int | None) -> Iterator[None]:
    """Restores threads at the end, and random numbers where there is a seed."""
    threads, random = torch.get_num_threads(), torch.random.get_rng_state()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if seed is not None:
            torch.random.set_rng_state(random)


@contextmanager
def _elsewhere(trainer: Trainer, keeper: Keeper) -> Iterator[Path | None]:
    """The folder to which the trainer's own processes write a record; None without any."""
    if not isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
        yield None
    elif keeper.folder is not None:
        yield keeper.folder
    else:
        with TemporaryDirectory() as folder:
            keeper.folder = Path(folder)
            yield keeper.folder


@contextmanager
def _interruptible(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt, which Lightning turns into the end of the program."""
    main = threading.current_thread() is threading.main_thread()
    previous_handler = signal.getsignal(signal.SIGINT) if main else None
    try:
        yield
    except SystemExit as error:
        if not trainer.interrupted:
            raise
        raise KeyboardInterrupt from error
    finally:
        if previous_handler is not None:
            signal.signal(signal.SIGINT, previous_handler)
