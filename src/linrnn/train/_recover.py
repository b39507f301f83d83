"""Where a run goes on: at its newest checkpoint, or at an earlier one if that is damaged."""

import os
from pathlib import Path
from typing import Any

from linrnn._storage import link
from linrnn.errors import RunFolderError
from linrnn.train._checkpoint import load_tensors, load_tree, save_tensors
from linrnn.train._config import Config
from linrnn.train._folder import RunFolder
from linrnn.train._report import Reporter

_MODEL = "model."
"""Begins the name of each weight in a checkpoint, where the model is a part of a module."""


def usable_checkpoint(
    folder: RunFolder, config: Config, reporter: Reporter, *, fallback: bool
) -> int:
    """The step that ``folder.last`` is of, whole and with the weights that belong to it.

    Args:
        folder: of the run.
        config: of the run.
        reporter: told where it goes on if that is not the newest checkpoint.
        fallback: put a damaged file aside and take what an earlier one holds.

    Raises:
        RunFolderError: the newest checkpoint, or the best weights so far, cannot be used, and
            ``fallback`` is False or nothing else can be.
    """
    try:
        folder.require(folder.last, config)
        run = _run_of(folder.last)
    except RunFolderError as error:
        run = _earlier(folder, error, reporter, fallback)
    if run["best"]:
        _check_best(folder, reporter, fallback)
    return int(run["step"])


def _earlier(
    folder: RunFolder, error: RunFolderError, reporter: Reporter, fallback: bool
) -> dict[str, Any]:
    """Put the newest checkpoint that can be read in the place of one that cannot."""
    found = _readable([folder.previous, folder.epoch, folder.best])
    if found is None:
        raise error
    path, run = found
    if not fallback:
        raise RunFolderError(f"{error} {_offer(folder, path, run)}") from error
    if folder.last.exists():
        _put_aside(folder.last)
    link(path, folder.last)
    reporter.noticed(
        f"{folder.last} cannot be used; the run goes on after step {run['step']}, from {path.name}"
    )
    return run


def _readable(paths: list[Path]) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint of the latest step, of those that can be read."""
    found: tuple[Path, dict[str, Any]] | None = None
    for path in paths:
        try:
            run = _run_of(path)
        except RunFolderError:
            continue
        if found is None or run["step"] > found[1]["step"]:
            found = path, run
    return found


def _run_of(path: Path) -> dict[str, Any]:
    """The counters of a checkpoint."""
    tree = load_tree(path)
    try:
        run: dict[str, Any] = tree["run"]
        int(run["step"]), dict(run["best"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path}: a checkpoint must hold step and best of a run, got something else."
        ) from error
    return run


def _offer(folder: RunFolder, path: Path, run: dict[str, Any]) -> str:
    return (
        f"An earlier checkpoint, {path.name} of step {run['step']}, is whole; to go on from it: "
        f"linrnn train --resume {folder.path} --fallback"
    )


def _check_best(folder: RunFolder, reporter: Reporter, fallback: bool) -> None:
    """The weights that will be tested, made again from the checkpoint they were written with."""
    try:
        load_tensors(folder.model)
        return
    except RunFolderError as error:
        found = _readable([folder.best])
        if found is None:
            raise
        if not fallback:
            raise RunFolderError(f"{error} {_offer(folder, *found)}") from error
    if folder.model.exists():
        _put_aside(folder.model)
    weights = load_tree(folder.best)["state_dict"]
    save_tensors({k.removeprefix(_MODEL): v for k, v in weights.items()}, folder.model)
    reporter.noticed(f"{folder.model} could not be used; it was made again from {folder.best.name}")


def _put_aside(path: Path) -> None:
    os.replace(path, path.with_name(f"{path.name}.damaged"))
