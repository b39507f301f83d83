"""The runs that a service answers with: one, or all of a folder."""

from pathlib import Path

from linrnn._files.door import no_folder
from linrnn.errors import ArgumentError, RunFolderError
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
        declared = [mixer.declared for mixer in run.model.mixers]
        growing = [laws["constant_memory"] for laws in declared if "constant_memory" in laws]
        if growing:
            raise ArgumentError(
                f"serve: the model of {name} must have a state of fixed size, got one that grows: "
                f"{growing[0]}. Train it with a window, or distil it with: linrnn distill"
            )
    return runs
