"""The folder of `fit`: claimed by one training at a time, and by the settings it was begun with."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from linrnn._files.door import folder_at
from linrnn._files.reading import reading
from linrnn._files.storage import (
    cannot_write,
    read_json,
    remove,
    remove_leftovers,
    write_atomically,
)
from linrnn.errors import RunFolderError, show
from linrnn.lightning._keeper import FILES
from linrnn.train.folder import locked_folder

DONE = "complete"
SETTINGS = "fit.json"


@contextmanager
def claimed(path: Path, settings: Mapping[str, Any]) -> Iterator[Path]:
    """A folder for `fit`, new or one that it has begun with the same settings, locked.

    What a killed process left half-written is removed. With several processes the first one locks.
    Where nothing has been learned in the end, no settings stay: another call may have others.

    Raises:
        RunFolderError: it is something else.
        InUseError: another training has it.
    """
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path}: out must be a folder, got a file. Choose another.")
    entries = [p.name for p in path.iterdir()] if path.is_dir() else []
    if SETTINGS not in entries and not all(name.startswith(".") for name in entries):
        raise RunFolderError(
            f"{path}: out must be new, empty, or a folder of fit, got one with {min(entries)} "
            f"and without {SETTINGS}. Choose another."
        )
    if getattr(rank_zero_only, "rank", 0) != 0:
        if _learned(path):
            _check_settings(path, settings)
        yield path
        return
    try:
        with folder_at(path, make=True):
            pass
    except OSError as error:
        raise cannot_write(path, error) from error
    with locked_folder(path):
        for name in (SETTINGS, DONE, *FILES):
            remove_leftovers(path / name)
        if _learned(path):
            _check_settings(path, settings)
        else:  # nothing is lost with the settings of a call that came to nothing
            write_atomically(path / SETTINGS, json.dumps(settings, indent=1).encode())
        try:
            yield path
        except BaseException:
            _give_up(path)
            raise


def _learned(path: Path) -> bool:
    """Whether there is something that other settings would spoil."""
    return any(os.path.lexists(path / name) for name in (DONE, *FILES))


def _give_up(path: Path) -> None:
    """Remove the settings from a folder that holds nothing else.

    Beside logs they stay, as the mark of a folder of `fit`. So does the lock: another process may
    hold it open already, and a new file of that name would be another lock.
    """
    if all(name.startswith(".") or name == SETTINGS for name in os.listdir(path)):
        remove(path / SETTINGS)


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise `RunFolderError` where a training was begun with other settings."""
    written = path / SETTINGS
    with reading(written, RunFolderError, "be complete JSON", "Choose another folder."):
        recorded = read_json(written, inside=path)
    if not isinstance(recorded, dict):
        raise RunFolderError(
            f"{written}: the file must hold a JSON table, got {show(recorded, 40)}. Choose another "
            "folder."
        )
    for name, value in settings.items():
        if recorded.get(name) != value:
            raise RunFolderError(
                f"{path}: {name} must be as when the folder was begun, "
                f"{show(recorded.get(name))}, got {show(value)}. Call fit as before to go on, or "
                "with another folder."
            )
