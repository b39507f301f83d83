"""The runs that a service answers with: one, or all of a folder."""

from pathlib import Path

from linrnn._files.door import no_folder
from linrnn.errors import ArgumentError, RunFolderError
from linrnn.mixers import bounding_option
from linrnn.train.context import Trained, open_run
from linrnn.train.folder import RunFolder


def open_runs(path: Path) -> dict[str, Trained]:
    """Trained runs by the names of their folders.

    Args:
        path: a run folder, or a folder with run folders in it.

    Raises:
        RunFolderError: there is none, or one is damaged.
        ArgumentError: a model whose state grows with what was read.
    """
    if not path.is_dir():
        raise RunFolderError(f"serve: {path} must be a run folder, got {no_folder(path)}.")
    if (path / "panel.json").is_file():
        RunFolder(path).load_config()  # which says what it holds
    folders = [path]
    if not RunFolder(path).config.is_file():
        folders = sorted(one for one in path.iterdir() if RunFolder(one).config.is_file())
    if not folders:
        raise RunFolderError(
            f"serve: {path} must be a run folder, or hold some, got a folder without. Train a run "
            "with: linrnn train digits"
        )
    runs = {folder.resolve().name: open_run(folder) for folder in folders}
    for name, run in runs.items():
        growing = [mixer for mixer in run.model.mixers if "constant_memory" in mixer.declared]
        if growing:
            option = bounding_option(growing[0])
            fix = "Train another mixer" if option is None else f"Train it with a {option}"
            raise ArgumentError(
                f"serve: the model of {name} must have a state of fixed size, got one that grows: "
                f"{growing[0].declared['constant_memory']}. {fix}, or distil long filters with: "
                "linrnn distill"
            )
    return runs
