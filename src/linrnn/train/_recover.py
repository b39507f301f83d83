"""Where a run goes on: at its newest checkpoint, or at an earlier one if that is damaged."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from linrnn._files.storage import link, rename
from linrnn.errors import RunFolderError
from linrnn.train._report import Reporter
from linrnn.train._restored import progress
from linrnn.train.checkpoint import load_tensors, save_tensors
from linrnn.train.folder import RunFolder

_MODEL = "model."
"""Begins the name of each weight in a checkpoint, where the model is a part of a module."""


class Restart(NamedTuple):
    """Where a run goes on."""

    step: int
    """Optimiser steps that are done."""
    best: int | None
    """The one with the best weights; None before the first validation."""
    metrics: str | None
    """Text of ``metrics.csv`` at the checkpoint; None in checkpoints of early versions."""
    weights: Mapping[str, Tensor]
    """Weights of the model, without their content."""


BEGINNING = Restart(0, None, None, {})


def usable_checkpoint(folder: RunFolder, reporter: Reporter, *, fallback: bool) -> Restart:
    """Find where ``folder.last`` goes on, whole and with the weights that belong to it.

    A run that was killed before its first checkpoint begins again: nothing is lost by that.

    Args:
        folder: of the run, locked.
        reporter: told where it goes on if that is not the newest checkpoint.
        fallback: put a damaged file aside and take what an earlier one holds.

    Raises:
        RunFolderError: the newest checkpoint, or the best weights so far, cannot be used, and
            ``fallback`` is False or nothing else can be.
    """
    checkpoints = (folder.last, folder.previous, folder.epoch, folder.best)
    if not any(map(os.path.lexists, (*checkpoints, folder.model))):
        return BEGINNING
    try:
        restart = _restart_of(folder, folder.last)
    except RunFolderError as error:
        restart = _earlier(folder, error, reporter, fallback)
    if restart.best is not None:
        _complete_best(folder, restart)
        _check_best(folder, restart.best, reporter, fallback)
    return restart


def _earlier(
    folder: RunFolder, error: RunFolderError, reporter: Reporter, fallback: bool
) -> Restart:
    """Replace a checkpoint that cannot be read by the newest one that can."""
    readable = _readable(folder, [folder.previous, folder.epoch, folder.best])
    if readable is None:
        raise error
    path, restart = readable
    if not fallback:
        raise RunFolderError(f"{error} {_offer(folder, path, restart)}") from error
    _put_aside(folder, folder.last)
    link(path, folder.last, inside=folder.path)
    reporter.noticed(
        f"{folder.last} cannot be used; the run continues after step {restart.step}, "
        f"from {path.name}"
    )
    return restart


def _readable(folder: RunFolder, paths: list[Path]) -> tuple[Path, Restart] | None:
    """The checkpoint of the latest step, of those that can be read."""
    latest: tuple[Path, Restart] | None = None
    for path in paths:
        try:
            restart = _restart_of(folder, path)
        except RunFolderError:
            continue
        if latest is None or restart.step > latest[1].step:
            latest = path, restart
    return latest


def _restart_of(folder: RunFolder, path: Path) -> Restart:
    """The counters of a checkpoint."""
    run, metrics, weights = progress(path, inside=folder.path)
    shapes = {name.removeprefix(_MODEL): x.to("meta") for name, x in weights.items()}
    return Restart(run.step, run.best.get("step"), metrics, shapes)


def _offer(folder: RunFolder, path: Path, restart: Restart) -> str:
    return (
        f"An earlier checkpoint, {path.name} of step {restart.step}, is intact. To use it: "
        f"linrnn train --resume {folder.path} --fallback"
    )


def _complete_best(folder: RunFolder, restart: Restart) -> None:
    """Write the best weights if a killed run had still to do that after the newest checkpoint.

    Their own checkpoint comes last, so where that is of the right step nothing is left to do.
    """
    if restart.best != restart.step:
        return
    best = _readable(folder, [folder.best])
    if best is None or best[1].step != restart.step:
        _write_weights(folder, folder.last)
        link(folder.last, folder.best, inside=folder.path)


def _check_best(folder: RunFolder, step: int, reporter: Reporter, fallback: bool) -> None:
    """The weights that will be tested, made again from the checkpoint they were written with."""
    try:
        load_tensors(folder.model, inside=folder.path)
        return
    except RunFolderError as error:
        readable = _readable(folder, [folder.best])
        if readable is None or readable[1].step != step:
            raise
        if not fallback:
            raise RunFolderError(f"{error} {_offer(folder, *readable)}") from error
    _put_aside(folder, folder.model)
    _write_weights(folder, folder.best)
    reporter.noticed(f"{folder.model} could not be used; it was made again from {folder.best.name}")


def _write_weights(folder: RunFolder, checkpoint: Path) -> None:
    """The model's file anew, from a checkpoint."""
    _, _, weights = progress(checkpoint, inside=folder.path)
    named = {name.removeprefix(_MODEL): value for name, value in weights.items()}
    save_tensors(named, folder.model, inside=folder.path)


def _put_aside(folder: RunFolder, path: Path) -> None:
    """Give what cannot be used another name, if it is there at all."""
    if os.path.lexists(path):
        rename(path, path.with_name(f"{path.name}.damaged"), inside=folder.path)
