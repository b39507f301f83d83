"""`fit`: from a model and loaders of one's own to the best weights."""

import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from linrnn._door import folder_at
from linrnn._reading import reading
from linrnn._storage import cannot_write, read_json, remove_leftovers, write_atomically
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    RunFolderError,
    check_in,
    check_kind,
    check_positive_int,
    show,
)
from linrnn.learn import Learner
from linrnn.lightning._batches import PrepareBatch, as_batch
from linrnn.lightning._io import NEWEST, FolderIO
from linrnn.lightning._keeper import FILES, Keeper, restore
from linrnn.lightning._losses import Scored
from linrnn.lightning._module import Optim, RecurrentModule
from linrnn.train import OptimConfig
from linrnn.train._folder import locked_folder
from linrnn.train._threads import check_threads, trial_of_training


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What `fit` gives."""

    model: nn.Module
    """The model that was given, with the best weights, in evaluation mode."""
    history: list[dict[str, float]]
    """A row for each epoch: epoch, step, seconds and everything that was logged."""
    best: dict[str, float]
    """The epoch whose weights those are, from 1, and what was best in it."""
    module: RecurrentModule
    """What Lightning trained, for ``trainer.test(module, loader)``."""
    trainer: Trainer | None
    """Lightning's; None where the folder held a training that was complete."""


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
        train_loader, val_loader: ``DataLoader`` or anything that gives batches and has a length. A
            ``LightningDataModule`` as ``train_loader`` brings its own of both.
        loss, metrics, optim, learner, learner_options, carry_state, on_nan, prepare_batch: as of
            `RecurrentModule`.
        epochs: passes through the training data.
        monitor: what is best, as logged. Default: ``val_loss``, or ``train_loss`` without
            validation data.
        mode: whether the least of it is best or the most.
        callbacks, logger: of Lightning: ``EarlyStopping(monitor="val_loss")``, ``CSVLogger``,
            ``TensorBoardLogger``, ``WandbLogger``, ...; ``logger=True`` is Lightning's choice.
        out: a folder for the newest checkpoint (``last.safetensors``), the best weights
            (``model.safetensors``) and ``history.json``, written after each epoch. Called again in
            the same way after an interruption, it goes on after the last complete epoch; once it is
            complete, nothing is trained. Not for sharded weights.
        seed: of dropout and the order of the data, which then are those of a whole training also
            after an interruption. It seeds the generators of PyTorch, NumPy and Python, and those
            of PyTorch are as before in the end. Default: they go on from where they are.
        threads: of the CPU; ``auto`` times one and all for a second each on the first batch and
            takes what is faster, where nobody has chosen by ``OMP_NUM_THREADS`` or
            `torch.set_num_threads`, the model is trained by one process and without a GPU, and the
            data is a ``DataLoader``; None leaves them as they are.
        accelerator, devices, strategy, precision: of ``lightning.Trainer``: ``devices=2``,
            ``strategy="ddp"`` or ``"ddp_spawn"``, a ``ModelParallelStrategy`` for FSDP2, ...
        trainer: any further argument of ``lightning.Trainer``, by name.

    Raises:
        UnknownNameError, ArgumentError: an argument that is none.
        RunFolderError: ``out`` holds something else, or a training of other settings.
        NonFiniteError: a loss, gradient or state is NaN or infinite, with ``on_nan="stop"``.

    Example:
        >>> from linrnn import SequenceModel
        >>> data = torch.utils.data.TensorDataset(torch.randn(8, 20, 1), torch.randint(3, (8,)))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=4)
        >>> model = SequenceModel(1, 3, d_model=8, n_layers=1)
        >>> found = fit(model, loader, loss="cross_entropy", epochs=2)  # doctest: +SKIP
        >>> [row["train_loss"] for row in found.history]               # doctest: +SKIP
    """
    check_positive_int("fit", epochs=epochs)
    check_in("fit", "mode", mode, ("min", "max"))
    check_in("fit", "precision", precision, ("32-true", "bf16-mixed", "64-true"))
    _check_kinds(monitor, callbacks, out, seed, accelerator, trainer)
    check_threads("fit", threads)
    given = dict(trainer or {})
    if twice := sorted(set(given) & _OURS):
        raise ArgumentError(
            f"fit: trainer must be without what is an argument of fit, got {twice[0]!r}. Say "
            f"fit(..., {_RENAMED.get(twice[0], twice[0])}=...)."
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
    bundle = hasattr(train_loader, "train_dataloader")
    if not bundle:
        _check_loader("train_loader", train_loader)
    if val_loader is not None:
        _check_loader("val_loader", val_loader)
    validated = val_loader is not None or bundle
    settings = {
        "epochs": epochs,
        "loss": _named(loss),
        "optim": _named(module.optim),
        "learner": type(module.learner).__name__,
        "learner_options": {name: str(value) for name, value in (learner_options or {}).items()},
        "carry_state": carry_state,
        "seed": seed,
        "precision": precision,
        "model": [f"{name} {tuple(x.shape)}" for name, x in model.state_dict().items()],
    }
    with nullcontext() if out is None else _folder(Path(out), settings) as folder:
        keeper = Keeper(
            monitor or ("val_loss" if validated else "train_loss"),
            higher=mode == "max",
            folder=folder,
            seed=seed,
        )
        if folder is not None and (folder / _DONE).exists():
            keeper.read(folder)
            return _result(keeper, module, None)
        made = _trainer(
            max_epochs=epochs,
            accelerator=accelerator,
            devices=devices,
            strategy=strategy,
            precision=precision,
            callbacks=[*callbacks, keeper],
            logger=logger,
            plugins=[FolderIO(), *_list(given.pop("plugins", ()))],
            **({"enable_model_summary": False, "default_root_dir": out} | given),
        )
        _check_sharded(made, folder)
        keeper.threads = _threads(threads, module, train_loader, made)
        newest = None if folder is None or not (folder / NEWEST).exists() else folder / NEWEST
        if newest is not None:
            rank_zero_info(f"fit: goes on from {newest}")
        data = {"datamodule": train_loader} if bundle else {"train_dataloaders": train_loader}
        with _as_before(seed), _elsewhere(made, keeper) as written, _interruptible(made):
            made.fit(module, val_dataloaders=val_loader, ckpt_path=newest, **data)
            if written is not None:
                keeper.read(written)
        if folder is not None and made.is_global_zero:
            keeper.write()
            write_atomically(folder / _DONE, b"")
        return _result(keeper, module, made)


_DONE, _SETTINGS = "complete", "fit.json"
_RENAMED = {"max_epochs": "epochs"}
_OURS = {"max_epochs", "accelerator", "devices", "strategy", "precision", "callbacks", "logger"}


def _result(keeper: Keeper, module: RecurrentModule, trainer: Trainer | None) -> FitResult:
    if not keeper.weights:
        raise ArgumentError("fit: train_loader must give at least one batch, got none.")
    restore(module.model, keeper.weights)
    return FitResult(
        model=module.model.eval(),
        history=keeper.history,
        best=keeper.best,
        module=module,
        trainer=trainer,
    )


@contextmanager
def _folder(path: Path, settings: Mapping[str, Any]) -> Iterator[Path]:
    """A folder for `fit`, new or one that it has begun with the same settings, locked.

    What a killed process left half-written is removed. Of several processes the first one locks.

    Raises:
        RunFolderError: it is something else.
        InUseError: another training has it.
    """
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path}: out must be a folder, got a file. Choose another.")
    others = [p.name for p in path.iterdir()] if path.is_dir() else []
    if _SETTINGS not in others and not all(name.startswith(".") for name in others):
        raise RunFolderError(
            f"{path}: out must be new, empty, or a folder of fit, got one with {min(others)} "
            f"and without {_SETTINGS}. Choose another."
        )
    if getattr(rank_zero_only, "rank", 0) != 0:
        yield _begun(path, settings)
        return
    try:
        with folder_at(path, make=True):
            pass
    except OSError as error:
        raise cannot_write(path, error) from error
    with locked_folder(path):
        for name in (_SETTINGS, _DONE, *FILES):
            remove_leftovers(path / name)
        yield _begun(path, settings)


def _begun(path: Path, settings: Mapping[str, Any]) -> Path:
    """The folder, whose settings are written now or are these.

    Raises:
        RunFolderError: they are others.
    """
    written = path / _SETTINGS
    if not written.exists():
        write_atomically(written, json.dumps(settings, indent=1).encode())
        return path
    with reading(written, RunFolderError, "be complete JSON", "Choose another folder."):
        before = read_json(written, inside=path)
    for name, value in settings.items():
        if before.get(name) != value:
            raise RunFolderError(
                f"{path}: {name} must be as when the folder was begun, "
                f"{show(before.get(name))}, got {show(value)}. Call fit as before to go on, or "
                "with another folder."
            )
    return path


def _check_loader(name: str, loader: Any) -> None:
    """Raise before a folder is made for what gives no batch."""
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise ArgumentTypeError(
            f"fit: {name} must give batches, got a {type(loader).__name__}, which gives rows. Say "
            "DataLoader(dataset, batch_size=32, shuffle=True)."
        )
    parts = loader if isinstance(loader, (list, tuple)) else [loader]
    for part in parts:
        if not hasattr(part, "__iter__") or isinstance(part, (str, bytes, Tensor, np.ndarray)):
            raise ArgumentTypeError(
                f"fit: {name} must give batches, got {show(loader)}. Say DataLoader(dataset, "
                "batch_size=32)."
            )
    try:
        batches = len(loader)
    except TypeError:  # data whose end is not known
        return
    if batches == 0:
        raise ArgumentError(
            f"fit: {name} must give at least one batch, got none. Of fewer rows than batch_size "
            "drop_last=True leaves nothing."
        )


def _named(given: Any) -> Any:
    """A setting as it stands in a checkpoint: plain values, or the name of a function."""
    if isinstance(given, OptimConfig):
        return {name: _plain(value) for name, value in asdict(given).items()}
    return given if isinstance(given, str) else getattr(given, "__qualname__", type(given).__name__)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _check_sharded(trainer: Trainer, folder: Path | None) -> None:
    if folder is not None and isinstance(trainer.strategy, ModelParallelStrategy):
        raise ArgumentError(
            "fit: out must be None where the strategy is ModelParallelStrategy, whose checkpoints "
            "Lightning writes in a format of its own, got a folder. Give "
            "callbacks=[ModelCheckpoint(...)]."
        )


def _threads(
    asked: int | Literal["auto"] | None, module: RecurrentModule, loader: Any, trainer: Trainer
) -> int | None:
    """How many threads to take, or None to leave them alone; says what was found."""
    if asked != "auto":
        return asked
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
    """Afterwards threads, and random numbers where there is a seed, are as before."""
    threads, random = torch.get_num_threads(), torch.random.get_rng_state()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if seed is not None:
            torch.random.set_rng_state(random)


@contextmanager
def _elsewhere(trainer: Trainer, keeper: Keeper) -> Iterator[Path | None]:
    """Where processes of the trainer's own leave what they kept; None without such."""
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
    before = signal.getsignal(signal.SIGINT) if main else None
    try:
        yield
    except SystemExit as error:
        if not trainer.interrupted:
            raise
        raise KeyboardInterrupt from error
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _check_kinds(
    monitor: object, callbacks: object, out: object, seed: object, accelerator: object, more: object
) -> None:
    """Raise `ArgumentError` for an argument of `fit` of another type or range."""
    where = "fit"
    if monitor is not None:
        check_kind(where, "monitor", monitor, str)
    check_kind(where, "callbacks", callbacks, list, tuple)
    for callback in cast(Sequence[object], callbacks):
        check_kind(where, "callbacks, each,", callback, Callback)
    if out is not None:
        check_kind(where, "out", out, str, Path)
        if "\0" in str(out):
            raise ArgumentError(f"fit: out must be a path, got {show(out)}.")
    if seed is not None:
        whole = isinstance(seed, int) and not isinstance(seed, bool)
        if not whole or not 0 <= cast(int, seed) < 1 << 63:
            raise ArgumentError(f"fit: seed must be an integer in 0..2**63-1, got {show(seed)}.")
    check_kind(where, "accelerator", accelerator, str)
    if more is not None:
        check_kind(where, "trainer", more, Mapping)
        for name in cast(Mapping[object, object], more):
            check_kind(where, "trainer, each name,", name, str)


def _trainer(**given: Any) -> Trainer:
    """Lightning's.

    Raises:
        ArgumentError: it takes no such argument.
    """
    try:
        return Trainer(**given)
    except (ValueError, TypeError, MisconfigurationException) as error:
        reason = " ".join(str(error).split())
        raise ArgumentError(
            f"fit: what goes to lightning.Trainer must suit it, got: {reason:.300}"
        ) from error
