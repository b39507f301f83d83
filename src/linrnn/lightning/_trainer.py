"""The trainer of Lightning that `fit` runs, and what must be so of what goes to it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy

from linrnn.errors import ArgumentError, ArgumentTypeError, check_at_most, check_kind, show
from linrnn.lightning._io import FolderIO

_RENAMED = {"max_epochs": "epochs"}
_OURS = {"max_epochs", "accelerator", "devices", "strategy", "precision", "callbacks", "logger"}
_MAX_DEVICES = 1024  # devices: more than any machine has


def check_kinds(
    *,
    monitor: object,
    callbacks: object,
    logger: object,
    out: object,
    seed: object,
    accelerator: object,
    devices: object,
    strategy: object,
    trainer: object,
) -> None:
    """Raise `ArgumentError` for an argument of `fit` of another type or range."""
    where = "fit"
    if monitor is not None:
        check_kind(where, "monitor", monitor, str)
    check_kind(where, "callbacks", callbacks, list, tuple)
    for callback in cast(Sequence[object], callbacks):
        check_kind(where, "callbacks, each,", callback, Callback)
    check_kind(where, "logger", logger, bool, Logger, list, tuple)
    for one in logger if isinstance(logger, (list, tuple)) else ():
        check_kind(where, "logger, each,", one, Logger)
    if out is not None:
        check_kind(where, "out", out, str, Path)
        if "\0" in str(out):
            raise ArgumentError(f"fit: out must be a path, got {show(out)}.")
    if seed is not None:
        is_integer = isinstance(seed, int) and not isinstance(seed, bool)
        if not is_integer or not 0 <= cast(int, seed) < 1 << 63:
            raise ArgumentError(f"fit: seed must be an integer in 0..2**63-1, got {show(seed)}.")
    check_kind(where, "accelerator", accelerator, str)
    _check_devices(devices)
    check_kind(where, "strategy", strategy, str, Strategy)
    if trainer is not None:
        _check_more(trainer)


def _check_devices(devices: object) -> None:
    if isinstance(devices, str):  # which of them there are is Lightning's to say
        return
    several = list(devices) if isinstance(devices, (list, tuple)) else [devices]
    if not several or not all(type(one) is int for one in several):
        raise ArgumentTypeError(
            "fit: devices must be an integer, a list of at least one, or a text such as 'auto', "
            f"got {show(devices)}."
        )
    lowest = 0 if isinstance(devices, (list, tuple)) else 1
    for one in cast(list[int], several):
        if one < lowest and devices != -1:
            raise ArgumentError(
                "fit: devices must be at least 1, -1 for all, or a list of their numbers, from 0, "
                f"got {show(devices)}."
            )
        check_at_most("fit", _MAX_DEVICES, devices=one)


def _check_more(trainer: object) -> None:
    check_kind("fit", "trainer", trainer, Mapping)
    for name in cast(Mapping[object, object], trainer):
        check_kind("fit", "trainer, each name,", name, str)
    if twice := sorted(set(cast(Mapping[str, object], trainer)) & _OURS):
        raise ArgumentError(
            f"fit: trainer must not contain arguments of fit, got {twice[0]!r}. Write "
            f"fit(..., {_RENAMED.get(twice[0], twice[0])}=...)."
        )


def trainer_of(more: Mapping[str, Any], out: Path | None, **arguments: Any) -> Trainer:
    """Lightning's trainer, made before a folder is touched.

    Args:
        more: further arguments, which win.
        out: the folder of `fit`.
        **arguments: of ``lightning.Trainer``.

    Raises:
        ArgumentError: it takes no such argument, or ``out`` does not go with the strategy.
    """
    named = {"enable_model_summary": False, "default_root_dir": out} | dict(more)
    plugins = named.pop("plugins", None)
    plugins = list(plugins) if isinstance(plugins, (list, tuple)) else [plugins]
    plugins = [FolderIO(), *(one for one in plugins if one is not None)]
    try:
        trainer = Trainer(**arguments, plugins=plugins, **named)
    except Exception as error:  # whatever is wrong is in what was given to it
        reason = " ".join(str(error).split())
        raise ArgumentError(
            f"fit: what goes to lightning.Trainer must suit it, got: {reason:.300}"
        ) from error
    if out is not None and isinstance(trainer.strategy, ModelParallelStrategy):
        raise ArgumentError(
            "fit: out must be None where the strategy is ModelParallelStrategy, whose checkpoints "
            "Lightning writes in another format, got a folder. Give "
            "callbacks=[ModelCheckpoint(...)]."
        )
    return trainer
